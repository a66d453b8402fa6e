//! Tokens with limits: what they start, claim and see; rotation; the tools that MCP lists for them.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_tests::{Answering, HandWorker, Sandbox, Server, now_ms, until};

fn token(sandbox: &Sandbox, name: &str, args: &[&str]) -> String {
    let mut all = vec!["token", "add", name];
    all.extend(args);
    sandbox.sprag(all).expect(0).stdout.trim().to_owned()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// Returns the names of the tools that `/mcp` lists for a token.
fn tools(server: &Server, token: &str) -> Vec<String> {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
    let request = server.request("POST", "/mcp").token(token).json(&message);
    let request = request.header("accept", "application/json, text/event-stream");
    let told = request.header("mcp-protocol-version", "2025-06-18").send().expect(200).json();
    let tools = told["result"]["tools"].as_array().unwrap_or_else(|| panic!("{told}"));
    tools.iter().map(|tool| text(&tool["name"])).collect()
}

/// Two steps, because a worker that reports its first one must find another to claim.
const ONE: &str = "name: deploy-a\nsteps:\n  - { id: work, run: 'true', queue: qa }\n  - { id: more, run: 'true', queue: qa }\n";
const OTHER: &str = "name: build-b\nsteps:\n  - { id: work, run: 'true', queue: qb }\n";

#[test]
fn e04_a_limited_token_starts_and_follows_its_own_runs_alone() {
    let sandbox = Sandbox::new();
    sandbox.write("project/.sprag/pipelines/deploy-a.yaml", ONE);
    sandbox.write("project/.sprag/pipelines/build-b.yaml", OTHER);
    let project = sandbox.path("project").display().to_string();
    let server = Server::start(&sandbox, &["--no-worker", "--project", &project]);
    let by_name = token(&sandbox, "by-name", &["--scope", "run", "--pipeline", "deploy-*"]);
    let by_label = token(&sandbox, "by-label", &["--scope", "run", "--label", "team=a"]);
    let by_queue = token(&sandbox, "by-queue", &["--scope", "run", "--queue", "qa"]);
    let start = |token: &str, body: Value| server.request("POST", "/v1/runs").token(token).json(&body).send();

    // By name: pipelines of the project as they are, and no text that only has the right name.
    let mut follow = server.request("GET", "/v1/events?after=0").token(&by_name).open().expect("a stream");
    server.post("/v1/runs", &json!({ "pipeline": "build-b" })).expect(201);
    let run = text(&start(&by_name, json!({ "pipeline": "deploy-a" })).expect(201).json()["id"]);
    for body in [
        json!({ "pipeline": "build-b" }),
        json!({ "yaml": ONE }),
        json!({ "pipeline": "deploy-a", "dir": "/tmp" }),
        json!({ "pipeline": "deploy-a", "skip": ["work"] }),
    ] {
        let told = start(&by_name, body.clone()).problem(403, "forbidden");
        assert!(
            told["message"].to_string().contains("limited to")
                || told["message"].to_string().contains("limits"),
            "{body}: {told}"
        );
    }
    let told = server.call_as(&by_name, "run_start", &json!({ "yaml": ONE }));
    assert_eq!(told["error"], "forbidden", "{told}");
    // The stream begins with its own run, although another was started before.
    let first = follow.event().expect("an event").expect("an event");
    assert_eq!(first.data["run"], run.as_str(), "{first:?}");
    follow.cut();
    assert_eq!(
        text(&server.request("GET", "/v1/runs/find").token(&by_name).send().expect(200).json()["id"]),
        run
    );

    // By label and by queue, whatever the pipeline.
    let told = start(&by_label, json!({ "yaml": OTHER })).problem(403, "forbidden");
    assert!(told["message"].to_string().contains("team=a"), "{told}");
    let labelled = start(&by_label, json!({ "yaml": OTHER, "labels": { "team": "a" } })).expect(201).json();
    start(&by_queue, json!({ "yaml": ONE })).expect(201);
    let told = start(&by_queue, json!({ "yaml": OTHER })).problem(403, "forbidden");
    assert!(told["message"].to_string().contains("qb"), "{told}");
    let child = "steps:\n  - { id: c, pipeline: { name: inner } }\n---\nname: inner\nsteps:\n  - { id: work, run: 'true', queue: qb }\n";
    start(&by_queue, json!({ "yaml": child })).problem(403, "forbidden");

    // Over MCP the same limits hold, for names of runs too.
    let listed = server.call_as(&by_label, "run_list", &json!({}));
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed["runs"][0]["id"], labelled["id"]);
    let told = server.call_as(&by_label, "run_status", &json!({ "run": run }));
    assert_eq!(told["error"], "forbidden", "{told}");
    let told = server.call_as(&by_label, "run_cancel", &json!({ "run": run }));
    assert_eq!(told["error"], "forbidden", "{told}");

    // `token ls` and `GET /v1/me` show the limits, and what cannot be limited is refused.
    let shown = sandbox.sprag(["token", "ls"]).expect(0).stdout;
    assert!(shown.contains("pipeline=deploy-*") && shown.contains("label=team=a"), "{shown}");
    let me = server.request("GET", "/v1/me").token(&by_name).send().expect(200).json();
    assert_eq!(me["limits"], json!({ "pipelines": ["deploy-*"] }));
    for (scope, limit) in [("admin", "--queue"), ("work", "--pipeline")] {
        let told = sandbox.sprag(["token", "add", "x", "--scope", scope, limit, "a"]).expect(2).stderr;
        assert!(told.contains("cannot be limited"), "{told}");
    }
    let new = json!({ "name": "x", "scopes": ["read"], "limits": { "folders": ["/"] } });
    server.post("/v1/tokens", &new).expect(422);
}

#[test]
fn e04_a_work_token_reads_what_it_holds_and_works_within_its_limits() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let work = token(&sandbox, "gpu", &["--scope", "work", "--queue", "qa", "--host", "build-*"]);
    let plain = token(&sandbox, "plain", &["--scope", "work"]);
    let [held, other] = [ONE, OTHER].map(|yaml| server.run(yaml));
    let get = |token: &str, path: &str| server.request("GET", path).token(token).send();
    let process = |host: &str| format!("{host}/1/1/boot/1");
    HandWorker::unregistered(&server, 'a', Some(&work), "qa")
        .register(&process("web-1"))
        .problem(403, "forbidden");
    HandWorker::unregistered(&server, 'a', Some(&work), "qb")
        .register(&process("build-1"))
        .problem(403, "forbidden");
    let worker = HandWorker::unregistered(&server, 'a', Some(&work), "qa");
    worker.register(&process("build-1")).expect(200);
    // It registers for one queue, and may not claim from another.
    let mut claimer = worker.claimer(1);
    claimer["queues"] = json!(["qb"]);
    worker.post("claim", &json!({ "claimer": claimer, "limit": 1, "wait_ms": 0 })).problem(403, "forbidden");

    get(&work, &format!("/v1/runs/{held}")).problem(403, "forbidden");
    assert_eq!(get(&work, "/v1/runs").expect(200).json()["runs"], json!([]));
    let given = worker.claim(2).expect("an execution");
    for path in ["", "/steps", "/explain", "/steps/work/log"] {
        assert_ne!(get(&work, &format!("/v1/runs/{held}{path}")).status, 403, "{path}");
        get(&work, &format!("/v1/runs/{other}{path}")).problem(403, "forbidden");
        get(&plain, &format!("/v1/runs/{held}{path}")).problem(403, "forbidden");
    }
    let listed = get(&work, "/v1/runs").expect(200).json();
    assert_eq!((listed["runs"].as_array().map(Vec::len), &listed["runs"][0]["id"]), (Some(1), &json!(held)));
    worker.complete(&given).expect(200);
    get(&work, &format!("/v1/runs/{held}")).problem(403, "forbidden");

    // An agent reads the board whose task it has claimed, and no other.
    for board in ["one", "two"] {
        server.post("/v1/boards", &json!({ "name": board })).expect(201);
        server.post(&format!("/v1/boards/{board}/tasks"), &json!({ "tasks": [{ "text": "t" }] })).expect(200);
    }
    get(&plain, "/v1/boards/one").problem(403, "forbidden");
    let claim = json!({ "name": "ada", "board": "one" });
    server.request("POST", "/v1/tasks/claim").token(&plain).json(&claim).send().expect(200);
    get(&plain, "/v1/boards/one").expect(200);
    get(&plain, "/v1/boards/two").problem(403, "forbidden");
    assert_eq!(get(&plain, "/v1/boards").expect(200).json()["boards"].as_array().map(Vec::len), Some(1));
    // The other token is limited to another queue.
    server.request("POST", "/v1/tasks/claim").token(&work).json(&claim).send().problem(403, "forbidden");
}

#[test]
fn e04_mcp_lists_the_tools_that_a_token_may_use() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let reads = token(&sandbox, "reads", &["--scope", "read"]);
    let limited = token(&sandbox, "limited", &["--scope", "run", "--pipeline", "deploy-*"]);
    let all = tools(&server, &server.token);
    let own = tools(&server, &reads);
    assert!(own.contains(&"run_status".to_owned()) && own.contains(&"note_list".to_owned()), "{own:?}");
    for tool in ["run_start", "run_cancel", "gate_answer", "task_claim", "note_add", "account_hold"] {
        assert!(all.contains(&tool.to_owned()) && !own.contains(&tool.to_owned()), "{tool}");
        assert_eq!(server.call_as(&reads, tool, &json!({}))["error"], "forbidden", "{tool}");
    }
    let own = tools(&server, &limited);
    assert!(own.contains(&"run_start".to_owned()) && !own.contains(&"account_hold".to_owned()), "{own:?}");
}

#[test]
fn e04_a_rotated_token_has_two_secrets_until_the_overlap_ends() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let first = token(&sandbox, "ci", &["--scope", "work", "--queue", "qa"]);
    let worker = HandWorker::unregistered(&server, 'a', Some(&first), "qa");
    worker.register("build-1/1/1/boot/1").expect(200);
    let run = server.run(ONE);
    let given = worker.claim(1).expect("an execution");
    let rotate = |args: &[&str]| {
        let mut all = vec!["token", "rotate", "ci"];
        all.extend(args);
        sandbox.sprag(all).expect(0).stdout.trim().to_owned()
    };
    let second = rotate(&[]);
    let status = |token: &str| server.request("GET", "/v1/me").token(token).send().status;
    assert_eq!((status(&first), status(&second)), (200, 200));
    let me = server.request("GET", "/v1/me").token(&second).send().expect(200).json();
    assert_eq!((&me["name"], &me["limits"]), (&json!("ci"), &json!({ "queues": ["qa"] })));
    // The worker is the same with the new secret: it reports what it claimed with the old one.
    let worker = HandWorker::unregistered(&server, 'a', Some(&second), "qa");
    worker.complete(&given).expect(200);
    let given = worker.claim(1).expect("the second execution");
    worker.complete(&given).expect(200);
    server.until(&run, "completed");
    // The end of the overlap ends all earlier secrets; the server asks the store again within a second.
    let id = sandbox
        .json(["token", "ls", "--json"])
        .as_array()
        .expect("tokens")
        .iter()
        .map(|row| text(&row["id"]))
        .next_back();
    let path = format!("/v1/tokens/{}/rotate", id.expect("a token"));
    let third = text(&server.post(&path, &json!({ "overlap_s": 0 })).expect(201).json()["token"]);
    until("the old secrets are refused", || status(&first) == 401 && status(&second) == 401);
    assert_eq!(status(&third), 200);
    let audit = sandbox.sprag(["audit", "--act", "token"]).expect(0).stdout;
    assert_eq!(audit.matches("token.rotated").count(), 2, "{audit}");
    sandbox.sprag(["token", "rm", "ci"]).expect(0);
    until("the token is gone", || status(&third) == 401);
    sandbox.sprag(["token", "rotate", "ci"]).expect(2);
}

/// The longest time for which a stream may outlive its token.
const ENDS_WITHIN_MS: u64 = 5_000;

/// Waits until an answer that is being read has ended, and returns whether it broke off in time.
fn breaks_off(mut stream: Answering, since_ms: u64) -> bool {
    stream.patience(Duration::from_millis(ENDS_WITHIN_MS));
    loop {
        match stream.event() {
            Ok(Some(_)) if now_ms() - since_ms < ENDS_WITHIN_MS => {}
            Ok(None) => return true,
            Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            Ok(Some(_)) => return false,
        }
    }
}

#[test]
fn s19_streams_and_long_polls_end_with_their_token() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    server.post("/v1/boards", &json!({ "name": "empty" })).expect(201);
    let run = server.run("name: p\nsteps:\n  - { id: a, run: 'true' }\n");
    let stays = token(&sandbox, "stays", &["--scope", "read"]);
    let mut kept = server.request("GET", "/v1/events").token(&stays).open().expect("a stream");
    for (name, ends) in [
        ("removed", &["token", "rm", "removed"][..]),
        ("rotated", &["token", "rotate", "rotated", "--overlap", "0s"][..]),
    ] {
        let shown = token(&sandbox, name, &["--scope", "run", "--scope", "work"]);
        let open = |path: &str| server.request("GET", path).token(&shown).open().expect("a stream");
        let streams = [open("/v1/events"), open(&format!("/v1/events?run={run}"))];
        // Two long polls: of an agent over HTTP, and of an agent over MCP.
        let claim = json!({ "board": "empty", "name": "ada", "wait_s": 60 });
        let poll = server.request("POST", "/v1/tasks/claim").token(&shown).json(&claim);
        let poll = std::thread::spawn(move || poll.send());
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "task_claim", "arguments": claim } });
        let tool = server.request("POST", "/mcp").token(&shown).json(&call);
        let tool = tool.header("accept", "application/json, text/event-stream");
        let tool = tool.header("mcp-protocol-version", "2025-06-18");
        let tool = std::thread::spawn(move || tool.send());
        let metrics = || server.request("GET", "/metrics").send().expect(200).text();
        until("the streams are open", || metrics().contains("sprag_streams_open 3"));
        let since_ms = now_ms();
        sandbox.sprag(ends).expect(0);
        for stream in streams {
            assert!(breaks_off(stream, since_ms), "{name}: a stream outlives its token");
        }
        for poll in [poll, tool] {
            assert_eq!(poll.join().expect("an answer").status, 401, "{name}");
        }
        let took_ms = now_ms() - since_ms;
        assert!(took_ms < ENDS_WITHIN_MS, "{name}: {took_ms} ms");
        println!("{name}: everything had ended after {took_ms} ms");
    }
    // Others go on: the stream of another token has the event that follows.
    server.run("name: later\nsteps:\n  - { id: a, run: 'true' }\n");
    assert!(kept.event().expect("an event").is_some());
}

#[test]
fn s19_explain_names_no_run_beyond_the_limits_of_a_token() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let yaml = |name: &str| {
        format!(
            "name: {name}\nconcurrency: {{ group: one, limit: 1, on_conflict: queue }}\nsteps:\n  - {{ id: a, run: 'true' }}\n"
        )
    };
    let (holder, waits) = (server.run(&yaml("secret-project")), server.run(&yaml("deploy")));
    let limited = token(&sandbox, "limited", &["--scope", "read", "--pipeline", "deploy"]);
    let path = format!("/v1/runs/{waits}/explain");
    let seen = server.request("GET", &path).token(&limited).send().expect(200).text();
    assert!(seen.contains("another run") && !seen.contains(&holder), "{seen}");
    let over_mcp = server.call_as(&limited, "run_explain", &json!({ "run": waits })).to_string();
    assert!(over_mcp.contains("another run") && !over_mcp.contains(&holder), "{over_mcp}");
    // A caller that reaches it, and the local user, see it.
    let whole = token(&sandbox, "whole", &["--scope", "read"]);
    assert!(server.request("GET", &path).token(&whole).send().expect(200).text().contains(&holder));
    assert!(sandbox.sprag(["explain", &waits]).expect(0).stdout.contains(&holder));
}
