//! Handlers of a run, a question after the last rework, and several pipelines in one file, through the program.

use sprag_tests::{Sandbox, until};

const HANDLED: &str = r#"
inputs: { how: { default: good } }
handlers:
  success:
    - { id: publish, run: echo publish >> ran }
  failure:
    - { id: collect, run: 'echo collect {{ steps.work.exit_code }} >> ran' }
    - { id: alarm, run: echo alarm >> ran; exit 1 }
    - { id: after, run: echo never >> ran }
  cancel:
    - { id: undo, run: echo undo >> ran }
  finally:
    - { id: sweep, run: echo sweep >> ran }
steps:
  - id: work
    run: |
      case {{ inputs.how }} in
        bad) exit 7 ;;
        slow) touch begun; exec sleep 60 ;;
      esac
  - { id: more, run: echo more >> ran }
"#;

/// P14: exactly the handlers of the run's end run, in order, and `finally` after them.
#[test]
fn p14_handlers_run_for_the_end_of_the_run() {
    let sandbox = Sandbox::new();
    sandbox.yaml("handled", HANDLED);
    let run = sandbox.run(&["handled.yaml"], 0);
    assert_eq!(sandbox.lines("ran"), ["more", "publish", "sweep"]);
    sandbox.check(&run);
    std::fs::remove_file(sandbox.path("ran")).expect("a file");
    let run = sandbox.run(&["handled.yaml", "-i", "how=bad"], 100);
    assert_eq!(sandbox.lines("ran"), ["collect 7", "alarm", "sweep"]);
    assert_eq!(
        sandbox.steps(&run),
        "work failed, more cancelled, publish skipped, collect done, alarm failed, after skipped, undo skipped, sweep done"
    );
    sandbox.check(&run);
    std::fs::remove_file(sandbox.path("ran")).expect("a file");
    let running = sandbox.start(["run", "handled.yaml", "-i", "how=slow"]);
    until("it works", || sandbox.path("begun").exists());
    let run = sandbox.newest().expect("a run");
    sandbox.sprag(["cancel", &run]);
    running.finish().expect(130);
    assert_eq!(sandbox.lines("ran"), ["undo", "sweep"]);
    sandbox.check(&run);
}

/// P13: when the reworks are used up, a person decides whether the run continues.
#[test]
fn p13_a_question_after_the_last_rework() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "asks",
        r#"
steps:
  - { id: write, run: echo write >> ran }
  - id: check
    run: echo "too short"; exit 1
    on_fail: { rework: write, max: 1, then: { gate: { ask: "{{ steps.check.error }}: continue?" } } }
  - { id: publish, needs: [check], run: echo publish >> ran }
"#,
    );
    let run = sandbox.run(&["asks.yaml"], 5);
    let told = sandbox.sprag(["questions"]).expect(0).stdout;
    assert!(told.contains("check-gate") && told.contains("too short: continue?"), "{told}");
    sandbox.sprag(["approve", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["write", "write", "publish"]);
    assert_eq!(sandbox.steps(&run), "write done, check failed, check-gate done, publish done");
    sandbox.check(&run);
    let run = sandbox.run(&["asks.yaml"], 5);
    sandbox.sprag(["reject", &run]).expect(100);
    assert_eq!(sandbox.steps(&run), "write done, check failed, check-gate failed, publish cancelled");
}

/// P18: the pipelines of a file call each other by name; mistakes in them are reported at their lines.
#[test]
fn p18_several_pipelines_in_one_file() {
    let sandbox = Sandbox::new();
    let file = r#"name: whole
outputs: { sizes: "{{ steps.each.outputs.size }}" }
steps:
  - id: each
    foreach: [one, three]
    pipeline: { name: measure, inputs: { word: "{{ item }}" } }
---
name: measure
inputs: { word: { required: true } }
outputs: { size: "{{ steps.count.outputs.n }}" }
steps:
  - id: count
    pipeline: { name: count, inputs: { text: "{{ inputs.word }}" } }
---
name: count
inputs: { text: string }
outputs: { n: "{{ steps.say.outputs.n }}" }
steps:
  - id: say
    run: printf '%s' {{ inputs.text }} | wc -c
    outputs: { n: { stdout: json } }
"#;
    sandbox.write("whole.yaml", file);
    sandbox.sprag(["validate", "--strict", "whole.yaml"]).expect(0);
    let answer = sandbox.sprag(["run", "whole.yaml", "--json"]).expect(0);
    let last = answer.lines::<serde_json::Value>().pop().expect("a line");
    assert_eq!(last["outputs"]["sizes"], serde_json::json!([3, 5]), "{last}");
    for (from, to, why) in [
        ("name: count, inputs", "name: cuont, inputs", "the file has no pipeline `cuont`"),
        ("inputs: { text: \"{{ inputs.word }}\" }", "inputs: { txt: 1 }", "has no input `txt`"),
        ("run: printf", "rum: printf", "whole.yaml:20"),
        ("name: count\ninputs", "name: measure\ninputs", "two pipelines of the file are named `measure`"),
        ("---\nname: count\n", "---\n", "a further pipeline of a file needs a name"),
        (
            "    run: printf '%s' {{ inputs.text }} | wc -c\n    outputs: { n: { stdout: json } }\n",
            "    pipeline: { name: measure, inputs: { word: \"{{ inputs.text }}\" } }\n",
            "it calls itself",
        ),
    ] {
        assert!(file.contains(from), "{from}");
        sandbox.write("wrong.yaml", &file.replacen(from, to, 1).replace("whole", "wrong"));
        let refused = sandbox.sprag(["validate", "wrong.yaml"]).expect(2);
        let told = refused.stderr.replace("wrong.yaml", "whole.yaml") + &refused.stdout;
        assert!(told.contains(why), "{to}: {told}");
    }
    // A pipeline that no step calls is read too.
    sandbox.write(
        "extra.yaml",
        "steps: [{ id: a, run: 'true' }]\n---\nname: other\nsteps: [{ id: b, rum: x }]\n",
    );
    let refused = sandbox.sprag(["validate", "extra.yaml"]).expect(2);
    let told = refused.stderr + &refused.stdout;
    assert!(told.contains("extra.yaml:4"), "{told}");
}
