//! The transcript of a thread: over the command line, HTTP with a stream, and MCP; and threads that are archived or removed.

use serde_json::{Value, json};
use sprag_tests::{Server, until, until_some};

use crate::agents::{Bench, DIALECTS, in_all_dialects};
use crate::json_shapes::check_shape;

const SCRIPT: &str = r#"
turns:
  - when: the word right
    do:
      - shell: echo right > made.txt
      - say: I corrected it.
  - when: take your time
    do:
      - say: I begin.
      - shell: echo $$ > $OUT/tool; exec sleep 600
  - when: Make
    do:
      - shell: echo wrong > made.txt
      - say: I made the file.
"#;
const STEPS: &str = "  - id: work\n    agent: { use: robot, prompt: Make the file. }\n    check: { run: grep -q right made.txt }\n";

fn fail(bench: &Bench) -> String {
    let file = bench.project.pipeline("fix", "environment: {worktree: {keep: on_failure}}", STEPS);
    bench.sprag(&["run", file.to_str().expect("a path")]).expect(100);
    bench.project.sandbox.newest().expect("a run")
}

/// Returns the kinds of events.
fn kinds(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| event["event"]["event"].as_str().unwrap_or("?").to_owned()).collect()
}

#[test]
fn a_transcript_has_the_attempts_and_the_messages_in_order_over_all_interfaces() {
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let run = fail(&bench);
        let thread = format!("{run}/work");
        bench.sprag(&["thread", "send", &thread, "Use the word right."]).expect(0);
        let shown = bench.sprag(&["thread", "log", &thread]).expect(0).stdout;
        let order = ["< Make the file.", "I made the file.", "< Use the word right.", "I corrected it."];
        let places: Vec<_> = order.iter().map(|part| shown.find(part)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{dialect:?}: {places:?}\n{shown}");
        let lines = bench.sprag(&["thread", "log", &thread, "--raw"]).expect(0).stdout;
        let events: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        for kind in ["prompt", "started", "tool_call", "tool_result", "text", "turn_ended"] {
            assert!(kinds(&events).iter().filter(|found| *found == kind).count() >= 2, "{kind}: {lines}");
        }
        let server =
            Server::from_process(&bench.project.sandbox, bench.start(&["serve", "--listen", "127.0.0.1:0"]));
        // Page by page, and from any position, it is the same.
        let path = format!("/v1/runs/{run}/steps/work/thread/transcript");
        let (mut paged, mut after) = (Vec::new(), 0);
        loop {
            let page = server.get(&format!("{path}?after={after}&limit=2"));
            let found = page["events"].as_array().expect("a list").clone();
            if found.is_empty() {
                assert_eq!(page["is_live"], false, "{page}");
                break;
            }
            assert!(found.len() <= 2, "{page}");
            after = page["next"].as_u64().expect("a position");
            paged.extend(found);
        }
        assert_eq!(paged, events, "{dialect:?}");
        let read = server.call("thread_read", &json!({ "thread": thread, "limit": 1000 }));
        assert_eq!(read["events"].as_array(), Some(&events), "{dialect:?}");
    });
}

#[test]
fn a_followed_transcript_streams_events_while_the_agent_works_and_continues_after_a_reconnect() {
    let bench = Bench::new(DIALECTS[0], SCRIPT);
    let sandbox = &bench.project.sandbox;
    let run = fail(&bench);
    let server = Server::from_process(sandbox, bench.start(&["serve", "--listen", "127.0.0.1:0"]));
    let thread = format!("/v1/runs/{run}/steps/work/thread");
    let message = json!({ "message": "take your time" });
    let talk = server.post(&format!("{thread}/messages"), &message).expect(201).json();
    until_some("the tool runs", || sandbox.read("tool").trim().parse::<i32>().ok());
    let path = format!("{thread}/transcript?follow=true");
    let follow = |last: u64| {
        let request = server.request("GET", &path).header("last-event-id", &last.to_string());
        request.open().expect("a stream")
    };
    let mut stream = follow(0);
    let mut seen: Vec<(u64, Value)> = Vec::new();
    while !seen.iter().any(|(_, data)| data.to_string().contains("I begin.")) {
        let event = stream.event().expect("a stream").expect("an event");
        assert_eq!(event.data["event"]["event"], event.name.as_str(), "{}", event.data);
        seen.push((event.id, event.data));
    }
    stream.cut();
    // It continues after the last event that it has seen, and ends when the thread is idle.
    let mut stream = follow(seen[2].0);
    server.post(&format!("{thread}/stop"), &json!({})).expect(200);
    server.until(talk["run"].as_str().expect("a run"), "cancelled");
    let mut rest: Vec<(u64, Value)> = Vec::new();
    while let Some(event) = stream.event().expect("a stream") {
        rest.push((event.id, event.data));
    }
    assert_eq!(rest[..seen.len() - 3], seen[3..], "no event twice, and none is missing");
    assert!(rest.len() > seen.len() - 3, "it went on to the end");
}

#[test]
fn t09_a_removed_thread_stops_its_agent_in_mid_turn_and_takes_no_further_turns() {
    in_all_dialects(|dialect| {
        let bench = Bench::new(dialect, SCRIPT);
        let sandbox = &bench.project.sandbox;
        let run = fail(&bench);
        let thread = format!("{run}/work");
        let talking = bench.start(&["thread", "send", &thread, "take your time"]);
        let tool = until_some("the tool runs", || sandbox.read("tool").trim().parse::<i32>().ok());
        check_shape("thread rm", &bench.sprag(&["thread", "rm", &thread, "--json"]).expect(0));
        assert_ne!(talking.finish().code, 0);
        until("the tool is gone", || !sprag_tests::is_running(tool));
        let refused = bench.sprag(&["thread", "send", &thread, "the word right"]);
        assert!(refused.code != 0 && refused.stderr.contains("was removed"), "{dialect:?}: {refused:?}");
        let listed = bench.sprag(&["thread", "ls", "--json"]).expect(0).stdout;
        assert!(!listed.contains("work"), "{listed}");
        // The step cannot continue in it either, and says so.
        let resumed = bench.sprag(&["resume", &run]);
        assert!(
            resumed.code == 100 && format!("{resumed:?}").contains("takes no further turns"),
            "{resumed:?}"
        );
    });
}

#[test]
fn an_archived_thread_keeps_its_transcript_and_takes_no_messages() {
    let bench = Bench::new(DIALECTS[1], SCRIPT);
    let run = fail(&bench);
    let thread = format!("{run}/work");
    check_shape("thread archive", &bench.sprag(&["thread", "archive", &thread, "--json"]).expect(0));
    let refused = bench.sprag(&["thread", "send", &thread, "the word right"]);
    assert!(refused.code != 0 && refused.stderr.contains("was archived"), "{refused:?}");
    let shown = bench.sprag(&["thread", "log", &thread]).expect(0).stdout;
    assert!(shown.contains("I made the file."), "{shown}");
}

#[tokio::test]
async fn t07_the_library_reads_a_transcript_and_sends_messages() {
    let bench = Bench::new(DIALECTS[0], SCRIPT);
    let id = fail(&bench);
    let server =
        Server::from_process(&bench.project.sandbox, bench.start(&["serve", "--listen", "127.0.0.1:0"]));
    let data = bench.project.sandbox.data();
    let engine = sprag::Engine::sqlite(data).without_worker().start().await.expect("an engine");
    let thread = engine.run(id.parse().expect("an id")).expect("the run").thread("work");
    assert_eq!((thread.name(), thread.view().expect("a thread").turns), (format!("{id}/work").as_str(), 1));
    let before = thread.transcript(0).expect("a transcript");
    assert!(!before.events.is_empty() && !before.is_live);
    let talk = thread.send("Use the word right.").await.expect("a run");
    server.until(&talk.id().to_string(), "completed");
    let after = thread.transcript(before.next).expect("a transcript");
    let said = format!("{:?}", after.events);
    assert!(said.contains("I corrected it.") && !said.contains("I made the file."), "{said}");
    assert!(thread.stop().await.is_err(), "no agent is active");
    thread.archive().await.expect("it is archived");
    assert!(thread.send("More.").await.is_err());
    engine.shutdown().await.expect("it ends");
}
