//! A command that waits for a run ends, or prints within a second what it waits for.

use std::time::Duration;

use serde_json::{Value, json};
use sprag_tests::{Sandbox, Signal, Started, now_ms, until, until_some, within};

/// Within this time it is said what is waited for; the promise is a second, the rest is for a machine that is busy.
const PROMPTLY: Duration = Duration::from_secs(4);

/// Waits until a process has said something.
#[track_caller]
fn says(process: &Started, words: &str) {
    let said = within(PROMPTLY, || process.stderr().contains(words).then_some(()));
    assert!(said.is_some(), "{words:?} is not in {:?}", process.stderr());
}

#[test]
fn e02_sprag_run_does_the_steps_of_every_queue() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "steps:\n  - { id: deep, queue: deep, run: echo deep >> ran }\n");
    sandbox.yaml(
        "queues",
        "steps:\n  - { id: a, queue: batch, run: echo a >> ran }\n  - { id: b, run: echo b >> ran }\n  - { id: c, queue: gpu, retry: { attempts: 2 }, run: 'echo c >> ran; test -e again || { touch again; exit 1; }' }\n  - { id: d, foreach: [1, 2], queue: many, run: echo d >> ran }\n  - { id: e, pipeline: { file: child.yaml } }\n",
    );
    let run = sandbox.run(&["queues.yaml"], 0);
    assert_eq!(sandbox.lines("ran"), ["a", "b", "c", "c", "d", "d", "deep"]);
    sandbox.check(&run);
}

#[test]
fn e02_a_run_says_that_its_queue_is_held_or_full() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("queued", &[("a", "queue: batch\nrun: echo a >> ran")]);
    sandbox.sprag(["queue", "hold", "batch"]).expect(0);
    let running = sandbox.start(["run", "queued.yaml"]);
    says(&running, "waiting: a: a place in queue \"batch\", which is full or held");
    sandbox.sprag(["queue", "release", "batch"]).expect(0);
    running.finish().expect(0);
    assert_eq!(sandbox.lines("ran"), ["a"]);
}

#[test]
fn e02_a_signal_ends_a_run_whose_always_step_is_in_another_queue() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "cleans",
        "steps:\n  - { id: work, queue: batch, run: 'echo work >> ran; until [ -e go ]; do sleep 0.02; done' }\n  - { id: clean, queue: batch, always: true, run: echo clean >> ran }\n",
    );
    let running = sandbox.start(["run", "cleans.yaml"]);
    until("it works", || sandbox.lines("ran") == ["work"]);
    running.signal(Signal::TERM);
    let told = running.finish().expect(130);
    assert!(told.stderr.contains("cancelled in "), "{}", told.stderr);
    assert_eq!(sandbox.lines("ran"), ["work", "clean"]);
    let run = sandbox.newest().expect("a run");
    sandbox.write("go", "");
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["work", "clean", "work", "clean"]);
}

/// The rest of a dead run, in whatever queue, is done by who resumes it.
#[test]
fn e02_resume_does_the_steps_of_every_queue() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "dies",
        "steps:\n  - { id: work, queue: batch, run: 'echo work >> ran; until [ -e go ]; do sleep 0.02; done' }\n  - { id: more, queue: other, run: echo more >> ran }\n",
    );
    let running = sandbox.start(["run", "dies.yaml"]);
    until("it works", || sandbox.lines("ran") == ["work"]);
    running.kill();
    sandbox.write("go", "");
    let run = sandbox.newest().expect("a run");
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["work", "work", "more"]);
}

#[test]
fn e02_a_run_whose_items_or_children_ask_ends_with_5() {
    let sandbox = Sandbox::new();
    sandbox.yaml("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n");
    let fans = [
        "foreach: [a, b]\n    gate: { ask: 'Take {{ item }}?' }",
        "matrix: { os: [a, b] }\n    gate: { ask: 'Take {{ matrix.os }}?' }",
        "foreach: [a, b]\n    pipeline: { file: asks.yaml }",
    ];
    for (at, fan) in fans.into_iter().enumerate() {
        sandbox.yaml("fans", &format!("steps:\n  - {{ id: before, run: echo before }}\n  - id: fan\n    {fan}\n  - {{ id: after, run: echo after >> ran{at} }}\n"));
        let told = sandbox.sprag(["run", "fans.yaml"]).expect(5);
        assert!(told.stderr.contains("✓ before"), "{}", told.stderr);
        assert_eq!(told.stderr.matches("next: sprag approve").count(), 2, "{}", told.stderr);
        assert_eq!(told.stderr.matches("waits for an answer").count(), 2, "{}", told.stderr);
        let run = sandbox.newest().expect("a run");
        let waits = sandbox.sprag(["wait", &run, "--json"]).expect(5).json();
        let asked = waits["waits_for"].as_array().expect("questions").clone();
        for (no, question) in asked.iter().enumerate() {
            let word = |key: &str| question[key].as_str().expect("a word");
            let last = no + 1 == asked.len();
            sandbox.sprag(["approve", word("run"), word("step")]).expect(if last { 0 } else { 5 });
        }
        assert_eq!(sandbox.lines(&format!("ran{at}")), ["after"]);
    }
}

#[test]
fn a_task_that_waits_is_told_of_while_another_step_is_executed() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "both",
        "steps:\n  - { id: work, needs: [], run: 'until [ -e go ]; do sleep 0.02; done' }\n  - { id: review, needs: [], task: { queue: people, prompt: Look } }\n",
    );
    let claim = "waiting: review: an agent or a person who claims it: sprag task claim --queue people";
    let running = sandbox.start(["run", "both.yaml"]);
    says(&running, claim);
    let waiting = sandbox.start(["wait"]);
    says(&waiting, "work runs\n");
    says(&waiting, claim);
    sandbox.write("go", "");
    let task = sandbox.json(["task", "claim", "--queue", "people", "--as", "ada", "--json"]);
    sandbox.sprag(["task", "done", task["token"].as_str().expect("a token")]).expect(0);
    let told = running.finish().expect(0);
    assert_eq!(told.stderr.matches(claim).count(), 1, "{}", told.stderr);
    waiting.finish().expect(0);
}

const EXPIRES: &str = "steps:\n  - { id: ask, gate: { ask: 'Really?', timeout: 500ms }, on_fail: continue }\n  - { id: after, run: echo after >> ran }\n";

/// Waits until a question's time is over, by the clock of the machine.
fn until_expired(since_ms: u64) {
    until("the question is too old", || now_ms() > since_ms + 600);
}

#[test]
fn e02_wait_says_that_no_process_continues_a_run_whose_question_has_expired() {
    let sandbox = Sandbox::new();
    sandbox.yaml("expires", EXPIRES);
    let run = sandbox.run(&["expires.yaml"], 5);
    let since_ms = now_ms();
    until_expired(since_ms);
    let waiting = sandbox.start(["wait", &run]);
    says(&waiting, "waiting: after: a worker: none serves queue \"default\" (sprag worker --queue default)");
    let worker = sandbox.start(["worker", "--until-idle"]);
    waiting.finish().expect(0);
    worker.finish().expect(0);
    assert_eq!(sandbox.lines("ran"), ["after"]);
}

#[test]
fn e02_resume_continues_a_run_whose_question_has_expired() {
    let sandbox = Sandbox::new();
    sandbox.yaml("expires", EXPIRES);
    let run = sandbox.run(&["expires.yaml"], 5);
    let since_ms = now_ms();
    until_expired(since_ms);
    let told = sandbox.sprag(["resume", &run]).expect(0);
    assert!(told.stderr.contains("✓ after") && told.stderr.contains("completed"), "{}", told.stderr);
    assert_eq!(sandbox.lines("ran"), ["after"]);
    // One that fails for it says so.
    sandbox.yaml("expires", &EXPIRES.replace(", on_fail: continue", ""));
    let run = sandbox.run(&["expires.yaml"], 5);
    let since_ms = now_ms();
    until_expired(since_ms);
    sandbox.sprag(["resume", &run]).expect(100);
}

#[test]
fn e02_a_waiting_process_expires_a_question_in_a_child() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", &EXPIRES.replace(", on_fail: continue", ""));
    sandbox.yaml("parent", "steps:\n  - { id: call, pipeline: { file: child.yaml } }\n");
    let run = sandbox.run(&["parent.yaml"], 5);
    let since_ms = now_ms();
    until_expired(since_ms);
    sandbox.sprag(["wait", &run, "--timeout", "20s"]).expect(100);
}

#[test]
fn e02_a_run_says_what_it_waits_for() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("fails", &[("flaky", "retry: { attempts: 2, delay: 10m }\nrun: exit 3")]);
    let backing_off = sandbox.start(["run", "fails.yaml"]);
    says(
        &backing_off,
        "waiting: flaky: its backoff before attempt 2 of 2; attempt 1 failed: exit code 3 (since ",
    );
    says(&backing_off, "; until ");
    sandbox.pipeline("task", &[("review", "task: { queue: people, prompt: Look }")]);
    let unclaimed = sandbox.start(["run", "task.yaml"]);
    says(
        &unclaimed,
        "waiting: review: an agent or a person who claims it: sprag task claim --queue people (since ",
    );
    let task = sandbox.json(["task", "claim", "--queue", "people", "--as", "ada", "--json"]);
    says(&unclaimed, "worker ada");
    sandbox.sprag(["task", "done", task["token"].as_str().expect("a token")]).expect(0);
    unclaimed.finish().expect(0);
    backing_off.signal(Signal::TERM);
    backing_off.finish().expect(130);
}

#[test]
fn e02_a_run_says_who_holds_its_place() {
    let sandbox = Sandbox::new();
    let one = [("one", "run: 'echo one >> ran; until [ -e go ]; do sleep 0.02; done'")];
    let file = sandbox.pipeline("grouped", &one);
    let text = std::fs::read_to_string(&file).expect("a file");
    std::fs::write(&file, format!("concurrency: {{ group: g }}\n{text}")).expect("a file");
    let first = sandbox.start(["run", "grouped.yaml"]);
    until("it has begun", || sandbox.lines("ran").len() == 1);
    let holder = sandbox.newest().expect("a run");
    let second = sandbox.start(["run", "grouped.yaml"]);
    says(&second, &format!("waiting: a place in group \"g\", held by {holder}"));
    let waiting = until_some("a second run", || sandbox.newest().filter(|run| *run != holder));
    let also = sandbox.start(["wait", &waiting]);
    says(&also, &format!("waiting: a place in group \"g\", held by {holder}"));
    sandbox.write("go", "");
    for run in [first, second, also] {
        run.finish().expect(0);
    }
}

#[test]
fn e02_wait_says_that_a_runs_process_is_gone() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("dies", &[("one", "run: 'echo one >> ran; until [ -e go ]; do sleep 0.02; done'")]);
    let running = sandbox.start(["run", "dies.yaml"]);
    until("it has begun", || sandbox.lines("ran").len() == 1);
    let run = sandbox.newest().expect("a run");
    let waiting = sandbox.start(["wait", &run]);
    says(&waiting, &format!("{run}: one runs"));
    running.kill();
    let other = sandbox.start(["wait", &run]);
    says(&other, "which is gone: `sprag resume` or any worker takes over");
    sandbox.write("go", "");
    sandbox.sprag(["resume", &run]).expect(0);
    waiting.finish().expect(0);
    other.finish().expect(0);
}

/// Returns the number of write calls of a process.
fn writes_of(process: &Started) -> Option<u64> {
    let told = std::fs::read_to_string(format!("/proc/{}/io", process.pid())).ok()?;
    told.lines().find_map(|line| line.strip_prefix("syscw: ")?.trim().parse().ok())
}

#[test]
fn cancelling_a_step_that_ignores_sigterm_writes_next_to_nothing() {
    let sandbox = Sandbox::new();
    let stubborn = "run: |\n  trap '' TERM\n  echo begun >> ran\n  until [ -e told ]; do sleep 0.05; done\n  for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; done";
    sandbox.pipeline("stubborn", &[("one", stubborn)]);
    let mut running = sandbox.start(["run", "stubborn.yaml"]);
    until("it has begun", || sandbox.lines("ran").len() == 1);
    let run = sandbox.newest().expect("a run");
    running.signal(Signal::TERM);
    until("it is being cancelled", || sandbox.status_word(&run) == "cancelling");
    let before = writes_of(&running).expect("it runs");
    sandbox.write("told", "");
    let mut after = before;
    until("it has ended", || {
        after = writes_of(&running).unwrap_or(after);
        !running.is_running()
    });
    running.finish().expect(130);
    assert!(after - before < 500, "{} writes in two seconds", after - before);
}

#[test]
fn a_run_that_is_rejected_leaves_no_worker_behind() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "grouped",
        "concurrency: { group: g, on_conflict: reject }\nsteps:\n  - { id: ask, gate: { ask: 'Really?' } }\n",
    );
    let holder = sandbox.run(&["grouped.yaml"], 5);
    let refused = sandbox.sprag(["run", "grouped.yaml"]).expect(1);
    assert!(refused.stderr.contains("is full"), "{}", refused.stderr);
    assert_eq!(sandbox.json(["worker", "ls", "--json"]), json!([]));
    sandbox.sprag(["doctor"]).expect(0);
    sandbox.sprag(["reject", &holder]).expect(100);
    // A resume that is refused leaves none either.
    sandbox.run(&["grouped.yaml"], 5);
    sandbox.sprag(["resume", &holder]).expect(1);
    assert_eq!(sandbox.json(["worker", "ls", "--json"]), json!([]));
}

#[test]
fn a_claim_that_gets_nothing_leaves_neither_a_worker_nor_a_queue() {
    let sandbox = Sandbox::new();
    let names = |told: Value| -> Vec<String> {
        let all = told.as_array().expect("a list").iter();
        all.map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
    };
    sandbox.sprag(["task", "claim", "--queue", "nosuch", "--as", "ada"]).expect(4);
    assert_eq!(sandbox.json(["worker", "ls", "--json"]), json!([]));
    assert!(!names(sandbox.json(["queue", "ls", "--json"])).contains(&"nosuch".to_owned()));
    // Who has a task is there for as long as it is theirs.
    sandbox.sprag(["board", "new", "b"]).expect(0);
    sandbox.sprag(["task", "add", "b", "one"]).expect(0);
    let task = sandbox.json(["task", "claim", "--board", "b", "--as", "ada", "--json"]);
    assert_eq!(names(sandbox.json(["worker", "ls", "--json"])), ["ada"]);
    sandbox.sprag(["task", "done", task["token"].as_str().expect("a token")]).expect(0);
    assert_eq!(sandbox.json(["worker", "ls", "--json"]), json!([]));
    sandbox.sprag(["doctor"]).expect(0);
}
