//! After a failure: the end of the run, `explain` and `logs` say what failed, and why.

use sprag_tests::{Sandbox, until_some};

fn failing() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "fails",
        &[
            ("build", "run: echo built"),
            ("test", "retry: { attempts: 2 }\nrun: echo try $SPRAG_ATTEMPT; echo why it failed >&2; exit 3"),
            ("ship", "run: echo shipped"),
        ],
    );
    sandbox
}

#[test]
fn the_end_of_a_run_repeats_each_failure_and_names_commands_that_help() {
    let sandbox = failing();
    let told = sandbox.sprag(["run", "fails.yaml"]).expect(100);
    let run = sandbox.newest().expect("a run");
    assert!(told.stderr.contains("↻ test failed: exit code 3 ("), "{}", told.stderr);
    assert!(told.stderr.contains("); retry 2 of 2"), "{}", told.stderr);
    assert!(told.stderr.contains("· ship not run"), "{}", told.stderr);
    let end = told.stderr.split("\nfailed in ").nth(1).expect("an end");
    assert!(end.contains("✗ test failed: exit code 3, attempt 2 of 2\n"), "{end}");
    assert!(end.contains("    │ try 2\n") && end.contains("    │ why it failed\n"), "{end}");
    let next = format!("next: sprag logs {run} --failed · sprag retry {run}\n");
    assert!(end.ends_with(&next), "{end}");
    sandbox.sprag(["logs", &run, "--failed"]).expect(0);
}

#[test]
fn explain_of_a_failed_run_says_what_failed_and_why() {
    let sandbox = failing();
    let run = sandbox.run(&["fails.yaml"], 100);
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(told.contains("✗ test failed: exit code 3, attempt 2 of 2\n"), "{told}");
    assert!(told.contains("│ why it failed\n") && !told.contains("nothing waits"), "{told}");
    let failed = &sandbox.json(["explain", &run, "--json"])["failed"];
    assert_eq!(failed.as_array().map(Vec::len), Some(1), "{failed}");
    let first = &failed[0];
    assert_eq!((&first["step"], &first["why"]), (&"test".into(), &"exit code 3".into()));
    assert_eq!((&first["attempt"], &first["attempts"]), (&2.into(), &2.into()));
    assert_eq!(first["last_lines"][1], "why it failed");
}

#[test]
fn failures_of_items_and_of_child_runs_are_repeated_too() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "steps:\n  - { id: deep, run: 'echo deep down; exit 4' }\n");
    sandbox.yaml(
        "all",
        "steps:\n  - { id: each, foreach: [a, b], run: 'echo item {{ item }}; test {{ item }} = a' }\n  - { id: call, needs: [], pipeline: { file: child.yaml } }\n",
    );
    let told = sandbox.sprag(["run", "all.yaml"]).expect(100);
    let end = told.stderr.split("\nfailed in ").nth(1).expect("an end");
    assert!(end.contains("✗ each[1] (b) failed: exit code 1\n    │ item b\n"), "{end}");
    assert!(end.contains("✗ deep failed: exit code 4 (run "), "{end}");
    assert!(end.contains("│ deep down\n") && !end.contains("each[0]"), "{end}");
}

#[test]
fn steps_that_were_never_reached_are_shown_as_not_run() {
    let sandbox = failing();
    let run = sandbox.run(&["fails.yaml"], 100);
    let people = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(people.lines().any(|line| line.contains("· ship") && line.contains("not run")), "{people}");
    let step = sandbox.step(&run, "ship");
    assert_eq!((&step["status"], &step["not_run"]), (&"cancelled".into(), &true.into()));
    assert!(sandbox.step(&run, "test").get("not_run").is_none());
    let graph = sandbox.sprag(["graph", &run]).expect(0).stdout;
    assert!(graph.lines().any(|line| line.contains("ship") && line.contains("not run")), "{graph}");
}

#[test]
fn logs_can_be_narrowed() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "prints",
        "steps:\n  - { id: many, run: 'seq 1 50' }\n  - { id: coloured, run: \"printf '\\\\033[32mgreen\\\\033[0m\\\\n'; exit 1\" }\n",
    );
    let run = sandbox.run(&["prints.yaml"], 100);
    let logs = |args: &[&str]| sandbox.sprag([&["logs", &run][..], args].concat()).expect(0).stdout;
    assert_eq!(logs(&["many", "--tail", "2"]), "49\n50\n");
    assert_eq!(logs(&["--failed"]), "coloured │ green\n");
    assert_eq!(logs(&["coloured", "--raw"]), "\u{1b}[32mgreen\u{1b}[0m\n");
    assert_eq!(logs(&["many", "--since", "1h", "--tail", "1"]), "50\n");
    assert_eq!(logs(&["many", "--since", "2999-01-01T00:00:00Z"]), "");
    let timed = logs(&["many", "--tail", "1", "--timestamps"]);
    assert!(timed.ends_with("Z 50\n") && timed.starts_with("20"), "{timed:?}");
    sandbox.sprag(["logs", &run, "--since", "soon"]).expect(2);
    sandbox.pipeline("ok", &[("a", "run: echo a")]);
    let fine = sandbox.run(&["ok.yaml"], 0);
    let told = sandbox.sprag(["logs", &fine, "--failed"]).expect(0);
    assert!(told.stderr.contains("has failed") && told.stdout.is_empty(), "{told:?}");
}

#[test]
fn cancelling_twice_is_fine_and_cancelling_what_has_ended_is_nothing_to_do() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("ok", &[("a", "run: echo a")]);
    let run = sandbox.detach(&sandbox.path("ok.yaml"));
    sandbox.sprag(["cancel", &run]).expect(0);
    sandbox.sprag(["cancel", &run]).expect(0);
    let done = sandbox.run(&["ok.yaml"], 0);
    let told = sandbox.sprag(["cancel", &done]).expect(4);
    assert!(told.stderr.contains("is completed"), "{told:?}");
    sandbox.sprag(["resume", &done]).expect(4);
}

#[test]
fn a_failed_child_in_a_fan_out_gives_null() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "child",
        "inputs: { n: integer }\nsteps:\n  - { id: fits, run: 'test {{ inputs.n }} = 1' }\n\
         \x20 - { id: one, run: echo hi, outputs: { o: { stdout: text } } }\n",
    );
    sandbox.yaml(
        "parent",
        "steps:\n  - { id: each, foreach: [1, 2], on_fail: continue, pipeline: { file: child.yaml, inputs: { n: '{{ item }}' } } }\n  - { id: say, run: 'echo {{ steps.each.outputs.one | tojson }} > said' }\n",
    );
    sandbox.run(&["parent.yaml"], 0);
    assert_eq!(sandbox.read("said"), "[{\"o\":\"hi\"},null]\n");
}

#[test]
fn an_error_in_when_names_the_expression_and_the_name() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "when",
        "steps:\n  - { id: a, run: \"echo '{}'\", outputs: { o: { stdout: json } } }\n  - { id: b, when: steps.a.outputs.o.y.z > 3, run: echo b }\n",
    );
    let told = sandbox.sprag(["run", "when.yaml"]).expect(100).stderr;
    assert!(told.contains("`when: steps.a.outputs.o.y.z > 3`"), "{told}");
    assert!(told.contains("`steps.a.outputs.o.y.z` is undefined"), "{told}");
    sandbox.yaml("filter", "steps:\n  - { id: a, when: '1 | frobnicate', run: \"echo {{ 1 is evn }}\" }\n");
    let told = sandbox.sprag(["validate", "filter.yaml"]).expect(2).stderr;
    assert!(told.contains("there is no filter `frobnicate`"), "{told}");
    assert!(told.contains("there is no test `evn`; did you mean `even`?"), "{told}");
}

#[test]
fn a_childs_question_is_shown_and_answered_through_its_parent() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "steps:\n  - { id: ask, gate: { ask: \"Really?\\nLook twice.\" } }\n");
    sandbox.yaml("parent", "steps:\n  - { id: call, pipeline: { file: child.yaml } }\n");
    let told = sandbox.sprag(["run", "parent.yaml"]).expect(5);
    let run = until_some("the parent", || {
        let all = sandbox.json(["ls", "--json"]);
        let one = all.as_array()?.iter().find(|one| one["pipeline"] == "parent")?.clone();
        one["id"].as_str().map(str::to_owned)
    });
    assert!(told.stderr.contains("Really?\n  Look twice."), "{}", told.stderr);
    let why = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(why.contains("Really?") && why.contains("sprag approve"), "{why}");
    sandbox.sprag(["approve", &run]).expect(0);
    assert_eq!(sandbox.status_word(&run), "completed");
}
