//! Dead holders: of reservations, of places in a group, and of runs that no process continues.

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::{Plan, PlanStep};
use sprag_store::Created;
use sprag_tests::{Sandbox, Signal, Started, now_ms, until, until_some, within};

/// Far less than the five minutes after which an execution that no worker received is handed over again.
const SOON_FREED: Duration = Duration::from_secs(45);

/// A step that begins, and ends when a file is there.
const HOLDS: &str = "run: 'echo begun >> ran; until [ -e go ]; do sleep 0.02; done; echo ended >> ran'";

/// Lets steps end, but only after those of a dead process are gone: their supervisor needs a moment for that.
fn lets_go(sandbox: &Sandbox, dead_run: &str) {
    until("no process of the dead run is left", || sandbox.processes_of(dead_run).is_empty());
    sandbox.write("go", "");
}

/// Starts a run and waits until its step has started. Returns its process and its id.
fn begun(sandbox: &Sandbox, file: &str) -> (Started, String) {
    let before = sandbox.lines("ran").len();
    let newest = sandbox.newest();
    let process = sandbox.start(["run", file]);
    let run = until_some("a run", || sandbox.newest().filter(|run| Some(run) != newest.as_ref()));
    until("its step has begun", || sandbox.lines("ran").len() > before);
    (process, run)
}

/// Waits until a run has ended so, which takes less than any deadline that would end the wait anyway.
#[track_caller]
fn soon_ends_as(sandbox: &Sandbox, run: &str, status: &str) {
    let ended = within(SOON_FREED, || (sandbox.status_word(run) == status).then_some(()));
    assert!(
        ended.is_some(),
        "{run} is {}: {}",
        sandbox.status_word(run),
        sandbox.sprag(["explain", run]).stdout
    );
}

#[test]
fn e14_d1_a_run_reserved_for_an_unregistered_worker_goes_to_a_live_one() {
    let sandbox = Sandbox::new();
    let store = sprag_store::Store::open(&sandbox.data()).expect("a store");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let spec = r#"{"kind":{"run":{"shell":"true"}}}"#;
    let step = PlanStep { spec: spec.into(), ..PlanStep::new("one", Vec::new()) };
    let mut new = store.person().new_run(Arc::new(Plan::new("reserved", vec![step]).expect("a plan")));
    new.pin = Some(4711);
    let Created::New(run) = runtime.block_on(store.person().create_run(new)).expect("a run") else {
        panic!()
    };
    drop(store);
    let worker = sandbox.start(["worker"]);
    let run = run.to_string();
    let claimed =
        within(SOON_FREED, || (sandbox.journal(Some(&run)).events("handoff.received") > 0).then_some(()));
    assert!(claimed.is_some(), "{}", sandbox.sprag(["explain", &run]).stdout);
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

/// A process that pauses at its start for longer than its lease, and then is killed: whenever it paused, a worker that is
/// there does its run.
#[test]
fn e14_d1_a_process_that_pauses_before_it_creates_its_run_blocks_no_worker() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("short", &[("one", "run: echo one >> ran")]);
    let server = sandbox.start(["worker", "--lease", "5s"]);
    until("a worker is there", || {
        sandbox.json(["worker", "ls", "--json"]).as_array().map(Vec::len) == Some(1)
    });
    let known: Vec<Started> = (0..4)
        .map(|at| {
            let process = sandbox.start(["run", "short.yaml", "--lease", "5s"]);
            // Stopped as soon as it has shown itself to others, or a little later.
            let since_ms = now_ms();
            until("it shows itself", || {
                let told = sandbox.json(["worker", "ls", "--json"]);
                let shown = told.as_array().is_some_and(|all| all.len() > 1);
                shown || sandbox.newest().is_some() || now_ms() > since_ms + 2_000
            });
            if at < 4 && !process.stderr().contains("completed") {
                process.stop_between_writes();
            }
            process
        })
        .collect();
    // Longer than the lease.
    let since_ms = now_ms();
    until("they were silent for too long", || now_ms() > since_ms + 7_000);
    for process in known {
        let _ = sprag_tests::signal(process.pid(), Signal::CONT);
        process.kill();
    }
    let runs = sandbox.json(["ls", "--json"]);
    for run in runs.as_array().expect("runs") {
        soon_ends_as(&sandbox, run["id"].as_str().expect("an id"), "completed");
    }
    server.signal(Signal::TERM);
    server.finish().expect(0);
}

/// Writes a pipeline in a group whose runs are live one at a time.
fn grouped(sandbox: &Sandbox, name: &str, on_conflict: &str, steps: &[(&str, &str)]) {
    let file = sandbox.pipeline(name, steps);
    let text = std::fs::read_to_string(&file).expect("a file");
    let group = format!("concurrency: {{ group: g, on_conflict: {on_conflict} }}\n");
    std::fs::write(&file, group + &text).expect("a file");
}

#[test]
fn e14_d2_a_dead_run_that_a_person_cancels_makes_room() {
    let sandbox = Sandbox::new();
    grouped(&sandbox, "holds", "queue", &[("one", HOLDS)]);
    grouped(&sandbox, "next", "queue", &[("one", "run: echo next >> ran")]);
    let (dead, run) = begun(&sandbox, "holds.yaml");
    dead.kill();
    let waiting = sandbox.start(["run", "next.yaml"]);
    until("it says what it waits for", || waiting.stderr().contains(&format!("held by {run}")));
    let told = sandbox.sprag(["cancel", &run]).expect(0);
    assert!(told.stdout.contains("cancelled"), "{told:?}");
    waiting.finish_within(SOON_FREED).expect(0);
    assert_eq!(sandbox.lines("ran"), ["begun", "next"]);
    sandbox.check(&run);
}

/// The run is cancelled first and its process killed then: no other process could report its end.
#[test]
fn e14_d2_a_run_that_dies_while_it_is_cancelled_frees_its_place() {
    let sandbox = Sandbox::new();
    let stubborn = "run: |\n  trap '' TERM\n  echo begun >> ran\n  until [ -e go ]; do sleep 0.02; done";
    grouped(
        &sandbox,
        "holds",
        "queue",
        &[("one", stubborn), ("clean", "always: true\nqueue: other\nrun: echo clean >> ran")],
    );
    grouped(&sandbox, "next", "queue", &[("one", "run: echo next >> ran")]);
    let (dead, run) = begun(&sandbox, "holds.yaml");
    let waiting = sandbox.start(["run", "next.yaml"]);
    until("it says what it waits for", || waiting.stderr().contains(&format!("held by {run}")));
    dead.signal(Signal::TERM);
    until("it is being cancelled", || sandbox.status_word(&run) == "cancelling");
    dead.kill();
    waiting.finish_within(SOON_FREED).expect(0);
    // The clean-up of the dead run is done before the next one has its place.
    assert_eq!(sandbox.lines("ran"), ["begun", "clean", "next"]);
    assert_eq!(sandbox.status_word(&run), "cancelled");
    sandbox.check(&run);
}

#[test]
fn e14_d2_a_dead_run_gives_way_to_the_newer_one_that_cancels_it() {
    let sandbox = Sandbox::new();
    grouped(
        &sandbox,
        "holds",
        "cancel_older",
        &[("one", HOLDS), ("clean", "always: true\nrun: echo clean >> ran")],
    );
    let (dead, run) = begun(&sandbox, "holds.yaml");
    dead.kill();
    lets_go(&sandbox, &run);
    sandbox.start(["run", "holds.yaml"]).finish_within(SOON_FREED).expect(0);
    assert_eq!(sandbox.status_word(&run), "cancelled");
    assert_eq!(sandbox.lines("ran"), ["begun", "clean", "begun", "ended", "clean"]);
    sandbox.check(&run);
}

#[test]
fn e14_d2_a_dead_run_that_was_not_cancelled_keeps_its_place_and_is_named() {
    let sandbox = Sandbox::new();
    grouped(&sandbox, "holds", "queue", &[("one", HOLDS)]);
    let (dead, run) = begun(&sandbox, "holds.yaml");
    dead.kill();
    let waiting = sandbox.start(["run", "holds.yaml"]);
    let words = format!("held by {run}, whose process is gone: sprag resume {run}, or sprag cancel {run}");
    until("it says what it waits for", || waiting.stderr().contains(&words));
    lets_go(&sandbox, &run);
    sandbox.sprag(["resume", &run]).expect(0);
    waiting.finish_within(SOON_FREED).expect(0);
}

#[test]
fn a_cancelled_dead_run_ends_at_once_or_reports_its_remaining_steps() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("plain", &[("one", HOLDS)]);
    let (dead, run) = begun(&sandbox, "plain.yaml");
    dead.kill();
    let told = sandbox.json(["cancel", &run, "--json"]);
    assert_eq!(told["status"], "cancelled", "{told}");
    sandbox.pipeline("cleans", &[("one", HOLDS), ("clean", "always: true\nrun: echo clean >> ran")]);
    let (dead, run) = begun(&sandbox, "cleans.yaml");
    dead.kill();
    let told = sandbox.sprag(["cancel", &run]).expect(0);
    assert!(told.stderr.contains(&format!("sprag resume {run}")), "{told:?}");
    sandbox.sprag(["resume", &run]).expect(130);
    assert_eq!(sandbox.lines("ran"), ["begun", "begun", "clean"]);
}

#[test]
fn e02_d3_a_worker_until_idle_takes_over_runs_of_dead_processes() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("holds", &[("one", HOLDS), ("two", "run: echo two >> ran")]);
    for round in 0..3 {
        let _ = std::fs::remove_file(sandbox.path("go"));
        let _ = std::fs::remove_file(sandbox.path("ran"));
        let (dead, run) = begun(&sandbox, "holds.yaml");
        dead.kill();
        lets_go(&sandbox, &run);
        sandbox.start(["worker", "--until-idle"]).finish_within(SOON_FREED).expect(0);
        assert_eq!(sandbox.status_word(&run), "completed", "round {round}");
        assert_eq!(sandbox.lines("ran"), ["begun", "begun", "ended", "two"]);
    }
}

#[test]
fn e02_d3_a_worker_until_idle_waits_for_no_person() {
    let sandbox = Sandbox::new();
    sandbox.sprag(["board", "new", "b"]).expect(0);
    sandbox.sprag(["task", "add", "b", "one"]).expect(0);
    sandbox.sprag(["worker", "--until-idle"]).expect(4);
    sandbox.yaml("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?', timeout: 1h } }\n");
    sandbox.run(&["asks.yaml"], 5);
    sandbox.sprag(["worker", "--until-idle"]).expect(4);
    sandbox.yaml(
        "elsewhere",
        "steps:\n  - { id: one, run: echo one >> ran }\n  - { id: far, queue: far, run: 'true' }\n",
    );
    sandbox.detach(&sandbox.path("elsewhere.yaml"));
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["one"]);
    sandbox.sprag(["worker", "--until-idle"]).expect(4);
}

#[test]
fn e02_d3_a_worker_until_idle_waits_for_the_clock_and_says_so() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "waits",
        &[
            ("nap", "wait: 1500ms"),
            (
                "flaky",
                "retry: { attempts: 2, delay: 1500ms }\nrun: 'echo try >> ran; test $(wc -l < ran) = 2'",
            ),
        ],
    );
    let run = sandbox.detach(&sandbox.path("waits.yaml"));
    let told = sandbox.start(["worker", "--until-idle"]).finish_within(SOON_FREED).expect(0);
    assert_eq!(sandbox.status_word(&run), "completed");
    for words in ["nap: a time (", "flaky: its backoff before attempt 2"] {
        assert!(told.stderr.contains(words), "{words:?}: {}", told.stderr);
    }
}
