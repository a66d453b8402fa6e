//! Small things that a new user meets on the first day at the command line.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::Value;
use sprag_tests::{Sandbox, Signal, until};

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
    assert!(!told.contains("starts a step"), "{told}");
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
