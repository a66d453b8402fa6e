//! What became of a step, outputs by name, and further keys of the language, through the program.

use serde_json::json;
use sprag_tests::Sandbox;

/// P13, P14: the failure of a step and of each item is a value, and outputs exist as far as the command got.
#[test]
fn p13_a_later_step_reads_what_became_of_a_failed_one() {
    let sandbox = Sandbox::new();
    sandbox.write(".env", "# settings\nGREETING=\"hello there\"\n");
    sandbox.yaml(
        "became",
        r#"
dotenv: .env
outputs:
  codes: "{{ steps.each.exit_code }}"
  errors: "{{ steps.each.error }}"
  late: "{{ [steps.late.timed_out, steps.late.outputs.got, steps.late.status] }}"
  known: "{{ [steps.known.exit_code, steps.known.error, steps.known.outputs] }}"
  good: "{{ [steps.good.exit_code, steps.good.error, steps.good.timed_out] }}"
  state: "{{ run.status }}"
  alarm: "{{ steps.alarm.status }}"
steps:
  - id: good
    run: test "$GREETING" = "hello there"
    check: [{ file: nowhere, warn: true }, { run: 'true' }]
  - id: known
    on_fail: continue
    run: |
      echo 'a=1' >> "$SPRAG_OUTPUT"
      echo '{"n": [2]}' >> "$SPRAG_OUTPUT"
      echo printed
      exit 7
    outputs: { said: { stdout: text }, none: nowhere.txt }
  - id: late
    on_fail: continue
    timeout: 1s
    run: |
      echo 'got=this far' >> "$SPRAG_OUTPUT"
      exec sleep 60
  - id: each
    on_fail: continue
    foreach: "{{ range(3) }}"
    run: exit {{ item_index }}
  - id: args
    run: [printf, '%s;', a, { each: "{{ ['x y', '$HOME', 3] }}" }]
    outputs: { said: { stdout: text } }
  - id: text
    when: steps.args.outputs.said == 'a;x y;$HOME;3;' and succeeded()
    run: 'true'
  - id: alarm
    always: true
    when: failed() or steps.text.status != 'done'
    run: 'true'
"#,
    );
    let answer = sandbox.sprag(["run", "became.yaml", "--json"]).expect(0);
    let last = answer.lines::<serde_json::Value>().pop().expect("a line");
    let outputs = &last["outputs"];
    assert_eq!(outputs["codes"], json!([0, 1, 2]), "{last}");
    assert_eq!(outputs["errors"], json!([null, "exit code 1", "exit code 2"]), "{last}");
    assert_eq!(outputs["late"], json!([true, "this far", "failed"]), "{last}");
    assert_eq!(
        outputs["known"],
        json!([7, "exit code 7\nprinted", { "a": "1", "n": [2], "said": "printed" }]),
        "{last}"
    );
    assert_eq!(outputs["good"], json!([0, null, false]), "{last}");
    assert_eq!(outputs["state"], json!("completed"));
    assert_eq!(outputs["alarm"], json!("skipped"));
    let run = sandbox.newest().expect("a run");
    let warned = sandbox.sprag(["logs", &run, "good"]).expect(0).stdout;
    assert!(warned.contains("check 1 of 2 does not hold"), "{warned}");
    sandbox.check(&run);
}

/// P14: a run that takes too long is cancelled, and cleans up.
#[test]
fn p14_a_run_that_takes_too_long_is_cancelled() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "slow",
        "timeout: 1s\nsteps:\n  - { id: slow, run: exec sleep 60 }\n  - { id: after, run: echo no }\n  - { id: tidy, always: true, when: cancelled(), run: 'true' }\n",
    );
    sandbox.yaml(
        "parent",
        "steps:\n  - { id: child, pipeline: slow.yaml, on_fail: continue }\n  - { id: tell, when: steps.child.timed_out, run: 'true' }\n",
    );
    let run = sandbox.run(&["parent.yaml"], 0);
    assert_eq!(sandbox.steps(&run), "child failed, tell done");
    let child = sandbox.step(&run, "child")["child"].as_str().expect("a run").to_owned();
    assert_eq!(sandbox.steps(&child), "slow cancelled, after cancelled, tidy done");
    sandbox.check(&child);
}

/// P18: mistakes in what a command or a person gives fail with their reason.
#[test]
fn p18_wrong_values_are_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    for (keys, why) in [
        (
            "run: echo oops >> $SPRAG_OUTPUT",
            "line 1 of $SPRAG_OUTPUT is neither name=value nor a JSON object",
        ),
        ("run: echo a=1 >> $SPRAG_OUTPUT\noutputs: { a: { stdout: text } }", "rename one"),
        ("run: echo x\nwhen: run.name", "it is text, and a condition is true or false"),
        ("run: echo {{ matrix.a }}\nmatrix: { a: '{{ run.id }}' }", "axis `a` needs a list"),
    ] {
        sandbox.pipeline("wrong", &[("one", keys)]);
        let run = sandbox.run(&["wrong.yaml"], 100);
        let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
        assert!(told.split_whitespace().collect::<Vec<_>>().join(" ").contains(why), "{keys}: {told}");
    }
    sandbox.yaml(
        "inputs",
        "inputs: { v: { pattern: '[a-z]+', max: 3 }, n: { type: integer, min: 2 } }\nsteps: [{ id: a, run: 'echo {{ inputs.v }} {{ inputs.n | default(0) }}' }]\n",
    );
    for (given, expected) in
        [("v=ab1", "fits [a-z]+"), ("v=abcd", "at most 3 characters"), ("n=1", "at least 2")]
    {
        let told = sandbox.sprag(["run", "inputs.yaml", "--input", given]).expect(2).stderr;
        assert!(told.contains(expected), "{given}: {told}");
    }
    sandbox.run(&["inputs.yaml", "--input", "v=abc", "--input", "n=2"], 0);
    sandbox.yaml("gone", "dotenv: [gone.env]\nsteps: [{ id: a, run: 'true' }]\n");
    let run = sandbox.run(&["gone.yaml"], 100);
    assert!(sandbox.sprag(["explain", &run]).expect(0).stdout.contains("gone.env"));
}
