//! `mcp: [sprag]`: the agent of a step has a few tools, with a token that is valid for its own attempt alone.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sprag_process::sandbox_support;
use sprag_tests::{Reply, Sandbox, Server, until, until_some};

use crate::agents::{Bench, DIALECTS, in_all_dialects};

/// The tools of a step without a board, and those that a board adds.
const TOOLS: [&str; 4] = ["report", "note", "notes", "ask"];
const BOARD_TOOLS: [&str; 6] = ["plan", "claim", "heartbeat", "done", "fail", "release"];

const STEP: &str = "  - id: work\n    agent: { use: robot, prompt: Work., mcp: [sprag] }\n";

/// Returns the tokens of steps in the private files of the agents of a data directory.
fn tokens(data: &Path) -> Vec<String> {
    let mut folders = vec![data.join("runs")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path: PathBuf = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "json")
                && let Ok(text) = std::fs::read_to_string(&path)
                && let Some(at) = text.find("sprag_step_")
            {
                let token = text[at..].split('"').next().unwrap_or_default();
                found.push(token.to_owned());
            }
        }
    }
    found
}

/// Sends a message to `/mcp` with the token of a step.
fn message(server: &Server, token: &str, method: &str, params: Value) -> Reply {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let request = server.request("POST", "/mcp").token(token).json(&message);
    let request = request.header("accept", "application/json, text/event-stream");
    request.header("mcp-protocol-version", "2025-06-18").send()
}

fn listed(server: &Server, token: &str) -> Vec<String> {
    let told = message(server, token, "tools/list", json!({})).expect(200).json();
    let tools = told["result"]["tools"].as_array().unwrap_or_else(|| panic!("{told}"));
    tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

/// Starts a server whose worker knows the agent of a bench.
fn serve(bench: &Bench, args: &[&str]) -> Server {
    let mut all = vec!["serve", "--listen", "127.0.0.1:0"];
    all.extend(args);
    Server::from_process(&bench.project.sandbox, bench.start(&all))
}

fn notes(sandbox: &Sandbox, run: &str) -> Vec<(String, String)> {
    let status = sandbox.status(run);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let notes = status["notes"].as_array().cloned().unwrap_or_default();
    notes.iter().map(|note| (text(&note["kind"]), text(&note["text"]))).collect()
}

#[test]
fn s19_the_agent_of_a_step_reports_notes_and_asks_on_a_plain_file() {
    const SCRIPT: &str = r#"
turns:
  - - mcp: { server: sprag, tool: note, input: { text: mind the gap } }
    - mcp: { server: sprag, tool: notes, input: {} }
    - mcp: { server: sprag, tool: ask, input: { question: 'Which colour?', choices: [red, blue], wait_s: 50 } }
    - mcp: { server: sprag, tool: report, input: { text: painted } }
    - mcp: { server: sprag, tool: run_list, input: {} }
    - say: Done.
"#;
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let sandbox = &bench.project.sandbox;
        let running = bench.start(&["run", &bench.pipeline(STEP)]);
        let run = until_some("a question", || {
            let asked = sandbox.json(["questions", "--json"]);
            let asked = asked.as_array()?.first()?.clone();
            assert!(asked.to_string().contains("work asks: Which colour?"), "{asked}");
            Some(asked["run"].as_str().expect("a run").to_owned())
        });
        bench.sprag(&["approve", &run, "work", "--choice", "blue", "--comment", "as the sky"]).expect(0);
        running.finish().expect(0);
        assert_eq!(
            notes(sandbox, &run),
            [("note".into(), "mind the gap".into()), ("report".into(), "painted".into())],
            "{dialect:?}"
        );
        let shown = bench.sprag(&["status", &run]).expect(0).stdout;
        assert!(shown.contains("work reports: painted"), "{shown}");
        let log = bench.sprag(&["logs", &run, "work"]).expect(0).stdout;
        for part in ["blue", "as the sky", "this step has no tool"] {
            assert!(log.contains(part), "{dialect:?}: {part}: {log}");
        }
        assert!(!log.contains("sprag_step_"), "{log}");
        // The question has an author: the agent of the step, and not the user whose process the worker is.
        let events = bench.sprag(&["events", "--json", "--run", &run]).expect(0).stdout;
        let opened = events.lines().find(|line| line.contains("\"gate.opened\"")).expect("a gate");
        assert!(opened.contains(&format!("\"by\":\"agent:work@{run}.1.")), "{opened}");
        // Nothing of it is left.
        assert_eq!(tokens(&sandbox.data()), Vec::<String>::new());
    });
}

#[test]
fn s19_the_token_of_a_step_is_for_its_own_tools_and_void_with_its_attempt() {
    let script = "turns:\n  - - say: I wait.\n    - silent\n";
    let bench = Bench::new(DIALECTS[0], script);
    let sandbox = &bench.project.sandbox;
    let server = serve(&bench, &[]);
    let yaml = format!("name: p\nsteps:\n{}", STEP.replace("mcp:", "permissions: auto, mcp:"));
    let run = server.run(&yaml);
    let other = server.run(&yaml);
    let tokens = until_some("two tokens", || Some(tokens(&sandbox.data())).filter(|all| all.len() == 2));
    let of = |run: &str| tokens.iter().find(|token| token.contains(run)).expect("a token").clone();
    let (token, theirs) = (of(&run), of(&other));
    assert_eq!(listed(&server, &token), TOOLS);
    assert_eq!(server.call_as(&token, "report", &json!({ "text": "half" }))["reported"], true);
    assert_eq!(notes(sandbox, &run), [("report".into(), "half".into())]);
    assert_eq!(notes(sandbox, &other), []);
    // The tools of other callers, the tools of boards, and arguments that name another run.
    for tool in
        ["run_list", "run_cancel", "gate_answer", "task_claim", "board_create", "account_hold", "claim"]
    {
        let told = server.call_as(&token, tool, &json!({ "run": other, "board": "b", "name": "x" }));
        assert_eq!(told["error"], "no_tool", "{tool}: {told}");
    }
    let told = server.call_as(&token, "report", &json!({ "text": "x", "run": other }));
    assert_eq!(told["error"], "invalid", "{told}");
    let read = message(&server, &token, "resources/read", json!({ "uri": "sprag://runs" })).expect(200);
    assert!(read.json()["error"].is_object(), "{}", read.text());
    // No other endpoint takes it, and no other text is such a token.
    for path in ["/v1/runs", "/v1/me", "/v1/events", "/metrics"] {
        server.request("GET", path).token(&token).send().problem(403, "forbidden");
    }
    server
        .request("POST", "/v1/runs")
        .token(&token)
        .json(&json!({ "yaml": yaml }))
        .send()
        .problem(403, "forbidden");
    for forged in [
        token.replace(&run, &other),
        token.replacen(".0.1.", ".0.2.", 1),
        token.replacen(".0.1.", ".1.1.", 1),
        format!("{}0", &token[..token.len() - 1]),
    ] {
        if forged != token {
            message(&server, &forged, "tools/list", json!({})).problem(401, "unauthorized");
        }
    }
    // It is void as soon as the run is cancelled, while the other one's is not.
    server.post(&format!("/v1/runs/{run}/cancel"), &json!({})).expect(200);
    let told = server.call_as(&token, "report", &json!({ "text": "late" }));
    assert_eq!(told["error"], "step_over", "{told}");
    assert_eq!(server.call_as(&token, "note", &json!({ "text": "late" }))["error"], "step_over");
    server.until(&run, "cancelled");
    let told = server.call_as(&token, "ask", &json!({ "question": "still there?" }));
    assert_eq!(told["error"], "step_over", "{told}");
    assert_eq!(server.call_as(&theirs, "report", &json!({ "text": "alive" }))["reported"], true);
    // The next attempt has a token of its own, and the first one's stays void.
    server.post(&format!("/v1/runs/{run}/resume"), &json!({})).expect(200);
    let second = until_some("another token", || {
        tokens_of(&sandbox.data(), &run).into_iter().find(|found| *found != token)
    });
    assert_eq!(server.call_as(&token, "report", &json!({ "text": "late" }))["error"], "step_over");
    assert_eq!(server.call_as(&second, "report", &json!({ "text": "again" }))["reported"], true);
    let texts: Vec<String> = notes(sandbox, &run).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["half", "again"]);
    for run in [&run, &other] {
        server.post(&format!("/v1/runs/{run}/cancel"), &json!({})).expect(200);
        server.until(run, "cancelled");
    }
}

fn tokens_of(data: &Path, run: &str) -> Vec<String> {
    tokens(data).into_iter().filter(|token| token.contains(run)).collect()
}

#[test]
fn s19_a_step_claims_tasks_of_its_board_and_releases_those_that_it_leaves() {
    const SCRIPT: &str = r#"
turns:
  - - mcp: { server: sprag, tool: plan, input: {} }
    - mcp: { server: sprag, tool: claim, input: {} }
    - shell: |
        until test -e $OUT/go; do sleep 0.05; done
    - say: Done.
"#;
    let bench = Bench::new(DIALECTS[0], SCRIPT);
    let sandbox = &bench.project.sandbox;
    sandbox.sprag(["board", "new", "release", "--goal", "Ship it"]).expect(0);
    sandbox.sprag(["task", "add", "release", "check the links", "--key", "links"]).expect(0);
    let steps =
        "  - id: work\n    agent: { use: robot, prompt: Work., mcp: [sprag], board: 'rel{{ \"ease\" }}' }\n";
    let running = bench.start(&["run", &bench.pipeline(steps)]);
    let task = |field: &str| sandbox.json(["task", "show", "release", "links", "--json"])[field].clone();
    until("the task is claimed", || task("status") == "claimed");
    let run = sandbox.newest().expect("a run");
    let token = tokens(&sandbox.data()).pop().expect("a token");
    let server = Server::start(sandbox, &["--no-worker"]);
    assert_eq!(listed(&server, &token), [&TOOLS[..], &BOARD_TOOLS[..]].concat());
    let nothing = server.call_as(&token, "claim", &json!({}));
    assert_eq!(nothing["why"], "all_claimed", "{nothing}");
    // A task that another agent holds is not this step's, whatever its token.
    sandbox.sprag(["task", "add", "release", "write the notes", "--key", "notes"]).expect(0);
    let other = sandbox.sprag(["task", "claim", "--board", "release", "--as", "ada"]).expect(0).stdout;
    let told = server.call_as(&token, "done", &json!({ "token": other.trim() }));
    assert_eq!(told["error"], "forbidden", "{told}");
    let acts = sandbox.sprag(["audit", "--act", "handoff"]).expect(0).stdout;
    assert!(acts.contains(&format!("agent:work@{run}.1.")) && acts.contains("release"), "{acts}");
    sandbox.write("go", "");
    running.finish().expect(0);
    // It did not report the task, which is free again at once.
    let next =
        sandbox.sprag(["task", "claim", "--board", "release", "--as", "bob", "--json"]).expect(0).stdout;
    assert!(next.contains("check the links"), "{next}");
    let log = bench.sprag(&["logs", &run, "work"]).expect(0).stdout;
    assert!(log.contains("Ship it") && log.contains("\"key\":\"links\""), "{log}");
}

#[test]
fn s19_the_tools_of_a_step_work_through_a_server_and_in_a_sandbox_without_network() {
    let script =
        "turns:\n  - - mcp: { server: sprag, tool: report, input: { text: from afar } }\n    - say: Done.\n";
    let bench = Bench::new(DIALECTS[0], script);
    let sandbox = &bench.project.sandbox;
    std::fs::create_dir_all(sandbox.path("robot")).expect("a folder");
    let bounds = match sandbox_support() {
        Ok(()) => format!(
            "    sandbox: {{ network: none, read: ['{}'], write: [worktree, '{}'] }}\n",
            sandbox.path("robot.script.yaml").display(),
            sandbox.path("robot").display()
        ),
        Err(why) => {
            println!("SKIPPED: no sandbox can be made here: {why}");
            String::new()
        }
    };
    let steps = format!("{STEP}{bounds}");
    // On a plain file.
    let run = bench.run(&steps, 0);
    assert_eq!(notes(sandbox, &run), [("report".into(), "from afar".into())]);
    // The worker has an address and a token; the store belongs to the server.
    let server = serve(&bench, &["--no-worker"]);
    let token = sandbox.sprag(["token", "new", "gpu", "--scope", "work"]).expect(0).stdout;
    let url = format!("http://{}", server.addr);
    let mut command = bench.command(&["worker", "--server", &url]);
    command.env("SPRAG_DATA", sandbox.path("remote")).env("SPRAG_TOKEN", token.trim());
    let worker = sandbox.start_command(command);
    until("the worker is there", || worker.stderr().contains("serves"));
    let yaml = std::fs::read_to_string(bench.pipeline(&steps)).expect("a file");
    let body = json!({ "yaml": yaml, "dir": bench.project.repo() });
    let run = server.post("/v1/runs", &body).expect(201).json()["id"].as_str().expect("an id").to_owned();
    server.until(&run, "completed");
    assert_eq!(notes(sandbox, &run), [("report".into(), "from afar".into())]);
}
