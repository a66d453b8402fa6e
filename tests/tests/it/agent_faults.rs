//! Agents that misbehave: each has a clear reason, its tree is ended, its work is saved, and other steps are unharmed.

use crate::agents::{Bench, DIALECTS, in_all_dialects};

/// Runs one step beside a healthy one, and returns what the program told about it.
fn beside_a_healthy_one(bench: &Bench, agent: &str, options: &str) -> (String, String) {
    bench.add("healthy", DIALECTS[0], "turns:\n  - - say: I am well.\n", "");
    let steps = format!(
        "  - id: bad\n    needs: []\n    on_fail: continue\n    agent: {{ use: {agent}, prompt: Work.{options} }}\n  - id: good\n    needs: []\n    environment: own\n    agent: {{ use: healthy, prompt: Work. }}\n"
    );
    let told = bench.sprag(&["run", &bench.pipeline(&steps)]).expect(0).stderr;
    let run = bench.project.sandbox.newest().expect("a run");
    assert_eq!(bench.project.sandbox.step(&run, "good")["status"], "done", "{told}");
    let data = bench.project.sandbox.data();
    let left = sprag_tests::carrying("SPRAG_DATA", data.to_str().expect("a path"));
    assert_eq!(left, Vec::<i32>::new(), "nothing is left running");
    let accounts = bench.sprag(&["account", "ls", "--json"]).expect(0).stdout;
    assert!(!accounts.contains("\"held\""), "no account is held: {accounts}");
    (run, told)
}

#[test]
fn an_agent_that_hangs_or_writes_no_protocol_at_its_start_fails_with_a_reason() {
    const CASES: [(&str, &str, &str); 4] = [
        ("hangs", "exec sleep 600", "silent"),
        ("noise", "head -c 3000000 /dev/urandom", "exited"),
        ("line", "head -c 3000000 /dev/zero | tr '\\\\0' x", "exited"),
        ("refuses", "echo wrong version >&2; exit 3", "wrong version"),
    ];
    in_all_dialects(|(dialect, driver)| {
        let bench = Bench::new((dialect, driver), "turns: []\n");
        bench.add("healthy", DIALECTS[0], "turns:\n  - - say: I am well.\n", "");
        let mut steps =
            "  - id: good\n    needs: []\n    agent: { use: healthy, prompt: Work. }\n".to_owned();
        for (name, command, _) in CASES {
            bench.add_settings(&format!(
                "[{name}]\ndriver = \"{driver}\"\ncommand = [\"sh\", \"-c\", \"{command}\"]\n"
            ));
            steps += &format!(
                "  - id: {name}\n    needs: []\n    on_fail: continue\n    agent: {{ use: {name}, prompt: Work., stall: 2s }}\n"
            );
        }
        let told = bench.sprag(&["run", &bench.pipeline(&steps)]).expect(0).stderr;
        let run = bench.project.sandbox.newest().expect("a run");
        assert_eq!(bench.project.sandbox.step(&run, "good")["status"], "done", "{told}");
        for (name, _, reason) in CASES {
            assert_eq!(
                bench.project.sandbox.step(&run, name)["status"],
                "failed",
                "{dialect} {name}: {told}"
            );
            let line =
                told.lines().find(|line| line.contains(&format!("{name} failed: "))).unwrap_or_default();
            assert!(line.contains(reason), "{dialect} {name}: {reason:?} is not in {told}");
        }
        let data = bench.project.sandbox.data();
        let left = sprag_tests::carrying("SPRAG_DATA", data.to_str().expect("a path"));
        assert_eq!(left, Vec::<i32>::new(), "{dialect}: nothing is left running");
    });
}

#[test]
fn an_agent_that_deletes_its_worktree_harms_no_other_step_and_the_repository_stays_usable() {
    let script = "turns:\n  - - shell: echo x > x.txt && git add . && git commit -qm x && rm -rf \"$PWD\"\n    - say: Done.\n";
    let bench = Bench::new(DIALECTS[0], script);
    let (run, told) = beside_a_healthy_one(&bench, "robot", "");
    let step = bench.project.sandbox.step(&run, "bad");
    assert_eq!(step["status"], "failed", "{step}: {told}");
    let line = told.lines().find(|line| line.contains("bad failed: ")).unwrap_or_default();
    assert!(line.contains("is gone"), "{told}");
    // The commit that it made is in the repository, and further runs work.
    let all = sprag_tests::git(&bench.project.repo(), ["log", "--all", "--format=%s"]);
    assert!(all.lines().any(|line| line == "x"), "{all}");
    bench.run("  - id: next\n    agent: { use: healthy, prompt: Work. }\n", 0);
}

#[test]
fn work_on_another_branch_is_saved_and_does_not_land_by_mistake() {
    let script = "turns:\n  - - shell: git checkout -q -b elsewhere && echo x > x.txt && git add . && git commit -qm x\n    - say: Done.\n";
    let bench = Bench::new(DIALECTS[0], script);
    let answer = bench.sprag(&[
        "run",
        &bench.pipeline(
            "  - id: work\n    agent: { use: robot, prompt: Work. }\n  - { id: land, land: main }\n",
        ),
    ]);
    let all = sprag_tests::git(&bench.project.repo(), ["log", "--all", "--format=%s"]);
    assert!(all.lines().any(|line| line == "x"), "the work is in the repository: {all}");
    let landed = bench.project.repo().join("x.txt").exists();
    assert!(
        landed || (answer.code != 0 && !answer.stderr.is_empty()),
        "it lands, or says why not: {answer:?}"
    );
}

#[test]
fn an_agent_that_answers_from_another_session_does_not_count_as_the_step() {
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, "turns: [[say: hi]]\n");
        let steps =
            "  - id: work\n    agent: { use: robot, prompt: Work. }\n    check: { run: test -e $OUT/go }\n";
        let run = bench.run(steps, 100);
        bench.project.sandbox.write("go", "");
        bench.project.sandbox.write("robot.script.yaml", "start: [wrong_session_id]\nturns: [[say: hi]]\n");
        let answer = bench.sprag(&["resume", &run]);
        let told = format!("{answer:?}");
        assert!(told.contains("the agent works in session"), "{dialect:?}: {told}");
        // The turn in the other session does not count: the step fails, or begins a session of its own.
        assert!(answer.code == 100 || told.contains("starting a new one"), "{dialect:?}: {told}");
    });
}

#[test]
fn t12_twenty_agents_at_once_on_one_repository_keep_to_the_accounts_places_and_all_land() {
    let script = "turns:\n  - - shell: mkdir $OUT/alive.$SPRAG_RUN_ID && ls -d $OUT/alive.* | wc -l >> $OUT/most && sleep 0.2 && echo $SPRAG_RUN_ID > $SPRAG_RUN_ID.txt && git add . && git commit -qm made && rmdir $OUT/alive.$SPRAG_RUN_ID\n    - say: Committed.\n";
    let bench = Bench::new(DIALECTS[0], script);
    bench.add("limited", DIALECTS[0], script, "max_parallel = 3\n");
    bench.project.sandbox.write(
        "one.yaml",
        "name: one\ninputs: { name: integer }\nenvironment: { worktree: {} }\nsteps:\n  - id: work\n    agent: { use: limited, prompt: Commit a file. }\n  - { id: land, land: main }\n",
    );
    let steps = "  - id: all\n    foreach: \"{{ range(20) }}\"\n    pipeline: { file: one.yaml, inputs: { name: \"{{ item }}\" } }\n";
    let file = bench.project.pipeline("many", "", steps);
    let started = bench.start(&["run", file.to_str().expect("a path"), "--slots", "20"]);
    started.finish_within(std::time::Duration::from_secs(300)).expect(0);
    let most = bench.project.sandbox.lines("most");
    assert_eq!(most.len(), 20, "{most:?}");
    let most = most.iter().filter_map(|line| line.trim().parse::<u32>().ok()).max();
    assert!(most.is_some_and(|most| (2..=3).contains(&most)), "at most three at once: {most:?}");
    let files = std::fs::read_dir(bench.project.repo()).expect("a folder").flatten();
    let landed = files.filter(|file| file.path().extension().is_some_and(|ending| ending == "txt")).count();
    assert!(landed >= 20, "{landed} have landed");
    bench.project.assert_clean();
}
