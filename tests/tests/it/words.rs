//! The words of the command line: interrupts, refusals, lists and hints that a person reads.

use sprag_tests::{Project, Sandbox, Signal, until};

#[test]
fn a_second_interrupt_leaves_a_run_that_does_not_stop() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "stubborn",
        &[("a", "run: 'trap \"\" TERM; echo on >> ran; while :; do sleep 0.05; done'")],
    );
    let running = sandbox.start(["run", "stubborn.yaml"]);
    until("it works", || sandbox.lines("ran") == ["on"]);
    running.signal(Signal::INT);
    until("it cancels", || running.stderr().contains("Cancelling. Press Ctrl-C again to quit.\n"));
    running.signal(Signal::INT);
    let told = running.finish().expect(130).stderr;
    let line = told.lines().find(|line| line.starts_with("cancel")).expect("an outcome");
    assert!(["cancelling", "cancelled"].contains(&line.split(' ').next().expect("a word")), "{told}");
    assert!(!told.contains("cancelling in"), "{told}");
}

#[test]
fn a_queued_run_that_was_cancelled_took_no_time() {
    let sandbox = Sandbox::new();
    let ask = "concurrency: { group: g }\nsteps:\n  - { id: ask, gate: { ask: 'Really?' } }\n";
    sandbox.yaml("asks", ask);
    sandbox.run(&["asks.yaml"], 5);
    let queued = sandbox.start(["run", "asks.yaml"]);
    until("it waits", || queued.stderr().contains("a place in group \"g\""));
    queued.signal(Signal::INT);
    let told = queued.finish().expect(130).stderr;
    assert!(told.contains("\ncancelled\n"), "{told}");
}

#[test]
fn a_live_run_is_neither_rewound_nor_retried() {
    let sandbox = Sandbox::new();
    sandbox.yaml("waits", "steps:\n  - { id: go, wait: { signal: go } }\n");
    let run = sandbox.detach(&sandbox.path("waits.yaml"));
    for args in [vec!["rewind", &run, "--to", "go"], vec!["retry", &run]] {
        let told = sandbox.sprag(&args).expect(1).stderr;
        assert!(
            told.contains("it can be rewound or retried after it has ended\nnext: wait for it"),
            "{told}"
        );
    }
}

#[test]
fn lists_and_hints_read_as_sentences() {
    let sandbox = Sandbox::new();
    for (args, words) in [
        (&["worker", "ls"][..], "no workers online; start one: sprag worker\n"),
        (&["env", "ls"], "no worktrees\n"),
        (&["ls"], "no runs yet; start one: sprag run FILE\n"),
        (&["ls", "--pipeline", "nosuch"], "no such runs\n"),
        (&["ls", "--since", "1h"], "no such runs\n"),
        (&["board", "ls"], "no boards are open\n"),
        (&["audit"], "no such acts\n"),
    ] {
        assert_eq!(sandbox.sprag(args).expect(0).stdout, words, "{args:?}");
    }
    let told = sandbox.sprag(["task", "claim", "--as", "ada"]).expect(4).stderr;
    assert_eq!(told, "nothing to claim in tasks: it has no tasks\n");
    sandbox.sprag(["board", "new", "b1"]).expect(0);
    sandbox.sprag(["board", "close", "b1"]).expect(0);
    assert!(!sandbox.sprag(["board", "ls"]).expect(0).stdout.contains("b1"));
    assert!(sandbox.sprag(["board", "ls", "--all"]).expect(0).stdout.contains("b1     completed"));
    let events = sandbox.sprag(["events", "--tail", "2"]).expect(0).stdout;
    assert_eq!(events.lines().count(), 2, "{events}");
    assert!(events.trim_end().lines().last().expect("a line").contains("run.succeeded"), "{events}");
    sandbox.yaml("hello", "steps:\n  - { id: a, run: echo a }\n");
    let told = sandbox.sprag(["run", "hello"]).expect(2).stderr;
    assert!(told.ends_with("next: did you mean hello.yaml?\n"), "{told}");
    for option in ["--dry", "--dry-run"] {
        assert!(sandbox.sprag(["run", "hello.yaml", option]).expect(0).stdout.contains("nothing is run"));
    }
    let first = sandbox.json(["init", "--stdout", "--json"]);
    let text = first["text"].as_str().expect("a text");
    assert!(text.contains("#   sprag run ci ") && first["file"].is_null(), "{first}");
}

#[test]
fn a_list_that_was_cut_names_the_command_for_more() {
    let sandbox = Sandbox::new();
    sandbox.yaml("hello", "steps:\n  - { id: a, run: 'true' }\n");
    for _ in 0..2 {
        sandbox.run(&["hello.yaml", "--label", "team=a b"], 0);
    }
    let args = ["ls", "-n", "1", "--pipeline", "hello", "--status", "completed", "--label", "team=a b"];
    let told = sandbox.sprag(args).expect(0).stderr;
    let next = "there are more: sprag ls -n 5 --status completed --pipeline hello --label 'team=a b'\n";
    assert_eq!(told, next);
}

#[test]
fn explain_names_the_worker_that_fits_and_the_sign_of_a_question() {
    let sandbox = Sandbox::new();
    sandbox.yaml("special", "steps:\n  - { id: a, queue: special, labels: [gpu], run: echo a }\n");
    let run = sandbox.detach(&sandbox.path("special.yaml"));
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(told.contains("(sprag worker --queue special --label gpu)"), "{told}");
    sandbox.yaml("asks", "steps:\n  - { id: ask, gate: { ask: 'Really?' } }\n");
    let run = sandbox.run(&["asks.yaml"], 5);
    for command in ["status", "graph"] {
        let told = sandbox.sprag([command, &run]).expect(0).stdout;
        assert!(told.contains("▶"), "{command}: {told}");
    }
}

#[test]
fn a_step_that_is_executed_is_running_and_a_signal_is_delivered() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "works",
        "steps:\n  - { id: go, wait: { signal: go } }\n  - { id: work, run: 'echo on >> ran; until [ -e go ]; do sleep 0.02; done' }\n",
    );
    let running = sandbox.start(["run", "works.yaml"]);
    until("it waits", || running.stderr().contains("? go waits for the signal \"go\""));
    let run = sandbox.newest().expect("a run");
    let told = sandbox.sprag(["signal", &run, "go"]).expect(0).stderr;
    assert_eq!(told, "✓ signal delivered to step go\n");
    until("it works", || sandbox.lines("ran") == ["on"]);
    let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(told.contains("▶ work (running)\n      running    attempt 1\n      since "), "{told}");
    assert!(!told.contains("      until "), "{told}");
    sandbox.write("go", "");
    running.finish().expect(0);
}

#[test]
fn a_removed_worktree_is_told_of() {
    let project = Project::new();
    let file = project.pipeline(
        "kept",
        "environment: { worktree: { keep: always } }",
        "  - { id: a, run: echo a > a.txt }",
    );
    let run = project.run(&file, 0);
    let told = project.sprag(["env", "rm", &run]);
    let told = told.expect(0);
    assert!(format!("{}{}", told.stdout, told.stderr).contains("remov"), "{} {}", told.stdout, told.stderr);
}

#[test]
fn the_live_line_counts_the_items_of_a_fan_out() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "fan",
        "steps:\n  - { id: each, foreach: [1, 2, 3, 4, 5, 6], run: 'test {{ item }} -le 3 || until [ -e go ]; do sleep 0.02; done' }\n",
    );
    let terminal = sandbox.on_terminal(1, ["run", "fan.yaml"]);
    terminal.shows("0/1  each 3/6 ");
    sandbox.write("go", "");
    assert_eq!(terminal.finish().0, 0);
}

#[test]
fn every_help_fits_80_columns_where_programs_read_it() {
    let sandbox = Sandbox::new();
    let help = sandbox.sprag(["--help"]).expect(0).stdout;
    let groups = help.split("Examples:").next().expect("groups");
    let names = |text: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("  "));
        let lines = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
        lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    };
    let mut all: Vec<Vec<String>> = vec![vec![]];
    for command in names(groups).into_iter().filter(|name| name != "help") {
        let help = sandbox.sprag([&command, "--help"]).expect(0).stdout;
        let below =
            help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap_or(""));
        all.extend(
            names(below).into_iter().filter(|name| name != "help").map(|name| vec![command.clone(), name]),
        );
        all.push(vec![command]);
    }
    assert!(all.len() > 80, "{all:?}");
    for command in all {
        let args: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let help = sandbox.sprag(&args).expect(0).stdout;
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{command:?}: {long:#?}");
    }
}
