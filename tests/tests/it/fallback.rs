//! Agents that take over while the account of a step's own agent is held.

use crate::agents::{Bench, DIALECTS};

const STEPS: &str = r#"
  - id: work
    agent: { use: robot, model: opus, prompt: Make the file., on_limit: { fallback: [spare] } }
    check: { run: test -e half.txt && test -e whole.txt }
    retry: { attempts: 2 }
  - id: note
    run: echo {{ steps.work.outputs.text }} {{ steps.work.outputs.tokens }} > $OUT/noted
"#;
const LIMITED: &str = "turns:\n  - - usage: { input: 100, output: 20 }\n    - shell: echo half > half.txt\n    - end: { limit: 2h }\n  - - say: I am back.\n";
const SPARE: &str = "turns:\n  - - usage: { input: 10, output: 5 }\n    - shell: echo whole > whole.txt\n    - say: I finished it.\n  - - say: It is whole.\n";

#[test]
fn t04_another_agent_takes_over_in_the_same_attempt_with_the_same_files() {
    let [claude, codex, acp] = DIALECTS;
    for (own, other) in [(claude, codex), (codex, acp), (acp, claude)] {
        let bench = Bench::new(own, LIMITED);
        bench.add("spare", other, SPARE, "");
        let run = bench.run(STEPS, 0);
        assert_eq!(bench.project.sandbox.step(&run, "work")["attempt"], 1, "no attempt is lost");
        let noted = bench.project.sandbox.read("noted");
        assert!(noted.contains("I finished it."), "{noted}");
        let tokens: u64 =
            noted.split_whitespace().last().and_then(|word| word.parse().ok()).expect("a number");
        // Codex and ACP agents report no tokens of a turn that a limit ends.
        let expected = if own.0 == "claude" { 135 } else { 15 };
        assert!(tokens >= expected, "the tokens of both agents count: {own:?}: {tokens}");
        let given = bench.given_to("spare");
        let text = format!("{given:?}");
        assert!(text.contains("Another agent (robot) has worked on this task"), "{text}");
        assert!(text.contains("Make the file.") && !text.contains("opus"), "{text}");
        let log = bench.sprag(&["logs", &run, "work"]).expect(0).stdout;
        assert!(log.contains("spare continues the work of robot"), "{log}");
        // The next run starts with the other agent at once, and people see why.
        let accounts = bench.sprag(&["account", "ls"]).expect(0).stdout;
        assert!(accounts.contains("robot") && accounts.contains("held"), "{accounts}");
        bench.run(STEPS, 100);
        assert_eq!(bench.starts(), 1, "the account of the own agent is held");
        // A released account is used again, and its agent continues its own session.
        bench.sprag(&["account", "release", "robot"]).expect(0);
        bench.project.assert_clean();
    }
}

#[test]
fn t07_one_talks_to_the_agent_that_took_over() {
    let bench = Bench::new(DIALECTS[0], LIMITED);
    bench.add("spare", DIALECTS[1], SPARE, "");
    let steps = "  - id: work\n    agent: { use: robot, prompt: Make it., on_limit: { fallback: [spare] } }\n    check: { run: test -e never.txt }\n";
    let file = bench.project.pipeline("agents", "environment: {worktree: {keep: on_failure}}", steps);
    bench.sprag(&["run", file.to_str().expect("a path")]).expect(100);
    let run = bench.project.sandbox.newest().expect("a run");
    let thread = format!("{run}/work");
    let shown = bench.sprag(&["thread", "show", &thread]).expect(0).stdout;
    assert!(shown.contains("spare"), "{shown}");
    let told = bench.sprag(&["thread", "send", &thread, "Is it whole?"]).expect(0);
    assert!(format!("{told:?}").contains("It is whole."), "{told:?}");
    assert_eq!(bench.starts(), 1, "the held agent was not started");
}

#[test]
fn a_fallback_that_is_not_installed_is_told_before_there_is_a_run() {
    let bench = Bench::new(DIALECTS[0], LIMITED);
    bench.add_settings("[gone]\ndriver = \"acp\"\ncommand = [\"no-such-agent\"]\n");
    let file = bench.pipeline(&STEPS.replace("[spare]", "[gone]"));
    let answer = bench.sprag(&["run", &file]);
    assert!(answer.code != 0 && answer.stderr.contains("no-such-agent"), "{answer:?}");
    assert_eq!(bench.starts(), 0);
}
