//! `steps` inside a step, through the program.

use serde_json::json;
use sprag_tests::{Sandbox, Server};

/// P13, P14, P18: inner steps run for each item, combination and round, use the names around them, and have their own
/// statuses, logs and outputs.
#[test]
fn p13_steps_run_inside_a_step() {
    let sandbox = Sandbox::new();
    sandbox.write("words.env", "WORD=word\n");
    sandbox.yaml(
        "inner",
        r#"
inputs: { greeting: { default: hello }, unset: { type: string, required: false } }
env: { SHARED: "shared {{ inputs.greeting }}" }
dotenv: words.env
outputs:
  greetings: "{{ steps.each.outputs.greet }}"
  rounds: "{{ [steps.loop.outputs.add.n, steps.loop.round] }}"
steps:
  - id: names
    run: echo '["ada", "bob"]'
    outputs: { list: { stdout: json } }
  - id: each
    foreach: "{{ steps.names.outputs.list }}"
    steps:
      - id: greet
        run: echo "{{ inputs.greeting }} {{ item }} {{ item_index }} $SHARED $WORD {{ steps.names.status }}"
        outputs: { text: { stdout: text } }
      - id: deep
        matrix: { n: [1, 2] }
        steps:
          - id: write
            run: echo "{{ matrix.n }} {{ inputs.unset | default('none') }} {{ steps.names.outputs.list[0] }}" >> deep
      - id: list
        foreach: "{{ [item, item] }}"
        run: echo {{ item }} >> list
      - id: skipped
        when: item == 'nobody'
        run: echo never
  - id: loop
    repeat: { until: steps.loop.outputs.add.n >= 2, max: 5 }
    steps:
      - id: add
        run: echo {{ ((steps.loop.outputs.add | default({})).n | default(0)) + 1 }}
        outputs: { n: { stdout: json } }
      - { id: note, run: "echo {{ steps.add.outputs.n }} {{ steps.loop.round }} >> rounds" }
"#,
    );
    let dry = sandbox.sprag(["run", "inner.yaml", "--dry"]).expect(0).stdout;
    assert!(dry.contains("steps greet, deep, list, skipped"), "{dry}");
    let answer = sandbox.sprag(["run", "inner.yaml", "--json"]).expect(0);
    let last = answer.lines::<serde_json::Value>().pop().expect("a line");
    let greeting =
        |name: &str, at: u32| json!({ "text": format!("hello {name} {at} shared hello word done") });
    assert_eq!(last["outputs"]["greetings"], json!([greeting("ada", 0), greeting("bob", 1)]), "{last}");
    assert_eq!(last["outputs"]["rounds"], json!([2, 2]), "{last}");
    let mut deep = sandbox.lines("deep");
    deep.sort();
    assert_eq!(deep, ["1 none ada", "1 none ada", "2 none ada", "2 none ada"]);
    let mut list = sandbox.lines("list");
    list.sort();
    assert_eq!(list, ["ada", "ada", "bob", "bob"]);
    assert_eq!(sandbox.lines("rounds"), ["1 1", "2 2"]);

    let run = last["run"].as_str().expect("the run").to_owned();
    assert_eq!(sandbox.step(&run, "each[0].greet")["status"], "done");
    assert_eq!(sandbox.step(&run, "each[1].skipped")["status"], "skipped");
    assert_eq!(sandbox.step(&run, "each[1].deep[1].write")["status"], "done");
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("each[0].greet") && told.contains("loop.add"), "{told}");
    let log = sandbox.sprag(["logs", &run, "each[1].greet"]).expect(0).stdout;
    assert!(log.contains("hello bob 1 shared hello word done"), "{log}");
    let server = Server::start(&sandbox, &["--no-worker"]);
    let detail = server.get(&format!("/v1/runs/{run}/steps/each%5B0%5D.greet"));
    assert_eq!(detail["step"]["status"], "done", "{detail}");
    let log =
        server.request("GET", &format!("/v1/runs/{run}/steps/each%5B0%5D.greet/log")).send().expect(200);
    assert!(log.text().contains("hello ada"), "{}", log.text());
    sandbox.check(&run);
}

/// P16, P18: a failed inner step fails its outer step; a resume continues inside it, and mistakes are found at load.
#[test]
fn p16_a_resume_continues_inside_a_step() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "again",
        r#"
steps:
  - id: each
    foreach: [1, 2]
    steps:
      - { id: first, run: "echo {{ item }} >> first" }
      - { id: second, retry: { attempts: 2 }, run: "echo {{ item }} >> second; test {{ item }} = 1 || test -e mended" }
  - { id: after, run: echo after >> after }
"#,
    );
    let run = {
        let answer = sandbox.sprag(["run", "again.yaml", "--json"]).expect(100);
        let last = answer.lines::<serde_json::Value>().pop().expect("a line");
        last["run"].as_str().expect("the run").to_owned()
    };
    assert_eq!(sandbox.step(&run, "each[1].second")["attempt"], json!(2));
    assert_eq!(sandbox.step(&run, "each[0].second")["status"], "done");
    sandbox.write("mended", "");
    sandbox.sprag(["resume", &run]).expect(0);
    let mut first = sandbox.lines("first");
    first.sort();
    assert_eq!(first, ["1", "2"]);
    assert_eq!(sandbox.lines("second").len(), 4);
    assert_eq!(sandbox.lines("after"), ["after"]);
    sandbox.check(&run);
    for (steps, told) in [
        ("- { id: a, steps: [{ id: b, run: 'echo {{ item }}' }] }", "`item` is not available here"),
        ("- { id: a, steps: [{ id: b, run: 'echo {{ inputs.x }}' }] }", "the pipeline has no input `x`"),
        (
            "- { id: a, steps: [{ id: b, run: 'echo {{ steps.c.status }}' }] }\n  - { id: c, run: echo }",
            "step `c` may not have finished",
        ),
        ("- { id: a, steps: [{ id: b, runn: echo }] }", "a step has no key `runn`"),
        ("- { id: a, env: { X: y }, steps: [{ id: b, run: echo }] }", "`env` has no effect"),
        ("- { id: a, foreach: [1], steps: [{ id: b, run: echo }, { id: b, run: echo }] }", "two steps"),
    ] {
        sandbox.yaml("bad", &format!("steps:\n  {steps}\n"));
        let refused = sandbox.sprag(["validate", "bad.yaml"]).expect(2);
        assert!(refused.stderr.contains(told) || refused.stdout.contains(told), "{told}: {refused:?}");
    }
}

/// P16: a rewind to a step inside an item runs it and what needs it again, inside and outside, and keeps the rest.
#[test]
fn p16_a_rewind_goes_to_a_step_inside_an_item() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "inside",
        r#"
steps:
  - { id: first, run: echo first >> ran }
  - id: each
    foreach: [a, b, c]
    max_parallel: 1
    steps:
      - { id: build, run: 'echo build {{ item }} >> ran' }
      - { id: test, run: 'echo test {{ item }} >> ran' }
      - { id: lint, needs: build, run: 'echo lint {{ item }} >> ran' }
      - id: deep
        needs: [test, lint]
        steps:
          - { id: one, run: 'echo one {{ item }} >> ran' }
          - { id: two, run: 'echo two {{ item }} >> ran' }
  - { id: last, run: echo last >> ran }
"#,
    );
    let run = sandbox.run(&["inside.yaml"], 0);
    let forget = || std::fs::remove_file(sandbox.path("ran")).expect("a file");
    let graph = sandbox.sprag(["graph", &run]).expect(0).stdout;
    assert!(graph.contains("each[1].test") && graph.contains("each[2].deep.two"), "{graph}");
    forget();
    sandbox.sprag(["rewind", &run, "--to", "each[1].test"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["test b", "one b", "two b", "last"]);
    forget();
    sandbox.sprag(["retry", &run, "--step", "each[2].deep.two"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["two c", "last"]);
    // Afterwards the items have new rows, whose attempts do not start at 1.
    sandbox.check(&run);
    forget();
    sandbox.sprag(["rewind", &run, "--to", "each"]).expect(0);
    assert_eq!(sandbox.lines("ran").len(), 16, "all items start anew");
    assert_eq!(sandbox.status_word(&run), "completed");
    let wrong = sandbox.sprag(["rewind", &run, "--to", "each[1].nothing"]).expect(2);
    assert!(wrong.stderr.contains("nothing"), "{wrong:?}");
    sandbox.sprag(["rewind", &run, "--to", "first.x"]).expect(2);
}

/// P16: a failed item elsewhere runs again with the rewound one, one after the other.
#[test]
fn p16_a_rewind_inside_waits_for_its_place() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "inside",
        r#"
steps:
  - id: each
    foreach: [a, b]
    max_parallel: 1
    steps:
      - { id: build, run: 'echo build {{ item }} >> ran' }
      - { id: test, run: 'echo test {{ item }} >> ran; test {{ item }} = b || test -e good' }
"#,
    );
    let run = sandbox.run(&["inside.yaml"], 100);
    std::fs::remove_file(sandbox.path("ran")).expect("a file");
    sandbox.write("good", "");
    sandbox.sprag(["rewind", &run, "--to", "each[1].test"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["test a", "test b"]);
    sandbox.check(&run);
}

/// `explain` names the steps inside steps by their whole names.
#[test]
fn explain_names_the_steps_inside_steps() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "asks",
        "steps:\n  - id: each\n    foreach: [a]\n    steps:\n      - { id: ask, gate: { ask: 'Go on with {{ item }}?' } }\n      - { id: go, run: echo }\n",
    );
    let run = sandbox.run(&["asks.yaml"], 5);
    let told = sandbox.json(["explain", &run, "--json"]);
    let names: Vec<&str> =
        told["steps"].as_array().unwrap().iter().filter_map(|step| step["id"].as_str()).collect();
    assert_eq!(names, ["each", "each[0]", "each[0].ask", "each[0].go"], "{told}");
    assert!(told["steps"][2]["waits_for"].as_str().unwrap().contains("Go on with a?"), "{told}");
}

/// Questions inside steps have whole names, with which they are answered.
#[test]
fn questions_inside_steps_are_answered_by_their_whole_names() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "asks",
        "steps:\n  - id: each\n    foreach: [a, b]\n    steps:\n      - { id: ask, gate: { ask: 'Go on with {{ item }}?' } }\n",
    );
    let run = sandbox.run(&["asks.yaml"], 5);
    let told = sandbox.sprag(["approve", &run]).expect(2).stderr;
    assert!(told.contains("each[0].ask") && told.contains("each[1].ask"), "{told}");
    sandbox.sprag(["approve", &run, "each[1].ask"]).expect(5);
    assert_eq!(sandbox.step(&run, "each[1].ask")["status"], "done");
    assert_eq!(sandbox.step(&run, "each[0].ask")["status"], "running");
    // The only one that is left needs no more than its own name.
    sandbox.sprag(["approve", &run, "ask"]).expect(0);
}

/// `error` of a step names the first failure inside it, and a failed check is shown as it is written.
#[test]
fn the_error_of_a_step_is_the_first_failure_inside_it() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "fails",
        r#"
inputs: { word: { default: y } }
steps:
  - id: group
    on_fail: continue
    steps:
      - { id: good, run: echo }
      - { id: bad, run: exit 7 }
  - id: checked
    on_fail: continue
    run: echo
    check: { run: 'test "{{ inputs.word }}" = x' }
  - id: tell
    run: [printf, "%s\n%s", "{{ steps.group.error }}", "{{ steps.checked.error }}"]
    outputs: { text: { stdout: text } }
"#,
    );
    let run = sandbox.run(&["fails.yaml"], 0);
    let log = sandbox.sprag(["logs", &run, "tell"]).expect(0).stdout;
    assert!(log.contains("step `bad` failed: exit code 7"), "{log}");
    assert!(log.contains(r#"`test "{{ inputs.word }}" = x` ended with exit code 1"#), "{log}");
}

/// A run that exceeded its timeout says so in its result.
#[test]
fn the_result_of_a_run_that_took_too_long_has_the_reason() {
    let sandbox = Sandbox::new();
    sandbox.yaml("long", "timeout: 300ms\nsteps:\n  - { id: a, run: sleep 60 }\n");
    let answer = sandbox.sprag(["run", "long.yaml", "--json"]);
    let last = answer.lines::<serde_json::Value>().pop().expect("a line");
    assert_eq!(last["status"], "cancelled", "{last}");
    assert!(last["reason"].as_str().is_some_and(|reason| reason.contains("timeout")), "{last}");
}
