//! `repeat`: a step that runs again after a success, through the program.

use serde_json::json;
use sprag_tests::{Sandbox, until, until_some};

/// P13, P14: rounds have their own tries, read the outputs of the round before, and end by their condition or their limit.
#[test]
fn p13_a_step_is_repeated_until_its_condition_holds() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "more",
        "inputs: { n: { type: integer, default: 0 } }\noutputs: { n: \"{{ steps.add.outputs.n }}\" }\nsteps:\n  - id: add\n    run: echo {{ inputs.n + 1 }}\n    outputs: { n: { stdout: json } }\n",
    );
    sandbox.yaml(
        "rounds",
        r#"
outputs:
  poll: "{{ [steps.poll.outputs.n, steps.poll.round, steps.poll.attempt] }}"
  never: "{{ [steps.never.status, steps.never.error, steps.never.outputs.n, steps.never.round] }}"
  unknown: "{{ [steps.unknown.status, steps.unknown.error] }}"
  each: "{{ steps.each.outputs.rounds }}"
  child: "{{ steps.child.outputs.n }}"
steps:
  - id: poll
    retry: { attempts: 2 }
    repeat: { until: steps.poll.outputs.n >= 3, max: 5, delay: 5ms }
    run: |
      if [ ! -e tried-$SPRAG_ROUND ]; then touch tried-$SPRAG_ROUND; exit 1; fi
      echo $SPRAG_ROUND {{ steps.poll.round }} >> rounds
      echo {{ (steps.poll.outputs.n | default(0)) + 1 }}
    outputs: { n: { stdout: json } }
  - id: never
    on_fail: continue
    repeat: { while: steps.never.outputs.n > 0, max: 2 }
    run: |
      echo once >> never
      echo {{ steps.never.round }}
    outputs: { n: { stdout: json } }
  - id: unknown
    on_fail: continue
    repeat: { until: steps.unknown.outputs.flag, max: 2 }
    run: |
      echo "other=1" >> "$SPRAG_OUTPUT"
  - id: each
    foreach: [1, 3]
    repeat: { until: steps.each.round == item, max: 3 }
    run: echo $SPRAG_ROUND
    outputs: { rounds: { stdout: json } }
  - id: child
    repeat: { until: steps.child.outputs.n == 2, max: 3 }
    pipeline: { file: more.yaml, inputs: { n: "{{ steps.child.outputs.n | default(0) }}" } }
"#,
    );
    let answer = sandbox.sprag(["run", "rounds.yaml", "--json"]).expect(0);
    let last = answer.lines::<serde_json::Value>().pop().expect("a line");
    let outputs = &last["outputs"];
    assert_eq!(outputs["poll"], json!([3, 3, 6]), "{last}");
    assert_eq!(
        outputs["never"],
        json!(["failed", "its `repeat` asks for more than 2 rounds", 2, 2]),
        "{last}"
    );
    let unknown = outputs["unknown"][1].as_str().expect("an error");
    assert!(unknown.contains("`until: steps.unknown.outputs.flag`"), "{unknown}");
    assert_eq!(outputs["each"], json!([1, 3]), "{last}");
    assert_eq!(outputs["child"], json!(2), "{last}");
    assert_eq!(sandbox.lines("rounds"), ["1 1", "2 2", "3 3"]);
    assert_eq!(sandbox.lines("never"), ["once", "once"]);
    let run = sandbox.newest().expect("a run");
    let run = sandbox.status(&run)["parent"].as_str().map_or(run.clone(), str::to_owned);
    let steps = sandbox.status(&run)["steps"].clone();
    let of =
        |id: &str| steps.as_array().expect("steps").iter().find(|step| step["id"] == id).expect(id).clone();
    assert_eq!((&of("poll")["round"], &of("poll")["max_rounds"]), (&json!(3), &json!(5)));
    assert_eq!(of("each[1]")["round"], json!(3));
    assert!(of("each").get("round").is_none());
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("round 3 of 5") && told.contains("round 2 of 2"), "{told}");
    assert!(!told.lines().any(|line| line.contains("poll") && line.contains("attempt")), "{told}");
    let drawn = sandbox.sprag(["graph", &run]).expect(0).stdout;
    assert!(drawn.contains("done (round 3 of 5)"), "{drawn}");
    let dry = sandbox.sprag(["run", "rounds.yaml", "--dry"]).expect(0).stdout;
    assert!(dry.contains("up to 5 rounds until steps.poll.outputs.n >= 3"), "{dry}");
    let logs = sandbox.sprag(["events", "--run", &run]).expect(0).stdout;
    assert!(logs.contains("step.repeated"), "{logs}");
    sandbox.check(&run);
}

/// P16: a killed process, a resume and a rewind keep the rounds that have ended; a rewind to the step itself does not.
#[test]
fn p16_a_resume_continues_with_the_round_that_did_not_end() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "kept",
        r#"
outputs: { n: "{{ steps.count.outputs.n }}" }
steps:
  - id: count
    repeat: { until: steps.count.outputs.n == 3, max: 4 }
    run: |
      echo $SPRAG_ROUND >> begun
      if [ $SPRAG_ROUND = 2 ] && [ ! -e go ]; then touch second; sleep 60; fi
      echo {{ (steps.count.outputs.n | default(0)) + 1 }}
    outputs: { n: { stdout: json } }
  - id: after
    run: echo {{ steps.count.round }} >> after
"#,
    );
    let started = sandbox.start(["run", "kept.yaml"]);
    until("the second round has begun", || sandbox.path("second").exists());
    let run = sandbox.newest().expect("a run");
    started.kill();
    sandbox.write("go", "");
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.lines("begun"), ["1", "2", "2", "3"]);
    assert_eq!(sandbox.lines("after"), ["3"]);
    sandbox.sprag(["rewind", &run, "--to", "after"]).expect(0);
    assert_eq!(sandbox.lines("begun").len(), 4);
    assert_eq!(sandbox.lines("after"), ["3", "3"]);
    sandbox.sprag(["rewind", &run, "--to", "count"]).expect(0);
    assert_eq!(sandbox.lines("begun")[4..], ["1", "2", "3"]);
    assert_eq!(sandbox.step(&run, "count")["round"], json!(3));
    sandbox.check(&run);
}

/// P16: a round that ends while the run fails counts: a resume continues with the next one.
#[test]
fn p16_a_round_that_ends_in_a_failing_run_is_not_repeated() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "fails",
        r#"
steps:
  - id: rounds
    needs: []
    repeat: { until: steps.rounds.round == 3, max: 3 }
    run: |
      echo $SPRAG_ROUND >> begun
      for _ in $(seq 1 1000); do [ -e go ] && exit 0; sleep 0.05; done
      exit 1
  - id: child
    needs: []
    repeat: { until: steps.child.outputs.n == 2, max: 3 }
    pipeline: { name: add, inputs: { n: "{{ steps.child.outputs.n | default(0) }}" } }
  - id: bad
    needs: []
    run: test -e mended
---
name: add
inputs: { n: integer }
outputs: { n: "{{ steps.add.outputs.n }}" }
steps:
  - id: add
    run: |
      echo {{ inputs.n }} >> added
      for _ in $(seq 1 1000); do [ -e go ] && break; sleep 0.05; done
      echo {{ inputs.n + 1 }}
    outputs: { n: { stdout: json } }
"#,
    );
    let started = sandbox.start(["run", "fails.yaml", "--slots", "4"]);
    let run = until_some("a run", || sandbox.newest());
    until("it fails", || sandbox.status_word(&run) == "failing");
    until("both work", || !sandbox.read("begun").is_empty() && !sandbox.read("added").is_empty());
    sandbox.write("go", "");
    started.finish().expect(100);
    assert_eq!(sandbox.steps(&run), "rounds cancelled, child cancelled, bad failed");
    sandbox.write("mended", "");
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.lines("begun"), ["1", "2", "3"]);
    assert_eq!(sandbox.lines("added"), ["0", "1"]);
    sandbox.check(&run);
}
