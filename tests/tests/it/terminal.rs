//! `sprag` on a real terminal: it asks, it draws one live line, and steps keep their colours.

use sprag_tests::{Project, Sandbox, Server, until};

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
    let line = shown.split("\u{1b}[2m").find(|line| line.contains("left: flaky")).expect("a line");
    let line = line.split("\u{1b}[0m").next().expect("a line");
    // It takes a second row rather than lose its end.
    assert!(line.contains("waiting for ") && line.ends_with("attempt 1 failed: exit code 3"), "{line:?}");
    terminal.types("\u{3}");
    terminal.shows("Cancelling. Press Ctrl-C again to quit.");
    assert_eq!(terminal.finish().0, 130);
}

#[test]
fn a_narrower_terminal_keeps_no_rest_of_the_old_line() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("fails", &[("flaky", "retry: { attempts: 2, delay: 10m }\nrun: exit 3")]);
    let mut terminal = sandbox.on_terminal(1, ["run", "fails.yaml"]);
    terminal.shows("left: flaky: its backoff before");
    terminal.resize(40);
    // The old line takes three rows by now: all are removed.
    terminal.shows("\r\u{1b}[2A\u{1b}[J");
    terminal.types("\u{3}");
    terminal.shows("Cancelling.");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 130, "{shown}");
    let later = shown.rsplit("\u{1b}[2A\u{1b}[J").next().expect("a rest");
    let plain = later.replace("\u{1b}[2m", "").replace("\u{1b}[0m", "");
    let drawn = plain.split(['\n', '\r']).filter(|line| line.contains("waiting for "));
    let long: Vec<&str> = drawn
        .map(|line| line.trim_start_matches("\u{1b}[2K"))
        .filter(|line| line.chars().count() > 3 * 40)
        .collect();
    assert!(long.is_empty(), "{long:?}");
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

#[test]
fn a_question_of_a_server_is_answered_on_the_terminal() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.addr);
    sandbox.yaml("gate", GATE);
    // The question is that of a child run: its parent's journal does not have it.
    let outer = sandbox.yaml("outer", "steps:\n  - { id: inner, pipeline: { file: gate.yaml } }\n");
    let parent = sandbox.detach(&outer);
    for (no, args) in [(1, ["run", "gate.yaml"]), (2, ["watch", &parent])] {
        let mut terminal = sandbox.on_terminal(no, args.iter().copied().chain(["--server", &url]));
        terminal.shows("ask waits for an answer: Ship it?\n  Look twice.");
        terminal.shows("ask [ship/hold] (Ctrl-C leaves it open): ");
        terminal.types("s\n");
        terminal.shows("comment (optional): ");
        terminal.types("all is well\n");
        let (code, shown) = terminal.finish();
        assert_eq!(code, 0, "{shown}");
        assert!(shown.contains("answered \"ship\"") && shown.contains("completed"), "{shown}");
        assert_eq!(sandbox.lines("ran").len(), no as usize);
    }
    // Answered elsewhere, and left open.
    let terminal = sandbox.on_terminal(3, ["run", "gate.yaml", "--server", &url]);
    terminal.shows("(Ctrl-C leaves it open): ");
    let run = sandbox.newest().expect("a run");
    sandbox.sprag(["approve", &run, "--server", &url]).expect(0);
    let (code, shown) = terminal.finish();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("answered elsewhere"), "{shown}");
    let mut terminal = sandbox.on_terminal(4, ["run", "gate.yaml", "--server", &url]);
    terminal.shows("(Ctrl-C leaves it open): ");
    terminal.types("\u{3}");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 5, "{shown}");
    assert!(shown.contains("sprag approve"), "{shown}");
}

#[test]
fn a_long_name_leaves_room_for_its_lines_and_a_long_patch_has_a_pager() {
    let project = Project::new();
    let sandbox = &project.sandbox;
    let long = "a-step-with-a-name-of-forty-three-characters";
    let file = project.pipeline(
        "names",
        "environment: { worktree: { keep: always } }",
        &format!(
            "  - {{ id: {long}, run: 'echo said; seq 1 60 > numbers.txt' }}\n  - {{ id: b, run: echo b }}"
        ),
    );
    let run = project.run(&file, 0);
    let (_, shown) = sandbox.on_terminal(1, ["logs", &run, "--color", "never"]).finish();
    assert!(shown.contains("a-step-wi…characters │ said\n"), "{shown}");
    assert!(shown.contains("                   b │ b\n"), "{shown}");
    // Where programs read it, names are whole.
    assert!(sandbox.sprag(["logs", &run]).expect(0).stdout.contains(&format!("{long} │ said\n")));
    let paged = |no, pager: &str, more: &[&str]| {
        let args = [&["diff", &run, "--color", "never"], more].concat();
        sandbox.on_terminal_with(no, &[("SPRAG_PAGER", pager)], args).finish().1
    };
    assert!(paged(2, "sed 's/^/paged: /'", &[]).contains("paged: +60\n"));
    for (no, pager, more) in
        [(3, "cat", &[][..]), (4, "sed 's/^/paged: /'", &["--no-pager"]), (5, "no-such-program", &[])]
    {
        let shown = paged(no, pager, more);
        assert!(shown.contains("\n+60\n"), "{pager}: {shown}");
    }
    let shown = paged(6, "sed 's/^/paged: /'", &["--stat"]);
    assert!(shown.contains(" numbers.txt |  60 ++++") && !shown.contains("paged"), "{shown}");
    let told = sandbox.sprag(["diff", &run, "--stat"]).expect(0).stdout;
    assert!(told.ends_with(" 1 file changed, 60 lines added, 0 lines removed\n"), "{told}");
    let told = sandbox.json(["diff", &run, "--json"]);
    assert_eq!((&told["files"][0]["path"], &told["files"][0]["added"]), (&"numbers.txt".into(), &60.into()));
}

#[test]
fn a_live_line_of_wide_characters_is_erased_whole() {
    let sandbox = Sandbox::new();
    let group = "漢".repeat(60);
    sandbox.yaml(
        "wide",
        &format!(
            "concurrency: {{ group: {group} }}\nsteps:\n  - {{ id: ask, gate: {{ ask: 'Really?' }} }}\n"
        ),
    );
    sandbox.run(&["wide.yaml"], 5);
    let mut terminal = sandbox.on_terminal(1, ["run", "wide.yaml"]);
    // 119 characters in 179 columns: three rows of 80.
    terminal.shows(&format!("a place in group \"{group}\""));
    terminal.shows("\r\u{1b}[2A\u{1b}[J");
    terminal.types("\u{3}");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 130, "{shown}");
    // Each draw removes the one before, or nothing would be left to remove.
    let drawn = shown.matches("a place in group").count();
    assert_eq!(shown.matches("\u{1b}[2A\u{1b}[J").count(), drawn, "{shown:?}");
}

#[test]
fn a_task_that_waits_is_on_the_live_line_of_another_step() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "both",
        "steps:\n  - { id: work, needs: [], run: 'until [ -e go ]; do sleep 0.02; done' }\n  - { id: review, needs: [], task: { queue: people, prompt: Look } }\n",
    );
    let terminal = sandbox.on_terminal(1, ["run", "both.yaml"]);
    terminal.shows("0/2  work ");
    terminal.shows("s: review: an agent or a person who claims it: sprag task claim --queue people");
    sandbox.write("go", "");
    let task = sandbox.json(["task", "claim", "--queue", "people", "--as", "ada", "--json"]);
    sandbox.sprag(["task", "done", task["token"].as_str().expect("a token")]).expect(0);
    assert_eq!(terminal.finish().0, 0);
}

#[test]
fn a_wrong_input_is_asked_for_again_at_once() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "needs",
        "inputs:\n  place: { type: string, required: true, enum: [eu, us] }\n  n: { type: integer, required: true, min: 2 }\nsteps:\n  - { id: a, run: 'echo {{ inputs.place }} {{ inputs.n }} >> ran' }\n",
    );
    let mut terminal = sandbox.on_terminal(1, ["run", "needs.yaml"]);
    terminal.shows("place [eu, us]: ");
    terminal.types("eurpe\n");
    terminal.shows("expected one of: eu, us\nplace [eu, us]: ");
    terminal.types("eu\n");
    terminal.shows("n: ");
    terminal.types("many\n");
    terminal.shows("expected a whole number\nn: ");
    terminal.types("1\n");
    terminal.shows("expected at least 2\nn: ");
    terminal.types("7\n");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 0, "{shown}");
    assert_eq!(sandbox.lines("ran"), ["eu 7"]);
}

#[test]
fn choices_that_contain_a_slash_stay_whole() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "slash",
        "steps:\n  - { id: ask, gate: { ask: 'Which?', choices: [origin/main, origin/next] } }\n",
    );
    let mut terminal = sandbox.on_terminal(1, ["run", "slash.yaml"]);
    terminal.shows("ask [origin/main, origin/next] (Ctrl-C");
    terminal.types("neither\n");
    terminal.shows("answer with one of: origin/main, origin/next\n");
    terminal.types("origin/main\n");
    terminal.shows("comment (optional): ");
    terminal.types("\n");
    assert_eq!(terminal.finish().0, 0);
}

#[test]
fn watch_alone_keeps_no_rest_of_old_lines_in_a_narrower_terminal() {
    let sandbox = Sandbox::new();
    let long = format!("steps-{}", "x".repeat(60));
    sandbox.yaml(&long, "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n");
    sandbox.run(&[&format!("{long}.yaml")], 5);
    let mut terminal = sandbox.on_terminal(1, ["watch"]);
    terminal.shows("waits for person");
    terminal.shows("\u{1b}[1A\r\u{1b}[J");
    terminal.resize(40);
    // The old line takes two rows by now. Both are removed before the new line is drawn.
    terminal.shows("\u{1b}[2A\r\u{1b}[J");
    terminal.types("\u{3}");
    assert_eq!(terminal.finish().0, 0);
}
