//! Steps of coding agents, played by the fake agent in the dialects of all three drivers.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use sprag_tests::{Answer, Project, Signal, Started, is_running, program, signal, until, until_some};

/// The dialects of the fake agent, and their drivers.
pub(crate) const DIALECTS: [(&str, &str); 3] =
    [("claude", "claude-stream"), ("codex", "codex-app-server"), ("acp", "acp")];

/// A repository, and an agent `robot` that follows a script.
pub(crate) struct Bench {
    pub(crate) project: Project,
    env: Vec<(&'static str, String)>,
}

impl Bench {
    pub(crate) fn new(dialect: (&str, &str), script: &str) -> Bench {
        let project = Project::new();
        let sandbox = &project.sandbox;
        std::fs::create_dir_all(sandbox.path("config/sprag")).expect("a folder");
        let bench = Bench { project, env: Vec::new() };
        bench.add("robot", dialect, script, "secrets = [\"ROBOT_KEY\"]\n");
        bench
    }

    /// Adds an agent that follows a script, with further lines of its settings.
    pub(crate) fn add(&self, name: &str, dialect: (&str, &str), script: &str, more: &str) {
        let sandbox = &self.project.sandbox;
        let script = sandbox.write(&format!("{name}.script.yaml"), script);
        let command = [
            program().to_str().expect("a path"),
            "agent",
            "fake",
            script.to_str().expect("a path"),
            "--speak",
            dialect.0,
            "--home",
            sandbox.path(name).to_str().expect("a path"),
        ]
        .map(|word| format!("{word:?}"))
        .join(", ");
        let settings = format!("[{name}]\ndriver = \"{}\"\ncommand = [{command}]\n{more}", dialect.1);
        self.add_settings(&settings);
    }

    /// Adds text to agents.toml.
    pub(crate) fn add_settings(&self, settings: &str) {
        let file = "config/sprag/agents.toml";
        let path = self.project.sandbox.path(file);
        let before = std::fs::read_to_string(path).unwrap_or_default();
        self.project.sandbox.write(file, &format!("{before}{settings}"));
    }

    /// Sets a variable of all further commands.
    pub(crate) fn set(&mut self, name: &'static str, value: &str) {
        self.env.push((name, value.to_owned()));
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.project.command_in(&self.project.repo(), args);
        command.env("XDG_CONFIG_HOME", self.project.sandbox.path("config"));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn start(&self, args: &[&str]) -> Started {
        self.project.sandbox.start_command(self.command(args))
    }

    pub(crate) fn sprag(&self, args: &[&str]) -> Answer {
        self.start(args).finish()
    }

    pub(crate) fn pipeline(&self, steps: &str) -> String {
        let file = self.project.pipeline("agents", "environment: {worktree: {}}", steps);
        file.to_str().expect("a path").to_owned()
    }

    /// Runs steps to an end with this exit code, and returns the run.
    #[track_caller]
    pub(crate) fn run(&self, steps: &str, code: i32) -> String {
        self.sprag(&["run", &self.pipeline(steps)]).expect(code);
        self.project.sandbox.newest().expect("a run")
    }

    /// Returns everything that the agent was given: a line per start, and a line per message.
    pub(crate) fn given(&self) -> Vec<Value> {
        self.given_to("robot")
    }

    /// Returns everything that an agent was given.
    pub(crate) fn given_to(&self, agent: &str) -> Vec<Value> {
        let lines = self.project.sandbox.lines(&format!("{agent}/given.jsonl"));
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    pub(crate) fn starts(&self) -> usize {
        self.given().iter().filter(|line| line.get("start").is_some()).count()
    }

    pub(crate) fn sessions(&self) -> usize {
        let files =
            std::fs::read_dir(self.project.sandbox.path("robot/sessions")).into_iter().flatten().flatten();
        files.filter(|file| file.path().extension().is_some_and(|ending| ending == "json")).count()
    }
}

/// Runs a test in all dialects at once.
pub(crate) fn in_all_dialects(test: impl Fn((&'static str, &'static str)) + Sync) {
    std::thread::scope(|scope| {
        let tests: Vec<_> = DIALECTS.iter().map(|dialect| scope.spawn(|| test(*dialect))).collect();
        for (test, dialect) in tests.into_iter().zip(DIALECTS) {
            assert!(test.join().is_ok(), "{dialect:?}");
        }
    });
}

#[test]
fn t02_t03_only_work_that_was_checked_counts_and_retries_continue_the_session() {
    const SCRIPT: &str = r#"
turns:
  - - say: I am done.
    - end: bad_schema
  - - say: I am really done.
    - output: { verdict: good }
  - - shell: echo made > made.txt && git add . && git commit -qm made
    - usage: { input: 100, output: 20, usd: 0.5 }
    - output: { verdict: good }
  - - say: I continue.
"#;
    const STEPS: &str = r#"
  - id: work
    agent:
      use: robot
      prompt: Make the file of {{ run.name }}.
      output: { schema: { type: object, required: [verdict], properties: { verdict: { type: string } } } }
    check: { run: test -e made.txt }
    retry: { attempts: 3 }
  - id: more
    agent: { use: robot, prompt: Continue it., session: { continue: work } }
  - id: note
    run: echo {{ steps.work.outputs.verdict }} {{ steps.work.outputs.session }} {{ steps.more.outputs.session }} {{ steps.more.outputs.text }} > $OUT/noted
"#;
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let run = bench.run(STEPS, 0);
        assert_eq!(bench.project.sandbox.step(&run, "work")["attempt"], 3, "{dialect:?}");
        assert_eq!((bench.starts(), bench.sessions()), (4, 1), "one session for all attempts and both steps");
        let noted = bench.project.sandbox.read("noted");
        let words: Vec<&str> = noted.split_whitespace().collect();
        assert_eq!((words[0], words[1]), ("good", words[2]), "{noted}");
        assert!(noted.contains("I continue."), "{noted}");
        let given = format!("{:?}", bench.given());
        for part in ["does not fit its schema", "check 1 of 1 does not hold", "Make the file of "] {
            assert!(given.contains(part), "{part}: {given}");
        }
        // No prompt is in an argument of any process.
        let args: Vec<Value> = bench.given().iter().filter_map(|line| line.get("args").cloned()).collect();
        assert!(!args.is_empty() && !format!("{args:?}").contains("Make the file"), "{args:?}");
        let log = bench.sprag(&["logs", &run, "work"]).expect(0).stdout;
        assert!(log.contains("git commit -qm made") && log.contains("tokens"), "{log}");
        let events = bench.project.sandbox.data().join("runs").join(&run).join("work.3.events");
        let events = std::fs::read_to_string(events).expect("the events");
        assert!(events.contains("turn_ended"), "{events}");
    });
}

#[test]
fn t02_t10_each_false_success_fails_and_hostile_output_is_data() {
    const SCRIPT: &str = r#"
turns:
  - { when: CASE-empty, do: [{ end: empty }] }
  - { when: CASE-refusal, do: [{ say: No. }, { end: refusal }] }
  - { when: CASE-lying, do: [{ say: Done. }, { end: false_success }] }
  - { when: CASE-broken, do: [{ end: error_500 }] }
  - { when: CASE-exit, do: [{ say: Bye. }, { exit: 0 }] }
  - { when: CASE-killed, do: [kill_self] }
  - { when: CASE-auth, do: [{ end: auth }] }
  - { when: CASE-silent, do: [{ say: Wait. }, hang] }
  - { when: CASE-dear, do: [{ tool: { tool: Read } }, { tool: { tool: Read } }, { tool: { tool: Read } }, silent] }
  - { when: CASE-hostile, do: [garbage, { huge_line: 3000000 }, { say: "\e[2Jclean" }, { orphan: sleep 600 }] }
"#;
    const CASES: [(&str, &str, &str); 10] = [
        ("empty", "", "neither said nor did anything"),
        ("refusal", "", ""),
        ("lying", "", "reported success after an error"),
        ("broken", "", "nternal server error"),
        ("exit", "", "exited with code 0"),
        ("killed", "", "signal 9"),
        ("auth", "", "Log in with"),
        ("silent", ", stall: 1s", "was silent"),
        ("dear", ", budget: { turns: 2 }", "budget"),
        ("hostile", "", ""),
    ];
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let mut steps = String::new();
        for (name, options, _) in CASES {
            let retry = if name == "auth" { "retry: { attempts: 3 }" } else { "" };
            steps += &format!(
                "  - id: {name}\n    needs: []\n    on_fail: continue\n    {retry}\n    agent: {{ use: robot, prompt: CASE-{name}{options} }}\n"
            );
        }
        let told = bench.sprag(&["run", &bench.pipeline(&steps)]).expect(0).stderr;
        let run = bench.project.sandbox.newest().expect("a run");
        for (name, _, expected) in CASES {
            let step = bench.project.sandbox.step(&run, name);
            let status = if name == "hostile" { "done" } else { "failed" };
            assert_eq!(step["status"], status, "{dialect:?} {name}: {told}");
            assert_eq!(step["attempt"], 1, "{dialect:?} {name}: a login is not tried again");
            let line =
                told.lines().find(|line| line.contains(&format!("{name} failed: "))).unwrap_or_default();
            assert!(line.contains(expected), "{dialect:?} {name}: {expected:?} is not in {told}");
        }
        // The orphan that one agent left is gone, and no agent is left.
        let data = bench.project.sandbox.data();
        let left = sprag_tests::carrying("SPRAG_DATA", data.to_str().expect("a path"));
        assert_eq!(left, Vec::<i32>::new(), "{dialect:?}");
        let log = bench.sprag(&["logs", &run, "hostile"]).expect(0).stdout;
        assert!(!log.contains('\u{1b}') && log.len() < 400_000, "{dialect:?}: {} bytes", log.len());
        // ACP sends text in pieces of one message, whose middle is left out.
        assert!(dialect.0 == "acp" || log.contains("clean"), "{dialect:?}");
    });
}

#[test]
fn t01_t03_a_killed_worker_leaves_nothing_running_and_the_session_continues() {
    const SCRIPT: &str = r#"
turns:
  - when: was interrupted
    do:
      - shell: if kill -0 $(cat $OUT/tool); then echo alive; else echo gone; fi > $OUT/seen
      - say: Finished.
  - when: Work
    do:
      - shell: echo $$ > $OUT/tool.new; mv $OUT/tool.new $OUT/tool; exec sleep 600
"#;
    const STEPS: &str = "  - id: work\n    agent: { use: robot, prompt: Work. }\n";
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let sandbox = &bench.project.sandbox;
        let started = bench.start(&["run", &bench.pipeline(STEPS), "--lease", "5s"]);
        let tool: i32 = until_some("the tool runs", || sandbox.read("tool").trim().parse().ok());
        signal(started.pid(), Signal::KILL);
        started.finish();
        let run = sandbox.newest().expect("a run");
        bench.sprag(&["resume", &run]).expect(0);
        assert!(!is_running(tool), "{dialect:?}");
        assert_eq!(
            sandbox.read("seen").trim(),
            "gone",
            "{dialect:?}: the old tree is gone before the new agent works"
        );
        assert_eq!((bench.starts(), bench.sessions()), (2, 1), "{dialect:?}: the same session");
        let log = bench.sprag(&["logs", &run, "work"]).expect(0).stdout;
        assert!(log.contains("Finished."), "{dialect:?}: {log}");
    });
}

#[test]
fn t03_rework_continues_the_session_and_a_rewind_starts_a_new_one() {
    let script = "turns:\n  - - say: I have looked.\n  - - shell: touch good\n";
    let steps = "  - id: work\n    agent: { use: robot, prompt: Work. }\n  - id: judge\n    run: test -e good\n    on_fail: { rework: work }\n";
    let bench = Bench::new(DIALECTS[0], script);
    let run = bench.run(steps, 0);
    assert_eq!((bench.starts(), bench.sessions()), (2, 1));
    assert!(format!("{:?}", bench.given()).contains("step `judge` failed"), "{:?}", bench.given());
    bench.sprag(&["rewind", &run, "--to", "work"]).expect(0);
    assert_eq!((bench.starts(), bench.sessions()), (4, 2));
}

#[test]
fn t01_cancel_ends_the_turn_and_the_tools() {
    const SCRIPT: &str = r#"
turns:
  - - shell: echo $$ > $OUT/tool.new; mv $OUT/tool.new $OUT/tool; exec sleep 600
"#;
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let sandbox = &bench.project.sandbox;
        let started = bench
            .start(&["run", &bench.pipeline("  - id: work\n    agent: { use: robot, prompt: Work. }\n")]);
        let tool: i32 = until_some("the tool runs", || sandbox.read("tool").trim().parse().ok());
        let run = sandbox.newest().expect("a run");
        bench.sprag(&["cancel", &run]).expect(0);
        started.finish();
        until("the run is cancelled", || sandbox.status_word(&run) == "cancelled");
        assert!(!is_running(tool), "{dialect:?}");
    });
}

#[test]
fn t04_a_limit_costs_no_attempt() {
    const SCRIPT: &str = r#"
turns:
  - { when: usage limit, do: [{ say: Finished. }] }
  - { when: Work, do: [{ say: I start. }, { end: { limit: 4s } }] }
"#;
    std::thread::scope(|scope| {
        // ACP does not tell the time of a reset.
        for dialect in &DIALECTS[..2] {
            scope.spawn(move || {
                let bench = Bench::new(*dialect, SCRIPT);
                let run = bench.run("  - id: work\n    agent: { use: robot, prompt: Work. }\n", 0);
                let step = bench.project.sandbox.step(&run, "work");
                assert_eq!((&step["attempt"], &step["status"]), (&1.into(), &"done".into()), "{step}");
                assert_eq!((bench.starts(), bench.sessions()), (2, 1));
                let log = bench.sprag(&["logs", &run, "work"]).expect(0).stdout;
                let limit = log.find("the usage limit of account robot is reached").expect("the limit");
                assert!(log[limit..].contains("Finished."), "{log}");
            });
        }
    });
}

#[test]
fn t11_credentials_reach_the_agent_alone() {
    const SCRIPT: &str =
        "turns:\n  - - shell: echo the key is $ROBOT_KEY\n    - say: The key is in the log.\n";
    const STEPS: &str = r#"
  - id: work
    agent: { use: robot, prompt: Work. }
    check: { run: 'test -z "$ROBOT_KEY"' }
  - id: other
    run: 'test -z "$ROBOT_KEY"'
"#;
    let mut bench = Bench::new(DIALECTS[0], SCRIPT);
    bench.set("ROBOT_KEY", "hunter2-is-secret");
    let run = bench.run(STEPS, 0);
    let start = bench.given().into_iter().find(|line| line.get("start").is_some()).expect("a start");
    assert!(start["env"].get("ROBOT_KEY").is_some(), "{start}");
    let log = bench.sprag(&["logs", &run]).expect(0).stdout;
    assert!(log.contains("the key is ***"), "{log}");
    for file in files_below(bench.project.sandbox.data()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        let found = bytes.windows(17).any(|part| part == b"hunter2-is-secret");
        assert!(!found, "{} holds the key", file.display());
    }
}

pub(crate) fn files_below(folder: PathBuf) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files_below(path) } else { vec![path] }).collect()
}

#[test]
fn a_missing_agent_is_told_before_there_is_a_run() {
    let bench = Bench::new(DIALECTS[0], "turns: []\n");
    let sandbox = &bench.project.sandbox;
    sandbox.write("config/sprag/agents.toml", "[robot]\ndriver = \"acp\"\ncommand = [\"no-such-agent\"]\n");
    let pipeline = |agent: &str| {
        bench.pipeline(&format!("  - id: work\n    agent: {{ use: {agent}, prompt: Work. }}\n"))
    };
    for (agent, expected) in
        [("nobody", "there is no agent \"nobody\""), ("robot", "\"no-such-agent\" was not found")]
    {
        let refused = bench.sprag(&["run", &pipeline(agent)]).expect(1);
        assert!(refused.stderr.contains(expected), "{refused:?}");
        assert_eq!(sandbox.newest(), None);
    }
    // Another machine may have it, so a detached run starts. It fails before a worktree is made.
    bench.sprag(&["run", &pipeline("robot"), "--detach"]).expect(0);
    bench.sprag(&["worker", "--until-idle"]).expect(0);
    let run = sandbox.newest().expect("a run");
    let told = bench.sprag(&["explain", &run]).expect(0).stdout;
    assert!(told.contains("was not found"), "{told}");
    assert!(bench.project.environments().is_empty());
    sandbox.write("config/sprag/agents.toml", "[robot]\ndriver = acp\n");
    let wrong = bench.sprag(&["doctor"]);
    assert!(wrong.stdout.contains("agents.toml:2: driver"), "{wrong:?}");
}

#[test]
fn fake_agents_try_a_pipeline_offline() {
    let project = Project::new();
    let steps = r#"
  - id: plan
    agent: { use: claude, prompt: Plan it., output: { schema: { type: object, required: [files], properties: { files: { type: array, minItems: 2, items: { type: string } } } } } }
  - id: work
    agent: { use: codex, prompt: 'Do {{ steps.plan.outputs.files }}.' }
  - { id: land, land: main }
"#;
    let file = project.pipeline("offline", "environment: {worktree: {}}", steps);
    project.sprag(["run", file.to_str().expect("a path"), "--agents", "fake"]).expect(0);
    let subjects = project.git(["log", "--format=%s", "main"]);
    assert_eq!(subjects.lines().filter(|line| line.contains("fake agent")).count(), 2, "{subjects}");
    project.assert_clean();
}

#[test]
fn t04_a_step_that_does_not_wait_for_a_limit_fails_at_once() {
    let bench = Bench::new(DIALECTS[0], "turns:\n  - - end: { limit: 2h }\n");
    let steps = "  - id: work\n    agent: { use: robot, prompt: Work., on_limit: fail }\n    retry: { attempts: 3 }\n";
    let answer = bench.sprag(&["run", &bench.pipeline(steps)]);
    assert!(
        answer.code == 100 && answer.stderr.contains("held for longer than the step waits"),
        "{answer:?}"
    );
    assert_eq!(bench.starts(), 1, "the account is held, so no further attempt starts an agent");
}
