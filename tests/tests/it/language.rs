//! Conditions, templates, checks, retries and rework: each key of a step, run by the real program.

use serde_json::{Value, json};
use sprag_tests::Sandbox;

#[test]
fn p18_when_runs_or_skips_a_step() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "when",
        r#"
inputs:
  mode: { default: quick }
steps:
  - id: first
    run: echo 3
    outputs: { count: { stdout: json } }
  - id: quick
    when: inputs.mode == 'quick' and steps.first.outputs.count > 2
    run: echo quick >> ran
  - id: thorough
    when: inputs.mode == 'thorough'
    run: echo thorough >> ran
  - id: after
    run: echo after {{ steps.thorough.status }} >> ran
"#,
    );
    let run = sandbox.run(&["when.yaml"], 0);
    assert_eq!(sandbox.lines("ran"), ["quick", "after skipped"]);
    assert_eq!(sandbox.steps(&run), "first done, quick done, thorough skipped, after done");
    sandbox.check(&run);
    let run = sandbox.run(&["when.yaml", "-i", "mode=thorough"], 0);
    assert_eq!(sandbox.steps(&run), "first done, quick skipped, thorough done, after done");
}

#[test]
fn p18_a_name_that_is_not_there_fails_the_step_with_the_reason() {
    let sandbox = Sandbox::new();
    for (name, keys) in [
        ("condition", "when: steps.first.outputs.facts.missing == ''\n    run: echo ran >> ran"),
        ("command", "run: echo {{ steps.first.outputs.facts.missing }} >> ran"),
        ("variable", "env: { X: '{{ steps.first.outputs.facts.missing }}' }\n    run: echo ran >> ran"),
        ("items", "foreach: '{{ steps.first.outputs.facts.missing }}'\n    run: echo {{ item }} >> ran"),
        ("folder", "dir: '{{ steps.first.outputs.facts.missing }}'\n    run: echo ran >> ran"),
        ("question", "gate: { ask: '{{ steps.first.outputs.facts.missing }}' }"),
    ] {
        sandbox.yaml(
            name,
            &format!(
                "steps:\n  - id: first\n    run: echo '{{}}'\n    outputs: {{ facts: {{ stdout: json }} }}\n  - id: second\n    {keys}\n"
            ),
        );
        let run = sandbox.run(&[&format!("{name}.yaml")], 100);
        assert_eq!(sandbox.steps(&run), "first done, second failed", "{name}");
        let told = sandbox.sprag(["status", &run]).expect(0).stdout;
        assert!(told.contains("missing") && told.contains("cannot be filled in"), "{name}: {told}");
        assert_eq!(sandbox.lines("ran"), [""; 0], "{name}");
    }
}

#[test]
fn p18_a_name_that_cannot_be_there_is_refused_at_load() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "bad",
        "steps:\n  - id: a\n    run: echo\n  - id: b\n    when: steps.a.outputs.x\n    run: echo\n",
    );
    let told = sandbox.sprag(["run", "bad.yaml"]).expect(2);
    assert!(
        told.stderr.contains("step `a` has no output") && told.stderr.contains("bad.yaml:5:11"),
        "{told:?}"
    );
    assert_eq!(sandbox.json(["ls", "--json"]), json!([]));
}

#[test]
fn templates_can_use_the_results_of_earlier_steps() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "names",
        r#"
env: { GREETING: hello }
steps:
  - id: flaky
    run: |
      echo "no luck with ${SPRAG_ATTEMPT}"
      echo '{"list": [1, 2], "text": "a b", "yes": true, "none": null}' > facts.json
      [ "$SPRAG_ATTEMPT" = 2 ]
    retry: { attempts: 2 }
    outputs: { facts: { file: facts.json, as: json } }
  - id: loose
    run: exit 7
    on_fail: continue
  - id: tell
    env: { WHO: "{{ steps.flaky.outputs.facts.text | upper }}" }
    run: |
      echo {{ env.GREETING }} {{ env.WHO }} > told
      echo {{ steps.flaky.status }} {{ steps.flaky.attempt }} {{ steps.loose.status }} >> told
      echo {{ steps.flaky.outputs.facts.list }} {{ steps.flaky.outputs.facts.yes }} >> told
      echo {{ steps.flaky.outputs.facts.list | length }} {{ run.id }} >> told
      echo {{ steps.flaky.feedback }} >> told
"#,
    );
    let run = sandbox.run(&["names.yaml"], 0);
    let told = sandbox.lines("told");
    assert_eq!(told[..3], ["hello A B", "done 2 failed", "[1,2] true"]);
    assert_eq!(told[3], format!("2 {run}"));
    assert_eq!(told[4..], ["step `flaky` failed: exit code 1", "no luck with 1"]);
}

#[test]
fn values_are_data_wherever_they_come_from() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "inject",
        r#"
inputs:
  title: { required: true }
  list: { type: list, required: true }
steps:
  - id: hand-on
    run: [printf, "%s", "{{ inputs.title }}"]
    outputs: { title: { stdout: text } }
  - id: unquoted
    run: printf '%s\n' {{ steps["hand-on"].outputs.title }} >> said
  - id: quoted
    run: printf '%s\n' "<{{ steps["hand-on"].outputs.title }}>" >> said
  - id: items
    foreach: "{{ inputs.list }}"
    max_parallel: 1
    run: printf '%s\n' {{ item }} >> said
  - id: checked
    run: "true"
    check:
      - run: test {{ inputs.title }} = {{ steps["hand-on"].outputs.title }}
"#,
    );
    let evil = "$(touch evil)`touch evil`; touch evil\n\"; touch evil; '; touch evil; \\";
    let inputs = json!({ "title": evil, "list": [evil, "| touch evil", "-- & touch evil"] });
    sandbox.run(&["inject.yaml", "--inputs", &inputs.to_string()], 0);
    assert!(!sandbox.path("evil").exists());
    let expected = format!("{evil}\n<{evil}>\n{evil}\n| touch evil\n-- & touch evil\n");
    assert_eq!(sandbox.read("said"), expected);
}

#[test]
fn a_check_is_a_command_a_file_or_a_schema() {
    let sandbox = Sandbox::new();
    let failing = [
        ("check: { run: exit 3 }", "exit code 3"),
        ("check: { run: [test, -e, nowhere] }", "exit code 1"),
        ("check: { file: nowhere }", "No such file"),
        ("check: { file: empty, not_empty: true }", "is empty"),
        ("check: [{ file: full }, { output: n, schema: { type: string } }]", "check 2 of 2"),
        ("check: { output: n, schema: { type: integer, maximum: 4 } }", "does not fit its schema"),
    ];
    sandbox.write("empty", "");
    sandbox.write("full", "x");
    for (check, why) in failing {
        sandbox.pipeline(
            "bad",
            &[("one", &format!("run: echo 5\noutputs: {{ n: {{ stdout: json }} }}\n{check}"))],
        );
        let run = sandbox.run(&["bad.yaml"], 100);
        let told = sandbox.sprag(["status", &run]).expect(0).stdout;
        assert!(told.contains(why), "{check}: {told}");
    }
    let holding = "run: echo 5\noutputs: { n: { stdout: json } }\ncheck:\n  - run: test -e full\n  - { file: empty }\n  - { file: full, not_empty: true }\n  - { output: n, schema: { type: integer } }";
    sandbox.pipeline("good", &[("one", holding)]);
    sandbox.run(&["good.yaml"], 0);
}

#[test]
fn a_failing_check_is_tried_again_with_the_failure_as_feedback() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "feedback",
        r#"
steps:
  - id: work
    retry: { attempts: 3 }
    env: { SEEN: "{{ steps.work.feedback }}", TRY: "{{ steps.work.attempt }}" }
    run: |
      echo "try $TRY, told: ${SPRAG_FEEDBACK:-nothing}" >> told
      [ "$SEEN" = "${SPRAG_FEEDBACK:-}" ]
      echo line >> lines
    check:
      - run: |
          echo "$(wc -l < lines) lines are too few"
          [ "$(wc -l < lines)" -ge 3 ]
"#,
    );
    let run = sandbox.run(&["feedback.yaml"], 0);
    let told = sandbox.read("told");
    assert!(
        told.starts_with("try 1, told: nothing\ntry 2, told: step `work` failed: check 1 of 1"),
        "{told}"
    );
    assert!(told.contains("1 lines are too few\n") && told.contains("2 lines are too few\n"), "{told}");
    assert_eq!(sandbox.step(&run, "work")["attempt"], 3);
    sandbox.check(&run);
}

#[test]
fn retries_are_counted_waited_for_and_only_for_the_codes_named() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "codes",
        &[("one", "run: echo $SPRAG_ATTEMPT >> ran; [ $SPRAG_ATTEMPT = 1 ] && exit 75; exit 9\nretry: { attempts: 5, exit_codes: [75] }")],
    );
    let run = sandbox.run(&["codes.yaml"], 100);
    assert_eq!(sandbox.lines("ran"), ["1", "2"]);
    assert_eq!(sandbox.step(&run, "one")["attempt"], 2);
    let times = "run: date +%s%N >> times; exit 1\nretry: { attempts: 4, backoff: exponential, delay: 100ms, max_delay: 200ms }";
    sandbox.pipeline("backoff", &[("one", times)]);
    sandbox.run(&["backoff.yaml"], 100);
    let at: Vec<u64> = sandbox.lines("times").iter().map(|line| line.parse().expect("a time")).collect();
    let waits: Vec<u64> = at.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000_000).collect();
    assert_eq!(waits.len(), 3);
    assert!(waits[0] >= 100 && waits[1] >= 200 && waits[2] >= 200, "{waits:?}");
}

#[test]
fn p13_a_failing_verifier_sends_the_work_back_at_most_n_times() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "rework",
        r#"
inputs:
  enough: { type: integer, required: true }
steps:
  - id: plan
    run: echo plan >> ran
  - id: write
    run: |
      echo "write: ${SPRAG_FEEDBACK:-}" | head -1 >> ran
      echo x >> text
    outputs: { size: { file: text, as: text } }
  - id: verify
    run: |
      echo verify >> ran
      [ "$(wc -l < text)" -ge {{ inputs.enough }} ] || { echo too short; exit 1; }
    on_fail: { rework: write, max: 2 }
  - id: after
    run: echo after >> ran
"#,
    );
    let run = sandbox.run(&["rework.yaml", "-i", "enough=3"], 0);
    let back = "write: step `verify` failed: exit code 1";
    assert_eq!(sandbox.lines("ran"), ["plan", "write: ", "verify", back, "verify", back, "verify", "after"]);
    sandbox.check(&run);
    std::fs::remove_file(sandbox.path("text")).expect("a file");
    std::fs::remove_file(sandbox.path("ran")).expect("a file");
    let run = sandbox.run(&["rework.yaml", "-i", "enough=99"], 100);
    assert_eq!(sandbox.lines("ran").iter().filter(|line| *line == "verify").count(), 3);
    assert_eq!(sandbox.steps(&run), "plan done, write done, verify failed, after cancelled");
    sandbox.check(&run);
}

#[test]
fn c07_a_failed_need_settles_its_dependents() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "policy",
        r#"
steps:
  - { id: loose, needs: [], run: exit 1, on_fail: continue }
  - { id: after-loose, needs: [loose], run: echo after-loose >> ran }
  - { id: strict, needs: [after-loose], run: exit 1 }
  - { id: after-strict, needs: [strict], run: echo after-strict >> ran }
  - { id: tidy, needs: [after-strict], always: true, run: echo tidy >> ran }
"#,
    );
    let run = sandbox.run(&["policy.yaml"], 100);
    assert_eq!(sandbox.lines("ran"), ["after-loose", "tidy"]);
    let steps = sandbox.steps(&run);
    assert!(steps.starts_with("loose failed, after-loose done, strict failed, after-strict "), "{steps}");
    assert!(steps.ends_with("tidy done"), "{steps}");
    sandbox.check(&run);
}

#[test]
fn shells_folders_and_variables_are_as_declared() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path("sub/deep")).expect("a folder");
    sandbox.yaml(
        "where",
        r#"
inputs: { folder: { default: deep } }
env: { A: pipeline, B: pipeline }
defaults: { dir: sub }
steps:
  - id: by-default
    run: basename "$PWD" > ../one
  - id: own
    dir: sub/{{ inputs.folder }}
    env: { B: "step {{ inputs.folder }}", C: 3 }
    shell: bash
    run: echo "$(basename "$PWD") $A $B $C ${BASH_VERSION:+bash}" > ../../two
  - id: awk
    shell: [awk]
    run: 'BEGIN { print 6 * 7 > "three" }'
"#,
    );
    sandbox.run(&["where.yaml"], 0);
    assert_eq!(sandbox.read("one"), "sub\n");
    assert_eq!(sandbox.read("two"), "deep pipeline step deep 3 bash\n");
    assert_eq!(sandbox.read("sub/three"), "42\n");
}

#[test]
fn secrets_are_passed_on_and_kept_out_of_logs_and_outputs() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "secret",
        &[("one", "secrets: [API_KEY]\nrun: echo the key is $API_KEY; printf '%s' $API_KEY > seen\noutputs: { said: { stdout: text } }"),
          ("two", "run: echo {{ steps.one.outputs.said }} > said")],
    );
    let told = sandbox.sprag(["run", "secret.yaml"]).expect(100);
    assert!(told.stderr.contains("API_KEY is not set"), "{told:?}");
    let mut command = sandbox.command(["run", "secret.yaml"]);
    command.env("API_KEY", "s3cr3t-value");
    let told = sandbox.start_command(command).finish().expect(0);
    assert!(told.stdout.contains("the key is ***") && !told.stdout.contains("s3cr3t"), "{told:?}");
    assert_eq!(
        (sandbox.read("seen"), sandbox.read("said")),
        ("s3cr3t-value".into(), "the key is ***\n".into())
    );
}

#[test]
fn inputs_come_from_a_file_from_stdin_and_as_json() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "given",
        "inputs: { n: { type: integer, required: true }, who: { default: nobody } }\nsteps:\n  - id: say\n    run: echo {{ inputs.n }} {{ inputs.who }} >> said\n",
    );
    sandbox.write("inputs.json", r#"{"n": 1, "who": "file"}"#);
    sandbox.run(&["given.yaml", "--inputs", "inputs.json"], 0);
    sandbox.run(&["given.yaml", "--inputs", "inputs.json", "--input", "n=2"], 0);
    sandbox.run(&["given.yaml", "--inputs", r#"{"n": 3}"#], 0);
    let mut command = sandbox.command(["run", "given.yaml", "--inputs", "-"]);
    command.stdin(std::fs::File::open(sandbox.write("piped.json", r#"{"n": 4}"#)).expect("a file"));
    sandbox.start_command(command).finish().expect(0);
    assert_eq!(sandbox.lines("said"), ["1 file", "2 file", "3 nobody", "4 nobody"]);
    for wrong in [r#"{"n": "x"}"#, r#"{"n": 1, "m": 2}"#, "{}", "{oops", "nowhere.json"] {
        sandbox.sprag(["run", "given.yaml", "--inputs", wrong]).expect(2);
    }
    assert_eq!(sandbox.json(["ls", "--json"]).as_array().map(Vec::len), Some(4));
}

#[test]
fn a_dry_run_shows_everything_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "dry",
        r#"
inputs: { who: { default: you } }
steps:
  - { id: a, run: "echo {{ inputs.who }} >> ran" }
  - { id: b, needs: [a], foreach: [x, y], run: "echo {{ item }} >> ran" }
  - { id: c, needs: [a], when: inputs.who == 'me', gate: { ask: "Really, {{ inputs.who }}?" } }
  - { id: d, needs: [b, c], run: [echo, "{{ inputs.who }}"], retry: { attempts: 3 } }
"#,
    );
    let told = sandbox.sprag(["run", "dry.yaml", "--dry", "-i", "who=ada"]).expect(0).stdout;
    for part in ["4 steps, 3 stages", "nothing is run", "who=\"ada\"", "2 beside each other", "up to 3 tries"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(told.contains("Really, ada?"), "{told}");
    let told = sandbox.json(["run", "dry.yaml", "--dry", "--json"]);
    let stages: Vec<&Value> =
        told["steps"].as_array().expect("steps").iter().map(|step| &step["stage"]).collect();
    assert_eq!(stages, [1, 2, 2, 3], "{told}");
    sandbox.sprag(["run", "dry.yaml", "--dry", "-i", "whom=ada"]).expect(2);
    assert!(!sandbox.path("ran").exists() && !sandbox.data().exists(), "nothing was written");
    assert_eq!(sandbox.json(["ls", "--json"]), json!([]));
}
