//! Claude Code itself, offline.

use std::time::Duration;

use sprag_agent::{Event, FailureKind, Outcome, Permissions, Reset, Session, Steer, ToolStatus};

use super::common::process::commits;
use super::live::{RESETS_AT, Real};
use super::live_shared::*;

#[test]
fn claude_commits_in_two_turns_and_resumes() {
    let Some(real) = Real::find("claude") else { return };
    let (agent, tokens) = commits_in_two_turns(&real);
    assert_eq!(tokens, [240, 120], "{}", agent.story());
    real.keep("commit", &agent.close());

    let mut launch = real.launch();
    launch.system = Some("SYSTEM-MARK".to_owned());
    launch.session = Session::Resume { id: "11111111-1111-4111-8111-111111111111".to_owned() };
    let mut agent = real.start(&launch);
    let end = agent.turn("scene-hello");
    assert_eq!(end.outcome, Outcome::Completed);
    // The agent's total continues across the resume; the turn's usage does not.
    assert_eq!(end.usage.total_tokens(), 120, "{}", agent.story());
    assert!(end.usage.cost_usd.is_some_and(|cost| cost < 0.001), "{:?}", end.usage);
    // A message that the session already contains has no effect, so it can be sent again after a crash.
    let asked = real.models.requests().len();
    agent.prompt_again(1, "scene-commit");
    let Outcome::Failed(failure) = agent.turn_end().outcome else { panic!("{}", agent.story()) };
    assert_eq!(failure.kind, FailureKind::AlreadyDelivered, "{}", agent.story());
    assert_eq!(real.models.requests().len(), asked);
    real.keep("resume", &agent.close());
}

#[test]
fn claude_tells_limits_logins_and_outages_apart() {
    let Some(mut real) = Real::find("claude") else { return };
    real.env.push(("CLAUDE_CODE_MAX_RETRIES".to_owned(), "1".to_owned()));
    let launch = real.launch();
    let mut agent = real.start(&launch);
    let mut kinds = Vec::new();
    for scene in ["scene-500", "scene-529", "scene-401", "scene-cut", "scene-refusal", "scene-empty"] {
        kinds.push(agent.failure(scene).kind);
    }
    use FailureKind::{Auth, Empty, MaxTokens, Overload, Refusal};
    assert_eq!(kinds, [Overload, Overload, Auth, MaxTokens, Refusal, Empty], "{}", agent.story());
    real.keep("failures", &agent.close());

    // A subscription's limit reports its reset; a key's does not.
    real.env.retain(|(name, _)| name != "ANTHROPIC_API_KEY");
    real.env.push(("CLAUDE_CODE_OAUTH_TOKEN".to_owned(), "sk-ant-oat01-test".to_owned()));
    let mut launch = real.launch();
    launch.session = Session::New { id: "22222222-2222-4222-8222-222222222222".to_owned() };
    let mut agent = real.start(&launch);
    let failure = agent.failure("scene-limit");
    assert_eq!(
        (failure.kind, failure.resets),
        (FailureKind::Limit, Some(Reset::At(RESETS_AT))),
        "{}",
        agent.story()
    );
    real.keep("limit", &agent.close());
}

#[test]
fn claude_with_a_refused_key_is_given_up_after_two_tries() {
    let Some(real) = Real::find("claude") else { return };
    let mut agent = real.start(&real.launch());
    let failure = agent.failure("scene-401");
    assert_eq!(failure.kind, FailureKind::Auth, "{}", agent.story());
    let tries = agent.events().iter().filter(|event| matches!(event, Event::Retrying(_))).count();
    assert_eq!(tries, 2, "{}", agent.story());
    real.keep("auth", &agent.close());
}

#[test]
fn claude_is_interrupted_in_a_tool_and_in_a_silent_request() {
    let Some(real) = Real::find("claude") else { return };
    let mut agent = real.start(&real.launch());
    agent.prompt("scene-forever");
    agent.wait_for(is_call);
    agent.interrupt();
    assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
    agent.prompt("scene-hang");
    agent.wait_for(|event| matches!(event, Event::TurnStarted { .. }));
    assert!(real.models.wait_for(Duration::from_secs(30), |requests| {
        requests.iter().any(|request| request.prompt().contains("scene-hang"))
    }));
    agent.interrupt();
    assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
    assert_eq!(agent.turn("scene-hello").outcome, Outcome::Completed);
    real.keep("interrupt", &agent.close());
}

#[test]
fn claude_is_steered_after_a_tool_or_at_once() {
    let Some(real) = Real::find("claude") else { return };
    let mut agent = real.start(&real.launch());
    agent.prompt("scene-slow");
    agent.wait_for(is_call);
    agent.steer("scene-hello", Steer::AfterTool);
    let end = agent.turn_end();
    assert_eq!((end.turn, end.text.as_str()), (1, "Hello there."), "{}", agent.story());
    agent.prompt("scene-forever");
    agent.wait_for(is_call);
    agent.steer("scene-hello", Steer::Now);
    // Claude Code reports it as a success with an empty text.
    assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
    let end = agent.turn_end();
    assert_eq!((end.turn, end.text.as_str()), (3, "Hello there."), "{}", agent.story());
    real.keep("steer", &agent.close());
}

#[test]
fn claude_asks_and_takes_the_answer() {
    let Some(real) = Real::find("claude") else { return };
    let (mut agent, denied) = asks_and_takes_the_answer(&real);
    assert_eq!(denied, 1, "{}", agent.story());
    is_interrupted_while_it_asks(&mut agent);
    real.keep("ask", &agent.close());
}

#[test]
fn claude_may_only_read() {
    let Some(real) = Real::find("claude") else { return };
    let mut launch = real.launch();
    launch.permissions = Permissions::ReadOnly;
    let mut agent = real.start(&launch);
    let end = agent.turn("scene-commit");
    assert_eq!(end.denied_calls, 1, "{}", agent.story());
    let denied =
        |event: &Event| matches!(event, Event::ToolResult(result) if result.status == ToolStatus::Denied);
    assert!(agent.events().iter().any(denied), "{}", agent.story());
    assert_eq!(commits(&real.dir()).len(), 1);
    real.keep("read_only", &agent.close());
}

#[test]
fn claude_gives_structured_output_or_fails() {
    let Some(real) = Real::find("claude") else { return };
    gives_structured_output_or_fails(&real);
}

#[test]
fn claude_does_not_find_or_share_a_session() {
    let Some(real) = Real::find("claude") else { return };
    does_not_find_the_session(&real, "33333333-3333-4333-8333-333333333333");

    let launch = real.launch();
    let mut agent = real.start(&launch);
    agent.turn("scene-hello");
    agent.close();
    let agent = real.start(&launch);
    let (failure, recording) = agent.exit();
    assert_eq!(failure.kind, FailureKind::SessionInUse, "{failure}");
    real.keep("session_taken", &recording);
}
