//! The drivers against every fault of the fake agent.

use std::path::Path;
use std::time::Duration;

use sprag_agent::fake::Dialect;
use sprag_agent::{Event, FailureKind, Outcome, Session};

use super::common::fakes::{Fake, in_each_dialect};
use super::common::process::AgentProcess;

fn ended(agent: &mut AgentProcess) -> sprag_agent::End {
    match agent.wait_for(|event| matches!(event, Event::Ended(_))) {
        Event::Ended(end) => end,
        _ => unreachable!("it was waited for"),
    }
}

fn turn_ends(agent: &AgentProcess) -> usize {
    agent.events().iter().filter(|event| matches!(event, Event::TurnEnded(_))).count()
}

/// Waits until a file contains a number, and returns it.
fn pid_in(file: &Path) -> u32 {
    for _ in 0..200 {
        if let Some(pid) = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()) {
            return pid;
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    panic!("{} holds no number", file.display());
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

fn wait_until_gone(pid: u32) -> bool {
    (0..200).any(|_| {
        std::thread::park_timeout(Duration::from_millis(25));
        !is_running(pid)
    })
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
}

#[test]
fn a_process_that_ends_in_a_turn_leaves_it_open() {
    for fault in ["exit: 3", "kill_self", "eof"] {
        in_each_dialect(|dialect| {
            let fake = Fake::new(dialect, &format!("turns: [[say: hi, {fault}]]"));
            let mut agent = fake.begin();
            agent.prompt("1");
            let end = ended(&mut agent);
            assert_eq!(end.open_turn, Some(1), "{fault}: {}", agent.story());
            assert_eq!(end.failure.map(|failure| failure.kind), Some(FailureKind::Exited), "{fault}");
            assert_eq!(turn_ends(&agent), 0, "{fault}: {}", agent.story());
        });
    }
}

#[test]
fn t10_garbage_half_and_huge_lines_change_nothing_else() {
    // ACP's text has no boundaries between messages, so a tool call separates them.
    let script = "
turns:
  - [say: before, garbage, shell: 'true', say: after, end: ok]
  - [half_line, say: lost, shell: 'true', say: after, end: ok]
  - [huge_line: 3000000, shell: 'true', say: after, end: ok]
  - [slow_bytes: 0ms, say: after, end: ok]
";
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, script);
        let mut agent = fake.begin();
        for turn in 1..=4 {
            let end = agent.turn(&turn.to_string());
            assert_eq!(
                (end.outcome, end.text.as_str()),
                (Outcome::Completed, "after"),
                "turn {turn}: {}",
                agent.story()
            );
        }
        let unreadable = agent.events().iter().filter(|event| matches!(event, Event::Unreadable(_))).count();
        assert!(unreadable >= 4, "{}", agent.story());
        let cut =
            |event: &Event| matches!(event, Event::Text { text, .. } if text.contains("bytes left out]"));
        assert!(agent.events().iter().any(cut), "the huge text is shortened, not lost");
        let longest = agent.events().iter().map(Event::weight).max();
        assert!(longest < Some(600_000), "{longest:?}");
        agent.close();
    });
}

#[test]
fn a_result_that_comes_twice_or_too_late_ends_no_other_turn() {
    let script = "
turns:
  - [say: one, dup_result, end: ok]
  - [say: two, late_result, end: ok]
  - [wait: 100ms, say: three, end: ok]
  - [late_result, silent]
  - [wait: 100ms, say: five, end: ok]
";
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, script);
        let mut agent = fake.begin();
        for text in ["one", "two", "three"] {
            assert_eq!(agent.turn(text).text, text, "{}", agent.story());
        }
        agent.prompt("four");
        agent.look_for(Duration::from_millis(200), |event| {
            matches!(event, Event::TurnStarted { turn: 4, .. })
        });
        agent.interrupt();
        assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
        assert_eq!(agent.turn("five").text, "five", "{}", agent.story());
        assert_eq!(turn_ends(&agent), 5, "{}", agent.story());
        agent.close();
    });
}

#[test]
fn t02_a_cancel_that_is_ignored_is_no_success_either() {
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, "turns: [[ignore_cancel, shell: sleep 0.5, say: done, end: ok]]");
        let mut agent = fake.begin();
        agent.prompt("1");
        agent.wait_for(|event| matches!(event, Event::ToolCall(_)));
        agent.interrupt();
        assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
        agent.close();
    });
}

#[test]
fn an_interrupted_tool_is_gone_unless_it_survives() {
    for (fault, survives) in [("", false), ("tool_survives_cancel, ", true)] {
        in_each_dialect(|dialect| {
            let fake =
                Fake::new(dialect, &format!("turns: [[{fault}shell: \"echo $$ > pid; exec sleep 60\"]]"));
            let mut agent = fake.begin();
            agent.prompt("1");
            let pid = pid_in(&fake.dir().join("pid"));
            agent.interrupt();
            assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
            if survives {
                assert!(is_running(pid));
                kill(pid);
            }
            assert!(wait_until_gone(pid), "{}", agent.story());
        });
    }
}

#[test]
fn an_orphan_outlives_its_agent() {
    let fake = Fake::new(Dialect::Claude, "turns: [[orphan: \"echo $$ > pid; exec sleep 60\", say: done]]");
    let mut agent = fake.begin();
    agent.turn("1");
    let pid = pid_in(&fake.dir().join("pid"));
    agent.close();
    assert!(is_running(pid));
    kill(pid);
    assert!(wait_until_gone(pid));
}

#[test]
fn t03_a_session_that_is_lost_or_taken_is_not_resumed() {
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, "turns: [[say: hi], [say: hi, lose_session]]");
        let mut launch = fake.launch();
        let mut first = fake.start(&launch);
        first.turn("1");
        launch.session = Session::Resume { id: first.session() };
        let second = fake.start(&launch);
        let (exit, _) = second.exit();
        assert_eq!(exit.kind, FailureKind::SessionInUse, "{exit}");
        first.turn("2");
        first.close();
        let (exit, _) = fake.start(&launch).exit();
        assert_eq!(exit.kind, FailureKind::SessionUnknown, "{exit}");
    });
}

#[test]
fn t03_the_turn_of_a_second_writer_vanishes() {
    in_each_dialect(|dialect| {
        let fake =
            Fake::new(dialect, "start: [second_writer]\nturns: [[say: first], [say: second], [say: third]]");
        let mut launch = fake.launch();
        let mut first = fake.start(&launch);
        first.turn("1");
        launch.session = Session::Resume { id: first.session() };
        let mut second = fake.start(&launch);
        assert_eq!(second.turn("2").text, "second", "{}", second.story());
        second.close();
        first.close();
        let mut third = fake.start(&launch);
        assert_eq!(
            third.turn("3").text,
            "second",
            "the second's turn is not in the session: {}",
            third.story()
        );
        third.close();
    });
}

#[test]
fn an_agent_without_a_login_says_so() {
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, "start: [not_logged_in]\nturns: [[say: hi]]");
        let mut agent = fake.begin();
        let kind = match agent.events().last() {
            Some(Event::Ended(end)) => end.failure.as_ref().map(|failure| failure.kind),
            _ => Some(agent.failure("1").kind),
        };
        assert_eq!(kind, Some(FailureKind::Auth), "{}", agent.story());
    });
}

#[test]
fn an_agent_that_changes_its_session_fails_every_turn() {
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, "turns: [[say: hi]]");
        let mut launch = fake.launch();
        let mut agent = fake.start(&launch);
        agent.turn("1");
        launch.session = Session::Resume { id: agent.session() };
        agent.close();
        fake.rewrite("start: [wrong_session_id]\nturns: [[say: hi]]");
        let mut agent = fake.start(&launch);
        assert_eq!(agent.failure("2").kind, FailureKind::SessionChanged, "{}", agent.story());
    });
}

#[test]
fn term_is_ignored_and_kill_is_not() {
    let fake = Fake::new(
        Dialect::Claude,
        "start: [ignore_term]\nturns: [[shell: \"echo $PPID > pid; sleep 0.2\", say: on], [say: still]]",
    );
    let mut agent = fake.begin();
    agent.turn("1");
    let pid = pid_in(&fake.dir().join("pid"));
    let process = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("a signal");
    assert_eq!(agent.turn("2").text, "still", "{}", agent.story());
    agent.close();
}

#[test]
fn a_silent_agent_obeys_and_a_steering_message_that_is_too_late_opens_a_turn() {
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, "turns: [[silent], [say: hi]]");
        let mut agent = fake.begin();
        agent.prompt("1");
        assert_eq!(
            agent.look_for(Duration::from_millis(150), |event| matches!(event, Event::TurnEnded(_))),
            None
        );
        agent.interrupt();
        assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
        assert_eq!(agent.turn("2").text, "hi", "{}", agent.story());
        agent.close();
    });
    // Claude Code treats a message that came too late as the start of another turn.
    let fake = Fake::new(Dialect::Claude, "turns: [[wait: 300ms, say: first], [say: second]]");
    let mut agent = fake.begin();
    agent.prompt("1");
    agent.wait_for(|event| matches!(event, Event::TurnStarted { .. }));
    agent.steer("late", sprag_agent::Steer::AfterTool);
    assert_eq!(agent.turn_end().text, "first", "{}", agent.story());
    let started = agent.wait_for(|event| matches!(event, Event::TurnStarted { turn: 2, .. }));
    let Event::TurnStarted { message, .. } = started else { unreachable!("it was waited for") };
    assert_eq!(message.as_deref(), Some("00000000-0000-4000-8000-000000000002"));
    assert_eq!(agent.turn_end().text, "second", "{}", agent.story());
    agent.close();
}

#[test]
fn t06_a_message_that_the_session_holds_is_not_taken_twice() {
    let fake = Fake::new(Dialect::Claude, "turns: [[say: hi]]");
    let mut agent = fake.begin();
    agent.turn("1");
    agent.prompt_again(1, "1");
    let Outcome::Failed(failure) = agent.turn_end().outcome else { panic!("{}", agent.story()) };
    assert_eq!(failure.kind, FailureKind::AlreadyDelivered, "{}", agent.story());
    assert_eq!(agent.turn("2").text, "hi");
    agent.close();
}
