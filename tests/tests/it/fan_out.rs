//! Fan-outs: every item is a step of its own, and the whole settles according to its policy.

use serde_json::json;
use sprag_tests::{Sandbox, until};

/// Returns the largest number of items of `step` that ran at once, from the lines `begin` and `end` that they wrote.
fn most_at_once(lines: &[String]) -> usize {
    let mut now = 0;
    let mut most = 0;
    for line in lines {
        if line == "begin" {
            now += 1
        } else {
            now -= 1
        }
        most = most.max(now);
    }
    most
}

#[test]
fn p14_every_item_is_a_step_with_a_name_a_log_and_outputs() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "items",
        r#"
steps:
  - id: list
    run: |
      echo '["a", {"name": "b"}, 3]'
    outputs: { items: { stdout: json } }
  - id: each
    foreach: "{{ steps.list.outputs.items }}"
    run: echo "I am $SPRAG_STEP_ID with {{ item }}"
    outputs: { said: { stdout: text } }
  - id: join
    run: echo {{ steps.each.outputs.said | length }} {{ steps.each.outputs.said[2] }} > joined
"#,
    );
    let run = sandbox.run(&["items.yaml"], 0);
    assert_eq!(sandbox.read("joined"), "3 I am each[2] with 3\n");
    assert_eq!(
        sandbox.steps(&run),
        "list done, each done, join done, each[0] done, each[1] done, each[2] done"
    );
    assert_eq!(sandbox.step(&run, "each")["items"], json!({ "total": 3, "settled": 3, "failed": 0 }));
    assert_eq!(sandbox.step(&run, "each[1]")["item_of"], "each");
    let one = sandbox.sprag(["logs", &run, "each[1]"]).expect(0).stdout;
    assert_eq!(one, "I am each[1] with {\"name\":\"b\"}\n");
    let all = sandbox.sprag(["logs", &run, "each"]).expect(0).stdout;
    assert_eq!(all.lines().count(), 3, "{all}");
    let journal = sandbox.check(&run);
    let settled = (0..3).map(|n| journal.seq_of(&format!("each[{n}]"), "step.succeeded")).max();
    assert!(journal.seq_of("each", "step.succeeded") > settled.expect("three"));
    assert_eq!(journal.events("step.added"), 3);
}

#[test]
fn p14_an_empty_list_is_done() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "empty",
        "inputs: { list: { type: list, default: [] } }\nsteps:\n  - id: each\n    foreach: \"{{ inputs.list }}\"\n    run: echo {{ item }} >> ran\n  - id: after\n    run: echo after {{ steps.each.outputs }} >> ran\n",
    );
    let run = sandbox.run(&["empty.yaml"], 0);
    assert_eq!(sandbox.lines("ran"), ["after {}"]);
    assert_eq!(sandbox.steps(&run), "each done, after done");
    sandbox.check(&run);
}

#[test]
fn a_matrix_is_every_combination() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "matrix",
        r#"
steps:
  - id: test
    matrix: { os: [linux, bsd], rust: [1.9, stable] }
    when: not (matrix.os == 'bsd' and matrix.rust == 1.9)
    run: echo {{ matrix.os }}-{{ matrix.rust }} >> ran
"#,
    );
    let run = sandbox.run(&["matrix.yaml"], 0);
    let mut ran = sandbox.lines("ran");
    ran.sort();
    assert_eq!(ran, ["bsd-stable", "linux-1.9", "linux-stable"]);
    assert_eq!(sandbox.step(&run, "test[2]")["status"], "skipped");
    assert_eq!(sandbox.step(&run, "test")["status"], "done");
    sandbox.check(&run);
}

#[test]
fn max_parallel_bounds_how_many_items_are_at_work() {
    let sandbox = Sandbox::new();
    let keys = "foreach: [0, 1, 2, 3, 4, 5, 6, 7]\nrun: echo begin >> log; sleep 0.05; echo {{ item }} >> items; echo end >> log\nmax_parallel: ";
    for (bound, at_least) in [(1, 1), (3, 2)] {
        sandbox.pipeline("bound", &[("each", &format!("{keys}{bound}"))]);
        sandbox.run(&["bound.yaml", "--slots", "8"], 0);
        let most = most_at_once(&sandbox.lines("log"));
        assert!((at_least..=bound).contains(&most), "{bound}: {most}");
        assert_eq!(sandbox.lines("items").len(), 8);
        for file in ["log", "items"] {
            std::fs::remove_file(sandbox.path(file)).expect("a file");
        }
    }
}

#[test]
fn p14_one_failing_item_lets_the_others_end_and_fails_the_whole() {
    let sandbox = Sandbox::new();
    let each = "foreach: [a, b, c]\nrun: echo {{ item }} >> ran; [ {{ item }} != b ]";
    sandbox.pipeline("strict", &[("each", each), ("after", "run: echo after >> ran")]);
    let run = sandbox.run(&["strict.yaml"], 100);
    let mut ran = sandbox.lines("ran");
    ran.sort();
    assert_eq!(ran, ["a", "b", "c"]);
    let steps = sandbox.steps(&run);
    assert_eq!(steps, "each failed, after cancelled, each[0] done, each[1] failed, each[2] done");
    sandbox.check(&run);
    let loose = format!("{each}\non_fail: continue\noutputs: {{ who: {{ stdout: text }} }}");
    let loose = loose.replace(">> ran;", "| tee -a ran;");
    let after = "run: echo after {{ steps.each.status }} {{ steps.each.outputs.who }} >> after";
    sandbox.pipeline("loose", &[("each", &loose), ("after", after)]);
    let run = sandbox.run(&["loose.yaml"], 0);
    assert_eq!(sandbox.lines("after"), ["after failed [\"a\",\"b\",\"c\"]"]);
    sandbox.check(&run);
}

#[test]
fn fail_fast_ends_the_siblings_of_a_failed_item() {
    let sandbox = Sandbox::new();
    let each = "foreach: [fails, a, b, c, d, e]\nmax_parallel: 3\nfail_fast: true\nrun: |\n  echo {{ item }} >> began\n  if [ {{ item }} = fails ]; then until [ $(wc -l < began) -ge 3 ]; do :; done; exit 1; fi\n  exec sleep 300";
    sandbox.pipeline("fast", &[("each", each)]);
    let run = sandbox.run(&["fast.yaml", "--slots", "4"], 100);
    assert_eq!(sandbox.lines("began").len(), 3, "no further item began");
    let steps = sandbox.steps(&run);
    assert_eq!(steps, "each failed, each[0] failed, each[1] cancelled, each[2] cancelled");
    assert!(sandbox.processes_of(&run).is_empty());
    sandbox.check(&run);
}

#[test]
fn p13_an_item_is_tried_again_with_its_own_feedback() {
    let sandbox = Sandbox::new();
    let each = "foreach: [a, b, c]\nretry: { attempts: 3 }\nrun: |\n  echo {{ item }} $SPRAG_ATTEMPT \"${SPRAG_FEEDBACK:-}\" | head -1 >> {{ item }}.told\n  echo x >> {{ item }}.txt\ncheck:\n  - run: echo {{ item }} is short; [ {{ item }} = a ] || [ $(wc -l < {{ item }}.txt) -ge 2 ]\noutputs: { text: '{{ item }}.txt' }";
    sandbox.pipeline(
        "verify",
        &[
            ("each", each),
            ("join", "run: cat {{ steps.each.outputs.text[0] }} {{ steps.each.outputs.text[1] }} > joined"),
        ],
    );
    let run = sandbox.run(&["verify.yaml"], 0);
    assert_eq!(sandbox.lines("a.told"), ["a 1 "]);
    let told = sandbox.lines("b.told");
    assert_eq!(told.len(), 2);
    assert!(told[1].starts_with("b 2 step `each[1]` failed: check 1 of 1 does not hold"), "{told:?}");
    assert_eq!(sandbox.lines("joined"), ["x", "x", "x"]);
    assert_eq!(sandbox.step(&run, "each[2]")["attempt"], 2);
    sandbox.check(&run);
}

#[test]
fn p13_a_verify_loop_for_each_item_is_a_child_pipeline() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "one",
        r#"
inputs: { name: { required: true }, rounds: { type: integer, required: true } }
steps:
  - id: work
    run: |
      echo {{ inputs.name }} "${SPRAG_FEEDBACK:-}" | head -1 >> {{ inputs.name }}.told
      wc -l < {{ inputs.name }}.told
    outputs: { lines: { stdout: json } }
  - id: verify
    run: |
      echo "only {{ steps.work.outputs.lines }}"
      [ {{ steps.work.outputs.lines }} -ge {{ inputs.rounds }} ]
    on_fail: { rework: work, max: 3 }
"#,
    );
    sandbox.yaml(
        "loop",
        r#"
steps:
  - id: each
    foreach: [{ name: a, rounds: 1 }, { name: b, rounds: 3 }]
    pipeline: { file: one.yaml, inputs: { name: "{{ item.name }}", rounds: "{{ item.rounds }}" } }
  - id: join
    run: echo {{ steps.each.outputs.work[1].lines }} > joined
"#,
    );
    let run = sandbox.run(&["loop.yaml"], 0);
    assert_eq!(sandbox.lines("a.told"), ["a "]);
    let back = "b step `verify` failed: exit code 1";
    assert_eq!(sandbox.lines("b.told"), ["b ", back, back]);
    assert_eq!(sandbox.read("joined"), "3\n");
    let child = sandbox.step(&run, "each[1]")["child"].as_str().expect("a run").to_owned();
    assert_eq!(sandbox.step(&child, "work")["attempt"], 3);
    sandbox.check(&run);
    sandbox.check(&child);
}

#[test]
fn a_fan_out_that_runs_again_builds_a_new_list() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "anew",
        r#"
steps:
  - id: list
    run: if [ "$SPRAG_ATTEMPT" = 1 ]; then echo '["a", "b"]'; else echo '["c", "d", "e"]'; fi
    outputs: { items: { stdout: json } }
  - id: each
    foreach: "{{ steps.list.outputs.items }}"
    run: echo {{ item }}; echo {{ item }} > {{ item }}
    outputs: { file: "{{ item }}" }
  - id: judge
    run: cat {{ steps.each.outputs.file[0] }} {{ steps.each.outputs.file[1] }} >> seen; [ -e e ]
    on_fail: { rework: list }
"#,
    );
    let run = sandbox.run(&["anew.yaml"], 0);
    assert_eq!(sandbox.lines("seen"), ["a", "b", "c", "d"]);
    assert_eq!(sandbox.step(&run, "each")["items"]["total"], 3);
    assert_eq!(sandbox.sprag(["logs", &run, "each[0]"]).expect(0).stdout, "c\n");
    let all = sandbox.sprag(["logs", &run, "each"]).expect(0).stdout;
    assert!(all.contains('c') && all.contains('e') && all.lines().count() == 3, "{all}");
}

#[test]
fn p14_a_cancelled_run_ends_its_items() {
    let sandbox = Sandbox::new();
    let each = "foreach: [a, b, c]\nmax_parallel: 2\nrun: echo {{ item }} >> began; exec sleep 300";
    sandbox.pipeline("slow", &[("each", each)]);
    let running = sandbox.start(["run", "slow.yaml", "--slots", "4"]);
    until("two have begun", || sandbox.lines("began").len() == 2);
    let run = sandbox.newest().expect("a run");
    sandbox.sprag(["cancel", &run]).expect(0);
    running.finish().expect(130);
    assert_eq!(sandbox.steps(&run), "each cancelled, each[0] cancelled, each[1] cancelled");
    assert!(sandbox.processes_of(&run).is_empty());
    sandbox.check(&run);
}

#[test]
fn a_fan_out_of_questions_and_waits_settles_as_they_do() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "ask",
        "steps:\n  - { id: ask, foreach: [north, south], gate: { ask: \"Ship to the {{ item }}?\" } }\n  - { id: rest, foreach: [1, 2], wait: 10ms }\n  - { id: ship, run: \"echo {{ steps.ask.outputs.choice }} > shipped\" }\n",
    );
    let run = sandbox.run(&["ask.yaml"], 5);
    let told = sandbox.sprag(["approve", &run]).expect(2);
    assert!(told.stderr.contains("ask[0], ask[1]"), "{told:?}");
    sandbox.sprag(["approve", &run, "ask[1]"]).expect(5);
    sandbox.sprag(["approve", &run]).expect(0);
    assert_eq!(sandbox.read("shipped"), "[\"yes\",\"yes\"]\n");
    sandbox.check(&run);
}

#[test]
fn a_foreach_value_that_is_not_a_list_fails_the_step() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "none",
        "steps:\n  - id: list\n    run: echo 5\n    outputs: { n: { stdout: json } }\n  - id: each\n    foreach: \"{{ steps.list.outputs.n }}\"\n    run: echo {{ item }}\n",
    );
    let run = sandbox.run(&["none.yaml"], 100);
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("needs a list, and this is a number"), "{told}");
}

#[test]
fn p14_more_items_than_may_be_live_all_run_once() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "many",
        "inputs: { list: { type: list, required: true } }\nsteps:\n  - id: each\n    foreach: \"{{ inputs.list }}\"\n    wait: 1ms\n  - id: after\n    run: echo after > ran\n",
    );
    let list = json!({ "list": (0..150).collect::<Vec<_>>() }).to_string();
    let run = sandbox.run(&["many.yaml", "--inputs", &list], 0);
    assert_eq!(sandbox.step(&run, "each")["items"]["settled"], 150);
    assert_eq!(sandbox.read("ran"), "after\n");
    sandbox.check(&run);
}

#[test]
fn p13_reworked_items_get_feedback() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "back",
        r#"
steps:
  - id: each
    foreach: [a, b]
    run: echo "{{ item }} ${SPRAG_FEEDBACK:-} {{ steps.each.feedback | default('') }}" | head -1 >> {{ item }}.told
  - id: verify
    run: test "$(wc -l < a.told)" = 2
    on_fail: { rework: each }
"#,
    );
    sandbox.run(&["back.yaml"], 0);
    let told = sandbox.lines("b.told");
    assert_eq!(told.len(), 2);
    assert_eq!(told[1], "b step `verify` failed: exit code 1 step `verify` failed: exit code 1");
}

#[test]
fn fail_fast_ends_the_runs_of_siblings() {
    let sandbox = Sandbox::new();
    sandbox.yaml("one", "inputs: { what: { required: true } }\nsteps: [{ id: a, run: 'echo x >> began; if [ {{ inputs.what }} = fails ]; then until [ $(wc -l < began) = 2 ]; do :; done; exit 1; fi; exec sleep 300' }]\n");
    sandbox.yaml("many", "steps: [{ id: each, foreach: [fails, slow], fail_fast: true, pipeline: { file: one.yaml, inputs: { what: '{{ item }}' } } }]\n");
    let run = sandbox.run(&["many.yaml", "--slots", "2"], 100);
    assert_eq!(sandbox.steps(&run), "each failed, each[0] failed, each[1] cancelled");
    let child = sandbox.step(&run, "each[1]")["child"].as_str().expect("a run").to_owned();
    assert_eq!(sandbox.status_word(&child), "cancelled");
    sandbox.check(&run);
    sandbox.check(&child);
}
