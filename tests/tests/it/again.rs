//! Resume, retry, rewind and fork: finished steps are kept.

use serde_json::json;
use sprag_tests::{Sandbox, until};

const FAN_OUT: &str = r#"
steps:
  - id: list
    run: echo list >> ran; echo '["a", "b", "c", "d"]'
    outputs: { items: { stdout: json } }
  - id: each
    foreach: "{{ steps.list.outputs.items }}"
    max_parallel: 1
    run: |
      echo {{ item }} >> ran
      if [ {{ item }} = c ]; then [ -e mended ]; fi
      echo {{ item }}
    outputs: { said: { stdout: text } }
  - id: join
    run: echo join {{ steps.each.outputs.said }} >> ran
"#;

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

#[test]
fn p15_resume_keeps_the_items_that_are_done() {
    let sandbox = Sandbox::new();
    sandbox.yaml("fan", FAN_OUT);
    let run = sandbox.run(&["fan.yaml"], 100);
    assert_eq!(sandbox.lines("ran"), ["list", "a", "b", "c", "d"]);
    sandbox.write("mended", "");
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.lines("ran")[5..], ["c", "join [\"a\",\"b\",\"c\",\"d\"]"]);
    assert_eq!(sandbox.status(&run)["epoch"], 2);
    sandbox.check(&run);
}

#[test]
fn retry_of_a_fan_out_does_all_its_items_again() {
    let sandbox = Sandbox::new();
    sandbox.write("mended", "");
    sandbox.yaml("fan", FAN_OUT);
    let run = sandbox.run(&["fan.yaml"], 0);
    sandbox.sprag(["retry", &run, "--step", "each"]).expect(0);
    let joined = "join [\"a\",\"b\",\"c\",\"d\"]";
    assert_eq!(sandbox.lines("ran"), ["list", "a", "b", "c", "d", joined, "a", "b", "c", "d", joined]);
    assert_eq!(sandbox.step(&run, "each")["items"], json!({ "total": 4, "settled": 4, "failed": 0 }));
    let refused = sandbox.sprag(["retry", &run, "--step", "each[1]"]).expect(2);
    assert!(refused.stderr.contains("its steps are: list, each, join"), "{refused:?}");
}

#[test]
fn rewind_does_a_step_and_all_that_follows_again() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "back",
        r#"
steps:
  - { id: a, run: echo a >> ran }
  - { id: b, run: "echo b >> ran; echo $SPRAG_ATTEMPT", outputs: { n: { stdout: json } } }
  - { id: c, needs: [b], run: "echo c{{ steps.b.outputs.n }} >> ran" }
  - { id: d, needs: [a], run: echo d >> beside }
"#,
    );
    let run = sandbox.run(&["back.yaml"], 0);
    sandbox.sprag(["rewind", &run, "--to", "b"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["a", "b", "c1", "b", "c2"]);
    assert_eq!(sandbox.lines("beside"), ["d"]);
    sandbox.sprag(["rewind", &run, "--to", "nothing"]).expect(2);
    sandbox.sprag(["rewind", &run, "--to", "c", "--detach"]).expect(0);
    let refused = sandbox.sprag(["rewind", &run, "--to", "a"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert_eq!(sandbox.lines("ran")[5..], ["c2"]);
    sandbox.check(&run);
}

#[test]
fn a_fork_begins_after_a_finished_step_and_leaves_its_source_alone() {
    let sandbox = Sandbox::new();
    sandbox.write("mended", "");
    sandbox.yaml("fan", FAN_OUT);
    let source = sandbox.run(&["fan.yaml"], 0);
    let before = (sandbox.status(&source), sandbox.journal(Some(&source)).entries);
    let told = sandbox.sprag(["fork", &source, "--from", "list", "--json"]).expect(0);
    let told = told.lines::<serde_json::Value>().pop().expect("a result");
    let fork = told["run"].as_str().expect("an id");
    let joined = "join [\"a\",\"b\",\"c\",\"d\"]";
    assert_eq!(sandbox.lines("ran")[6..], ["a", "b", "c", "d", joined]);
    let told = sandbox.sprag(["fork", &source, "--from", "each", "--json"]).expect(0);
    let told = told.lines::<serde_json::Value>().pop().expect("a result");
    let second = told["run"].as_str().expect("an id");
    assert_eq!(sandbox.lines("ran")[11..], [joined], "the items were taken over");
    assert_eq!(sandbox.step(second, "each")["items"], json!({ "total": 4, "settled": 4, "failed": 0 }));
    assert_eq!((sandbox.status(&source), sandbox.journal(Some(&source)).entries), before);
    sandbox.check(fork);
    sandbox.check(second);
    // What was taken over is part of the new run: it can go back there.
    sandbox.sprag(["rewind", second, "--to", "each"]).expect(0);
    assert_eq!(sandbox.lines("ran")[12..], ["a", "b", "c", "d", joined]);
}

#[test]
fn a_fork_takes_over_answers_children_and_kept_files() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "child",
        "steps: [{ id: a, run: 'echo child >> ran; echo 7', outputs: { n: { stdout: json } } }]\n",
    );
    sandbox.yaml(
        "whole",
        r#"
inputs: { who: { required: true } }
steps:
  - { id: ask, gate: { ask: Well? } }
  - { id: child, pipeline: child.yaml }
  - { id: make, run: "echo {{ inputs.who }} > made", outputs: { file: made } }
  - { id: use, run: "echo {{ steps.ask.outputs.choice }} {{ steps.child.outputs.a.n }} $(cat {{ steps.make.outputs.file }}) {{ inputs.who }} >> used" }
"#,
    );
    let source = sandbox.run(&["whole.yaml", "-i", "who=ada"], 5);
    sandbox.sprag(["approve", &source]).expect(0);
    sandbox.sprag(["fork", &source, "--from", "make"]).expect(0);
    assert_eq!(sandbox.lines("used"), ["yes 7 ada ada", "yes 7 ada ada"]);
    assert_eq!(sandbox.lines("ran"), ["child"]);
}

#[test]
fn a_fork_from_an_unfinished_step_is_refused() {
    let sandbox = Sandbox::new();
    sandbox
        .pipeline("bad", &[("a", "run: echo a >> ran"), ("b", "run: exit 1"), ("c", "run: echo c >> ran")]);
    let run = sandbox.run(&["bad.yaml"], 100);
    for step in ["b", "c"] {
        let refused = sandbox.sprag(["fork", &run, "--from", step]).expect(1);
        assert!(refused.stderr.contains("not done"), "{refused:?}");
    }
    sandbox.sprag(["fork", &run, "--from", "nothing"]).expect(2);
    assert_eq!(sandbox.json(["ls", "--json"]).as_array().map(Vec::len), Some(1));
    sandbox.sprag(["fork", &run, "--from", "a", "--detach"]).expect(0);
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["a"]);
}

#[test]
fn o14_an_item_that_was_done_before_a_kill_never_runs_again() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "killed",
        r#"
steps:
  - id: each
    foreach: [0, 1, 2, 3, 4, 5]
    max_parallel: 2
    run: |
      echo {{ item }} >> began
      if [ {{ item }} -ge 3 ]; then until [ -e go ]; do sleep 0.01; done; fi
      echo {{ item }} >> done
  - id: after
    run: echo after >> done
"#,
    );
    let running = sandbox.start(["run", "killed.yaml", "--json", "--slots", "2"]);
    until("it is in the middle", || sandbox.lines("began").len() == 5);
    let run = sandbox.newest().expect("a run");
    for item in 0..3 {
        sandbox.until_step(&run, &format!("each[{item}]"), "done");
    }
    running.kill();
    sandbox.write("go", "");
    sandbox.sprag(["resume", &run]).expect(0);
    // What was at work when the process died is done again from its start; each is reported once.
    let done = sandbox.lines("done");
    for early in ["0", "1", "2", "after"] {
        assert_eq!(done.iter().filter(|line| *line == early).count(), 1, "{done:?}");
    }
    assert_eq!(done.last().map(String::as_str), Some("after"));
    let journal = sandbox.check(&run);
    for item in 0..6 {
        let events = journal.of_step(&format!("each[{item}]"));
        assert_eq!(events.iter().filter(|event| **event == "step.succeeded").count(), 1, "{events:?}");
    }
    let late = sorted(done);
    for item in ["3", "4", "5"] {
        assert!(late.iter().any(|line| line == item), "{late:?}");
    }
}

#[test]
fn p15_a_cancelled_fan_out_continues_with_its_remaining_items() {
    let sandbox = Sandbox::new();
    let each = "foreach: [a, b, c]\nmax_parallel: 1\nrun: |\n  echo {{ item }} >> began\n  if [ {{ item }} = b ]; then until [ -e go ]; do sleep 0.01; done; fi";
    sandbox.pipeline("stop", &[("each", each)]);
    let running = sandbox.start(["run", "stop.yaml", "--json"]);
    until("the second has begun", || sandbox.lines("began").len() == 2);
    let run = sandbox.newest().expect("a run");
    sandbox.sprag(["cancel", &run]).expect(0);
    running.finish().expect(130);
    sandbox.write("go", "");
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.lines("began"), ["a", "b", "b", "c"]);
    assert_eq!(sandbox.step(&run, "each")["items"], json!({ "total": 3, "settled": 3, "failed": 0 }));
    sandbox.check(&run);
}

#[test]
fn i15_a_report_from_before_a_rewind_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "signals",
        "steps:\n  - { id: a, run: echo a >> ran }\n  - { id: ask, gate: { ask: Again? } }\n  - { id: b, run: echo b >> ran }\n",
    );
    let run = sandbox.run(&["signals.yaml"], 5);
    sandbox.sprag(["approve", &run]).expect(0);
    // The answer belonged to the former question: going back asks anew.
    sandbox.sprag(["rewind", &run, "--to", "a"]).expect(5);
    assert_eq!(sandbox.lines("ran"), ["a", "b", "a"]);
    sandbox.sprag(["approve", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["a", "b", "a", "b"]);
    sandbox.check(&run);
}
