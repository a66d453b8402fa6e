//! Threads: people talk to the agents of steps that have ended, with the fake agent in all dialects.

use serde_json::json;
use sprag_tests::{Server, Signal, signal, until, until_some};

use crate::agents::{Bench, DIALECTS, in_all_dialects};
use crate::json_shapes::check_shape;

const SCRIPT: &str = r#"
turns:
  - when: the word right
    do:
      - shell: echo right > made.txt
      - say: Corrected.
  - when: take your time
    do:
      - shell: echo $$ > $OUT/tool.new; mv $OUT/tool.new $OUT/tool; exec sleep 600
  - when: finish the task
    do:
      - shell: echo again >> turns.txt
      - say: There is nothing left to do.
  - when: Work
    do:
      - shell: echo wrong > made.txt
      - say: I made it.
"#;
const STEPS: &str =
    "  - id: work\n    agent: { use: robot, prompt: Work. }\n    check: { run: grep -q right made.txt }\n";

/// Runs the steps, which fail, and keeps the worktree.
fn fail(bench: &Bench) -> String {
    let file = bench.project.pipeline("talks", "environment: {worktree: {keep: on_failure}}", STEPS);
    bench.sprag(&["run", file.to_str().expect("a path")]).expect(100);
    bench.project.sandbox.newest().expect("a run")
}

#[test]
fn t07_talk_to_a_failed_step_and_resume_its_run_in_the_same_session() {
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let sandbox = &bench.project.sandbox;
        let run = fail(&bench);
        let thread = format!("{run}/work");
        let listed = bench.sprag(&["thread", "ls", "--json"]).expect(0).json();
        assert_eq!(
            (&listed[0]["thread"], &listed[0]["status"], &listed[0]["turns"]),
            (&thread.as_str().into(), &"idle".into(), &1.into()),
            "{listed}"
        );
        // A template in a message is text.
        let said = bench.sprag(&["thread", "send", &thread, "Use the word right, {{ not.a.template }}."]);
        assert!(said.code == 0 && (said.stdout.clone() + &said.stderr).contains("Corrected."), "{said:?}");
        let shown = bench.sprag(&["thread", "show", &thread, "--json"]).expect(0).json();
        assert_eq!(
            (&shown["turns"], &shown["messages"][0]["status"]),
            (&2.into(), &"completed".into()),
            "{shown}"
        );
        bench.sprag(&["resume", &run]).expect(0);
        assert_eq!((bench.starts(), bench.sessions()), (3, 1), "{dialect:?}: one session for all turns");
        assert_eq!(sandbox.status_word(&run), "completed");
        let given = format!("{:?}", bench.given());
        assert!(given.contains("{{ not.a.template }}"), "{given}");
        let turns = bench.sprag(&["thread", "show", &thread, "--json"]).expect(0).json()["turns"].clone();
        assert_eq!(turns, 3, "{dialect:?}");
    });
}

#[test]
fn t07_a_conversation_has_its_parts_with_tokens_and_messages() {
    let bench = Bench::new(DIALECTS[0], SCRIPT);
    let run = fail(&bench);
    let mut serve = bench.command(&["serve", "--listen", "127.0.0.1:0"]);
    serve.current_dir(bench.project.repo());
    let server = Server::from_process(&bench.project.sandbox, bench.project.sandbox.start_command(serve));
    let path = format!("/v1/runs/{run}/steps/work/thread");
    let before = server.get(&path);
    assert_eq!((&before["prompt"], &before["status"]), (&json!("Work."), &json!("idle")), "{before}");
    let only = &before["parts"][0];
    assert_eq!((&only["run"], &only["attempt"], &only["status"]), (&json!(run), &json!(1), &json!("failed")));
    assert!(only["message"].is_null() && before["tokens"].as_u64() > Some(0), "{before}");
    let talk =
        server.post(&format!("{path}/messages"), &json!({ "message": "Use the word right." })).expect(201);
    let talk = talk.json()["run"].as_str().expect("a run").to_owned();
    server.until(&talk, "completed");
    let after = server.get(&path);
    let parts = after["parts"].as_array().expect("parts");
    assert_eq!(parts.len(), 2, "{after}");
    assert_eq!(
        (&parts[1]["run"], &parts[1]["message"], &parts[1]["status"]),
        (&json!(talk), &json!("Use the word right."), &json!("completed"))
    );
    assert!(after["tokens"].as_u64() > before["tokens"].as_u64(), "{after}");
    let listed = server.get("/v1/threads")["threads"][0].clone();
    assert_eq!((&listed["thread"], &listed["tokens"]), (&json!(format!("{run}/work")), &before["tokens"]));
    // The commands print the same from the server.
    let (name, url) = (format!("{run}/work"), format!("http://{}", server.addr));
    for line in
        [&["ls"][..], &["ls", "--run", &run], &["show", &name], &["log", &name], &["log", &name, "--raw"]]
    {
        for json in [&[][..], &["--json"]] {
            let here = [&["thread"], line, json].concat();
            let there = [&here[..], &["--server", &url]].concat();
            let (here, there) = (bench.sprag(&here).expect(0).stdout, bench.sprag(&there).expect(0).stdout);
            // People see the option in the commands that are named to them.
            assert_eq!(there.replace(&format!(" --server {url}"), ""), here, "{line:?}");
        }
    }
    let said = bench.sprag(&["thread", "send", &name, "Use the word right.", "--server", &url]).expect(0);
    assert!((said.stdout.clone() + &said.stderr).contains("Corrected."), "{said:?}");
    bench.sprag(&["thread", "archive", &name, "--server", &url]).expect(0);
    assert!(bench.sprag(&["thread", "ls"]).expect(0).stdout.starts_with("no threads"));
    let after = server.get(&path);
    assert_eq!(after["messages"].as_array().map(Vec::len), Some(2), "{after}");
    server.request("GET", &format!("/v1/runs/{run}/steps/nope/thread")).send().problem(422, "invalid");
}

#[test]
fn t06_t09_a_thread_has_one_holder_and_a_stop_or_kill_9_frees_it() {
    let bench = Bench::new(DIALECTS[0], SCRIPT);
    let sandbox = &bench.project.sandbox;
    let run = fail(&bench);
    let thread = format!("{run}/work");
    let tool = || until_some("the tool runs", || sandbox.read("tool").trim().parse::<i32>().ok());
    let talking = bench.start(&["thread", "send", &thread, "take your time"]);
    let first = tool();
    for refused in [vec!["resume", run.as_str()], vec!["thread", "send", &thread, "the word right"]] {
        let answer = bench.sprag(&refused);
        assert!(answer.code != 0 && answer.stderr.contains("busy: thread"), "{refused:?}: {answer:?}");
    }
    check_shape("thread stop", &bench.sprag(&["thread", "stop", &thread, "--json"]).expect(0));
    assert_ne!(talking.finish().code, 0);
    until("the tool is gone", || !sprag_tests::is_running(first));
    std::fs::remove_file(sandbox.path("tool")).expect("a file");
    // Killed in the middle of a tool: its message is not delivered, and the next one is.
    let talking = bench.start(&["thread", "send", &thread, "take your time"]);
    let second = tool();
    signal(talking.pid(), Signal::KILL);
    talking.finish();
    until("the tool is gone", || !sprag_tests::is_running(second));
    let sent = bench.sprag(&["thread", "send", &thread, "Use the word right.", "--json"]).expect(0);
    check_shape("thread send", &sent);
    let shown = bench.sprag(&["thread", "show", &thread, "--json"]).expect(0);
    check_shape("thread show", &shown);
    let shown = shown.json();
    let statuses: Vec<&str> = shown["messages"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|said| said["status"].as_str())
        .collect();
    assert_eq!(statuses, ["cancelled", "failed", "completed"], "{shown}");
    bench.sprag(&["resume", &run]).expect(0);
    assert_eq!(bench.sessions(), 1);
}

#[test]
fn bad_names_of_threads_are_refused_with_their_reason() {
    let bench = Bench::new(DIALECTS[0], SCRIPT);
    let steps = "  - id: plain\n    run: 'true'\n  - id: work\n    agent: { use: robot, prompt: Work. }\n";
    let run = bench.run(steps, 0);
    for (thread, reason) in [
        ("nothing".to_owned(), "is no thread"),
        (format!("{run}/plain"), "has no agent"),
        (format!("{run}/other"), "other"),
    ] {
        let answer = bench.sprag(&["thread", "send", &thread, "hello"]);
        assert!(answer.code != 0 && answer.stderr.contains(reason), "{thread}: {answer:?}");
    }
}

#[test]
fn t07_the_same_over_http_and_mcp() {
    let bench = Bench::new(DIALECTS[0], SCRIPT);
    let sandbox = &bench.project.sandbox;
    let run = fail(&bench);
    let server = Server::from_process(sandbox, bench.start(&["serve", "--listen", "127.0.0.1:0"]));
    let thread = format!("/v1/runs/{run}/steps/work/thread");
    let listed = server.get(&format!("/v1/threads?run={run}"));
    assert_eq!(
        (&listed["threads"][0]["status"], &listed["threads"][0]["agent"]),
        (&json!("idle"), &json!("robot"))
    );
    server.post(&format!("{thread}/messages"), &json!({ "message": " " })).expect(422);
    server.post(&format!("{thread}/stop"), &json!({})).expect(409);
    let message = json!({ "message": "Use the word right." });
    let talk = server.post(&format!("{thread}/messages"), &message).expect(201).json();
    server.until(talk["run"].as_str().expect("a run"), "completed");
    assert_eq!(server.get(&thread)["turns"], 2);
    let again =
        server.call("thread_send", &json!({ "thread": format!("{run}/work"), "message": "the word right" }));
    server.until(again["run"].as_str().unwrap_or_else(|| panic!("{again}")), "completed");
    assert_eq!(server.call("thread_list", &json!({ "run": run }))["threads"][0]["turns"], 3);
    bench.sprag(&["resume", &run, "--detach"]).expect(0);
    server.until(&run, "completed");
    assert_eq!(bench.sessions(), 1);
}
