//! Secrets appear nowhere in stored or shown data: logs, outputs, feedback, journal, events and the API.

use std::fs;
use std::path::Path;

use serde_json::json;
use sprag_tests::{Sandbox, Server, until};

use crate::serve_hooks::Listener;

/// Step `use` has the secrets and prints them in every form; step `other` has none and prints what it finds; step
/// `fails` says one in its failure, twice.
const PIPELINE: &str = r#"
steps:
  - id: use
    secrets: [API_KEY, PEM]
    run: |
      echo "key $API_KEY"
      echo "$PEM"
      printf '%s\n' "$API_KEY" > leaked
      printf '%s\n' "$API_KEY" > text
      printf '{"%s": ["%s\\n", {"a": "x%sx"}]}' "$API_KEY" "$API_KEY" "$API_KEY" > json
      printf '%s\n' "$PEM" > lines
    outputs: { text: { file: text, as: text }, json: { file: json, as: json }, lines: { file: lines, as: text } }
  - id: other
    needs: [use]
    run: cat leaked
    outputs: { found: { stdout: text } }
  - id: fails
    needs: [use]
    run: cat leaked >&2; exit 1
    retry: { attempts: 2, delay: 10ms }
    on_fail: continue
"#;

/// Returns the files below a folder that contain this text, as a database or a log would write it.
fn holding(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            let kind = entry.file_type().expect("its kind");
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let bytes = fs::read(&path).unwrap_or_default();
                if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    found
}

#[test]
fn e06_webhooks_streams_and_endpoints_tell_no_secret() {
    const KEY: &str = "k3y-0f-th3-api";
    const SECOND_LINE: &str = "bQ7second9line";
    let sandbox = Sandbox::new();
    let listener = Listener::start(200);
    let server = Server::start(&sandbox, &["--no-worker"]);
    server.post("/v1/hooks", &json!({ "url": listener.url() })).expect(201);
    let mut stream = server.request("GET", "/v1/events").open().expect("a stream");
    let run = server.run(PIPELINE);
    let mut worker = sandbox.command(["worker", "--until-idle"]);
    worker.env("API_KEY", KEY).env("PEM", format!("aQ1first2line\n{SECOND_LINE}\n"));
    sandbox.start_command(worker).finish().expect(0);
    server.until(&run, "completed");
    until("the listener was told of the end", || listener.has_ended(1));
    let mut shown =
        vec![("hook", listener.events().into_iter().map(|event| event.to_string()).collect::<String>())];
    let mut streamed = String::new();
    while !streamed.contains("run.succeeded") {
        let event = stream.event().expect("the stream").expect("not its end yet");
        streamed.push_str(&format!("{} {}\n", event.name, event.data));
    }
    shown.push(("stream", streamed));
    for path in [
        "",
        "/steps",
        "/steps/use",
        "/steps/fails",
        "/executions",
        "/explain",
        "/steps/use/log",
        "/steps/other/log",
    ] {
        shown.push((path, server.request("GET", &format!("/v1/runs/{run}{path}")).send().expect(200).text()));
    }
    shown.push(("journal", server.get("/v1/journal?limit=1000").to_string()));
    let told = server.call("run_status", &json!({ "run": run }));
    assert!(told["steps"].is_array(), "{told}");
    shown.push(("mcp", told.to_string()));
    for (what, text) in &shown {
        for secret in [KEY, SECOND_LINE] {
            assert!(!text.contains(secret), "{secret} is told by {what}: {text}");
        }
    }
    let all: String = shown.into_iter().map(|(_, text)| text).collect();
    assert!(all.contains("***") && all.contains("run.succeeded"), "{all}");
}

/// Steps need the files that are handed on as they are. One that holds a secret is not served.
#[test]
fn e06_a_file_with_a_secret_is_passed_on_and_not_served() {
    const KEY: &str = "k3y-0f-th3-api";
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let run = server.run(
        "steps:\n  - id: make\n    secrets: [API_KEY]\n    run: |\n      echo plain > plain\n      \
         { head -c 3000000 /dev/zero; echo \"key=$API_KEY\"; } > config\n    outputs: { plain: plain, config: config }\n  \
         - id: use\n    secrets: [API_KEY]\n    run: grep --text --quiet \"key=$API_KEY\" {{ steps.make.outputs.config }} && \
         cat {{ steps.make.outputs.plain }} > used\n",
    );
    let mut worker = sandbox.command(["worker", "--until-idle"]);
    worker.env("API_KEY", KEY);
    sandbox.start_command(worker).finish().expect(0);
    server.until(&run, "completed");
    let listed = server.get(&format!("/v1/runs/{run}/artifacts"));
    assert_eq!(listed["artifacts"], json!([{ "path": "make.1/plain/plain", "bytes": 6 }]));
    let get = |path: &str| server.request("GET", &format!("/v1/runs/{run}/artifacts/{path}")).send();
    assert_eq!(get("make.1/plain/plain").expect(200).text(), "plain\n");
    for path in
        ["make.1/config/config", "../withheld/make.1/config/config", "%2e%2e/withheld/make.1/config/config"]
    {
        assert_eq!(get(path).status, 404, "{path}");
    }
    let told = sandbox.sprag(["logs", &run, "make"]).expect(0).stdout;
    assert!(told.contains("the file of output `config` contains a secret"), "{told}");
}

#[test]
fn e06_no_secret_is_kept_or_shown_whichever_step_prints_it() {
    const KEY: &str = "k3y-0f-th3-api";
    const SECOND_LINE: &str = "bQ7second9line";
    let sandbox = Sandbox::new();
    let file = sandbox.yaml("masked", PIPELINE);
    let mut serve = sandbox.command(["run", "--detach"]);
    serve.arg(&file);
    sandbox.start_command(serve).finish().expect(0);
    let run = sandbox.newest().expect("a run");
    let mut worker = sandbox.command(["worker", "--until-idle"]);
    worker
        .env("API_KEY", KEY)
        .env("PEM", format!("-----BEGIN KEY-----\naQ1first2line\n{SECOND_LINE}\n-----END KEY-----"));
    sandbox.start_command(worker).finish().expect(0);
    until("the run has ended", || sandbox.status_word(&run) != "running");
    assert_eq!(sandbox.steps(&run), "use done, other done, fails failed");
    let server = Server::start(&sandbox, &["--no-worker"]);
    let mut shown = String::new();
    for args in [
        vec!["status", &run, "--json"],
        vec!["logs", &run],
        vec!["explain", &run],
        vec!["events", "--run", &run, "--json"],
    ] {
        let told = sandbox.sprag(args);
        shown.push_str(&told.stdout);
        shown.push_str(&told.stderr);
    }
    shown.push_str(&server.get(&format!("/v1/runs/{run}")).to_string());
    assert!(shown.contains("***"), "{shown}");
    for secret in [KEY, SECOND_LINE] {
        assert!(!shown.contains(secret), "{secret} is shown: {shown}");
        assert_eq!(holding(&sandbox.data(), secret), Vec::<String>::new(), "{secret} is kept");
    }
}
