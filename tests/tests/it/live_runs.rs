//! A run while it lives, through the program: the limit of its steps at once.

use serde_json::json;
use sprag_tests::{Sandbox, until};

/// P14: a run has no more steps and items at work than its `max_parallel`; `explain` names those that have the places,
/// and gates and fan-outs themselves take none.
#[test]
fn p14_a_run_has_no_more_steps_at_work_than_it_allows() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "limited",
        r#"
max_parallel: 2
defaults:
  shell: [sh, -e, -c, 'echo + >> log; trap "echo - >> log" EXIT; [ "$SPRAG_STEP_ID" = after ] || for _ in $(seq 1 2000); do [ -e go ] && break; sleep 0.02; done; eval "$0"']
steps:
  - { id: a, needs: [], run: "true" }
  - { id: b, needs: [], run: test $SPRAG_ATTEMPT = 2, retry: { attempts: 2 } }
  - { id: c, needs: [], run: "true" }
  - { id: each, needs: [], foreach: [1, 2, 3], run: "true" }
  - { id: pause, needs: [], wait: 1ms }
  - { id: after, needs: [pause], run: "true" }
"#,
    );
    let started = sandbox.start(["run", "limited.yaml", "--slots", "6"]);
    until("two steps have begun", || sandbox.lines("log").len() == 2);
    let run = sandbox.newest().expect("a run");
    sandbox.until_step(&run, "pause", "done");
    assert_eq!(
        sandbox.steps(&run),
        "a running, b running, c waiting, each running, pause done, after waiting"
    );
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    let places = "one of the 2 places of its run (max_parallel): a, b must end";
    assert_eq!(told.matches(places).count(), 2, "{told}");
    sandbox.write("go", "");
    started.finish().expect(0);
    let log = sandbox.lines("log");
    assert_eq!(log.len(), 16, "{log:?}");
    let mut at_work = 0;
    for line in &log {
        at_work += if line == "+" { 1 } else { -1 };
        assert!(at_work <= 2, "{log:?}");
    }
    assert_eq!(sandbox.step(&run, "each")["items"]["total"], json!(3));
    sandbox.check(&run);
    for (name, told) in [("max_parallel: 0", "from 1 to"), ("max_parallel: few", "integer")] {
        sandbox.yaml("bad", &format!("{name}\nsteps:\n  - {{ id: a, run: echo }}\n"));
        let refused = sandbox.sprag(["validate", "bad.yaml"]).expect(2);
        assert!(refused.stdout.contains(told) || refused.stderr.contains(told), "{refused:?}");
    }
}
