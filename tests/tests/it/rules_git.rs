//! Rules about git refs, with real repositories and processes: each move that a look finds starts one run.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use sprag_testkit::Postgres;
use sprag_tests::{Request, Sandbox, Server, git, nightly, until};

use crate::serve_hooks::hmac;

/// Returns what a command tells with `--json`.
fn ask(sandbox: &Sandbox, args: &[&str]) -> Value {
    sandbox.sprag(args.iter().copied().chain(["--json"])).expect(0).json()
}

/// Returns the decisions about a rule's events, oldest first.
fn decisions(sandbox: &Sandbox, rule: &str) -> Vec<Value> {
    let mut all =
        ask(sandbox, &["delivery", "ls", rule, "--limit", "1000"]).as_array().expect("a list").clone();
    all.reverse();
    all
}

/// Makes a bare repository with a checkout that pushes to it. Both are folders of the sandbox.
fn repository(sandbox: &Sandbox) {
    git(&sandbox.path("."), ["init", "--quiet", "--bare", "--initial-branch=main", "origin.git"]);
    git(&sandbox.path("."), ["init", "--quiet", "--initial-branch=main", "work"]);
    let work = sandbox.path("work");
    git(&work, ["remote", "add", "origin", sandbox.path("origin.git").to_str().expect("a path")]);
    push(&work, "start", "README.md", "main");
}

/// Commits a file with this text and pushes it to a branch. Returns the commit.
fn push(work: &Path, text: &str, file: &str, branch: &str) -> String {
    let path = work.join(file);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(&path, text).expect("a file");
    git(work, ["add", "-A"]);
    git(work, ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", text]);
    put(work, "HEAD", branch);
    git(work, ["rev-parse", "HEAD"]).trim().to_owned()
}

/// Sets a branch of the repository to a commit, whatever it was.
fn put(work: &Path, commit: &str, branch: &str) {
    git(work, ["push", "--quiet", "--force", "origin", &format!("{commit}:refs/heads/{branch}")]);
}

/// Returns the commit that a rule has seen of a branch.
fn seen(sandbox: &Sandbox, rule: &str, branch: &str) -> Option<String> {
    let name = format!("refs/heads/{branch}");
    ask(sandbox, &["rule", "show", rule])["refs"][name].as_str().map(str::to_owned)
}

fn rule(id: &str, source: &str, rest: &str) -> String {
    format!(
        "name: {id}\ninputs: {{ ref: string, old: string, new: string, paths: {{ default: '' }} }}\non:\n  - id: push\n    \
         git: {{ {source}, every: 1s }}\n    overlap: allow\n    inputs:\n      ref: '{{{{ event.ref }}}}'\n      \
         old: '{{{{ event.old }}}}'\n      new: '{{{{ event.new }}}}'\n{rest}steps:\n  - id: note\n    \
         run: echo {{{{ inputs.ref }}}} {{{{ inputs.old }}}}-{{{{ inputs.new }}}} {{{{ inputs.paths }}}} >> {id}.moves\n"
    )
}

fn each_move_starts_one_run(sandbox: &Sandbox) {
    repository(sandbox);
    let work = sandbox.path("work");
    sandbox.yaml("ci", &rule("ci", "refs: [refs/heads/main], repository: origin.git", ""));
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    let mut servers = vec![Server::start(sandbox, &[]), Server::start(sandbox, &[])];
    let first = git(&work, ["rev-parse", "HEAD"]).trim().to_owned();
    until("the first look", || seen(sandbox, "ci/push", "main").as_deref() == Some(&first));
    let second = push(&work, "second", "README.md", "main");
    // A → B → A → B: each move that was seen counts once, although the commits are the same.
    let mut expected = Vec::new();
    let mut at = first.clone();
    for round in 0..nightly(4, 12) {
        let to = if round % 2 == 0 { &second } else { &first };
        put(&work, to, "main");
        if round == 1 {
            // Both servers die in the middle of a look or beside it; others continue.
            servers.drain(..).for_each(|server| server.into_process().kill());
            servers = vec![Server::start(sandbox, &[]), Server::start(sandbox, &[])];
        }
        until("the move is seen", || seen(sandbox, "ci/push", "main").as_deref() == Some(to));
        expected.push(format!("refs/heads/main {at}-{to}"));
        at.clone_from(to);
    }
    let decided = decisions(sandbox, "ci/push");
    assert_eq!(decided.len(), expected.len(), "{decided:?}");
    assert!(decided.iter().all(|one| one["status"] == "requested" && one["kind"] == "move"), "{decided:?}");
    until("the runs have ended", || {
        let runs = ask(sandbox, &["ls", "--limit", "1000"]);
        runs.as_array().expect("runs").iter().all(|run| run["status"] == "completed")
    });
    let all = ask(sandbox, &["ls", "--limit", "1000"]);
    assert_eq!(all.as_array().expect("runs").len(), expected.len(), "a run without a move");
    // A step of a killed server may run twice.
    let noted: std::collections::BTreeSet<String> =
        sandbox.lines("ci.moves").iter().map(|line| line.trim().to_owned()).collect();
    assert_eq!(noted, expected.into_iter().collect());
}

#[test]
fn r19_each_move_of_a_ref_starts_one_run_whatever_servers_die() {
    each_move_starts_one_run(&Sandbox::new());
}

#[test]
fn r19_each_move_of_a_ref_starts_one_run_on_postgres() {
    let database = Postgres::shared().database();
    each_move_starts_one_run(&Sandbox::on(&database.url));
}

fn a_request_is_a_hint(sandbox: &Sandbox) {
    repository(sandbox);
    let work = sandbox.path("work");
    let source = "refs: refs/heads/main, repository: origin.git, told_by: github, secrets: [HOOK]";
    sandbox.yaml("ci", &rule("ci", source, "").replace("every: 1s", "every: 1h"));
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    assert_eq!(ask(sandbox, &["rule", "show", "ci/push"])["url"], "/in/ci/push");
    let mut command = sandbox.command(["serve", "--listen", "127.0.0.1:0"]);
    command.env("HOOK", "secret");
    let server = Server::from_process(sandbox, sandbox.start_command(command));
    let first = git(&work, ["rev-parse", "HEAD"]);
    until("the first look", || seen(sandbox, "ci/push", "main").as_ref() == Some(&first));
    let moved = push(&work, "moved", "a", "main");
    let tell = |secret: &str| {
        let body = r#"{"ref":"refs/heads/main"}"#;
        Request::to(server.addr, "POST", "/in/ci/push")
            .header("x-github-event", "push")
            .header("x-hub-signature-256", &format!("sha256={}", hmac(secret, body)))
            .body("application/json", body.as_bytes())
            .send()
    };
    tell("wrong").expect(401);
    assert_eq!(seen(sandbox, "ci/push", "main"), Some(first), "the next look is in an hour");
    // The request is a hint. However often it comes, the ref has moved once.
    for _ in 0..5 {
        tell("secret").expect(202);
    }
    until("the move is seen", || seen(sandbox, "ci/push", "main").as_ref() == Some(&moved));
    // A look claims the next one for in an hour; a further request and its look move that on.
    let looks = || ask(sandbox, &["rule", "show", "ci/push"])["looks_ms"].as_i64();
    let before = looks();
    tell("secret").expect(202);
    until("a further look", || looks() > before);
    let decided = decisions(sandbox, "ci/push");
    assert_eq!(decided.len(), 1, "{decided:?}");
    assert_eq!(decided[0]["status"], "requested", "{decided:?}");
}

#[test]
fn r19_a_signed_request_makes_the_next_look_due() {
    a_request_is_a_hint(&Sandbox::new());
}

#[test]
fn r19_a_signed_request_makes_the_next_look_due_on_postgres() {
    let database = Postgres::shared().database();
    a_request_is_a_hint(&Sandbox::on(&database.url));
}

/// Moves a ref while two servers look every second, and tells both of them of each move at the same time.
fn told_and_seen_at_once(sandbox: &Sandbox) {
    repository(sandbox);
    let work = sandbox.path("work");
    let source = "refs: refs/heads/main, repository: origin.git, told_by: github, secrets: [HOOK]";
    sandbox.yaml("ci", &rule("ci", source, ""));
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    let start = || {
        let mut command = sandbox.command(["serve", "--listen", "127.0.0.1:0", "--no-worker"]);
        command.env("HOOK", "secret");
        Server::from_process(sandbox, sandbox.start_command(command))
    };
    let servers = [start(), start()];
    let first = git(&work, ["rev-parse", "HEAD"]).trim().to_owned();
    until("the first look", || seen(sandbox, "ci/push", "main").as_deref() == Some(&first));
    let moves = nightly(4, 20);
    for nth in 0..moves {
        let to = push(&work, &format!("commit {nth}"), "a", "main");
        std::thread::scope(|scope| {
            for server in &servers {
                scope.spawn(move || {
                    let body = format!("{{\"nth\":{nth}}}");
                    let request = Request::to(server.addr, "POST", "/in/ci/push")
                        .header("x-hub-signature-256", &format!("sha256={}", hmac("secret", &body)));
                    request.body("application/json", body.as_bytes()).send().expect(202);
                });
            }
        });
        until("the move is seen", || seen(sandbox, "ci/push", "main").as_deref() == Some(&to));
    }
    // Another look after the last move finds nothing.
    let looks = || ask(sandbox, &["rule", "show", "ci/push"])["looks_ms"].as_i64();
    let before = looks();
    until("a further look", || looks() > before);
    let decided = decisions(sandbox, "ci/push");
    assert_eq!(decided.len(), moves, "{decided:?}");
    assert!(decided.iter().all(|one| one["status"] == "requested"), "{decided:?}");
    assert_eq!(ask(sandbox, &["ls", "--limit", "1000"]).as_array().expect("runs").len(), moves);
}

#[test]
fn r19_a_move_that_is_told_and_seen_at_once_starts_one_run() {
    told_and_seen_at_once(&Sandbox::new());
}

#[test]
fn r19_a_move_that_is_told_and_seen_at_once_on_postgres() {
    let database = Postgres::shared().database();
    told_and_seen_at_once(&Sandbox::on(&database.url));
}

/// Looks and runs what a look starts, until a condition holds.
fn tick_until(sandbox: &Sandbox, what: &str, holds: impl Fn() -> bool) {
    until(what, || {
        sandbox.sprag(["rule", "tick"]).expect(0);
        holds()
    });
}

#[test]
fn r19_r25_branches_and_paths_are_filtered_and_names_are_data() {
    let sandbox = Sandbox::new();
    repository(&sandbox);
    let work = sandbox.path("work");
    let origin = format!("file://{}", sandbox.path("origin.git").display());
    let paths = "      paths: '{{ event.paths }}'\n";
    // One rule compares paths of a remote repository, one sees all branches of a folder, also those that appear later.
    let source = format!("refs: refs/heads/main, repository: '{origin}', paths: ['src/**']");
    sandbox.yaml("ci", &rule("ci", &source, paths));
    sandbox.yaml("all", &rule("all", "refs: 'refs/heads/**', repository: work, created: true", ""));
    sandbox.yaml("new", &rule("new", "refs: 'refs/heads/**', repository: origin.git", ""));
    for file in ["ci.yaml", "all.yaml", "new.yaml"] {
        sandbox.sprag(["rule", "apply", file]).expect(0);
    }
    let told = sandbox.sprag(["explain", "ci/push"]).expect(0).stdout;
    assert!(told.contains("waits for a move of refs/heads/main in file://"), "{told}");
    tick_until(&sandbox, "the first looks", || {
        ["ci/push", "all/push", "new/push"].iter().all(|rule| seen(&sandbox, rule, "main").is_some())
    });
    assert!(decisions(&sandbox, "ci/push").is_empty(), "the first look starts nothing");
    let docs = push(&work, "words", "docs/a.md", "main");
    tick_until(&sandbox, "a move beside the paths", || {
        seen(&sandbox, "ci/push", "main") == Some(docs.clone())
    });
    let code = push(&work, "code", "src/deep/a.rs", "main");
    tick_until(&sandbox, "a move in the paths", || seen(&sandbox, "ci/push", "main") == Some(code.clone()));
    let decided = decisions(&sandbox, "ci/push");
    let statuses: Vec<&str> = decided.iter().filter_map(|one| one["status"].as_str()).collect();
    assert_eq!(statuses, ["skipped", "requested"], "{decided:?}");
    assert_eq!(decided[0]["reason"], "it changes none of the watched paths");
    let expected = format!("refs/heads/main {docs}-{code} [\"src/deep/a.rs\"]");
    tick_until(&sandbox, "its run", || sandbox.lines("ci.moves") == [expected.clone()]);

    // The name of a branch is data, whatever it looks like.
    let hostile = "x/$(touch${IFS}pwned);`touch${IFS}pwned`";
    git(&work, ["branch", hostile]);
    put(&work, "HEAD", hostile);
    tick_until(&sandbox, "the new branch", || {
        seen(&sandbox, "all/push", hostile).is_some() && seen(&sandbox, "new/push", hostile).is_some()
    });
    tick_until(&sandbox, "its run", || {
        sandbox.lines("all.moves").iter().any(|line| line.trim() == format!("refs/heads/{hostile} -{code}"))
    });
    assert!(!sandbox.path("pwned").exists());
    // Without `created`, the first sight only records it; its end is a move.
    let first = decisions(&sandbox, "new/push").pop().expect("a decision");
    assert_eq!(first["status"], "skipped", "{first}");
    assert!(first["reason"].as_str().expect("a reason").contains("first sight"), "{first}");
    git(&work, ["push", "--quiet", "origin", &format!(":refs/heads/{hostile}")]);
    tick_until(&sandbox, "the end of the branch", || seen(&sandbox, "new/push", hostile).is_none());
    assert_eq!(decisions(&sandbox, "new/push").pop().expect("a decision")["status"], "requested");

    // `test` decides a recorded move as firing did.
    let event = decided[1]["event"].as_str().expect("an event");
    let tested = ask(&sandbox, &["rule", "test", "ci/push", "--event", event]);
    assert_eq!(
        (&tested["decision"], tested["inputs"]["new"].as_str()),
        (&"start".into(), Some(code.as_str()))
    );
    // The commits that were kept go with the rule.
    assert!(sandbox.data().join("watched").read_dir().expect("a folder").next().is_some());
    sandbox.sprag(["rule", "rm", "ci/push"]).expect(0);
    sandbox.sprag(["gc", "--keep", "30d"]).expect(0);
    assert!(sandbox.data().join("watched").read_dir().expect("a folder").next().is_none());
}

#[test]
fn r23_a_repository_that_is_gone_or_asks_for_a_password_is_told() {
    let sandbox = Sandbox::new();
    repository(&sandbox);
    let work = sandbox.path("work");
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(100) {
            let Ok(mut stream) = stream else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = stream.read(&mut [0; 4096]);
            let answer = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let locked = format!("refs: refs/heads/main, repository: 'http://127.0.0.1:{port}/x.git'");
    sandbox.yaml("locked", &rule("locked", &locked, ""));
    sandbox.yaml("ci", &rule("ci", "refs: refs/heads/main, repository: origin.git", ""));
    sandbox.sprag(["rule", "apply", "locked.yaml"]).expect(0);
    sandbox.sprag(["rule", "apply", "ci.yaml"]).expect(0);
    tick_until(&sandbox, "the first look", || seen(&sandbox, "ci/push", "main").is_some());
    let told = sandbox.sprag(["explain", "locked/push"]).expect(0).stdout;
    assert!(told.contains("cannot be read: it asks for a password"), "{told}");
    std::fs::rename(sandbox.path("origin.git"), sandbox.path("away.git")).expect("a folder");
    let explained = || sandbox.sprag(["explain", "ci/push"]).expect(0).stdout;
    tick_until(&sandbox, "the repository is gone", || explained().contains("cannot be read"));
    let listed = sandbox.sprag(["rule", "ls"]).expect(0).stdout;
    assert!(listed.contains("the repository origin.git cannot be read"), "{listed}");
    assert!(decisions(&sandbox, "ci/push").is_empty(), "nothing is started");
    // Nothing is lost: a move meanwhile is found when the repository is back.
    std::fs::rename(sandbox.path("away.git"), sandbox.path("origin.git")).expect("a folder");
    let moved = push(&work, "moved", "a", "main");
    tick_until(&sandbox, "the move", || seen(&sandbox, "ci/push", "main") == Some(moved.clone()));
    assert!(!explained().contains("cannot be read"), "{}", explained());
    assert_eq!(decisions(&sandbox, "ci/push").len(), 1);
    // What could not be meant is refused when the file is read.
    for (source, wrong) in [
        ("refs: main", "full name"),
        ("refs: refs/heads/main, repository: 'ext::sh -c true'", "not a repository"),
        ("refs: refs/heads/main, repository: --upload-pack=true", "not a repository"),
        ("refs: refs/heads/main, repository: 'https://me:secret@host/x.git'", "password"),
    ] {
        sandbox.yaml("wrong", &rule("wrong", source, ""));
        let told = sandbox.sprag(["validate", "wrong.yaml"]).expect(2);
        let told = told.stdout.clone() + &told.stderr;
        assert!(told.contains(wrong), "{source}: {told}");
    }
}
