//! Child runs.

use serde_json::json;
use sprag_tests::{Sandbox, Signal, until, until_some};

/// Returns the child run of a step.
fn child_of(sandbox: &Sandbox, run: &str, step: &str) -> String {
    sandbox.step(run, step)["child"].as_str().expect("a run").to_owned()
}

#[test]
fn inputs_keep_their_types_and_outputs_come_back() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("parts")).expect("a folder");
    sandbox.write(
        "parts/child.yaml",
        r#"
inputs:
  n: { type: integer, required: true }
  list: { type: list, required: true }
  flag: { type: boolean, default: false }
  facts: { type: object, required: true }
  text: { default: "by default" }
steps:
  - id: work
    run: echo '{"next":' {{ inputs.n + 1 }}, '"of":' {{ inputs.list | length }}'}'; echo {{ inputs.flag }} {{ inputs.facts.a }} {{ inputs.text }} > said
    outputs: { facts: { stdout: json }, said: said }
  - id: each
    foreach: "{{ inputs.list }}"
    run: echo {{ item }}
    outputs: { said: { stdout: text } }
"#,
    );
    sandbox.yaml(
        "parent",
        r#"
steps:
  - id: make
    run: echo '{"n":41,"list":["a","b"],"yes":true}'
    outputs: { facts: { stdout: json } }
  - id: child
    pipeline:
      file: parts/child.yaml
      inputs:
        n: "{{ steps.make.outputs.facts.n }}"
        list: "{{ steps.make.outputs.facts.list }}"
        flag: "{{ steps.make.outputs.facts.yes }}"
        facts: { a: "{{ steps.make.outputs.facts.n }}" }
  - id: use
    run: |
      echo {{ steps.child.outputs.work.facts.next }} {{ steps.child.outputs.work.facts.of }} {{ steps.child.outputs.each.said }} > used
      cat {{ steps.child.outputs.work.said }} >> used
"#,
    );
    let run = sandbox.run(&["parent.yaml"], 0);
    assert_eq!(sandbox.read("used"), "42 2 [\"a\",\"b\"]\ntrue 41 by default\n");
    let child = child_of(&sandbox, &run, "child");
    assert_eq!(sandbox.status(&child)["status"], "completed");
    assert_eq!(sandbox.status(&child)["pipeline"], "child");
    assert!(sandbox.sprag(["logs", &child, "each[1]"]).expect(0).stdout.contains('b'));
    sandbox.check(&run);
    sandbox.check(&child);
}

#[test]
fn inputs_that_do_not_fit_fail_the_step() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "inputs: { n: { type: integer, required: true } }\nsteps: [{ id: a, run: 'echo {{ inputs.n }} >> ran' }]\n");
    sandbox.yaml(
        "parent",
        "steps:\n  - id: make\n    run: echo many\n    outputs: { n: { stdout: text } }\n  - id: child\n    pipeline: { file: child.yaml, inputs: { n: \"{{ steps.make.outputs.n }}\" } }\n",
    );
    let run = sandbox.run(&["parent.yaml"], 100);
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("integer"), "{told}");
    assert!(!sandbox.path("ran").exists());
    sandbox.yaml("wrong", "steps: [{ id: a, pipeline: { file: child.yaml, inputs: { m: 1 } } }]\n");
    sandbox.sprag(["run", "wrong.yaml"]).expect(2);
    sandbox.yaml("nowhere", "steps: [{ id: a, pipeline: nowhere.yaml }]\n");
    sandbox.sprag(["run", "nowhere.yaml"]).expect(2);
    let waits = "steps: [{ id: a, pipeline: { file: child.yaml, inputs: { n: 1 } }, retry: { attempts: 2, delay: 1s } }]\n";
    sandbox.yaml("waits", waits);
    let told = sandbox.sprag(["run", "waits.yaml"]).expect(2);
    assert!(told.stderr.contains("`delay` has no effect in the `retry` of a `pipeline`"), "{told:?}");
    sandbox.yaml("itself", "steps: [{ id: a, pipeline: itself.yaml }]\n");
    let told = sandbox.sprag(["run", "itself.yaml"]).expect(2);
    assert!(told.stderr.contains("it contains itself"), "{told:?}");
}

#[test]
fn a_child_is_cancelled_with_its_parent() {
    let sandbox = Sandbox::new();
    sandbox.yaml("inner", "steps: [{ id: slow, run: 'echo $$ > pid; exec sleep 300' }, { id: tidy, always: true, run: echo tidy >> ran }]\n");
    sandbox.yaml("middle", "steps: [{ id: inner, pipeline: inner.yaml }]\n");
    sandbox.yaml(
        "outer",
        "steps: [{ id: middle, pipeline: middle.yaml }, { id: after, run: echo after >> ran }]\n",
    );
    let running = sandbox.start(["run", "outer.yaml", "--json"]);
    let pid = sandbox.pid_in("pid");
    let outer = sandbox.newest().expect("a run");
    let middle = child_of(&sandbox, &outer, "middle");
    let inner = child_of(&sandbox, &middle, "inner");
    sandbox.sprag(["cancel", &outer]).expect(0);
    running.finish().expect(130);
    assert!(!sprag_tests::is_running(pid));
    assert_eq!(sandbox.lines("ran"), ["tidy"]);
    for run in [&outer, &middle, &inner] {
        assert_eq!(sandbox.status_word(run), "cancelled");
        sandbox.check(run);
    }
}

#[test]
fn a_child_that_fails_fails_its_step_and_a_retry_makes_a_new_one() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "steps: [{ id: a, run: 'echo a >> ran; [ -e ok ]' }]\n");
    sandbox.yaml(
        "parent",
        "steps:\n  - { id: child, pipeline: child.yaml, retry: { attempts: 2 } }\n  - { id: after, run: echo after >> ran }\n",
    );
    let run = sandbox.run(&["parent.yaml"], 100);
    assert_eq!(sandbox.lines("ran"), ["a", "a"]);
    assert_eq!(sandbox.step(&run, "child")["attempt"], 2);
    assert_eq!(sandbox.json(["ls", "--json"]).as_array().map(Vec::len), Some(1), "children are not listed");
    sandbox.check(&run);
    sandbox.yaml("loose", "steps:\n  - { id: child, pipeline: child.yaml, on_fail: continue }\n  - { id: after, run: 'echo {{ steps.child.status }} >> ran' }\n");
    sandbox.run(&["loose.yaml"], 0);
    assert_eq!(sandbox.lines("ran"), ["a", "a", "a", "failed"]);
}

#[test]
fn a_child_that_exceeds_its_timeout_is_stopped() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "steps: [{ id: slow, run: 'exec sleep 300' }]\n");
    sandbox.yaml("parent", "steps: [{ id: child, pipeline: child.yaml, timeout: 200ms }]\n");
    let run = sandbox.run(&["parent.yaml"], 100);
    assert_eq!(sandbox.steps(&run), "child failed");
    assert_eq!(sandbox.status_word(&child_of(&sandbox, &run, "child")), "cancelled");
    sandbox.check(&run);
}

#[test]
fn resuming_the_parent_resumes_the_child_and_keeps_its_done_steps() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "child",
        "steps:\n  - { id: a, run: echo a >> ran }\n  - { id: b, run: 'echo b >> ran; [ -e ok ]' }\n",
    );
    sandbox.yaml(
        "parent",
        "steps:\n  - { id: first, run: echo first >> ran }\n  - { id: child, pipeline: child.yaml }\n  - { id: after, run: echo after >> ran }\n",
    );
    let run = sandbox.run(&["parent.yaml"], 100);
    let child = child_of(&sandbox, &run, "child");
    let refused = sandbox.sprag(["resume", &child]).expect(1);
    assert!(refused.stderr.contains(&run), "{refused:?}");
    sandbox.write("ok", "");
    sandbox.sprag(["resume", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["first", "a", "b", "b", "after"]);
    assert_eq!(child_of(&sandbox, &run, "child"), child);
    sandbox.check(&run);
    sandbox.check(&child);
    // Going back to it is another matter: everything is done again.
    sandbox.sprag(["rewind", &run, "--to", "child"]).expect(0);
    assert_eq!(sandbox.lines("ran")[5..], ["a", "b", "after"]);
    assert_ne!(child_of(&sandbox, &run, "child"), child);
    sandbox.check(&run);
}

#[test]
fn a_question_of_a_child_is_one_of_its_parent() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "steps: [{ id: ask, gate: { ask: Go on? } }, { id: b, run: echo b >> ran }]\n");
    sandbox.yaml("parent", "steps: [{ id: child, pipeline: child.yaml }, { id: use, run: 'echo {{ steps.child.outputs.ask.choice }} >> ran' }]\n");
    let run = sandbox.run(&["parent.yaml"], 5);
    let told = sandbox.sprag(["wait", &run, "--json"]).expect(5).json();
    assert_eq!(told["waits_for"][0]["step"], "ask");
    sandbox.sprag(["approve", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["b", "yes"]);
    let run = sandbox.run(&["parent.yaml"], 5);
    let child = child_of(&sandbox, &run, "child");
    sandbox.sprag(["reject", &child]).expect(100);
    assert_eq!(sandbox.status_word(&run), "failed");
}

#[test]
fn o14_a_run_whose_process_was_killed_continues_in_its_child() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "steps: [{ id: a, run: echo a >> ran }, { id: slow, run: 'echo slow >> ran; until [ -e go ]; do sleep 0.01; done' }]\n");
    sandbox.yaml(
        "parent",
        "steps: [{ id: child, pipeline: child.yaml }, { id: after, run: echo after >> ran }]\n",
    );
    let running = sandbox.start(["run", "parent.yaml", "--json"]);
    until("it is in the child", || sandbox.lines("ran").len() == 2);
    let parent = sandbox.newest().expect("a run");
    running.kill();
    sandbox.write("go", "");
    sandbox.sprag(["resume", &parent]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["a", "slow", "slow", "after"]);
    sandbox.check(&parent);
}

#[test]
fn every_kind_of_step_works_with_workers() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "inputs: { n: { type: integer, required: true } }\nsteps: [{ id: a, run: 'echo child {{ inputs.n }} >> ran' }]\n");
    sandbox.yaml(
        "all",
        r#"
steps:
  - { id: list, run: "echo '[1, 2]'", outputs: { items: { stdout: json } } }
  - { id: each, foreach: "{{ steps.list.outputs.items }}", max_parallel: 1, pipeline: { file: child.yaml, inputs: { n: "{{ item }}" } } }
  - { id: rest, wait: 10ms }
  - { id: signalled, wait: { signal: go } }
  - { id: ask, gate: { ask: Well? } }
  - { id: task, task: { prompt: "Do it for {{ run.id }}" } }
  - { id: last, run: "echo {{ steps.task.outputs.done }} >> ran" }
"#,
    );
    let run = sandbox.detach(&sandbox.path("all.yaml"));
    let worker = sandbox.start(["worker"]);
    sandbox.until_step(&run, "signalled", "running");
    sandbox.sprag(["signal", &run, "go"]).expect(0);
    sandbox.until_step(&run, "ask", "running");
    sandbox.sprag(["wait", &run, "--timeout", "30s"]).expect(5);
    sandbox.sprag(["approve", &run]).expect(0);
    let task = until_some("a task", || {
        let told = sandbox.sprag(["task", "claim", "--json", "--wait", "10s"]);
        (told.code == 0).then(|| told.json())
    });
    assert_eq!(task["prompt"], json!(format!("Do it for {run}")));
    sandbox
        .sprag(["task", "done", task["token"].as_str().expect("a token"), "--output", "done=well"])
        .expect(0);
    sandbox.ends_as(&run, "completed");
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
    assert_eq!(sandbox.lines("ran"), ["child 1", "child 2", "well"]);
    sandbox.check(&run);
}

#[test]
fn c10_children_keep_to_the_limit_of_their_group() {
    let sandbox = Sandbox::new();
    sandbox.yaml("one", "concurrency: { group: children }\nsteps: [{ id: a, run: 'echo begin >> log; sleep 0.02; echo end >> log' }]\n");
    sandbox.yaml("many", "steps: [{ id: each, foreach: [1, 2, 3, 4], pipeline: one.yaml }]\n");
    let run = sandbox.run(&["many.yaml"], 0);
    assert_eq!(sandbox.lines("log"), ["begin", "end"].repeat(4));
    sandbox.check(&run);
    sandbox.yaml(
        "one",
        "concurrency: { group: children, on_conflict: reject }\nsteps: [{ id: a, run: sleep 0.2 }]\n",
    );
    let run = sandbox.run(&["many.yaml"], 100);
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("is full"), "{told}");
    assert_eq!(sandbox.step(&run, "each")["items"]["failed"], 3);
    sandbox.check(&run);
}

#[test]
fn a_reworked_child_is_a_new_run_with_feedback() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "one",
        "inputs: { why: { default: '' } }\nsteps: [{ id: a, run: 'echo {{ inputs.why }} >> told' }]\n",
    );
    sandbox.yaml(
        "back",
        "steps:\n  - { id: child, pipeline: { file: one.yaml, inputs: { why: '{{ steps.child.feedback }}' } } }\n  - { id: verify, run: 'test $(wc -l < told) -ge 2', on_fail: { rework: child } }\n",
    );
    let run = sandbox.run(&["back.yaml"], 0);
    assert_eq!(sandbox.lines("told"), ["", "step `verify` failed: exit code 1"]);
    sandbox.check(&run);
}

#[test]
fn o14_child_runs_of_a_fan_out_continue_after_a_kill() {
    let sandbox = Sandbox::new();
    sandbox.yaml("one", "inputs: { n: { type: integer, required: true } }\nsteps:\n  - { id: a, run: 'echo a{{ inputs.n }} >> ran' }\n  - { id: b, run: 'echo b{{ inputs.n }} >> began; until [ -e go ]; do sleep 0.01; done; echo b{{ inputs.n }} >> ran' }\n");
    sandbox.yaml("many", "steps: [{ id: each, foreach: [1, 2, 3], max_parallel: 2, pipeline: { file: one.yaml, inputs: { n: '{{ item }}' } } }]\n");
    let running = sandbox.start(["run", "many.yaml", "--json", "--slots", "4"]);
    until("two are in their second step", || sandbox.lines("began").len() == 2);
    let run = sandbox.newest().expect("a run");
    running.kill();
    sandbox.write("go", "");
    sandbox.sprag(["resume", &run]).expect(0);
    let ran = sandbox.lines("ran");
    for n in 1..=3 {
        assert_eq!(ran.iter().filter(|line| **line == format!("a{n}")).count(), 1, "{ran:?}");
        assert!(ran.contains(&format!("b{n}")), "{ran:?}");
    }
    sandbox.check(&run);
}
