//! Many processes on one file: each step runs exactly once, in order.

use std::collections::BTreeMap;

use sprag_tests::{Sandbox, Started};

/// A step's trace: one short write to a file opened for appending.
const TRACE: &str = "run: echo $SPRAG_RUN_ID $SPRAG_STEP_ID $SPRAG_ATTEMPT >> ledger";

fn five_steps(sandbox: &Sandbox) {
    sandbox.pipeline("five", &[("s1", TRACE), ("s2", TRACE), ("s3", TRACE), ("s4", TRACE), ("s5", TRACE)]);
}

/// Returns the lines that each run's steps wrote, in order.
fn ledger(sandbox: &Sandbox) -> BTreeMap<String, Vec<String>> {
    let mut runs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in sandbox.lines("ledger") {
        let (run, step) = line.split_once(' ').expect("a whole line");
        runs.entry(run.to_owned()).or_default().push(step.to_owned());
    }
    runs
}

fn finish(processes: Vec<Started>) {
    for process in processes {
        process.finish().expect(0);
    }
}

/// Asserts that each run's steps ran once and in order, with one end each, and that the journal has no gap.
fn check_five(sandbox: &Sandbox, runs: usize) {
    let ledger = ledger(sandbox);
    assert_eq!(ledger.len(), runs);
    for (run, steps) in &ledger {
        assert_eq!(*steps, ["s1 1", "s2 1", "s3 1", "s4 1", "s5 1"], "{run}");
    }
    let journal = sandbox.journal(None);
    let replayed = journal.replay();
    for run in ledger.keys() {
        assert_eq!(replayed[&("run".to_owned(), run.clone())], "completed");
    }
    assert_eq!(journal.events("run.succeeded"), runs, "exactly one each");
    assert_eq!(journal.events("step.succeeded"), runs * 5);
    assert_eq!(journal.events("handoff.received"), runs * 5, "each claimed exactly once");
}

#[test]
fn p04_p08_twenty_processes_each_run_their_own_five_steps() {
    let sandbox = Sandbox::new();
    five_steps(&sandbox);
    finish((0..20).map(|_| sandbox.start(["run", "five.yaml"])).collect());
    check_five(&sandbox, 20);
}

#[test]
fn c01_p04_p08_four_workers_drain_two_hundred_runs() {
    const RUNS: usize = 200;
    let sandbox = Sandbox::new();
    five_steps(&sandbox);
    // Submitted by several processes at once, while the workers are already there.
    let first = sandbox.detach(&sandbox.path("five.yaml"));
    let workers: Vec<Started> = (0..4).map(|_| sandbox.start(["worker", "--slots", "4"])).collect();
    for _ in 0..(RUNS - 1).div_ceil(8) {
        let left = RUNS - sandbox.json(["ls", "--json", "-n", "1000"]).as_array().map_or(0, Vec::len);
        finish((0..left.min(8)).map(|_| sandbox.start(["run", "five.yaml", "--detach"])).collect());
    }
    sandbox.sprag(["worker", "--until-idle"]);
    for worker in &workers {
        worker.signal(sprag_tests::Signal::TERM);
    }
    finish(workers);
    check_five(&sandbox, RUNS);
    sandbox.check(&first);
}

#[test]
fn a_hundred_runs_share_one_file() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("s1", TRACE)]);
    finish((0..100).map(|_| sandbox.start(["run", "one.yaml", "--json"])).collect());
    let ledger = ledger(&sandbox);
    assert_eq!(ledger.len(), 100);
    assert!(ledger.values().all(|steps| *steps == ["s1 1"]), "{ledger:?}");
    assert_eq!(sandbox.journal(None).events("run.succeeded"), 100);
    sandbox.journal(None).replay();
}

#[test]
fn c03_a_higher_priority_is_claimed_first() {
    let sandbox = Sandbox::new();
    for (name, priority) in [("low", -1), ("middle", 0), ("high", 7)] {
        sandbox.pipeline(name, &[("a", &format!("priority: {priority}\nrun: echo {name} >> ran"))]);
        for _ in 0..2 {
            sandbox.detach(&sandbox.path(&format!("{name}.yaml")));
        }
    }
    sandbox.sprag(["worker", "--until-idle", "--slots", "1"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["high", "high", "middle", "middle", "low", "low"]);
}

#[test]
fn c10_a_groups_limit_holds_between_processes() {
    const RUNS: usize = 12;
    const LIMIT: usize = 2;
    let sandbox = Sandbox::new();
    sandbox.write(
        "grouped.yaml",
        "concurrency: { group: g, limit: 2 }\n\
         steps:\n\
         \x20 - { id: enter, run: echo + >> ledger; sleep 0.1 }\n\
         \x20 - { id: leave, run: echo - >> ledger }\n",
    );
    finish((0..RUNS).map(|_| sandbox.start(["run", "grouped.yaml"])).collect());
    let (mut inside, mut most) = (0, 0);
    for line in sandbox.lines("ledger") {
        match line.as_str() {
            "+" => inside += 1,
            _ => inside -= 1,
        }
        most = most.max(inside);
    }
    assert_eq!((inside, most <= LIMIT), (0, true), "at most {LIMIT} at once, were {most}");
    assert_eq!(sandbox.lines("ledger").len(), RUNS * 2);
    assert_eq!(sandbox.journal(None).events("run.succeeded"), RUNS);
}
