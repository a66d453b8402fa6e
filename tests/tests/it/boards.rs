//! Boards: shared tasks, through separate processes on one file and through HTTP.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;

use serde_json::{Value, json};
use sprag_tests::{Sandbox, Server, program, until};

fn board(sandbox: &Sandbox, name: &str, tasks: usize) {
    sandbox.sprag(["board", "new", name]).expect(0);
    if tasks > 0 {
        let batch: Vec<Value> = (0..tasks).map(|n| json!({ "text": format!("task {n}") })).collect();
        sandbox.write("batch.json", &json!(batch).to_string());
        sandbox.sprag(["task", "batch", name, "batch.json"]).expect(0);
    }
}

fn claim(sandbox: &Sandbox, name: &str, who: &str) -> Value {
    sandbox.json(["task", "claim", "--board", name, "--as", who, "--json"])
}

fn token(task: &Value) -> &str {
    task["token"].as_str().expect("a token")
}

#[test]
fn c03_c06_tasks_in_order_held_by_one() {
    let sandbox = Sandbox::new();
    board(&sandbox, "b", 0);
    sandbox.sprag(["task", "add", "b", "first", "--key", "first", "--hint", "look"]).expect(0);
    sandbox.sprag(["task", "add", "b", "second", "--needs", "first"]).expect(0);
    sandbox.sprag(["task", "add", "b", "urgent", "--key", "urgent", "--priority", "9"]).expect(0);
    let urgent = claim(&sandbox, "b", "ada");
    assert_eq!((&urgent["prompt"], &urgent["key"]), (&json!("urgent"), &json!("urgent")));
    let first = claim(&sandbox, "b", "bob");
    assert_eq!((&first["prompt"], &first["with"]["hints"]), (&json!("first"), &json!(["look"])));
    let none = sandbox.sprag(["task", "claim", "--board", "b", "--json"]).expect(4).json();
    assert_eq!(none["why"], "waiting_for_needs");
    let shown = sandbox.json(["board", "show", "b", "--json"]);
    assert_eq!(shown["tasks"]["claimed"], 2);
    assert_eq!(shown["list"][0]["by"], "bob");
    let again = sandbox.json(["task", "start", token(&first), "--json"]);
    assert_eq!((&again["prompt"], &again["token"]), (&first["prompt"], &first["token"]));
    for verb in ["start", "done", "heartbeat", "release"] {
        let told = sandbox.sprag(["task", verb, &forged(token(&first))]).expect(2);
        assert!(told.stderr.contains("not a token"), "{told:?}");
    }
    sandbox.sprag(["task", "done", token(&first), "--summary", "did it", "--output", "n=1"]).expect(0);
    let second = claim(&sandbox, "b", "bob");
    assert_eq!(second["needs"]["first"]["result"]["outputs"]["n"], "1");
    sandbox.sprag(["task", "cancel", "b", "2"]).expect(0);
    let told = sandbox.sprag(["task", "heartbeat", token(&second)]).expect(130);
    assert!(told.stderr.contains("cancelled"), "{told:?}");
    sandbox.sprag(["task", "release", token(&second)]).expect(0);
    assert_eq!(sandbox.json(["task", "show", "b", "2", "--json"])["status"], "cancelled");
    sandbox.sprag(["task", "done", token(&urgent)]).expect(0);
    let closed = sandbox.json(["board", "close", "b", "--json"]);
    assert_eq!(closed["status"], "completed");
    let none = sandbox.sprag(["task", "claim", "--board", "b", "--json"]).expect(4).json();
    assert_eq!((&none["why"], &none["retry_after_s"]), (&json!("closed"), &json!(0)));
    let journal = sandbox.journal(Some(closed["run"].as_str().expect("a run")));
    assert!(!journal.entries.is_empty());
}

/// Returns the token with a changed fence.
fn forged(token: &str) -> String {
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    parts[3] = (parts[3].parse::<u32>().expect("a fence") + 1).to_string();
    parts.join(".")
}

#[test]
fn o01_a_guessed_address_cannot_report_a_step() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "check",
        "steps:\n  - id: check\n    run: sleep 2; exit 1\n  - id: land\n    run: touch landed\n",
    );
    let running = sandbox.start(["run", "check.yaml"]);
    let run = sprag_tests::until_some("a run", || sandbox.newest());
    sandbox.until_step(&run, "check", "running");
    for fence in 0..4 {
        for token in [format!("{run}.0.1.{fence}"), format!("{run}.0.1.{fence}.0011223344556677")] {
            for verb in ["done", "start", "release"] {
                sandbox.sprag(["task", verb, &token]).expect(2);
            }
        }
    }
    running.finish().expect(100);
    assert!(!sandbox.path("landed").exists());
}

#[test]
fn o09_c08_without_a_server_tasks_of_dead_claimers_are_reclaimed() {
    let sandbox = Sandbox::new();
    sandbox.sprag(["board", "new", "b", "--attempts", "2", "--retry-delay", "1s"]).expect(0);
    sandbox.sprag(["task", "add", "b", "x"]).expect(0);
    let lost = sandbox.json(["task", "claim", "--board", "b", "--as", "ada", "--lease", "1s", "--json"]);
    let taken = sandbox.json(["task", "claim", "--board", "b", "--as", "bob", "--wait", "20s", "--json"]);
    assert_eq!(taken["attempt"], 2, "{taken}");
    let told = sandbox.sprag(["task", "done", token(&lost)]).expect(1);
    assert!(told.stderr.contains("no longer yours"), "{told:?}");
    sandbox.sprag(["task", "fail", token(&taken), "--reason", "no pen"]).expect(0);
    let none = sandbox.sprag(["task", "claim", "--board", "b", "--json"]).expect(4).json();
    assert_eq!(none["why"], "backing_off", "its wait is kept: {none}");
    let again = sandbox.json(["task", "claim", "--board", "b", "--as", "eve", "--wait", "20s", "--json"]);
    assert!(again["feedback"].as_str().is_some_and(|said| said.contains("no pen")), "{again}");
    sandbox.sprag(["task", "cancel", "b", "1"]).expect(0);
    sandbox.sprag(["task", "fail", token(&again)]).expect(0);
    assert_eq!(
        sandbox.json(["task", "show", "b", "1", "--json"])["status"],
        "failed",
        "nobody wants it again"
    );
}

#[test]
fn c09_a_board_hands_out_its_own_tasks_and_is_not_rewound() {
    let sandbox = Sandbox::new();
    board(&sandbox, "b", 0);
    sandbox.sprag(["task", "add", "b", "old"]).expect(0);
    let closed = sandbox.json(["board", "close", "b", "--json"]);
    board(&sandbox, "b", 0);
    sandbox.sprag(["task", "add", "b", "new"]).expect(0);
    assert_eq!(claim(&sandbox, "b", "ada")["prompt"], "new");
    let run = closed["run"].as_str().expect("a run");
    let old = claim(&sandbox, run, "ada");
    assert_eq!(old["prompt"], "old");
    sandbox.sprag(["task", "fail", token(&old), "--reason", "no"]).expect(0);
    let told = sandbox.sprag(["rewind", run, "--to", "task", "--detach"]).expect(1);
    assert!(told.stderr.contains("cannot be rewound"), "{told:?}");
    assert_eq!(sandbox.json(["board", "show", run, "--json"])["list"][0]["text"], "old");
    sandbox.sprag(["logs", run, "task-1"]).expect(0);
    for args in [["board", "new", "d", "--queue", "default"], ["task", "add", "b", "x", "--queue=default"]] {
        let told = sandbox.sprag(args).expect(2);
        assert!(told.stderr.contains("commands"), "{told:?}");
    }
}

#[test]
fn bad_input_is_reported_and_changes_nothing() {
    let sandbox = Sandbox::new();
    board(&sandbox, "b", 1);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["board", "new", "b"], 1, "open board"),
        (&["board", "new", "no spaces"], 2, "letters"),
        (&["board", "new", ""], 2, "letters"),
        (&["board", "show", "nobody"], 2, "no board"),
        (&["task", "add", "b", "  "], 2, "empty"),
        (&["task", "add", "b", "x", "--key", "7"], 2, "number"),
        (&["task", "add", "b", "x", "--needs", "nobody"], 2, "nobody"),
        (&["task", "add", "b", "x", "--queue", "a b"], 2, "queue"),
        (&["task", "show", "b", "99"], 2, "no task"),
        (&["task", "retry", "b", "1"], 1, "ready"),
        (&["task", "claim", "--board", "b", "--lease", "1ms"], 2, "lease"),
        (&["task", "batch", "b", "not-there.json"], 2, "not-there.json"),
        (&["board", "note", "b", "x", "--tag", "two words"], 2, "tag"),
    ];
    for (args, code, words) in cases {
        let told = sandbox.sprag(*args).expect(*code);
        assert!(told.stderr.contains(words), "{args:?}: {told:?}");
    }
    sandbox.write("bad.json", r#"[{"text": "a"}, {"text": "b", "wants": ["a"]}]"#);
    let told = sandbox.sprag(["task", "batch", "b", "bad.json"]).expect(2);
    assert!(told.stderr.contains("wants"), "{told:?}");
    sandbox.write(
        "circle.json",
        r#"[{"key":"x","text":"a","needs":["y"]},{"key":"y","text":"b","needs":["x"]}]"#,
    );
    let told = sandbox.sprag(["task", "batch", "b", "circle.json"]).expect(2);
    assert!(told.stderr.contains("cycle"), "{told:?}");
    assert_eq!(sandbox.json(["board", "show", "b", "--json"])["list"].as_array().map(Vec::len), Some(1));
}

#[test]
fn c01_c02_separate_processes_claim_each_task_once() {
    const TASKS: usize = 120;
    let sandbox = Sandbox::new();
    board(&sandbox, "b", TASKS);
    let claimed: Mutex<BTreeMap<i64, usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (sandbox, claimed) = (&sandbox, &claimed);
            scope.spawn(move || {
                for _ in 0..=TASKS {
                    let who = format!("w{worker}");
                    let told = sandbox.sprag(["task", "claim", "--board", "b", "--as", &who, "--json"]);
                    let task = told.json();
                    let Some(token) = task["token"].as_str() else { break };
                    *claimed
                        .lock()
                        .expect("a lock")
                        .entry(task["task"].as_i64().expect("a number"))
                        .or_default() += 1;
                    sandbox.sprag(["task", "done", token]).expect(0);
                }
            });
        }
    });
    let claimed = claimed.into_inner().expect("a lock");
    assert_eq!(claimed.len(), TASKS);
    assert!(claimed.values().all(|times| *times == 1), "{claimed:?}");
    assert_eq!(sandbox.json(["board", "close", "b", "--json"])["status"], "completed");
}

#[test]
fn c01_c04_sixty_four_http_clients_claim_each_task_once() {
    const TASKS: usize = 640;
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    server.post("/v1/boards", &json!({ "name": "b" })).expect(201);
    let batch: Vec<Value> = (0..TASKS).map(|n| json!({ "text": format!("task {n}") })).collect();
    server.post("/v1/boards/b/tasks", &json!({ "tasks": batch })).expect(200);
    let claimed: Mutex<Vec<i64>> = Mutex::default();
    std::thread::scope(|scope| {
        for worker in 0..64 {
            let (server, claimed) = (&server, &claimed);
            scope.spawn(move || {
                for _ in 0..=TASKS {
                    let wanted = json!({ "name": format!("w{worker}"), "board": "b" });
                    let told = server.post("/v1/tasks/claim", &wanted).expect(200).json();
                    let Some(token) = told["task"]["token"].as_str() else {
                        assert!(
                            ["all_claimed", "empty"]
                                .contains(&told["nothing"]["why"].as_str().unwrap_or_default()),
                            "{told}"
                        );
                        break;
                    };
                    claimed.lock().expect("a lock").push(told["task"]["task"].as_i64().expect("a number"));
                    server.post(&format!("/v1/tasks/{token}/done"), &json!({ "summary": "ok" })).expect(200);
                }
            });
        }
    });
    let mut claimed = claimed.into_inner().expect("a lock");
    claimed.sort_unstable();
    assert_eq!(claimed, (1..=TASKS as i64).collect::<Vec<_>>());
    let closed = server.post("/v1/boards/b/close", &json!({})).expect(200).json();
    assert_eq!((&closed["status"], &closed["tasks"]["done"]), (&json!("completed"), &json!(TASKS)));
}

#[test]
fn c06_l07_a_lost_token_is_refused_over_http_with_its_outcome() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    server.post("/v1/boards", &json!({ "name": "b" })).expect(201);
    server.post("/v1/boards/b/tasks", &json!({ "tasks": [{ "text": "x" }] })).expect(200);
    let wanted = json!({ "name": "ada", "board": "b", "lease_s": 5, "request": 7 });
    let first = server.post("/v1/tasks/claim", &wanted).expect(200).json();
    let again = server.post("/v1/tasks/claim", &wanted).expect(200).json();
    assert_eq!(first["task"]["token"], again["task"]["token"], "the same request gets the same task");
    let token = first["task"]["token"].as_str().expect("a token");
    // The lease is not renewed: another claimer gets the task, and reports of the first one are refused.
    let other = json!({ "name": "bob", "board": "b", "wait_s": 60 });
    let second = server.post("/v1/tasks/claim", &other).expect(200).json();
    assert_eq!(second["task"]["attempt"], 2, "{second}");
    for verb in ["heartbeat", "done", "release", "start"] {
        let problem = server.post(&format!("/v1/tasks/{token}/{verb}"), &json!({})).problem(409, "lost");
        assert!(problem["outcome"]["kind"].is_string(), "{problem}");
    }
    server.post("/v1/tasks/nonsense/done", &json!({})).problem(404, "no_token");
    let fresh = second["task"]["token"].as_str().expect("a token");
    server.post(&format!("/v1/tasks/{fresh}/fail"), &json!({ "reason": "no" })).expect(200);
    server.post("/v1/boards/b/tasks/1/retry", &json!({})).expect(200);
    server.post("/v1/boards/b/tasks/1/retry", &json!({})).problem(409, "refused");
    server.post("/v1/boards/b/notes", &json!({ "author": "ada", "text": "hm", "tag": "t" })).expect(201);
    assert_eq!(server.get("/v1/boards/b/notes?tag=t")["notes"][0]["text"], "hm");
    assert_eq!(server.get("/v1/boards/b/report")["tasks"][0]["status"], "ready");
}

#[test]
fn e17_f2_a_repeated_report_gets_the_same_answer_and_a_different_one_does_not_replace_it() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    server.post("/v1/boards", &json!({ "name": "b", "attempts": 2 })).expect(201);
    server.post("/v1/boards/b/tasks", &json!({ "tasks": [{ "text": "x" }, { "text": "y" }] })).expect(200);
    let claim = || {
        let claimed =
            server.post("/v1/tasks/claim", &json!({ "name": "ada", "board": "b" })).expect(200).json();
        claimed["task"]["token"].as_str().expect("a token").to_owned()
    };
    let (first, second) = (claim(), claim());
    let done = |token: &str, report: &Value| server.post(&format!("/v1/tasks/{token}/done"), report);
    let report = json!({ "summary": "well", "outputs": { "n": 1, "list": ["a"] }, "files_changed": ["f"] });
    let told = done(&first, &report).expect(200).json();
    assert_eq!(done(&first, &report).expect(200).json(), told);
    // By the command line it is the same report.
    let same = ["--summary", "well", "--result", r#"{"list": ["a"], "n": 1}"#, "--changed", "f"];
    sandbox.sprag(["task", "done", &first].iter().chain(&same)).expect(0);
    // And by an agent's tool.
    let by_tool = |summary: &str| {
        let report =
            json!({ "summary": summary, "outputs": { "n": 1, "list": ["a"] }, "files_changed": ["f"] });
        server.call("task_complete", &json!({ "token": first, "result": report }))
    };
    let answered = by_tool("well");
    assert!(answered["error"].is_null(), "{answered}");
    assert_eq!(by_tool("well"), answered);
    assert_eq!(by_tool("better")["error"], "reported");
    let problem = done(&first, &json!({ "summary": "better" })).problem(409, "reported");
    assert!(problem["next"].as_str().is_some_and(|next| next.contains("keep the work")), "{problem}");
    for verb in ["heartbeat", "release", "start"] {
        server.post(&format!("/v1/tasks/{first}/{verb}"), &json!({})).problem(409, "reported");
    }
    let other = sandbox.sprag(["task", "done", &first]).expect(1);
    assert!(other.stderr.contains("has already been reported as completed"), "{other:?}");
    // A failure too, also after the next try has begun.
    let failed =
        |reason: &str| server.post(&format!("/v1/tasks/{second}/fail"), &json!({ "reason": reason }));
    failed("no pen").expect(200);
    failed("no pen").expect(200);
    let third = claim();
    failed("no pen").expect(200);
    failed("no ink").problem(409, "reported");
    done(&third, &report).expect(200);
    let tasks = server.get("/v1/boards/b/tasks")["tasks"].clone();
    assert_eq!((&tasks[0]["status"], &tasks[1]["status"]), (&json!("done"), &json!("done")));
    assert_eq!(tasks[0]["result"]["summary"], "well", "{tasks}");
}

#[test]
fn a_client_that_disappears_while_waiting_takes_no_task_with_it() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    server.post("/v1/boards", &json!({ "name": "b" })).expect(201);
    for round in 0..20 {
        // An answer that was on its way already is lost: that task comes back with its lease.
        let gone = json!({ "name": "gone", "board": "b", "wait_s": 30, "lease_s": 5 });
        let mut connection = sprag_tests::connect(server.addr).expect("a connection");
        let request = server.request("POST", "/v1/tasks/claim").json(&gone).bytes();
        std::io::Write::write_all(&mut connection, &request).expect("it is sent");
        // It goes away shortly before, or shortly after, there is something for it.
        let add = || server.post("/v1/boards/b/tasks", &json!({ "tasks": [{ "text": "x" }] })).expect(200);
        if round % 2 == 0 {
            drop(connection);
            add();
        } else {
            add();
            drop(connection);
        }
        let wanted = json!({ "name": "ada", "board": "b", "wait_s": 40 });
        let got = server.post("/v1/tasks/claim", &wanted).expect(200).json();
        let token = got["task"]["token"].as_str().unwrap_or_else(|| panic!("round {round}: {got}"));
        server.post(&format!("/v1/tasks/{token}/done"), &json!({})).expect(200);
    }
}

/// docs/boards.md: a leader and two workers, each in a terminal of its own, as it is written.
#[test]
fn the_page_on_boards_works_as_it_is_written() {
    const PAGE: &str = include_str!("../../../docs/boards.md");
    let sandbox = Sandbox::new();
    let mut blocks = 0;
    for part in PAGE.split("<!-- terminal ").skip(1) {
        let (terminal, rest) = part.split_once(" -->").expect("a number");
        let block =
            rest.split("```console\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
        let lines: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
        let kept = format!("vars-{terminal}");
        let script = format!(
            "set -e; [ ! -f {kept} ] || . ./{kept}; set -a\n{}\nexport -p > {kept}",
            lines.join("\n")
        );
        let mut shell = Command::new("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        let programs = program().parent().expect("a folder").display();
        shell.args(["-c", &script]).current_dir(sandbox.path("")).env("SPRAG_DATA", sandbox.data());
        shell.env("PATH", format!("{programs}:{path}"));
        sandbox.start_command(shell).finish().expect(0);
        blocks += 1;
    }
    assert_eq!(blocks, 4);
    let report = sandbox.json(["board", "report", "release", "--json"]);
    let told: Vec<&str> = report["tasks"]
        .as_array()
        .expect("tasks")
        .iter()
        .filter_map(|task| task["result"]["summary"].as_str())
        .collect();
    assert_eq!(told, ["written", "fixed two links", "published"]);
    assert_eq!(report["board"]["status"], "completed");
    until("nothing is left", || sandbox.json(["task", "ls", "--json"]) == json!([]));
}
