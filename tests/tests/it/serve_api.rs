//! Every endpoint of `sprag serve`, with valid and invalid requests.

use std::collections::BTreeSet;
use std::sync::Barrier;

use serde_json::{Value, json};
use sprag_tests::{Sandbox, Server, until};

const HELLO: &str = "name: hello\nsteps:\n  - id: say\n    run: echo hello\n  - id: end\n    run: echo bye\n";
const FAILS: &str = "name: sad\nsteps:\n  - id: ok\n    run: 'true'\n  - id: bad\n    run: exit 3\n";
const ASKS: &str = "name: asks\nsteps:\n  - id: ask\n    gate: { ask: Sure?, choices: [yes, maybe, no] }\n  - id: go\n    run: 'true'\n";
const WAITS: &str =
    "name: waits\nsteps:\n  - id: wait\n    wait: { signal: go }\n  - id: end\n    run: 'true'\n";
const NOBODY: &str = "/v1/runs/000000000000";

fn word<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

#[test]
fn a_run_is_started_shown_listed_and_explained() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    assert_eq!(server.get("/healthz")["status"], "ok");
    assert_eq!(server.get("/readyz")["status"], "ok");
    let made = server.post("/v1/runs", &json!({ "yaml": HELLO, "priority": 3 })).expect(201);
    let run = word(&made.json(), "id").to_owned();
    assert_eq!(made.headers["location"], format!("/v1/runs/{run}"));
    server.until(&run, "completed");
    let shown = server.request("GET", &format!("/v1/runs/{run}")).send().expect(200);
    let told = shown.json();
    assert_eq!((word(&told, "pipeline"), told["priority"].as_i64()), ("hello", Some(3)));
    assert_eq!(shown.headers["etag"], format!("\"{}\"", told["version"]));
    // The command line tells the same of it.
    let by_command = sandbox.status(&run);
    for (key, value) in by_command.as_object().expect("an object") {
        assert_eq!(&told[key], value, "{key}");
    }
    assert_eq!(server.get(&format!("/v1/runs/{run}/steps"))["steps"], by_command["steps"]);
    let step = server.get(&format!("/v1/runs/{run}/steps/say"));
    assert_eq!(
        (word(&step["step"], "status"), step["executions"][0]["result"]["exit_code"].as_i64()),
        ("done", Some(0))
    );
    let executions = server.get(&format!("/v1/runs/{run}/executions?step=end"));
    assert_eq!(executions["executions"].as_array().map(Vec::len), Some(1));
    assert_eq!(server.get(&format!("/v1/runs/{run}/explain")), sandbox.json(["explain", &run, "--json"]));
    let log = server.request("GET", &format!("/v1/runs/{run}/steps/say/log")).send().expect(200);
    assert!(log.text().ends_with(" out hello\n"), "{}", log.text());
    let part =
        server.request("GET", &format!("/v1/runs/{run}/steps/say/log")).header("range", "bytes=-6").send();
    assert_eq!(part.expect(206).text(), "hello\n");
    let part = server.request("GET", &format!("/v1/runs/{run}/steps/say/log?offset=2&limit=2")).send();
    assert_eq!(part.expect(200).text(), "26");
    server
        .request("GET", &format!("/v1/runs/{run}/steps/say/log"))
        .header("range", "bytes=9999-")
        .send()
        .problem(416, "range");
    for missing in ["", "/steps", "/steps/x", "/executions", "/explain", "/artifacts", "/steps/x/log"] {
        server.request("GET", &format!("{NOBODY}{missing}")).send().problem(404, "not_found");
    }
    server.request("GET", &format!("/v1/runs/{run}/steps/nope")).send().problem(404, "not_found");
    server.request("GET", "/v1/runs/not-a-run").send().problem(404, "not_found");
    server.request("GET", "/v1/nothing").send().problem(404, "not_found");
    server.request("DELETE", "/v1/runs").send().problem(405, "method_not_allowed");
}

#[test]
fn runs_are_listed_by_pages_and_filters() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let mut made: Vec<String> = (0..5).map(|_| server.run(HELLO)).collect();
    let sad = server.run(FAILS);
    for run in &made {
        server.until(run, "completed");
    }
    server.until(&sad, "failed");
    let ids = |told: &Value| -> Vec<String> {
        told["runs"].as_array().expect("runs").iter().map(|run| word(run, "id").to_owned()).collect()
    };
    let mut seen = Vec::new();
    let mut cursor = String::new();
    for _ in 0..10 {
        let page = server.get(&format!("/v1/runs?limit=2{cursor}"));
        assert!(ids(&page).len() <= 2);
        seen.extend(ids(&page));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(ids(&server.get("/v1/runs?status=failed")), std::slice::from_ref(&sad));
    assert_eq!(ids(&server.get("/v1/runs?pipeline=sad&status=failed,completed")), std::slice::from_ref(&sad));
    assert_eq!(ids(&server.get("/v1/runs?pipeline=none")), [""; 0]);
    made.push(sad);
    made.reverse();
    assert_eq!(seen, made, "newest first, each once");
    for (query, _) in [
        ("limit=0", ()),
        ("limit=501", ()),
        ("limit=x", ()),
        ("status=odd", ()),
        ("cursor=zz", ()),
        ("odd=1", ()),
    ] {
        server.request("GET", &format!("/v1/runs?{query}")).send().problem(400, "malformed");
    }
}

#[test]
fn l07_a_refused_transition_is_409_with_its_outcome() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let run = server.run(HELLO);
    server.until(&run, "completed");
    for verb in ["cancel", "resume", "retry"] {
        let told = server.request("POST", &format!("/v1/runs/{run}/{verb}")).send().problem(409, "refused");
        let outcome =
            json!({ "kind": "illegal", "entity": "run", "status": "completed", "wrong_actor": false });
        assert_eq!(told["outcome"], outcome, "{verb}");
        assert!(told["next"].is_string());
    }
    let waits = server.run(WAITS);
    server.until(&waits, "running");
    let told =
        server.post(&format!("/v1/runs/{waits}/rewind"), &json!({ "to": "wait" })).problem(409, "refused");
    assert_eq!(told["outcome"]["status"], "running");
    server.post(&format!("/v1/runs/{waits}/retry"), &json!({})).problem(409, "refused");
    for verb in ["cancel", "resume", "retry"] {
        server.request("POST", &format!("{NOBODY}/{verb}")).send().problem(404, "not_found");
    }
    // `explain` shows the refusals.
    let refused = &server.get(&format!("/v1/runs/{run}/explain"))["refused"];
    assert!(refused.as_array().is_some_and(|all| all.len() >= 3), "{refused}");
}

#[test]
fn if_match_refuses_a_changed_version() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let run = server.run(WAITS);
    server.until(&run, "running");
    let path = format!("/v1/runs/{run}");
    let tag = server.request("GET", &path).send().expect(200).headers["etag"].clone();
    let cancel = |tag: &str| server.request("POST", &format!("{path}/cancel")).header("if-match", tag).send();
    cancel("\"999\"").problem(412, "precondition_failed");
    cancel("odd").problem(400, "malformed");
    assert_eq!(server.get(&path)["status"], "running");
    cancel(&tag).expect(200);
    server.until(&run, "cancelled");
}

#[test]
fn runs_are_resumed_retried_rewound_and_forked() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let flag = sandbox.path("flag");
    let yaml = format!(
        "steps:\n  - id: first\n    run: echo one\n  - id: second\n    run: test -e '{}'\n",
        flag.display()
    );
    let run = server.run(&yaml);
    server.until(&run, "failed");
    sandbox.write("flag", "");
    server.request("POST", &format!("/v1/runs/{run}/resume")).send().expect(200);
    server.until(&run, "completed");
    assert_eq!(server.get(&format!("/v1/runs/{run}"))["epoch"], 2);
    server.post(&format!("/v1/runs/{run}/rewind"), &json!({ "to": "first" })).expect(200);
    server.until(&run, "completed");
    server.post(&format!("/v1/runs/{run}/retry"), &json!({ "step": "second" })).expect(200);
    server.until(&run, "completed");
    let told = server.get(&format!("/v1/runs/{run}"));
    assert_eq!(
        (told["steps"][0]["attempt"].as_u64(), told["steps"][1]["attempt"].as_u64()),
        (Some(2), Some(4))
    );
    // A repeated request with a key starts one run; the same key for something else is refused.
    let fork = |key: &str, from: &str| {
        let request = server.request("POST", &format!("/v1/runs/{run}/fork")).header("idempotency-key", key);
        request.json(&json!({ "from": from })).send()
    };
    let forked = fork("k", "first").expect(201).json();
    server.until(word(&forked, "id"), "completed");
    assert_eq!(fork("k", "first").expect(200).json()["id"], forked["id"]);
    let problem = fork("k", "second").problem(422, "invalid");
    assert!(word(&problem, "message").contains("another step to continue after"), "{problem}");
    fork("enforcement:k", "first").problem(422, "invalid");
    let other = server.post(&format!("/v1/runs/{run}/fork"), &json!({ "from": "first" })).expect(201).json();
    assert_ne!(other["id"], forked["id"]);
    server.until(word(&other, "id"), "completed");
    server.post(&format!("/v1/runs/{run}/rewind"), &json!({ "to": "third" })).problem(422, "invalid");
    server.post(&format!("/v1/runs/{run}/fork"), &json!({ "from": "third" })).problem(422, "invalid");
    server.post(&format!("/v1/runs/{run}/rewind"), &json!({})).problem(422, "invalid");
    sandbox.check(&run);
}

#[test]
fn questions_are_answered_once_and_signals_are_sent() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let run = server.run(ASKS);
    let gate = sprag_tests::until_some("it asks", || {
        let told = server.get("/v1/gates?kind=question");
        let found = told["gates"].as_array()?.iter().find(|gate| gate["run"] == *run)?.clone();
        Some(found)
    });
    assert_eq!((word(&gate, "ask"), word(&gate, "step")), ("Sure?", "ask"));
    assert_eq!(server.get(&format!("/v1/gates?run={run}"))["gates"][0], gate);
    let path = format!("/v1/gates/{}", word(&gate, "id"));
    assert_eq!(server.get(&path), gate);
    let answer = |body: Value| server.post(&format!("{path}/answer"), &body);
    answer(json!({ "approved": true, "choice": "perhaps" })).problem(422, "invalid");
    assert_eq!(
        answer(json!({ "approved": true, "choice": "maybe" })).expect(200).json()["status"],
        "answered"
    );
    let again = answer(json!({ "approved": false })).problem(409, "refused");
    assert_eq!(again["outcome"]["status"], "answered");
    server.until(&run, "completed");
    server.post("/v1/gates/77/answer", &json!({ "approved": true })).problem(404, "not_found");
    server.request("GET", "/v1/gates/x").send().problem(404, "not_found");
    server.request("GET", "/v1/gates?kind=odd").send().problem(400, "malformed");

    let waits = server.run(WAITS);
    until("it waits", || {
        !server.get(&format!("/v1/gates?run={waits}&kind=signal"))["gates"]
            .as_array()
            .is_none_or(Vec::is_empty)
    });
    let signal = |name: &str| {
        server.post(&format!("/v1/runs/{waits}/signals"), &json!({ "name": name, "payload": { "a": 1 } }))
    };
    signal("other").problem(422, "invalid");
    assert_eq!(signal("go").expect(200).json()["received_by"], "wait");
    server.until(&waits, "completed");
    signal("go").problem(409, "refused");
    signal("").problem(422, "invalid");
    server.post(&format!("{NOBODY}/signals"), &json!({ "name": "go" })).problem(404, "not_found");
}

#[test]
fn pipelines_are_checked_named_and_refused_with_their_places() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path(".sprag/pipelines");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("ci.yaml"), HELLO).expect("a file");
    std::fs::write(folder.join("odd.yaml"), "steps: 3").expect("a file");
    let server = Server::start(&sandbox, &["--project", "."]);
    let listed = server.get("/v1/pipelines");
    let told: Vec<(&str, bool)> = listed["pipelines"]
        .as_array()
        .expect("pipelines")
        .iter()
        .map(|one| (word(one, "name"), one["valid"] == true))
        .collect();
    assert_eq!(told, [("ci", true), ("odd", false)]);
    let checked = server.post("/v1/pipelines/validate", &json!({ "yaml": HELLO })).expect(200).json();
    assert_eq!(checked["steps"], json!(["say", "end"]));
    let told = server.post("/v1/pipelines/validate", &json!({ "yaml": "steps:\n  - id: a\n    rum: x\n" }));
    let told = told.problem(422, "pipeline");
    assert_eq!(
        (told["diagnostics"][0]["line"].as_u64(), told["diagnostics"][0]["column"].as_u64()),
        (Some(3), Some(5))
    );
    let made = server.post("/v1/runs", &json!({ "pipeline": "ci" })).expect(201).json();
    server.until(word(&made, "id"), "completed");
    for (body, code) in [
        (json!({ "pipeline": "none" }), "invalid"),
        (json!({ "pipeline": "../../etc/passwd" }), "invalid"),
        (json!({ "pipeline": "odd" }), "pipeline"),
        (json!({ "pipeline": "ci", "yaml": HELLO }), "invalid"),
        (json!({}), "invalid"),
        (json!({ "yaml": HELLO, "inputs": { "x": 1 } }), "pipeline"),
        (json!({ "yaml": HELLO, "dir": "not/absolute" }), "invalid"),
        (json!({ "yaml": HELLO, "surprise": 1 }), "invalid"),
        (json!({ "yaml": 7 }), "invalid"),
    ] {
        server.post("/v1/runs", &body).problem(422, code);
    }
    let lifecycles = server.get("/v1/lifecycles");
    assert_eq!(lifecycles["lifecycles"][0]["entity"], "run");
}

#[test]
fn queues_are_held_released_and_limited() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let queue = |name: &str| {
        let told = server.get("/v1/queues");
        told["queues"].as_array().expect("queues").iter().find(|queue| queue["name"] == name).cloned()
    };
    assert_eq!(queue("default").expect("it is served")["workers"], 1);
    assert_eq!(server.request("POST", "/v1/queues/default/hold").send().expect(200).json()["held"], true);
    let run = server.run(HELLO);
    until("it waits", || queue("default").is_some_and(|queue| queue["requested"] == 1));
    assert_eq!(sandbox.json(["queue", "ls", "--json"])[0]["held"], true);
    assert_eq!(server.get(&format!("/v1/runs/{run}"))["steps"][0]["status"], "pending");
    assert_eq!(server.request("POST", "/v1/queues/default/release").send().expect(200).json()["held"], false);
    server.until(&run, "completed");
    let limit = |body: Value| server.request("PUT", "/v1/queues/default/limit").json(&body).send();
    assert_eq!(limit(json!({ "limit": 2 })).expect(200).json()["limit"], 2);
    assert_eq!(limit(json!({ "limit": null })).expect(200).json()["limit"], Value::Null);
    limit(json!({ "limit": -1 })).problem(422, "invalid");
    server.request("POST", "/v1/queues/a%2Cb/hold").send().problem(422, "invalid");
    let workers = server.get("/v1/workers");
    assert_eq!(
        (word(&workers["workers"][0], "status"), &workers["workers"][0]["queues"][0]),
        ("online", &json!("default"))
    );
    // The command line does the same.
    sandbox.sprag(["queue", "hold", "default"]).expect(0);
    assert_eq!(queue("default").expect("a queue")["held"], true);
    sandbox.sprag(["queue", "limit", "default", "7"]).expect(0);
    sandbox.sprag(["queue", "release", "default"]).expect(0);
    assert_eq!(queue("default").expect("a queue")["limit"], 7);
    sandbox.sprag(["queue", "limit", "default", "none"]).expect(0);
    sandbox.sprag(["queue", "limit", "default", "x"]).expect(2);
}

#[test]
fn t04_accounts_are_held_and_released_everywhere() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    assert_eq!(server.get("/v1/accounts")["accounts"], json!([]));
    let hold = |name: &str, body: Value| {
        server.request("POST", &format!("/v1/accounts/{name}/hold")).json(&body).send()
    };
    let held = hold("work", json!({ "seconds": 3600, "reason": "a demo" })).expect(200).json();
    assert_eq!((word(&held, "status"), word(&held, "reason")), ("held", "a demo"));
    assert_eq!(server.get("/v1/accounts")["accounts"][0], held);
    hold("a%0Ab", json!({})).problem(422, "invalid");
    hold("work", json!({ "seconds": 0 })).problem(422, "invalid");
    hold("work", json!({ "reason": "x".repeat(201) })).problem(422, "invalid");
    let release = |name: &str| server.request("POST", &format!("/v1/accounts/{name}/release")).send();
    release("wrok").problem(404, "not_found");
    let metrics = server.request("GET", "/metrics").send().expect(200).text();
    assert!(metrics.contains("sprag_account_held{account=\"work\"} 1"), "{metrics}");
    // The command line sees the same account, and tells who wants to know what is wrong.
    let listed = sandbox.sprag(["account", "ls"]).expect(0).stdout;
    assert!(listed.contains("work") && listed.contains("held") && listed.contains("a demo"), "{listed}");
    let unknown = sandbox.sprag(["account", "release", "wrok"]).expect(2);
    assert!(unknown.stderr.contains("accounts: work"), "{}", unknown.stderr);
    sandbox.sprag(["account", "hold", "work", "--for", "soon"]).expect(2);
    let endless = sandbox.json(["account", "hold", "work", "--json"]);
    assert_eq!((word(&endless, "status"), &endless["held_until"]), ("held", &Value::Null));
    assert_eq!(release("work").expect(200).json()["status"], "free");
    release("work").problem(409, "refused");
    sandbox.sprag(["account", "release", "work"]).expect(1);
}

#[test]
fn files_of_a_run_are_listed_and_sent_and_no_others() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let yaml =
        "steps:\n  - id: make\n    run: printf 0123456789 > out.txt\n    outputs: { result: out.txt }\n";
    let run = server.run(yaml);
    server.until(&run, "completed");
    let listed = server.get(&format!("/v1/runs/{run}/artifacts"));
    let path = word(&listed["artifacts"][0], "path").to_owned();
    assert_eq!(listed["artifacts"][0]["bytes"], 10);
    let get = |path: &str| server.request("GET", &format!("/v1/runs/{run}/artifacts/{path}"));
    let whole = get(&path).send().expect(200);
    assert_eq!(
        (whole.text().as_str(), whole.headers["content-disposition"].as_str()),
        ("0123456789", "attachment")
    );
    let part = get(&path).header("range", "bytes=2-4").send().expect(206);
    assert_eq!((part.text().as_str(), part.headers["content-range"].as_str()), ("234", "bytes 2-4/10"));
    for trick in [
        "../make.1.log",
        "..%2fmake.1.log",
        "%2e%2e/make.1.log",
        "..%5cmake.1.log",
        "%2fetc%2fpasswd",
        "//etc/passwd",
        "./x",
        "%00",
        "make.1",
        "make.1/result",
        "make.1%2fresult%2f..%2f..%2f..%2fmake.1.log",
        "%2e%2e%2f%2e%2e%2fsprag.db",
        &format!("{path}/"),
        &format!("{path}%00"),
    ] {
        get(trick).send().problem(404, "not_found");
    }
    let other = server.run(HELLO);
    server.request("GET", &format!("/v1/runs/{other}/artifacts/{path}")).send().problem(404, "not_found");
}

#[test]
fn the_journal_is_read_by_pages() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let run = server.run(HELLO);
    server.until(&run, "completed");
    let mut entries = Vec::new();
    let mut after = 0;
    for _ in 0..50 {
        let page = server.get(&format!("/v1/journal?run={run}&limit=3&after={after}"));
        after = page["next_after"].as_u64().expect("a number");
        match page["entries"].as_array().expect("entries").as_slice() {
            [] => break,
            some => entries.extend_from_slice(some),
        }
    }
    let by_command: Vec<Value> = sandbox.sprag(["events", "--run", &run, "--json"]).expect(0).lines();
    assert_eq!(entries, by_command);
    server.request("GET", "/v1/journal?limit=1001").send().problem(400, "malformed");
    server.request("GET", "/v1/journal?run=x").send().problem(400, "malformed");
    assert_eq!(server.get("/v1/environments")["environments"], json!([]));
    server.request("GET", "/v1/environments/5").send().problem(404, "not_found");
    server.request("POST", "/v1/environments/5/cleanup").send().problem(404, "not_found");
}

#[test]
fn i25_a_key_starts_one_run_under_64_clients() {
    const CLIENTS: usize = 64;
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    for round in 0..4 {
        let start = Barrier::new(CLIENTS);
        let key = format!("round-{round}");
        let answers: Vec<(u16, String)> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    scope.spawn(|| {
                        let request = server
                            .request("POST", "/v1/runs")
                            .json(&json!({ "yaml": HELLO }))
                            .header("idempotency-key", &key);
                        start.wait();
                        let reply = request.send();
                        (reply.status, word(&reply.json(), "id").to_owned())
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().expect("an answer")).collect()
        });
        let runs: BTreeSet<&String> = answers.iter().map(|(_, run)| run).collect();
        assert_eq!(runs.len(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|(status, _)| *status == 201).count(), 1);
        assert!(answers.iter().all(|(status, _)| matches!(status, 200 | 201)));
    }
    assert_eq!(server.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(4));
    let other = server
        .request("POST", "/v1/runs")
        .json(&json!({ "yaml": FAILS }))
        .header("idempotency-key", "round-0");
    other.send().problem(422, "invalid");
    let empty =
        server.request("POST", "/v1/runs").json(&json!({ "yaml": HELLO })).header("idempotency-key", "");
    empty.send().problem(400, "malformed");
}

#[test]
fn tokens_open_what_their_scopes_say() {
    let sandbox = Sandbox::new();
    let token = |name: &str, scope: &str| {
        let made = sandbox.json(["token", "new", name, "--scope", scope, "--json"]);
        word(&made, "token").to_owned()
    };
    let [read, run, work, admin] = ["read", "run", "work", "admin"].map(|scope| token(scope, scope));
    let listed = sandbox.sprag(["token", "ls", "--json"]).expect(0).stdout;
    assert!(!listed.contains(&read), "secrets are not shown again");
    let stored = std::fs::read(sandbox.data().join("sprag.db")).expect("the file");
    let wal = std::fs::read(sandbox.data().join("sprag.db-wal")).unwrap_or_default();
    for secret in [&read, &admin] {
        let there = |bytes: &[u8]| bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!there(&stored) && !there(&wal), "only hashes are kept");
    }
    let server = Server::start(&sandbox, &[]);
    server.anonymous("GET", "/healthz").send().expect(200);
    server.anonymous("GET", "/openapi.json").send().expect(200);
    server.anonymous("GET", "/v1/runs").send().problem(401, "unauthorized");
    let refused = server.request("GET", "/v1/runs").token("sprag_0000").send();
    assert_eq!(refused.headers["www-authenticate"], "Bearer");
    refused.problem(401, "unauthorized");
    server
        .anonymous("GET", "/v1/runs")
        .header("authorization", "Basic abc")
        .send()
        .problem(401, "unauthorized");
    for token in [&read, &run, &work, &admin] {
        server.request("GET", "/v1/runs").token(token).send().expect(200);
        // A `work` token reads what it holds, and the metrics are about all runs.
        let may = if token == &work { 403 } else { 200 };
        server.request("GET", "/metrics").token(token).send().expect(may);
    }
    let create =
        |token: &str| server.request("POST", "/v1/runs").token(token).json(&json!({ "yaml": HELLO })).send();
    create(&read).problem(403, "forbidden");
    create(&work).problem(403, "forbidden");
    create(&run).expect(201);
    create(&admin).expect(201);
    server.request("GET", "/v1/tokens").token(&run).send().problem(403, "forbidden");
    let made = server.request("POST", "/v1/tokens").token(&admin);
    let made = made
        .json(&json!({ "name": "short", "scopes": ["read"], "expires_in_s": 1 }))
        .send()
        .expect(201)
        .json();
    let short = word(&made, "token").to_owned();
    let again = server
        .request("POST", "/v1/tokens")
        .token(&admin)
        .json(&json!({ "name": "short", "scopes": ["read"] }));
    again.send().problem(409, "refused");
    let odd =
        server.request("POST", "/v1/tokens").token(&admin).json(&json!({ "name": "x", "scopes": ["odd"] }));
    odd.send().problem(422, "invalid");
    server.request("GET", "/v1/runs").token(&short).send().expect(200);
    until("it expires", || server.request("GET", "/v1/runs").token(&short).send().status == 401);
    sandbox.sprag(["token", "rm", "read"]).expect(0);
    until("it is not let in any more", || {
        server.request("GET", "/v1/runs").token(&read).send().status == 401
    });
    let id = word(&made, "id");
    server.request("DELETE", &format!("/v1/tokens/{id}")).token(&admin).send().expect(204);
    server.request("DELETE", &format!("/v1/tokens/{id}")).token(&admin).send().problem(404, "not_found");
}

#[test]
fn nothing_under_v1_is_open_and_nothing_is_changed_by_a_reader() {
    let sandbox = Sandbox::new();
    let made = sandbox.json(["token", "new", "reader", "--json"]);
    let server = Server::start(&sandbox, &["--no-worker"]);
    let api = server.get("/openapi.json");
    let mut tried = 0;
    for (path, item) in api["paths"].as_object().expect("paths") {
        let path = path.replace("{run}", "000000000000").replace("{step}", "x").replace("{queue}", "q");
        let path = path.replace("{id}", "1").replace("{path}", "x");
        for method in item.as_object().expect("operations").keys().map(|method| method.to_uppercase()) {
            // A browser that signs in has no cookie yet; the tests of the dashboard call it.
            // Requests for rules are signed instead; their own tests call them.
            if matches!(path.as_str(), "/healthz" | "/readyz" | "/v1/session") || path.starts_with("/in/") {
                continue;
            }
            tried += 1;
            // Slower than the limit on failed attempts.
            until("the answer is not about the rate", || {
                let reply = server.anonymous(&method, &path).send();
                assert!(matches!(reply.status, 401 | 429), "{method} {path}: {}", reply.status);
                reply.status == 401
            });
            if method != "GET" {
                let reply =
                    server.request(&method, &path).token(word(&made, "token")).json(&json!({})).send();
                assert_eq!(reply.status, 403, "{method} {path}");
            }
        }
    }
    assert!(tried > 30, "{tried}");
}

#[test]
fn an_address_in_use_is_reported() {
    let sandbox = Sandbox::new();
    let taken = Server::start(&sandbox, &[]);
    let refused = sandbox.sprag(["serve", "--listen", &taken.addr.to_string()]).expect(1);
    assert!(refused.stderr.contains("--listen"), "{}", refused.stderr);
}

#[test]
fn metrics_count_what_happened() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let run = server.run(HELLO);
    server.until(&run, "completed");
    server.request("POST", &format!("/v1/runs/{run}/cancel")).send().expect(409);
    let wanted = [
        "sprag_transitions_total{entity=\"run\",event=\"run.succeeded\"} 1",
        "sprag_transitions_total{entity=\"step\",event=\"step.succeeded\"} 2",
        "sprag_refusals_total{entity=\"run\",reason=\"illegal\"} 1",
        "sprag_workers 1",
        "sprag_queue_depth{queue=\"default\"} 0",
        "sprag_http_requests_total{method=\"POST\",route=\"/v1/runs\",status=\"201\"} 1",
        "sprag_commit_seconds_count",
        "sprag_commit_operations_sum",
        "sprag_repository_lock_waits_total ",
        "# EOF",
    ];
    until("all of it is counted", || {
        let text = server.request("GET", "/metrics").send().expect(200).text();
        wanted.iter().all(|line| text.contains(line))
    });
}
