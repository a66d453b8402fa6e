//! The runner: a conversation on real pipes, with its bounds and its end.

use std::process::Stdio;
use std::time::Duration;

use sprag_agent::fake::Dialect;
use sprag_agent::{
    AgentEvents, Driver, Event, FailureKind, Launch, Limits, Message, Outcome, Refused, RunnerSettings,
    Session, run,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::common::fakes::Fake;
use super::corpus::agent_exercise::{SESSION, handshake};

/// The longest wait of these tests.
const PATIENCE: Duration = Duration::from_secs(60);

async fn next(events: &mut AgentEvents) -> Event {
    tokio::time::timeout(PATIENCE, events.next()).await.expect("an event in time").expect("an event")
}

async fn until(events: &mut AgentEvents, wanted: impl Fn(&Event) -> bool) -> Event {
    loop {
        let event = next(events).await;
        if wanted(&event) {
            return event;
        }
        assert!(!matches!(event, Event::Ended(_)), "{event:?}");
    }
}

fn launch(driver: Driver) -> Launch {
    let session = Session::New { id: SESSION.to_owned() };
    let (dir, scratch) = (std::path::Path::new("/wt"), std::path::Path::new("/scratch"));
    let mut launch = Launch::new("some-agent", dir, scratch, session);
    launch.driver = driver;
    launch
}

#[tokio::test]
async fn a_process_is_prompted_twice_and_told_to_exit() {
    for dialect in Dialect::ALL {
        let fake = Fake::new(dialect, "turns: [[say: one], [say: two]]");
        let launch = fake.launch();
        let line = launch.command_line();
        for file in &line.files {
            std::fs::write(&file.path, &file.content).expect("a private file");
        }
        let mut child = tokio::process::Command::new(&line.argv[0])
            .args(&line.argv[1..])
            .envs(&line.env)
            .current_dir(&launch.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        let (stdout, stdin) = (child.stdout.take().expect("a pipe"), child.stdin.take().expect("a pipe"));
        let conversation = launch.conversation(Limits::default());
        let (control, mut events, task) = run(conversation, stdout, stdin, RunnerSettings::default());
        let task = tokio::spawn(task);
        until(&mut events, |event| matches!(event, Event::Started(_))).await;
        assert_eq!(control.interrupt().await, Err(Refused::NoTurn));
        for (turn, text) in [(1, "one"), (2, "two")] {
            let message = Message::new(format!("00000000-0000-4000-8000-00000000000{turn}"), "go");
            assert_eq!(control.prompt(message).await, Ok(turn));
            let end = until(&mut events, |event| matches!(event, Event::TurnEnded(_))).await;
            let Event::TurnEnded(end) = end else { unreachable!("it was waited for") };
            assert_eq!((end.outcome, end.text.as_str()), (Outcome::Completed, text), "{}", dialect.name());
        }
        control.close().await;
        let last = until(&mut events, |event| matches!(event, Event::Ended(_))).await;
        assert!(matches!(&last, Event::Ended(end) if end.failure.is_none()), "{last:?}");
        assert_eq!(events.next().await, None, "nothing follows the end");
        let exit = tokio::time::timeout(PATIENCE, child.wait()).await.expect("it exits").expect("an exit");
        assert!(exit.success(), "{}: {exit}", dialect.name());
        tokio::time::timeout(PATIENCE, task).await.expect("the task ends").expect("it does not panic");
        assert_eq!(control.prompt(Message::new("m", "x")).await, Err(Refused::Ended));
    }
}

#[tokio::test]
async fn an_agent_that_is_never_ready_is_given_up() {
    let (stdin, _unread) = tokio::io::duplex(64 << 10);
    let (_silent, stdout) = tokio::io::duplex(64);
    let conversation = launch(Driver::Acp).conversation(Limits::default());
    let settings = RunnerSettings { handshake: Duration::from_millis(50), ..RunnerSettings::default() };
    let (control, mut events, task) = run(conversation, stdout, stdin, settings);
    let task = tokio::spawn(task);
    let Event::Ended(end) = next(&mut events).await else { panic!("it ends") };
    assert_eq!(end.failure.map(|failure| failure.kind), Some(FailureKind::Handshake));
    task.await.expect("the task ends");
    assert_eq!(control.prompt(Message::new("m", "x")).await, Err(Refused::Ended));
}

/// Answers Claude Code's handshake.
async fn greet(pipe: &mut (impl tokio::io::AsyncWrite + Unpin)) {
    for line in handshake(Driver::ClaudeStream) {
        pipe.write_all(format!("{line}\n").as_bytes()).await.expect("it is read");
    }
}

/// Writes lines until none is accepted for a while. Returns the number of accepted bytes.
async fn flood(mut pipe: impl tokio::io::AsyncWrite + Unpin, line: &str, most: usize) -> usize {
    let mut taken = 0;
    while taken < most {
        let write = tokio::time::timeout(Duration::from_secs(2), pipe.write_all(line.as_bytes()));
        match write.await {
            Ok(Ok(())) => taken += line.len(),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    taken
}

#[tokio::test]
async fn t10_an_agent_whose_events_are_not_taken_is_not_read() {
    let (stdin, _unread) = tokio::io::duplex(64 << 10);
    let (mut agent, stdout) = tokio::io::duplex(64 << 10);
    let conversation = launch(Driver::ClaudeStream).conversation(Limits::default());
    let settings = RunnerSettings { max_queued_bytes: 1 << 20, ..RunnerSettings::default() };
    let (_control, mut events, task) = run(conversation, stdout, stdin, settings);
    let task = tokio::spawn(task);
    greet(&mut agent).await;
    let line = format!("{{\"type\":\"news\",\"text\":\"{}\"}}\n", "x".repeat(1000));
    let taken = flood(agent, &line, 64 << 20).await;
    assert!((1 << 19..2 << 20).contains(&taken), "{taken} bytes were taken");
    // The agent is gone now; its remaining output is reported, and then its end.
    let mut told = 0;
    let last = loop {
        match next(&mut events).await {
            Event::Unknown { .. } => told += 1,
            Event::Ended(end) => break end,
            _ => {}
        }
    };
    assert!(last.failure.is_some());
    assert!(told >= taken / line.len(), "{told} events of {taken} bytes");
    task.await.expect("the task ends");
}

#[tokio::test]
async fn t10_an_agent_that_asks_and_does_not_read_the_answers_is_not_read() {
    let (stdin, _unread) = tokio::io::duplex(1 << 10);
    let (mut agent, stdout) = tokio::io::duplex(64 << 10);
    let limits = Limits { max_unsent_bytes: 64 << 10, ..Limits::default() };
    let conversation = launch(Driver::ClaudeStream).conversation(limits);
    let (_control, mut events, task) = run(conversation, stdout, stdin, RunnerSettings::default());
    let task = tokio::spawn(task);
    let reader = tokio::spawn(async move { while events.next().await.is_some() {} });
    greet(&mut agent).await;
    // Each is refused with an answer.
    let line =
        "{\"type\":\"control_request\",\"request_id\":\"1\",\"request\":{\"subtype\":\"hook_callback\"}}\n";
    let taken = flood(agent, line, 64 << 20).await;
    assert!(taken < 1 << 20, "{taken} bytes were taken");
    reader.abort();
    tokio::time::timeout(PATIENCE, task).await.expect("the task ends").expect("it does not panic");
}

#[tokio::test]
async fn the_task_ends_and_closes_stdin_when_the_events_are_dropped() {
    let (stdin, mut agent_stdin) = tokio::io::duplex(64 << 10);
    let (_agent, stdout) = tokio::io::duplex(64);
    let conversation = launch(Driver::CodexAppServer).conversation(Limits::default());
    let (_control, events, task) = run(conversation, stdout, stdin, RunnerSettings::default());
    let task = tokio::spawn(task);
    drop(events);
    tokio::time::timeout(PATIENCE, task).await.expect("the task ends").expect("it does not panic");
    let mut read = Vec::new();
    let end = tokio::time::timeout(PATIENCE, agent_stdin.read_to_end(&mut read)).await;
    end.expect("stdin is closed").expect("it can be read");
}
