//! Codex itself, offline.

use std::time::Duration;

use sprag_agent::{Answer, Event, FailureKind, Outcome, Permissions, Reset, Session, Steer};

use super::common::process::commits;
use super::live::{RESETS_AT, Real, schema};

fn is_call(event: &Event) -> bool {
    matches!(event, Event::ToolCall(_))
}

#[test]
fn codex_commits_in_two_turns_and_resumes() {
    let Some(real) = Real::find("codex") else { return };
    let mut launch = real.launch();
    launch.system = Some("SYSTEM-MARK".to_owned());
    let mut agent = real.start(&launch);
    let end = agent.turn("scene-commit");
    assert_eq!(
        (end.outcome, end.text.as_str(), end.tool_calls),
        (Outcome::Completed, "Committed.", 1),
        "{}",
        agent.story()
    );
    assert_eq!(end.usage.total_tokens(), 240);
    let end = agent.turn("scene-hello");
    assert_eq!((end.text.as_str(), end.usage.total_tokens()), ("Hello there.", 120), "{}", agent.story());
    assert_eq!(commits(&real.dir()), ["hi", "first"]);
    assert!(real.models.requests().iter().any(|request| request.body.to_string().contains("SYSTEM-MARK")));
    let session = agent.session();
    real.keep("commit", &agent.close());

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
    let mut launch = real.launch();
    launch.permissions = Permissions::Ask;
    let mut agent = real.start(&launch);
    agent.prompt("scene-commit");
    let request = agent.asked();
    agent.answer(&request, Answer::Allow);
    assert_eq!(agent.turn_end().outcome, Outcome::Completed);
    assert_eq!(commits(&real.dir()).len(), 2, "{}", agent.story());
    agent.prompt("scene-commit");
    let request = agent.asked();
    agent.answer(&request, Answer::Deny { message: "not now".to_owned() });
    assert_eq!(agent.turn_end().denied_calls, 1, "{}", agent.story());
    assert_eq!(commits(&real.dir()).len(), 2);
    agent.prompt("scene-commit");
    agent.asked();
    agent.interrupt();
    assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
    real.keep("ask", &agent.close());
}

#[test]
fn codex_gives_structured_output_or_fails() {
    let Some(real) = Real::find("codex") else { return };
    let mut launch = real.launch();
    launch.output_schema = Some(schema());
    launch.deltas = true;
    let mut agent = real.start(&launch);
    let end = agent.turn("scene-output");
    assert_eq!(end.output, Some(serde_json::json!({"verdict": "good"})), "{}", agent.story());
    assert_eq!(agent.failure("scene-unmet").kind, FailureKind::SchemaNotMet, "{}", agent.story());
    real.keep("schema", &agent.close());
}

#[test]
fn codex_does_not_find_a_session() {
    let Some(real) = Real::find("codex") else { return };
    let mut launch = real.launch();
    launch.session = Session::Resume { id: "019a0000-0000-7000-8000-000000000000".to_owned() };
    let agent = real.start(&launch);
    let Some(Event::Ended(end)) = agent.events().last().cloned() else { panic!("{}", agent.story()) };
    assert_eq!(
        end.failure.map(|failure| failure.kind),
        Some(FailureKind::SessionUnknown),
        "{}",
        agent.story()
    );
    let (_, recording) = agent.exit();
    real.keep("resume_unknown", &recording);
}
