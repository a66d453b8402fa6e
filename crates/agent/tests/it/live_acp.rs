//! Agents that speak ACP, offline: Gemini, opencode and Qwen.

use std::time::Duration;

use sprag_agent::{Event, FailureKind, Outcome, Session};

use super::live::Real;
use super::live_shared::*;

const AGENTS: [&str; 3] = ["gemini", "opencode", "qwen"];

fn each(test: impl Fn(&'static str, Real)) {
    for name in AGENTS {
        if let Some(real) = Real::find(name) {
            test(name, real);
        }
    }
}

#[test]
fn acp_agents_commit_in_two_turns() {
    each(|_, real| {
        let (agent, tokens) = commits_in_two_turns(&real);
        assert!(tokens[0] > 0, "{}", agent.story());
        real.keep("commit", &agent.close());
    });
}

#[test]
fn acp_agents_ask_and_take_the_answer() {
    each(|_, real| {
        let (agent, _) = asks_and_takes_the_answer(&real);
        real.keep("ask", &agent.close());
    });
}

#[test]
fn acp_agents_are_cancelled_in_a_tool() {
    each(|name, real| {
        let mut agent = real.start(&real.launch());
        agent.prompt("scene-forever");
        agent.wait_for(is_call);
        agent.interrupt();
        assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{name}\n{}", agent.story());
        assert_eq!(agent.turn("scene-hello").outcome, Outcome::Completed, "{name}\n{}", agent.story());
        real.keep("interrupt", &agent.close());
    });
}

#[test]
fn acp_agents_cancelled_while_they_retry_are_no_success() {
    each(|name, real| {
        let mut agent = real.start(&real.launch());
        agent.prompt("scene-500");
        assert!(real.models.wait_for(Duration::from_secs(60), |requests| {
            requests.iter().filter(|request| !request.tools.is_empty()).count() >= 2
        }));
        agent.interrupt();
        // opencode says `end_turn`.
        assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{name}\n{}", agent.story());
        real.keep("cancelled_retry", &agent.close());
    });
}

#[test]
fn acp_agents_with_a_refused_key_fail() {
    each(|name, real| {
        let mut agent = real.start(&real.launch());
        assert_eq!(agent.failure("scene-401").kind, FailureKind::Auth, "{name}\n{}", agent.story());
        real.keep("auth", &agent.close());
    });
}

#[test]
fn acp_agents_that_say_nothing_fail() {
    each(|name, real| {
        let mut agent = real.start(&real.launch());
        let kind = agent.failure("scene-empty").kind;
        // Qwen reports its own error.
        let expected = if name == "qwen" { FailureKind::Other } else { FailureKind::Empty };
        assert_eq!(kind, expected, "{name}\n{}", agent.story());
        real.keep("empty", &agent.close());
    });
}

#[test]
fn gemini_tells_a_used_up_quota() {
    let Some(real) = Real::find("gemini") else { return };
    let mut agent = real.start(&real.launch());
    assert_eq!(agent.failure("scene-limit").kind, FailureKind::Limit, "{}", agent.story());
    real.keep("limit", &agent.close());
}

#[test]
fn opencode_tells_a_refusal() {
    let Some(real) = Real::find("opencode") else { return };
    let mut agent = real.start(&real.launch());
    assert_eq!(agent.failure("scene-refusal").kind, FailureKind::Refusal, "{}", agent.story());
    real.keep("refusal", &agent.close());
}

#[test]
fn acp_agents_give_structured_output_or_fail() {
    each(|_, real| gives_structured_output_or_fails(&real));
}

#[test]
fn acp_agents_resume_a_session_where_they_can() {
    each(|name, real| {
        let mut launch = real.launch();
        let mut agent = real.start(&launch);
        agent.turn("scene-hello");
        launch.session = Session::Resume { id: agent.session() };
        agent.close();
        let mut agent = real.start(&launch);
        if let Some(Event::Ended(end)) = agent.events().last() {
            // Gemini cannot load a session in the minute in which it was created.
            assert_eq!(name, "gemini", "{end:?}");
            assert_eq!(
                end.failure.as_ref().map(|failure| failure.kind),
                Some(FailureKind::SessionUnknown),
                "{}",
                agent.story()
            );
            real.keep("resume_too_soon", &agent.exit().1);
            return;
        }
        let end = agent.turn("scene-commit");
        assert_eq!(
            (end.outcome, end.text.as_str()),
            (Outcome::Completed, "Committed."),
            "{name}\n{}",
            agent.story()
        );
        real.keep("resume", &agent.close());
    });
}
