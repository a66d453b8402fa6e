//! Permissions that agents ask for: gates of the run, answered by people, with the fake agent in all dialects.

use serde_json::Value;
use sprag_tests::{Signal, now_ms, signal, until, until_some};

use crate::agents::{Bench, DIALECTS, in_all_dialects};

/// Waits for a question whose text contains `part`, and returns it.
fn question(bench: &Bench, part: &str) -> Value {
    until_some(part, || {
        let open = bench.sprag(&["questions", "--json"]).expect(0).json();
        let found = open.as_array()?.iter().find(|gate| gate["ask"].as_str().unwrap_or("").contains(part))?;
        Some(found.clone())
    })
}

#[test]
fn t05_a_permission_is_a_question_of_the_run_and_the_answer_reaches_the_agent() {
    const SCRIPT: &str = r#"
turns:
  - - ask: echo one > one.txt
    - ask: echo two > two.txt
    - say: Done.
"#;
    const STEPS: &str = "  - id: work\n    agent: { use: robot, prompt: Work., permissions: ask, stall: 1s }\n    check: { run: test -e one.txt -a ! -e two.txt }\n";
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let sandbox = &bench.project.sandbox;
        let started = bench.start(&["run", &bench.pipeline(STEPS)]);
        let asked = question(&bench, "one.txt");
        let run = sandbox.newest().expect("a run");
        assert_eq!((&asked["step"], &asked["run"]), (&"work".into(), &run.as_str().into()), "{asked}");
        assert_eq!(asked["choices"], serde_json::json!(["allow", "deny"]), "{asked}");
        let explained = bench.sprag(&["explain", &run]).expect(0).stdout;
        assert!(
            explained.contains("robot asks for permission") && explained.contains("one.txt"),
            "{explained}"
        );
        assert_eq!(bench.sprag(&["status", &run, "--json"]).expect(0).json()["waiting_for"], "person");
        // Longer than the stall: an agent that waits for a person is not stalled.
        let asked_ms = now_ms();
        until("more time than the stall", || now_ms() > asked_ms + 1_200);
        bench.sprag(&["approve", &run, "work"]).expect(0);
        question(&bench, "two.txt");
        bench.sprag(&["reject", &run, "work", "--comment", "not that one"]).expect(0);
        started.finish().expect(0);
        assert_eq!(bench.starts(), 1, "{dialect:?}: the same process waited for both answers");
        let journal = sandbox.journal(Some(&run));
        assert_eq!((journal.events("gate.opened"), journal.events("gate.answered")), (2, 2), "{dialect:?}");
    });
}

#[test]
fn t05_a_question_survives_kill_9_and_its_answer_is_used_once() {
    const SCRIPT: &str = r#"
turns:
  - when: was interrupted
    do:
      - ask: echo x >> made.txt
      - ask: echo x >> made.txt
      - say: Done.
  - when: Work
    do:
      - ask: echo x >> made.txt
"#;
    const STEPS: &str = "  - id: work\n    agent: { use: robot, prompt: Work., permissions: ask }\n    check: { run: test $(wc -l < made.txt) = 1 }\n";
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let sandbox = &bench.project.sandbox;
        let started = bench.start(&["run", &bench.pipeline(STEPS), "--lease", "5s"]);
        let first = question(&bench, "made.txt");
        signal(started.pid(), Signal::KILL);
        started.finish();
        let run = sandbox.newest().expect("a run");
        assert_eq!(
            question(&bench, "made.txt")["id"],
            first["id"],
            "{dialect:?}: the question is still there"
        );
        // The answer continues the run here. The agent's next request for the same takes it, the one after that asks
        // again.
        let continued = bench.start(&["approve", &run, "work"]);
        let second = until_some("another question", || {
            let open = bench.sprag(&["questions", "--json"]).expect(0).json();
            open.as_array()?.iter().find(|gate| gate["id"] != first["id"]).cloned()
        });
        assert_ne!(second["id"], first["id"]);
        bench.sprag(&["reject", &run, "work"]).expect(0);
        continued.finish().expect(0);
        assert_eq!((bench.starts(), bench.sessions()), (2, 1), "{dialect:?}: the same session");
        let journal = sandbox.journal(Some(&run));
        assert_eq!((journal.events("gate.opened"), journal.events("gate.answered")), (2, 2), "{dialect:?}");
    });
}

#[test]
fn t05_an_agent_that_waits_long_is_parked_and_continues_with_the_answer() {
    const SCRIPT: &str = "turns:\n  - - ask: echo x > made.txt\n    - say: Done.\n";
    const STEPS: &str = "  - id: work\n    agent: { use: robot, prompt: Work., permissions: ask, park_after: 500ms }\n    check: { run: test -e made.txt }\n";
    let bench = Bench::new(DIALECTS[0], SCRIPT);
    let sandbox = &bench.project.sandbox;
    let left = bench.sprag(&["run", &bench.pipeline(STEPS)]);
    left.expect(5);
    let run = sandbox.newest().expect("a run");
    bench.sprag(&["approve", &run, "work"]).expect(0);
    assert_eq!((bench.starts(), bench.sessions()), (2, 1));
    assert_eq!(sandbox.step(&run, "work")["attempt"], 1, "parking costs no attempt");
    assert_eq!(sandbox.journal(Some(&run)).events("gate.opened"), 1);
}

#[test]
fn t05_a_question_without_an_answer_fails_the_step_with_its_reason_and_cancel_closes_it() {
    const SCRIPT: &str = "turns:\n  - - ask: echo x > made.txt\n    - say: Done.\n";
    let bench = Bench::new(DIALECTS[0], SCRIPT);
    let sandbox = &bench.project.sandbox;
    let within = "  - id: work\n    agent: { use: robot, prompt: Work., permissions: ask, answer_within: 1s }\n    retry: { attempts: 3 }\n";
    let answer = bench.sprag(&["run", &bench.pipeline(within)]);
    assert_eq!(answer.code, 100, "{answer:?}");
    assert!(
        answer.stderr.contains("no answer within") && answer.stderr.contains("made.txt"),
        "{}",
        answer.stderr
    );
    let run = sandbox.newest().expect("a run");
    assert_eq!(sandbox.step(&run, "work")["attempt"], 1, "only a person can answer: it is not retried");
    assert_eq!(bench.sprag(&["questions", "--json"]).expect(0).json(), serde_json::json!([]));
    let open = "  - id: work\n    agent: { use: robot, prompt: Work., permissions: ask }\n";
    let started = bench.start(&["run", &bench.pipeline(open)]);
    question(&bench, "made.txt");
    let run = sandbox.newest().expect("a run");
    bench.sprag(&["cancel", &run]).expect(0);
    started.finish();
    until("the run is cancelled", || sandbox.status_word(&run) == "cancelled");
    assert_eq!(bench.sprag(&["questions", "--json"]).expect(0).json(), serde_json::json!([]));
}
