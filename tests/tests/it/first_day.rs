//! Small things that a new user meets on the first day at the command line.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::Value;
use sprag_tests::{Sandbox, Server, Signal, until};

#[test]
fn mistakes_in_files_are_answered_with_the_correction() {
    let sandbox = Sandbox::new();
    sandbox.yaml("tab", "steps:\n  - id: a\n    run: echo\n    env:\n\tX: 1\n");
    let told = sandbox.sprag(["validate", "tab.yaml"]).expect(2).stderr;
    assert!(told.contains("tab.yaml:5:") && told.contains("indent with spaces"), "{told}");
    sandbox.yaml("tab", "steps:\n  - id: a\n\trun: echo\n");
    let told = sandbox.sprag(["validate", "tab.yaml"]).expect(2).stderr;
    assert!(told.contains("tab.yaml:3:1"), "{told}");
    sandbox.yaml("retry", "steps:\n  - { id: a, run: echo, retry: 3 }\n");
    let told = sandbox.sprag(["validate", "retry.yaml"]).expect(2).stderr;
    assert!(told.contains("retry: { attempts: 3 }") && !told.contains("warning"), "{told}");
    sandbox.yaml("other", "schedule: daily\nsteps:\n  - { id: a, command: make, if: x, depends_on: b }\n");
    let told = sandbox.sprag(["validate", "other.yaml"]).expect(2).stderr;
    for words in ["a rule under `on:`", "write `run`", "write `when`", "write `needs`"] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn a_board_is_named_first_and_a_typo_gets_the_nearest() {
    let sandbox = Sandbox::new();
    sandbox.sprag(["board", "new", "release"]).expect(0);
    sandbox.sprag(["task", "add", "release", "Write the notes", "--key", "notes"]).expect(0);
    let listed = sandbox.json(["task", "ls", "release", "--json"]);
    assert_eq!(listed, sandbox.json(["task", "ls", "--board", "release", "--json"]));
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    sandbox.sprag(["task", "ls", "release", "--queue", "q"]).expect(2);
    sandbox.sprag(["task", "ls", "--status", "done"]).expect(2);
    for args in [&["board", "show", "relaese"][..], &["task", "ls", "releas"], &["task", "claim", "releas"]] {
        let told = sandbox.sprag(args).expect(2).stderr;
        assert!(told.contains("did you mean \"release\"?"), "{args:?}: {told}");
    }
    sandbox.sprag(["task", "claim", "release", "--as", "ada"]).expect(0);
}

#[test]
fn a_run_that_a_newer_one_replaced_says_so() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "old",
        "concurrency: { group: g, on_conflict: cancel_older }\nsteps:\n  - { id: a, run: 'echo > begun; sleep 60' }\n",
    );
    let older = sandbox.start(["run", "old.yaml"]);
    until("it has begun", || sandbox.path("begun").exists());
    let run = sandbox.newest().expect("a run");
    let newer = sandbox.detach(&sandbox.path("old.yaml"));
    let told = older.finish().expect(130).stderr;
    let why = format!("the newer run {newer} took its place in group \"g\"");
    assert!(told.contains(&why), "{told}");
    assert!(sandbox.sprag(["explain", &run]).expect(0).stdout.contains(&why));
    sandbox.sprag(["cancel", &newer]).expect(0);
}

#[test]
fn a_worker_tells_of_its_steps_with_v() {
    let sandbox = Sandbox::new();
    sandbox.yaml("one", "steps:\n  - { id: only, run: echo }\n");
    sandbox.detach(&sandbox.path("one.yaml"));
    let told = sandbox.sprag(["worker", "-v", "--until-idle", "--name", "w1"]).expect(0).stderr;
    assert!(told.contains("starts a step") && told.contains("step=\"only\""), "{told}");
    assert!(told.contains("worker w1 serves"), "{told}");
    sandbox.detach(&sandbox.path("one.yaml"));
    let told = sandbox.sprag(["worker", "--until-idle"]).expect(0).stderr;
    assert!(!told.contains("starts a step") && told.contains("worker worker-"), "{told}");
}

#[test]
fn a_step_cancelled_before_its_retry_keeps_its_exit_code() {
    let sandbox = Sandbox::new();
    sandbox.yaml("back", "steps:\n  - { id: f, run: 'exit 7', retry: { attempts: 3, delay: 1h } }\n");
    let running = sandbox.start(["run", "back.yaml"]);
    until("it waits", || running.stderr().contains("retry 2 of 3"));
    running.signal(Signal::INT);
    running.finish().expect(130);
    let told = sandbox.sprag(["status"]).expect(0).stdout;
    assert!(told.contains("cancelled") && told.contains("exit code 7"), "{told}");
}

#[test]
fn swapped_letters_of_a_command_are_recognized() {
    let told = Sandbox::new().sprag(["rnu"]).expect(2).stderr;
    assert!(told.contains("'run'"), "{told}");
}

#[test]
fn an_agent_that_sends_no_json_gets_the_error_of_the_protocol() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(["mcp"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(b"not json\n\n").expect("it reads");
    let mut answer = String::new();
    BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut answer).expect("an answer");
    drop(stdin);
    child.wait().expect("it ends");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &(-32700).into()), "{answer}");
}

#[test]
fn a_message_about_a_file_fits_80_columns() {
    let sandbox = Sandbox::new();
    sandbox.yaml("wide", "steps:\n  - { id: a, run: echo, xx: 1 }\n");
    let told = sandbox.sprag(["validate", "wide.yaml"]).expect(2).stderr;
    let long: Vec<&str> = told.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:#?}");
    assert!(told.contains("= note: expected one of id, description, run,"), "{told}");
}

#[test]
fn boards_are_listed_apart_from_runs() {
    let sandbox = Sandbox::new();
    sandbox.yaml("one", "steps:\n  - { id: only, run: echo }\n");
    let run = sandbox.run(&["one.yaml"], 0);
    for board in ["open", "shut"] {
        sandbox.sprag(["board", "new", board]).expect(0);
    }
    sandbox.sprag(["board", "close", "shut"]).expect(0);
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.addr);
    for at in [&[][..], &["--server", &url]] {
        let listed = |more: &[&str]| {
            let told = sandbox.json([&["ls", "--json"], more, at].concat());
            let names = told.as_array().expect("runs").iter().map(|run| run["pipeline"].clone());
            names.collect::<Vec<Value>>()
        };
        assert_eq!(listed(&[]), ["one"], "{at:?}");
        assert_eq!(listed(&["--boards"]), ["shut", "open", "one"], "{at:?}");
        assert_eq!(listed(&["--boards", "-n", "2"]), ["shut", "open"], "{at:?}");
        assert_eq!(listed(&["--waiting"]), Vec::<Value>::new(), "{at:?}");
        let people = sandbox.sprag([&["ls", "-n", "1"], at].concat()).expect(0);
        assert!(people.stdout.starts_with("RUN           PIPELINE  STATUS     CREATED"), "{people:?}");
        assert!(people.stdout.contains(&run) && people.stdout.lines().count() == 2, "{people:?}");
        assert!(people.stderr.is_empty(), "there are no more: {people:?}");
        let more = sandbox.sprag([&["ls", "--boards", "-n", "1"], at].concat()).expect(0);
        assert!(more.stderr.contains("there are more"), "{more:?}");
        let none = sandbox.sprag([&["ls", "--status", "failed"], at].concat()).expect(0);
        assert_eq!(none.stdout, "no such runs\n", "{at:?}");
    }
}

#[test]
fn tasks_are_named_by_their_keys_and_told_in_words() {
    let sandbox = Sandbox::new();
    sandbox.sprag(["board", "new", "release"]).expect(0);
    let add = |args: &[&str]| sandbox.sprag([&["task", "add", "release"], args].concat()).expect(0);
    add(&["Write the notes", "--key", "notes", "--accept", "short"]);
    add(&["Publish", "--key", "publish", "--needs", "notes"]);
    let told = sandbox.sprag(["explain", "release"]).expect(0).stdout;
    assert!(told.contains("· notes (pending)") && told.contains("waits for  notes (pending)"), "{told}");
    assert!(
        told.contains("sprag task claim release\n") && told.contains("`sprag board close release`"),
        "{told}"
    );
    assert!(!told.contains("task-1"), "{told}");
    let programs = sandbox.json(["explain", "release", "--json"]);
    assert_eq!(
        (&programs["steps"][1]["id"], &programs["steps"][1]["key"]),
        (&"task-1".into(), &"notes".into())
    );
    let claimed = sandbox.sprag(["task", "claim", "release", "--as", "ada"]).expect(0);
    assert!(
        claimed.stderr.contains("notes of run ") && claimed.stderr.contains("acceptance:\n  - short"),
        "{claimed:?}"
    );
    let token = claimed.stdout.trim().to_owned();
    let status = sandbox.sprag(["status", "release"]).expect(0).stdout;
    assert!(status.contains("▶ notes") && status.contains("· publish"), "{status}");
    sandbox.sprag(["task", "done", &token, "--summary", "all there", "--created", "NOTES.md"]).expect(0);
    let claimed = sandbox.sprag(["task", "claim", "release", "--as", "ada"]).expect(0).stderr;
    assert!(claimed.contains("notes is done\n") && claimed.contains("summary: all there"), "{claimed}");
    assert!(claimed.contains("- NOTES.md") && !claimed.contains('{'), "{claimed}");
    let logs = sandbox.sprag(["logs", "release", "notes"]).expect(0);
    assert!(logs.stderr.contains("agents and people do it") && logs.stdout.is_empty(), "{logs:?}");
}

#[test]
fn a_step_that_a_rewound_run_does_not_reach_is_not_run() {
    let sandbox = Sandbox::new();
    sandbox.yaml("fails", "steps:\n  - { id: test, run: exit 3 }\n  - { id: ship, run: echo }\n");
    let run = sandbox.run(&["fails.yaml"], 100);
    for again in [&["retry", &run][..], &["rewind", &run, "--to", "test"]] {
        let told = sandbox.sprag(again).expect(100).stderr;
        assert!(told.contains("· ship not run"), "{told}");
        let status = sandbox.sprag(["status", &run]).expect(0).stdout;
        assert!(status.ends_with("  · ship  not run\n"), "{status}");
        assert_eq!(sandbox.step(&run, "ship")["not_run"], true);
    }
}

/// `logs --failed` is the command that a failed run suggests: it shows failures of steps that print nothing, too.
#[test]
fn every_failure_has_a_reason_and_logs_failed_shows_it() {
    let sandbox = Sandbox::new();
    sandbox.yaml("fails", "steps:\n  - { id: t, run: echo the reason; exit 7 }\n");
    sandbox.yaml("child", "steps:\n  - { id: c, pipeline: fails.yaml }\n");
    sandbox.yaml("fan", "steps:\n  - id: fan\n    foreach: [0, 1, 0]\n    run: exit {{ item }}\n");
    sandbox.yaml(
        "when",
        "steps:\n  - { id: a, run: echo 1, outputs: { j: { stdout: json } } }\n  - { id: b, when: steps.a.outputs.j.nope > 3, run: echo b }\n",
    );
    let told = sandbox.sprag(["run", "child.yaml"]).expect(100).stderr;
    assert!(!told.contains("no reason was reported") && told.contains("t failed: exit code 7"), "{told}");
    let told = sandbox.sprag(["logs", "--failed"]).expect(0).stderr;
    assert!(told.contains("t failed: exit code 7") && told.contains("the reason"), "{told}");
    let told = sandbox.sprag(["run", "fan.yaml"]).expect(100).stderr;
    assert!(told.contains("fan failed: 1 of 3 items failed"), "{told}");
    sandbox.sprag(["run", "when.yaml"]).expect(100);
    let told = sandbox.sprag(["logs", "--failed"]).expect(0).stderr;
    assert!(told.contains("b failed") && told.contains("nope"), "{told}");
    sandbox.yaml("fine", "steps:\n  - { id: t, run: echo fine }\n");
    sandbox.sprag(["run", "fine.yaml"]).expect(0);
    assert!(sandbox.sprag(["logs", "--failed"]).expect(0).stderr.contains("no step of run"));
}

#[test]
fn the_newest_run_is_no_board_and_lists_can_be_narrowed() {
    let sandbox = Sandbox::new();
    sandbox.yaml("one", "steps:\n  - { id: a, run: 'true' }\n");
    sandbox.yaml("two", "steps:\n  - { id: a, run: 'true' }\n");
    sandbox.sprag(["run", "one.yaml"]).expect(0);
    sandbox.sprag(["run", "two.yaml"]).expect(0);
    sandbox.sprag(["board", "new", "bb"]).expect(0);
    assert_eq!(sandbox.json(["status", "--json"])["pipeline"], "two");
    let listed = sandbox.json(["ls", "--pipeline", "one", "--json"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(sandbox.json(["ls", "--since", "1d", "--json"]).as_array().map(Vec::len), Some(2));
    let none = sandbox.json(["ls", "--since", "2100-01-01T00:00:00Z", "--json"]);
    assert_eq!(none.as_array().map(Vec::len), Some(0), "{none}");
    assert!(sandbox.sprag(["ls", "--since", "bogus"]).expect(2).stderr.contains("write it like 10m"));
    assert!(sandbox.sprag(["ls", "--status", "waiting"]).expect(2).stderr.contains("--waiting"));
    // Mistakes are objects for programs, whatever finds them.
    for args in [&["ls", "--bogus", "--json"][..], &["nonsense", "--json"]] {
        let told = sandbox.sprag(args).expect(2).stderr;
        let told: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"));
        assert!(told["message"].is_string(), "{told}");
    }
}

#[test]
fn a_named_pipeline_runs_in_its_project_and_a_hint_names_a_worker_that_fits() {
    let sandbox = Sandbox::new();
    sandbox.write(".sprag/pipelines/ci.yaml", "steps:\n  - { id: a, run: pwd > where }\n");
    sandbox.write("below/it/file", "");
    let mut command = sandbox.command(["run", "ci"]);
    command.current_dir(sandbox.path("below/it"));
    sandbox.start_command(command).finish().expect(0);
    assert!(!sandbox.read("where").contains("below"), "{}", sandbox.read("where"));
    sandbox.yaml("special", "steps:\n  - { id: a, run: 'true', queue: special, labels: [gpu] }\n");
    let told = sandbox.sprag(["run", "special.yaml", "--detach"]).expect(0).stderr;
    assert!(told.contains("sprag worker --queue special --label gpu"), "{told}");
    // A reader that wants only the first line ends the output, and nothing else.
    let mut command = sandbox.command(["completion", "bash"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("sprag runs");
    drop(child.stdout.take());
    let told = child.wait_with_output().expect("it ends");
    assert!(!String::from_utf8_lossy(&told.stderr).contains("panicked"), "{told:?}");
}

#[test]
fn a_run_of_a_server_says_what_it_waits_for() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.addr);
    sandbox.yaml("task", "steps:\n  - { id: t, task: { prompt: Look at it. } }\n");
    let watching = sandbox.start(["run", "task.yaml", "--server", &url]);
    until("the wait is shown", || watching.stderr().contains("waiting: t: "));
    assert!(watching.stderr().contains("sprag task claim"), "{}", watching.stderr());
    watching.signal(Signal::INT);
    watching.finish().expect(0);
    sandbox.yaml("fails", "steps:\n  - { id: t, run: exit 7 }\n");
    sandbox.sprag(["run", "fails.yaml", "--server", &url]).expect(100);
    let told = sandbox.sprag(["explain", "--server", &url]).expect(0).stdout;
    assert!(told.contains(&format!("t --server {url}")), "{told}");
    drop(server);
    let told = sandbox.sprag(["ls", "--server", &url]).expect(1).stderr;
    assert!(told.contains("no server answers at") && told.contains("sprag serve"), "{told}");
}
