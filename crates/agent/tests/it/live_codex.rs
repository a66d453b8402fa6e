//! Codex itself, offline.

use std::time::Duration;

use sprag_agent::{Event, FailureKind, Outcome, Reset, Session, Steer};

use super::live::{RESETS_AT, Real};
use super::live_shared::*;

#[test]
fn codex_commits_in_two_turns_and_resumes() {
    let Some(real) = Real::find("codex") else { return };
    let (agent, tokens) = commits_in_two_turns(&real);
    assert_eq!(tokens, [240, 120], "{}", agent.story());
    let session = agent.session();
    real.keep("commit", &agent.close());

    let mut launch = real.launch();
    launch.system = Some("SYSTEM-MARK".to_owned());
    launch.session = Session::Resume { id: session };
    let mut agent = real.start(&launch);
    let Some(Event::Started(info)) = agent.events().iter().find(|event| matches!(event, Event::Started(_)))
    else {
        panic!("{}", agent.story())
    };
    assert_eq!(info.known_messages.len(), 2, "{}", agent.story());
    let end = agent.turn("scene-hello");
    assert_eq!((end.outcome, end.usage.total_tokens()), (Outcome::Completed, 120), "{}", agent.story());
    real.keep("resume", &agent.close());
}

#[test]
fn codex_leaves_the_users_settings_alone() {
    let Some(real) = Real::find("codex") else { return };
    let mut agent = real.start(&real.launch());
    agent.turn("scene-hello");
    agent.close();
    let settings = real.dir().parent().expect("a parent").join("home/.codex/config.toml");
    let text = std::fs::read_to_string(settings).unwrap_or_default();
    assert!(!text.contains("worktree"), "{text}");
}

#[test]
fn codex_tells_limits_logins_and_outages_apart() {
    let Some(real) = Real::find("codex") else { return };
    let mut agent = real.start(&real.launch());
    let mut kinds = Vec::new();
    for scene in ["scene-500", "scene-529", "scene-401", "scene-cut", "scene-empty"] {
        kinds.push(agent.failure(scene).kind);
    }
    use FailureKind::{Auth, Empty, MaxTokens, Overload};
    assert_eq!(kinds, [Overload, Overload, Auth, MaxTokens, Empty], "{}", agent.story());
    let failure = agent.failure("scene-limit");
    assert_eq!(
        (failure.kind, failure.resets),
        (FailureKind::Limit, Some(Reset::At(RESETS_AT))),
        "{}",
        agent.story()
    );
    real.keep("failures", &agent.close());
}

#[test]
fn codex_is_interrupted_and_its_tool_goes_with_it() {
    let Some(real) = Real::find("codex") else { return };
    let mut agent = real.start(&real.launch());
    agent.prompt("scene-forever");
    agent.wait_for(is_call);
    agent.interrupt();
    assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
    // Codex reports the end of the tool after the end of the turn.
    agent.wait_for(|event| matches!(event, Event::ToolResult(_)));
    agent.prompt("scene-hang");
    assert!(real.models.wait_for(Duration::from_secs(30), |requests| {
        requests.iter().any(|request| request.prompt().contains("scene-hang"))
    }));
    agent.interrupt();
    assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
    assert_eq!(agent.turn("scene-hello").outcome, Outcome::Completed);
    real.keep("interrupt", &agent.close());
}

#[test]
fn codex_is_steered_after_a_tool() {
    let Some(real) = Real::find("codex") else { return };
    let mut agent = real.start(&real.launch());
    agent.prompt("scene-slow");
    agent.wait_for(is_call);
    agent.steer("scene-hello", Steer::AfterTool);
    let end = agent.turn_end();
    assert_eq!((end.turn, end.text.as_str()), (1, "Hello there."), "{}", agent.story());
    let delivered = |id: &str| {
        let id = format!("00000000-0000-4000-8000-{id}");
        move |event: &Event| matches!(event, Event::MessageDelivered { message } if *message == id)
    };
    assert!(agent.events().iter().any(delivered("000000000002")), "{}", agent.story());
    real.keep("steer", &agent.close());
}

#[test]
fn codex_asks_and_takes_the_answer() {
    let Some(real) = Real::find("codex") else { return };
    let (mut agent, denied) = asks_and_takes_the_answer(&real);
    assert_eq!(denied, 1, "{}", agent.story());
    is_interrupted_while_it_asks(&mut agent);
    real.keep("ask", &agent.close());
}

#[test]
fn codex_gives_structured_output_or_fails() {
    let Some(real) = Real::find("codex") else { return };
    gives_structured_output_or_fails(&real);
}

#[test]
fn codex_does_not_find_a_session() {
    let Some(real) = Real::find("codex") else { return };
    does_not_find_the_session(&real, "019a0000-0000-7000-8000-000000000000");
}
