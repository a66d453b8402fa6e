//! `sprag` on a real terminal: it asks, it draws one live line, and steps keep their colours.

use sprag_tests::{Sandbox, until};

const GATE: &str = "steps:\n  - { id: build, run: echo built }\n  - { id: ask, gate: { ask: \"Ship it?\\nLook twice.\", choices: [ship, hold] } }\n  - { id: ship, run: 'echo shipped >> ran' }\n";

#[test]
fn a_question_is_answered_right_there() {
    let sandbox = Sandbox::new();
    sandbox.yaml("gate", GATE);
    let mut terminal = sandbox.on_terminal(1, ["run", "gate.yaml"]);
    terminal.shows("Ship it?\n  Look twice.");
    terminal.shows("ask [ship/hold] (Ctrl-C leaves it open): ");
    terminal.types("maybe\n");
    terminal.shows("answer with one of: ship, hold");
    terminal.types("s\n");
    terminal.shows("comment (optional): ");
    terminal.types("all is well\n");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("answered \"ship\"") && shown.contains("completed"), "{shown}");
    assert_eq!(sandbox.lines("ran"), ["ship".to_owned() + "ped"]);
}

#[test]
fn a_question_is_left_open_with_ctrl_c_and_not_asked_without_input() {
    let sandbox = Sandbox::new();
    sandbox.yaml("gate", GATE);
    let mut terminal = sandbox.on_terminal(1, ["run", "gate.yaml"]);
    terminal.shows("(Ctrl-C leaves it open): ");
    terminal.types("\u{3}");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 5, "{shown}");
    assert!(shown.contains("sprag approve"), "{shown}");
    let (code, shown) = sandbox.on_terminal(2, ["run", "gate.yaml", "--no-input"]).finish();
    assert_eq!(code, 5, "{shown}");
    assert!(!shown.contains("leaves it open"), "{shown}");
}

#[test]
fn a_question_that_is_answered_elsewhere_is_no_longer_asked() {
    let sandbox = Sandbox::new();
    sandbox.yaml("gate", GATE);
    let terminal = sandbox.on_terminal(1, ["run", "gate.yaml"]);
    terminal.shows("(Ctrl-C leaves it open): ");
    let run = sandbox.newest().expect("a run");
    sandbox.sprag(["approve", &run]).expect(0);
    let (code, shown) = terminal.finish();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("answered elsewhere"), "{shown}");
}

#[test]
fn a_missing_input_is_asked_for() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "needs",
        "inputs:\n  n: { type: integer, required: true }\nsteps:\n  - { id: a, run: 'echo {{ inputs.n }} >> ran' }\n",
    );
    let mut terminal = sandbox.on_terminal(1, ["run", "needs.yaml"]);
    terminal.shows("n: ");
    terminal.types("many\n");
    until("it asks again", || terminal.shown().matches("n: ").count() >= 2);
    terminal.types("7\n");
    assert_eq!(terminal.finish().0, 0);
    assert_eq!(sandbox.lines("ran"), ["7"]);
    let (code, shown) = sandbox.on_terminal(2, ["run", "needs.yaml", "--no-input"]).finish();
    assert_eq!(code, 2, "{shown}");
    sandbox.sprag(["run", "needs.yaml"]).expect(2);
}

#[test]
fn a_run_that_waits_draws_one_live_line_with_the_reason() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("fails", &[("flaky", "retry: { attempts: 2, delay: 10m }\nrun: exit 3")]);
    let mut terminal = sandbox.on_terminal(1, ["run", "fails.yaml"]);
    terminal.shows("left: flaky: its backoff before");
    let shown = terminal.shown();
    let line = shown.rsplit("\r\u{1b}[2K").find(|line| line.contains("left: flaky")).expect("a line");
    let line = line.split('\n').next().expect("a line").replace("\u{1b}[2m", "").replace("\u{1b}[0m", "");
    assert!(line.contains("waiting for ") && line.chars().count() < 80, "{line:?}");
    terminal.types("\u{3}");
    terminal.shows("Cancelling. Press Ctrl-C again to quit.");
    assert_eq!(terminal.finish().0, 130);
}

#[test]
fn steps_keep_their_colours_and_nothing_else_steers_the_terminal() {
    let sandbox = Sandbox::new();
    let printed = r"printf '\033[32mgreen\033[0m \033]0;title\007\033[2Jx\n10%%\r50%%\r100%%\n'";
    sandbox.yaml("prints", &format!("steps:\n  - id: one\n    run: |\n      {printed}\n"));
    let (code, shown) = sandbox.on_terminal(1, ["run", "prints.yaml"]).finish();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("\u{1b}[32mgreen\u{1b}[0m x"), "{shown:?}");
    assert!(!shown.contains("title") && !shown.contains("\u{1b}[2J") && !shown.contains("50%"), "{shown:?}");
    assert!(shown.contains("100%"), "{shown:?}");
    let piped = sandbox.sprag(["run", "prints.yaml"]).expect(0).stdout;
    assert_eq!(piped, "green x\n100%\n");
    let coloured = sandbox.sprag(["run", "prints.yaml", "--color", "always"]).expect(0).stdout;
    assert_eq!(coloured, "\u{1b}[32mgreen\u{1b}[0m x\u{1b}[0m\n100%\n");
}

#[test]
fn watch_alone_is_drawn_in_place() {
    let sandbox = Sandbox::new();
    sandbox.yaml("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n");
    let run = sandbox.run(&["asks.yaml"], 5);
    let mut terminal = sandbox.on_terminal(1, ["watch"]);
    terminal.shows(&run);
    terminal.shows("waits for person");
    terminal.shows("\u{1b}[1A");
    sandbox.sprag(["cancel", &run]).expect(0);
    terminal.shows("no live runs");
    terminal.types("\u{3}");
    assert_eq!(terminal.finish().0, 0);
}

#[test]
fn sprag_alone_shows_its_commands_in_groups() {
    let sandbox = Sandbox::new();
    let told = sandbox.sprag(Vec::<String>::new()).expect(2).stderr;
    for words in ["Start:\n  init", "Answer:\n  questions", "Examples:\n  sprag init", "Exit codes:"] {
        assert!(told.contains(words), "{words:?}: {told}");
    }
    assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
    let cancel = sandbox.sprag(["cancel"]).expect(2).stderr;
    assert!(cancel.contains("Usage: sprag cancel <RUN>"), "{cancel}");
}
