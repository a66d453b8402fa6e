//! `sprag watch`: one run as `sprag run` shows it, or all live runs.

use serde_json::Value;
use sprag_tests::{Sandbox, Signal, until};

#[test]
fn watch_shows_a_run_that_a_worker_executes() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "slow",
        &[("one", "run: 'echo printed; until [ -e go ]; do sleep 0.02; done'"), ("two", "run: exit 2")],
    );
    let run = sandbox.detach(&sandbox.path("slow.yaml"));
    let watching = sandbox.start(["watch", &run]);
    let leaving = sandbox.start(["watch", &run]);
    until("it says what is missing", || watching.stderr().contains("waiting: one: a worker: none serves"));
    let worker = sandbox.start(["worker", "--until-idle"]);
    until("both show the output", || {
        [&watching, &leaving].iter().all(|process| process.stdout().contains("one │ printed"))
    });
    leaving.signal(Signal::INT);
    let left = leaving.finish().expect(0);
    assert!(left.stderr.contains("stopped watching; the run continues"), "{}", left.stderr);
    assert_eq!(sandbox.status_word(&run), "running");
    sandbox.write("go", "");
    let told = watching.finish().expect(100);
    assert!(
        told.stderr.contains("✓ one") && told.stderr.contains("✗ two failed: exit code 2"),
        "{}",
        told.stderr
    );
    worker.finish().expect(0);
    sandbox.sprag(["watch", &run]).expect(100);
}

#[test]
fn watch_alone_tells_of_all_live_runs() {
    let sandbox = Sandbox::new();
    sandbox.yaml("waits", "steps:\n  - { id: go, wait: { signal: go } }\n");
    let running = sandbox.start(["run", "waits.yaml"]);
    let watching = sandbox.start(["watch"]);
    let as_json = sandbox.start(["watch", "--json"]);
    until("it is listed", || watching.stdout().contains("waits for signal"));
    let run = sandbox.newest().expect("a run");
    sandbox.sprag(["signal", &run, "go"]).expect(0);
    running.finish().expect(0);
    until("its end is told", || watching.stdout().contains("completed"));
    until("its end is told as JSON", || as_json.stdout().contains("\"completed\""));
    for process in [watching, as_json] {
        process.signal(Signal::INT);
        let told = process.finish().expect(0);
        assert!(told.stdout.lines().all(|line| line.contains(&run)), "{}", told.stdout);
        if told.stdout.starts_with('{') {
            let all: Vec<Value> = told.lines();
            assert_eq!(all.last().expect("a line")["status"], "completed");
        }
    }
}
