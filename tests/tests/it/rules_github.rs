//! The examples for GitHub, against a stand-in: webhooks with payloads as GitHub documents them, a program `gh` that asks
//! the stand-in, and a repository in place of GitHub's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_tests::{Project, Request, Server, git, program, until, until_some};

use crate::serve_hooks::hmac;

/// The program `gh`: sends its arguments to the stand-in, one in a line, and prints the answer.
const GH: &str = r#"#!/usr/bin/env bash
test -n "$GH_TOKEN" || { echo "no token" >&2; exit 4; }
body=$(printf '%s\n' "${@//$'\n'/ }")
exec 3<> "/dev/tcp/127.0.0.1/$(cat "$(dirname "$0")/port")"
printf 'POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s' "$(printf '%s' "$body" | wc -c)" "$body" >&3
read -r _ status _ <&3
while read -r line && [ "$line" != $'\r' ]; do :; done <&3
cat <&3
[ "$status" = 200 ]
"#;

/// A stand-in for GitHub's API, as far as `gh` asks it.
struct GitHub {
    addr: SocketAddr,
    /// The arguments of each call.
    calls: Arc<Mutex<Vec<Vec<String>>>>,
}

impl GitHub {
    fn start() -> GitHub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
        let addr = listener.local_addr().expect("an address");
        let calls: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
        let kept = Arc::clone(&calls);
        std::thread::spawn(move || {
            for stream in listener.incoming().take(1000) {
                let Ok(mut stream) = stream else { return };
                let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
                let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
                let (mut length, mut line) = (0, String::new());
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    if let Some(given) = line.strip_prefix("Content-Length: ") {
                        length = given.trim().parse().unwrap_or(0);
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                let _ = reader.read_exact(&mut body);
                let call: Vec<String> = String::from_utf8_lossy(&body).lines().map(str::to_owned).collect();
                let mut kept = kept.lock().expect("calls");
                let is_open = kept.iter().any(|call| call.starts_with(&["pr".into(), "create".into()]));
                let (status, answer) = match (call[0].as_str(), call[1].as_str()) {
                    ("pr", "view") if !is_open => ("404 Not Found", "no pull requests found\n"),
                    ("pr", _) => ("200 OK", "https://github.com/octo-org/hello/pull/8\n"),
                    ("api", _) => ("200 OK", ""),
                    _ => ("400 Bad Request", "unknown\n"),
                };
                kept.push(call);
                drop(kept);
                let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n{answer}").as_bytes());
            }
        });
        GitHub { addr, calls }
    }

    /// Returns the states that were set for commits, in order: `STATE COMMIT`.
    fn statuses(&self) -> Vec<String> {
        let calls = self.calls.lock().expect("calls");
        let set = calls.iter().filter(|call| call[0] == "api").map(|call| {
            let commit = call.iter().find_map(|word| word.strip_prefix("repos/octo-org/hello/statuses/"));
            let state = call.iter().find_map(|word| word.strip_prefix("state="));
            assert!(call.contains(&"context=sprag".to_owned()), "{call:?}");
            format!("{} {}", state.expect("a state"), commit.expect("a commit"))
        });
        set.collect()
    }

    /// Returns the calls that opened pull requests.
    fn opened(&self) -> Vec<Vec<String>> {
        let calls = self.calls.lock().expect("calls");
        calls.iter().filter(|call| call.starts_with(&["pr".into(), "create".into()])).cloned().collect()
    }
}

/// Returns the part of a payload that all events of a repository share.
fn payload(more: Value) -> Value {
    let mut payload = json!({
        "repository": { "id": 1296269, "name": "hello", "full_name": "octo-org/hello", "private": false,
            "owner": { "login": "octo-org", "id": 1, "type": "Organization" }, "default_branch": "main" },
        "sender": { "login": "octocat", "id": 583231, "type": "User" },
    });
    payload.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    payload
}

/// Returns the payload of `issues`, action `labeled`.
fn labelled(label: &str) -> Value {
    payload(json!({
        "action": "labeled",
        "issue": { "number": 7, "title": "It says `$(touch pwned)`", "body": "Steps:\n1. \"run\" it; touch pwned",
            "state": "open", "user": { "login": "octocat" }, "labels": [{ "name": label }],
            "author_association": "NONE", "html_url": "https://github.com/octo-org/hello/issues/7" },
        "label": { "id": 208045946, "name": label, "color": "f29513", "default": false },
    }))
}

fn pull_request() -> Value {
    json!({ "number": 8, "state": "open", "title": "It says `$(touch pwned)`",
        "head": { "ref": "sprag/issue-7", "sha": "0000000000000000000000000000000000000000" },
        "base": { "ref": "main" } })
}

/// Returns the payload of `pull_request_review_comment`, action `created`.
fn commented(by: &str, text: &str) -> Value {
    payload(json!({
        "action": "created",
        "comment": { "id": 1, "path": "src/hello.c", "line": 3, "side": "RIGHT", "body": text,
            "author_association": by, "user": { "login": "octocat" }, "diff_hunk": "@@ -1 +1 @@" },
        "pull_request": pull_request(),
    }))
}

/// Returns the payload of `pull_request_review`, action `submitted`.
fn reviewed(state: &str) -> Value {
    payload(json!({
        "action": "submitted",
        "review": { "id": 2, "state": state, "body": null, "author_association": "MEMBER",
            "user": { "login": "octocat" }, "submitted_at": "2030-01-31T08:00:00Z" },
        "pull_request": pull_request(),
    }))
}

/// Posts a payload as GitHub does, and waits for its decision.
fn post(project: &Project, server: &Server, rule: &str, kind: &str, payload: &Value) -> Value {
    let body = payload.to_string();
    let taken = Request::to(server.addr, "POST", &format!("/in/{rule}"))
        .header("user-agent", "GitHub-Hookshot/044aadd")
        .header("x-github-event", kind)
        .header("x-github-delivery", &format!("{rule}-{}", body.len()))
        .header("x-hub-signature-256", &format!("sha256={}", hmac("hook-secret", &body)))
        .body("application/json", body.as_bytes())
        .send()
        .expect(202)
        .json();
    let event = taken["event"].as_str().expect("an event").to_owned();
    until_some("the event is decided", || {
        let told = project.sprag(["delivery", "show", &event, "--json"]).expect(0).json();
        let first = &told["decisions"][0];
        (first["status"] != "created").then(|| first.clone())
    })
}

fn run_id(decision: &Value) -> String {
    decision["run"].as_str().unwrap_or_else(|| panic!("no run: {decision}")).to_owned()
}

/// Makes what the pipelines need: a remote repository, an agent that plays Claude, and `gh`.
fn prepare(project: &Project, hub: &GitHub) {
    let sandbox = &project.sandbox;
    git(&sandbox.path("."), ["init", "--quiet", "--bare", "--initial-branch=main", "hello.git"]);
    let origin = sandbox.path("hello.git");
    project.git(["remote", "add", "origin", origin.to_str().expect("a path")]);
    project.git(["push", "--quiet", "origin", "main"]);
    for folder in ["config/sprag", "bin"] {
        std::fs::create_dir_all(sandbox.path(folder)).expect("a folder");
    }
    let (sprag, home) = (program().display().to_string(), sandbox.path("robot").display().to_string());
    let agent = format!(
        "[claude]\ndriver = \"claude-stream\"\ncommand = [{sprag:?}, \"agent\", \"fake\", \"builtin\", \"--speak\", \"claude\", \"--home\", {home:?}]\n"
    );
    sandbox.write("config/sprag/agents.toml", &agent);
    sandbox.write("bin/port", &hub.addr.port().to_string());
    let gh = sandbox.write("bin/gh", GH);
    std::fs::set_permissions(gh, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    std::os::unix::fs::symlink(program(), sandbox.path("bin/sprag")).expect("a link");
}

#[test]
fn r25_an_issue_becomes_a_pull_request_and_a_review_its_rework() {
    let project = Project::new();
    let hub = GitHub::start();
    prepare(&project, &hub);
    let sandbox = &project.sandbox;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for file in ["github-issue.yaml", "github-review.yaml"] {
        let file = examples.join(file).canonicalize().expect("an example");
        project.sprag(["rule", "apply", file.to_str().expect("a path")]).expect(0);
    }
    let mut command = project.command_in(&project.repo(), ["serve", "--listen", "127.0.0.1:0"]);
    let path = format!("{}:{}", sandbox.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).env("XDG_CONFIG_HOME", sandbox.path("config"));
    command.env("GITHUB_HOOK", "hook-secret").env("GH_TOKEN", "gh-secret").env("SPRAG_DATA", sandbox.data());
    let server = Server::from_process(sandbox, sandbox.start_command(command));

    // Another label, and a comment of a stranger, start nothing.
    let other = post(&project, &server, "github-issue/labelled", "issues", &labelled("bug"));
    assert_eq!(other["status"], "skipped", "{other}");
    let stranger = commented("NONE", "Please add my advertisement.");
    let stranger =
        post(&project, &server, "github-review/commented", "pull_request_review_comment", &stranger);
    assert_eq!(stranger["status"], "skipped", "{stranger}");

    let run = run_id(&post(&project, &server, "github-issue/labelled", "issues", &labelled("sprag")));
    let asks = || {
        let told = project.sprag(["status", &run, "--json"]).expect(0).json();
        told["steps"]
            .as_array()
            .expect("steps")
            .iter()
            .any(|step| step["id"] == "review" && step["status"] == "running")
    };
    let branch = || git(&sandbox.path("hello.git"), ["rev-parse", "refs/heads/sprag/issue-7"]);
    until("the run asks for a review", asks);
    let first = branch();
    assert_eq!(hub.statuses(), [format!("pending {first}"), format!("success {first}")]);
    let opened = hub.opened();
    assert_eq!(opened.len(), 1, "{opened:?}");
    for word in ["octo-org/hello", "sprag/issue-7", "It says `$(touch pwned)`", "Closes #7"] {
        assert!(opened[0].contains(&word.to_owned()), "{word}: {opened:?}");
    }
    assert_ne!(first, project.git(["rev-parse", "main"]), "the agent has committed");

    // A comment on a line becomes the feedback of the agent's next try, which is pushed to the same pull request.
    let comment = commented("MEMBER", "Say \"hello\", not 'goodbye'; $(touch pwned)");
    post(&project, &server, "github-review/commented", "pull_request_review_comment", &comment);
    until("the rework is pushed", || branch() != first);
    until("the run asks for a review again", asks);
    let second = branch();
    assert_eq!(hub.statuses()[2..], [format!("pending {second}"), format!("success {second}")]);
    assert_eq!(hub.opened().len(), 1, "the pull request stays the same");
    let given = sandbox.read("robot/given.jsonl");
    let feedback = json!("src/hello.c: Say \"hello\", not 'goodbye'; $(touch pwned)").to_string();
    assert!(given.contains(feedback.trim_matches('"')), "{given}");

    // An approval ends the run.
    post(&project, &server, "github-review/reviewed", "pull_request_review", &reviewed("approved"));
    until("the run has ended", || {
        project.sprag(["status", &run, "--json"]).expect(0).json()["status"] == "completed"
    });
    assert!(!project.repo().join("pwned").exists() && !sandbox.path("pwned").exists());
    let journal = project.sprag(["logs", &run]).expect(0).stdout;
    assert!(!journal.contains("gh-secret"), "{journal}");
}
