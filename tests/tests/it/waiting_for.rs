//! A run that waits shows for what, in one word: in lists, in the status, in the graph, as JSON and over HTTP.

use serde_json::Value;
use sprag_tests::{Sandbox, Server, Signal, Started, until};

/// Starts a run that waits, and sees that everything shows it; the process, and the run.
#[track_caller]
fn waits(sandbox: &Sandbox, file: &str, kind: &str) -> (Started, String) {
    let started = sandbox.start(["run", file]);
    let name = file.trim_end_matches(".yaml");
    let mut run = String::new();
    until(&format!("{file} waits for a {kind}"), || {
        let all = sandbox.json(["ls", &format!("--waiting={kind}"), "--json"]);
        let found = all.as_array().into_iter().flatten().find(|one| one["pipeline"] == name).cloned();
        run = found.as_ref().and_then(|one| one["id"].as_str()).unwrap_or_default().to_owned();
        found.is_some_and(|one| one["waiting_for"] == kind)
    });
    let status = sandbox.status(&run);
    assert_eq!(status["waiting_for"], kind, "{status}");
    let people = sandbox.sprag(["ls", "--waiting"]).expect(0).stdout;
    let words = format!("waits for {kind}");
    assert!(people.lines().any(|line| line.contains(&run) && line.contains(&words)), "{people}");
    assert!(sandbox.sprag(["status", &run]).expect(0).stdout.contains(&words));
    assert!(sandbox.sprag(["graph", &run]).expect(0).stdout.contains(&words));
    assert_eq!(sandbox.json(["explain", &run, "--json"])["waiting_for"], kind);
    (started, run)
}

#[test]
fn a_run_that_waits_shows_for_what() {
    let sandbox = Sandbox::new();
    sandbox.yaml("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n  - { id: beside, needs: [], wait: { signal: go } }\n");
    sandbox.yaml("task", "steps:\n  - { id: review, task: { queue: people, prompt: Look } }\n");
    sandbox.yaml("signal", "steps:\n  - { id: go, wait: { signal: go } }\n");
    sandbox.yaml("time", "steps:\n  - { id: flaky, retry: { attempts: 2, delay: 10m }, run: exit 3 }\n");
    sandbox.yaml("group", "concurrency: { group: g }\nsteps:\n  - { id: go, wait: { signal: go } }\n");
    let mut all = Vec::new();
    for (file, kind) in
        [("asks.yaml", "person"), ("task.yaml", "task"), ("signal.yaml", "signal"), ("time.yaml", "time")]
    {
        all.push(waits(&sandbox, file, kind).0);
    }
    let first = sandbox.start(["run", "group.yaml"]);
    until("the first has its place", || {
        let runs = sandbox.json(["ls", "--json"]);
        runs.as_array()
            .expect("runs")
            .iter()
            .any(|one| one["pipeline"] == "group" && one["status"] == "running")
    });
    all.push(waits(&sandbox, "group.yaml", "group").0);
    all.push(first);
    sandbox.pipeline("left", &[("one", "run: echo one")]);
    let left = sandbox.detach(&sandbox.path("left.yaml"));
    assert_eq!(sandbox.status(&left)["waiting_for"], "worker");
    assert_eq!(sandbox.step(&left, "one")["waiting_for"], "worker");
    sandbox.sprag(["ls", "--waiting=godot"]).expect(2);
    let ended = sandbox.json(["cancel", &left, "--json"]);
    assert_eq!(ended["status"], "cancelled");
    assert_eq!(sandbox.status(&left)["waiting_for"], Value::Null);
    for process in all {
        process.signal(Signal::TERM);
        process.finish();
    }
}

#[test]
fn the_api_tells_what_a_run_waits_for() {
    let sandbox = Sandbox::new();
    sandbox.yaml("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n");
    let run = sandbox.run(&["asks.yaml"], 5);
    let server = Server::start(&sandbox, &[]);
    let listed = server.get("/v1/runs");
    assert_eq!(listed["runs"][0]["waiting_for"], "person", "{listed}");
    let shown = server.get(&format!("/v1/runs/{run}"));
    assert_eq!(
        (&shown["waiting_for"], &shown["steps"][0]["waiting_for"]),
        (&"person".into(), &"person".into())
    );
}

#[test]
fn questions_lists_what_waits_for_people_over_all_runs() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.json(["questions", "--json"]), Value::Array(Vec::new()));
    assert_eq!(sandbox.sprag(["questions"]).expect(0).stdout, "no open questions\n");
    sandbox.yaml(
        "one",
        "steps:\n  - { id: ask, gate: { ask: \"First?\\nSecond line\", choices: [go, stop] } }\n",
    );
    sandbox.yaml(
        "two",
        "steps:\n  - { id: sure, gate: { ask: 'Sure?' } }\n  - { id: nap, needs: [], wait: 10ms }\n",
    );
    let (one, two) = (sandbox.run(&["one.yaml"], 5), sandbox.run(&["two.yaml"], 5));
    let all = sandbox.json(["questions", "--json"]);
    let told: Vec<(&str, &str, &str)> = all
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| {
            (
                one["run"].as_str().expect("a run"),
                one["step"].as_str().expect("a step"),
                one["ask"].as_str().expect("a text"),
            )
        })
        .collect();
    assert_eq!(told, [(one.as_str(), "ask", "First?\nSecond line"), (two.as_str(), "sure", "Sure?")]);
    let people = sandbox.sprag(["questions"]).expect(0).stdout;
    assert!(people.contains("    First?\n    Second line\n    choices: go, stop\n"), "{people}");
    assert!(people.contains(&format!("sprag approve {one} ask")), "{people}");
    sandbox.sprag(["approve", &one]).expect(0);
    assert_eq!(sandbox.json(["questions", "--json"]).as_array().map(Vec::len), Some(1));
}
