//! The owner of an execution: before hand-off, after it, and after the owner's death.

use std::sync::Arc;
use std::time::Duration;

use sprag_store::{Claimer, Ending, Id, Lease, NewWorker, Store};
use sprag_tests::{Sandbox, Signal, is_running, now_ms, until, within};

/// A step that goes on until it is ended, with a descendant in a session of its own.
const ENDLESS: &str =
    "run: |\n  setsid sh -c 'echo $$ > grandchild; exec sleep 300' &\n  echo $$ > child\n  wait";

/// Goes on for ever at its first attempt, and tells of a former one that still lives.
const SECOND_TIME: &str = "run: |\n  [ ! -e pid ] || ! kill -0 $(cat pid) || echo overlap >> ran\n  echo $SPRAG_ATTEMPT >> ran\n  echo $$ > pid\n  [ $SPRAG_ATTEMPT != 1 ] || exec sleep 300";

#[test]
fn o03_cancelled_before_hand_off_no_worker_sees_it() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", "run: echo ran >> ran"), ("b", "run: echo ran >> ran")]);
    let run = sandbox.detach(&sandbox.path("one.yaml"));
    sandbox.sprag(["cancel", &run]).expect(0);
    assert_eq!(sandbox.status_word(&run), "cancelled", "at once: nobody had it");
    sandbox.sprag(["worker", "--until-idle"]).expect(4);
    let journal = sandbox.check(&run);
    let wanted = [
        "execution.requested",
        "scheduling.started",
        "handoff.published",
        "handoff.revoked",
        "execution.cancelled",
    ];
    assert_eq!(journal.of_executions("a"), wanted);
    assert_eq!(journal.count(|entry| entry.actor == "worker"), 0);
    assert!(sandbox.lines("ran").is_empty());
}

#[test]
fn o04_cancelled_after_hand_off_the_worker_ends_the_tree_and_writes_once() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("tree", &[("a", ENDLESS)]);
    let run = sandbox.detach(&sandbox.path("tree.yaml"));
    let worker = sandbox.start(["worker", "--until-idle"]);
    let pids = [sandbox.pid_in("child"), sandbox.pid_in("grandchild")];
    assert!(pids.iter().all(|pid| is_running(*pid)));
    sandbox.sprag(["cancel", &run]).expect(0);
    sandbox.ends_as(&run, "cancelled");
    assert!(!pids.iter().any(|pid| is_running(*pid)), "gone before it was written");
    worker.finish().expect(0);
    let journal = sandbox.check(&run);
    assert_eq!(journal.events("execution.cancelled"), 1);
    assert_eq!(journal.count(|entry| entry.event == "execution.cancelled" && entry.actor == "worker"), 1);
    assert_eq!((journal.events("cancel.requested"), journal.events("cancel.settled")), (1, 1));
}

#[test]
fn o05_a_cancel_that_races_hand_off_has_one_outcome() {
    const ROUNDS: usize = 30;
    let sandbox = Sandbox::new();
    sandbox.pipeline("race", &[("a", "run: echo $SPRAG_RUN_ID >> ran; exec sleep 300")]);
    let mut seen = 0;
    for round in 0..ROUNDS {
        let run = sandbox.detach(&sandbox.path("race.yaml"));
        let (worker, cancel) = if round % 2 == 0 {
            let worker = sandbox.start(["worker", "--until-idle"]);
            // A little later from round to round.
            within(Duration::from_millis(round as u64), || None::<()>);
            (worker, sandbox.start(["cancel", &run]))
        } else {
            let cancel = sandbox.start(["cancel", &run]);
            (sandbox.start(["worker", "--until-idle"]), cancel)
        };
        cancel.finish().expect(0);
        worker.finish();
        assert_eq!(sandbox.status_word(&run), "cancelled");
        let journal = sandbox.check(&run);
        assert_eq!(journal.events("execution.cancelled"), 1);
        let received = journal.events("handoff.received");
        seen += received;
        assert!(
            sandbox.lines("ran").iter().filter(|line| **line == run).count() <= received,
            "round {round}"
        );
        let last = journal.entries.last().expect("entries");
        assert_eq!((last.entity.as_str(), last.to.as_str()), ("run", "cancelled"), "nothing after it");
        assert!(sandbox.processes_of(&run).is_empty(), "round {round}");
    }
    println!("received before the cancel: {seen} of {ROUNDS}");
}

#[test]
fn o06_an_execution_announced_to_every_worker_runs_once() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", "run: echo $SPRAG_RUN_ID >> ran")]);
    let workers: Vec<_> = (0..6).map(|_| sandbox.start(["worker"])).collect();
    until("all are there", || {
        sandbox.json(["doctor", "--json"])["checks"]
            .as_array()
            .map_or(0, |checks| checks.iter().filter(|check| check["check"] == "worker").count())
            == workers.len()
    });
    let runs: Vec<String> = (0..10).map(|_| sandbox.detach(&sandbox.path("one.yaml"))).collect();
    for run in &runs {
        sandbox.ends_as(run, "completed");
        assert_eq!(sandbox.check(run).events("handoff.received"), 1);
    }
    let mut ran = sandbox.lines("ran");
    ran.sort();
    let mut wanted = runs;
    wanted.sort();
    assert_eq!(ran, wanted);
    for worker in &workers {
        worker.signal(Signal::TERM);
    }
    for worker in workers {
        worker.finish().expect(0);
    }
}

/// Registers a worker of this test with a process identity that is dead or alive.
async fn register(store: &Store, process: String) -> Claimer {
    let id: Id = store.new_id();
    let queues: Vec<Arc<str>> = vec!["default".into()];
    let new = NewWorker {
        id,
        name: "by hand".into(),
        process: process.into(),
        queues: "default".into(),
        labels: "".into(),
        slots: 1,
        lease_ms: 60_000,
    };
    store.claims().register(new).await.expect("a store");
    Claimer { worker: id, queues, reserved_only: false, services_only: false, lease_ms: 60_000, nonce: 1 }
}

fn alive() -> String {
    sprag_process::current().expect("this process").to_string()
}

/// Returns the identity of a dead process that had this one's pid.
fn dead() -> String {
    let mut id = sprag_process::current().expect("this process");
    id.start_time_ticks += 1;
    id.to_string()
}

fn completed() -> Ending {
    Ending::Completed { result: None }
}

#[tokio::test]
async fn o06_a_message_that_comes_twice_is_received_once_whatever_the_state() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", "run: echo ran >> ran")]);
    let run = sandbox.detach(&sandbox.path("one.yaml"));
    let store = Store::open(&sandbox.data()).expect("a store");
    let claimer = register(&store, alive()).await;
    let execution = sprag_lifecycle::ExecutionId { run: run.parse().expect("an id"), step: 0, attempt: 1 };
    let message = Lease { execution, fence: 1 };
    let got = store.claims().receive(claimer.clone(), message).await.expect("a store").expect("received");
    assert!(
        store.claims().receive(claimer.clone(), message).await.expect("a store").is_err(),
        "while it runs"
    );
    let holder = store.worker(got.lease);
    assert!(holder.finish(completed(), None).await.expect("a store").outcome.is_applied());
    assert!(store.claims().receive(claimer, message).await.expect("a store").is_err(), "after its end");
    let journal = sandbox.check(&run);
    assert_eq!((journal.events("handoff.received"), journal.events("run.succeeded")), (1, 1));
}

#[tokio::test]
async fn o07_a_completion_that_comes_twice_counts_once() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("two", &[("a", "run: 'true'"), ("b", "run: 'true'")]);
    let run = sandbox.detach(&sandbox.path("two.yaml"));
    let store = Store::open(&sandbox.data()).expect("a store");
    let claimer = register(&store, alive()).await;
    let got = store.claims().claim(claimer, 1).await.expect("a store");
    let lease = got[0].lease;
    assert!(store.worker(lease).finish(completed(), None).await.expect("a store").outcome.is_applied());
    let before = sandbox.check(&run).entries;
    for ending in [completed(), Ending::Failed { result: None, retriable: true }, Ending::Cancelled] {
        assert!(!store.worker(lease).finish(ending, None).await.expect("a store").outcome.is_applied());
    }
    assert_eq!(sandbox.check(&run).entries, before, "no write, no second start of b");
    let told = sandbox.json(["explain", &run, "--json"]);
    let refused: Vec<&str> = told["refused"]
        .as_array()
        .expect("an array")
        .iter()
        .filter_map(|one| one["event"].as_str())
        .collect();
    assert_eq!(refused, ["execution.completed", "execution.failed", "execution.cancelled"]);
}

#[tokio::test]
async fn o08_a_worker_that_dies_before_it_runs_is_fenced_off() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", "run: echo $SPRAG_ATTEMPT >> ran")]);
    let run = sandbox.detach(&sandbox.path("one.yaml"));
    let store = Store::open(&sandbox.data()).expect("a store");
    let claimer = register(&store, dead()).await;
    let got = store.claims().claim(claimer, 1).await.expect("a store");
    assert_eq!(got.len(), 1);
    let began_ms = now_ms();
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert!(now_ms() - began_ms < 20_000, "well within the dead one's lease");
    assert_eq!(sandbox.lines("ran"), ["2"]);
    let before = sandbox.check(&run).entries;
    let late = store.worker(got[0].lease).finish(completed(), None).await.expect("a store");
    assert!(!late.outcome.is_applied());
    let journal = sandbox.check(&run);
    assert_eq!(journal.entries, before);
    assert_eq!(journal.events("owner.died"), 1);
}

#[test]
fn o09_a_worker_killed_while_it_runs_is_replaced_at_once() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", SECOND_TIME)]);
    let run = sandbox.detach(&sandbox.path("one.yaml"));
    let first = sandbox.start(["worker"]);
    let step = sandbox.pid_in("pid");
    let second = sandbox.start(["worker", "--until-idle"]);
    until("the second is there", || second.stderr().contains("serves"));
    let fence_of_the_dead = 2;
    let killed_ms = now_ms();
    first.kill();
    sandbox.ends_as(&run, "completed");
    assert!(now_ms() - killed_ms < 15_000, "not only after the lease of 30 s");
    second.finish().expect(0);
    assert!(!is_running(step));
    assert_eq!(sandbox.lines("ran"), ["1", "2"]);
    let journal = sandbox.check(&run);
    let wanted = ["step.ready", "step.started", "step.retried", "step.started", "step.succeeded"];
    assert_eq!(journal.of_step("a"), wanted);
    assert_eq!(journal.count(|entry| entry.event == "owner.died" && entry.actor == "reaper"), 1);
    // What the dead one might still have had on its way.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let late = runtime.block_on(async {
        let store = Store::open(&sandbox.data()).expect("a store");
        let execution =
            sprag_lifecycle::ExecutionId { run: run.parse().expect("an id"), step: 0, attempt: 1 };
        let lease = Lease { execution, fence: fence_of_the_dead };
        store.worker(lease).finish(completed(), None).await.expect("a store").outcome
    });
    assert!(!late.is_applied(), "{late:?}");
    assert_eq!(sandbox.check(&run).entries, journal.entries);
    let told = sandbox.json(["explain", &run, "--json"]);
    assert_eq!(told["refused"][0]["event"], "execution.completed", "refused, and told: {told}");
}

#[test]
fn o09_a_step_that_may_start_only_once_fails_instead() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("once", &[("a", &format!("{SECOND_TIME}\nat_most_once: true"))]);
    let run = sandbox.detach(&sandbox.path("once.yaml"));
    let first = sandbox.start(["worker"]);
    sandbox.pid_in("pid");
    first.kill();
    // It had something to do: to end what the dead worker left.
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert_eq!(sandbox.status_word(&run), "failed");
    assert_eq!(sandbox.lines("ran"), ["1"]);
    sandbox.check(&run);
}

#[test]
fn o09_resume_takes_over_from_a_dead_process_and_from_no_other() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("done", "run: echo done >> before"), ("a", SECOND_TIME)]);
    let first = sandbox.start(["run", "one.yaml"]);
    let step = sandbox.pid_in("pid");
    let run = sandbox.newest().expect("a run");
    let refused = sandbox.sprag(["resume", &run]).expect(1);
    assert!(refused.stderr.contains(&first.pid().to_string()), "{refused:?}");
    first.kill();
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(told.contains("gone"), "{told}");
    sandbox.sprag(["resume", &run]).expect(0);
    assert!(!is_running(step));
    assert_eq!(
        (sandbox.lines("before"), sandbox.lines("ran")),
        (vec!["done".to_owned()], vec!["1".into(), "2".into()])
    );
    let journal = sandbox.check(&run);
    assert_eq!(journal.events("run.resumed"), 0, "taking over is no transition of the run");
}

#[test]
fn o09_resume_takes_a_detached_run_from_a_dead_worker_at_once() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", SECOND_TIME)]);
    let run = sandbox.detach(&sandbox.path("one.yaml"));
    let worker = sandbox.start(["worker"]);
    sandbox.pid_in("pid");
    worker.kill();
    let began_ms = now_ms();
    sandbox.sprag(["resume", &run]).expect(0);
    assert!(now_ms() - began_ms < 15_000, "not only after the lease of 30 s");
    assert_eq!(sandbox.lines("ran"), ["1", "2"]);
    sandbox.check(&run);
}

#[test]
fn o09_concurrent_resumes_run_each_attempt_once() {
    let sandbox = Sandbox::new();
    let trace = "run: echo $SPRAG_STEP_ID $SPRAG_ATTEMPT >> ledger";
    sandbox.pipeline("three", &[("a", trace), ("b", SECOND_TIME), ("c", trace)]);
    let first = sandbox.start(["run", "three.yaml"]);
    sandbox.pid_in("pid");
    let run = sandbox.newest().expect("a run");
    first.kill();
    let resumes: Vec<_> = (0..4).map(|_| sandbox.start(["resume", &run])).collect();
    let codes: Vec<i32> = resumes.into_iter().map(|resume| resume.finish().code).collect();
    assert!(codes.contains(&0) && codes.iter().all(|code| [0, 1].contains(code)), "{codes:?}");
    assert_eq!(sandbox.status_word(&run), "completed");
    assert_eq!(
        (sandbox.lines("ledger"), sandbox.lines("ran")),
        (vec!["a 1".into(), "c 1".into()], vec!["1".into(), "2".into()])
    );
    sandbox.check(&run);
}

#[test]
fn o04_cancelled_by_another_process_a_run_ends_with_130() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("tree", &[("a", ENDLESS), ("b", "run: echo b >> ran")]);
    let attached = sandbox.start(["run", "tree.yaml"]);
    let pids = [sandbox.pid_in("child"), sandbox.pid_in("grandchild")];
    let run = sandbox.newest().expect("a run");
    sandbox.sprag(["cancel", &run]).expect(0);
    attached.finish().expect(130);
    assert!(!pids.iter().any(|pid| is_running(*pid)) && sandbox.lines("ran").is_empty());
    sandbox.check(&run);
}

#[test]
fn o12_a_queue_without_workers_is_reported() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("gpu", &[("a", "queue: gpu\nrun: echo ran >> ran")]);
    let run = sandbox.detach(&sandbox.path("gpu.yaml"));
    let worker = sandbox.start(["worker"]);
    until("the worker is there", || worker.stderr().contains("serves"));
    let told = sandbox.json(["explain", &run, "--json"]);
    let waits = told["steps"][0]["waits_for"].as_str().expect("a reason");
    assert!(
        waits.contains("none serves queue \"gpu\"") && waits.contains("sprag worker --queue gpu"),
        "{told}"
    );
    assert!(told["steps"][0]["since"].is_string());
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
    sandbox.sprag(["worker", "--queue", "gpu", "--until-idle"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["ran"]);
}

#[test]
fn o12_a_worker_that_is_asked_to_stop_finishes_its_steps() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "gate",
        &[
            ("a", "run: echo in >> ran; until [ -e go ]; do :; done; echo out >> ran"),
            ("b", "run: echo b >> ran"),
        ],
    );
    let run = sandbox.detach(&sandbox.path("gate.yaml"));
    let worker = sandbox.start(["worker", "--slots", "1"]);
    until("it works", || !sandbox.lines("ran").is_empty());
    worker.signal(Signal::TERM);
    until("it drains", || worker.stderr().contains("Finishing the running steps"));
    let left = sandbox.detach(&sandbox.path("gate.yaml"));
    sandbox.write("go", "");
    worker.finish().expect(0);
    let journal = sandbox.check(&run);
    assert_eq!(journal.seq_of("a", "step.succeeded"), journal.seq_of("a", "execution.completed") + 1);
    assert_eq!(sandbox.status(&left)["steps"][0]["status"], "pending", "it took nothing more");
    assert_eq!(sandbox.status(&run)["steps"][1]["status"], "pending", "not even of the same run");
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    let mut ran = sandbox.lines("ran");
    ran.sort();
    assert_eq!(ran, ["b", "b", "in", "in", "out", "out"]);
}

#[test]
fn o12_a_second_signal_gives_the_work_to_others() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", SECOND_TIME)]);
    let run = sandbox.detach(&sandbox.path("one.yaml"));
    let worker = sandbox.start(["worker"]);
    let step = sandbox.pid_in("pid");
    worker.signal(Signal::TERM);
    until("it drains", || worker.stderr().contains("Finishing the running steps"));
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
    assert!(!is_running(step));
    let began_ms = now_ms();
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert!(now_ms() - began_ms < 15_000, "nobody waits for the lease of one that has left");
    assert_eq!(sandbox.lines("ran"), ["1", "2"]);
    sandbox.check(&run);
}

#[test]
fn o13_a_stopped_worker_finds_its_tree_ended_and_its_result_refused() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", SECOND_TIME)]);
    let run = sandbox.detach(&sandbox.path("one.yaml"));
    let first = sandbox.start(["worker", "--lease", "5s", "--name", "sleeper"]);
    let step = sandbox.pid_in("pid");
    let second = sandbox.start(["worker", "--lease", "5s"]);
    until("the second is there", || second.stderr().contains("serves"));
    first.stop_between_writes();
    sandbox.ends_as(&run, "completed");
    assert!(!is_running(step), "by the supervisor: the worker could not");
    assert_eq!(sandbox.lines("ran"), ["1", "2"], "the second attempt found the first one's process gone");
    let before = sandbox.check(&run);
    assert_eq!(before.events("lease.expired"), 1);
    let counted_on = || {
        let told = sandbox.json(["doctor", "--json"]);
        let checks = told["checks"].as_array().expect("checks").clone();
        checks.iter().filter_map(|check| check["message"].as_str()).any(|text| text.starts_with("sleeper"))
    };
    until("the silent one is no longer counted on", || !counted_on());
    first.signal(Signal::CONT);
    until("it comes back", counted_on);
    assert_eq!(sandbox.check(&run).entries, before.entries, "nothing of it counts any more");
    second.signal(Signal::TERM);
    second.finish().expect(0);
    std::fs::remove_file(sandbox.path("pid")).expect("the former attempt's file");
    let next = sandbox.detach(&sandbox.path("one.yaml"));
    sandbox.pid_in("pid");
    sandbox.sprag(["cancel", &next]).expect(0);
    sandbox.ends_as(&next, "cancelled");
    first.signal(Signal::TERM);
    first.finish().expect(0);
}

#[test]
fn o13_a_short_lease_is_renewed_in_time() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("long", &[("a", "run: sleep 7; echo $SPRAG_ATTEMPT >> ran")]);
    sandbox.sprag(["run", "long.yaml", "--lease", "5s"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["1"]);
}
