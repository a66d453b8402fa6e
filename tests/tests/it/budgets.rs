//! Budgets of agent steps: a step that has used its budget up fails, or asks a person for the same budget again.

use crate::agents::{Bench, in_all_dialects};

/// The agent calls two tools in its first turn, and none in the next.
const SCRIPT: &str = r#"
turns:
  - - shell: echo half > half.txt
    - shell: echo more > more.txt
    - wait: 30s
    - say: Too late.
  - - say: Finished.
"#;

fn steps(on_over: &str) -> String {
    format!(
        "  - id: work\n    agent: {{ use: robot, prompt: Work., budget: {{ turns: 1{on_over} }} }}\n    retry: {{ attempts: 3 }}\n"
    )
}

#[test]
fn t08_a_used_budget_asks_survives_its_process_and_continues_in_the_session() {
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let run = bench.run(&steps(", on_over: ask"), 5);
        let asked = bench.sprag(&["questions", "--json"]).expect(0).stdout;
        assert!(
            asked.contains("The budget of robot is used up") && asked.contains("its budget is 1"),
            "{asked}"
        );
        assert_eq!(bench.starts(), 1, "{dialect:?}");
        bench.sprag(&["approve", &run, "work"]).expect(0);
        assert_eq!((bench.starts(), bench.sessions()), (2, 1), "{dialect:?}: the session continues");
        let step = bench.project.sandbox.step(&run, "work");
        assert_eq!((&step["attempt"], &step["status"]), (&1.into(), &"done".into()), "{dialect:?}: {step}");
    });
}

#[test]
fn t08_a_denied_budget_and_one_that_does_not_ask_fail_without_a_retry() {
    let bench = Bench::new(crate::agents::DIALECTS[0], SCRIPT);
    let run = bench.run(&steps(", on_over: ask"), 5);
    let denied = bench.sprag(&["reject", &run, "work", "--comment", "too dear"]);
    assert!(
        denied.code == 100 && format!("{denied:?}").contains("a person denied more: too dear"),
        "{denied:?}"
    );
    let run = bench.run(&steps(""), 100);
    let step = bench.project.sandbox.step(&run, "work");
    assert_eq!(step["attempt"], 1, "{step}");
}
