//! Conversations that every real agent must hold, whatever it speaks.

use sprag_agent::{Answer, Event, FailureKind, Outcome, Permissions, Session};

use super::common::process::{AgentProcess, commits};
use super::live::{Real, schema};

pub fn is_call(event: &Event) -> bool {
    matches!(event, Event::ToolCall(_))
}

/// Commits in the first turn and talks in the second. Returns the agent, which is still there, and the tokens of the turns.
pub fn commits_in_two_turns(real: &Real) -> (AgentProcess, [u64; 2]) {
    let mut launch = real.launch();
    launch.system = Some("SYSTEM-MARK".to_owned());
    let mut agent = real.start(&launch);
    let end = agent.turn("scene-commit");
    let found = (end.outcome, end.text.as_str(), end.tool_calls);
    assert_eq!(found, (Outcome::Completed, "Committed.", 1), "{}", agent.story());
    let second = agent.turn("scene-hello");
    assert_eq!(second.text, "Hello there.", "{}", agent.story());
    assert_eq!(commits(&real.dir()), ["hi", "first"]);
    assert!(real.models.requests().iter().any(|request| request.body.to_string().contains("SYSTEM-MARK")));
    (agent, [end.usage.total_tokens(), second.usage.total_tokens()])
}

/// Allows a commit, then denies one. Returns the agent, and the calls that it counted as denied.
pub fn asks_and_takes_the_answer(real: &Real) -> (AgentProcess, u32) {
    let mut launch = real.launch();
    launch.permissions = Permissions::Ask;
    let mut agent = real.start(&launch);
    agent.prompt("scene-commit");
    let request = agent.asked();
    agent.answer(&request, Answer::Allow);
    assert_eq!(agent.turn_end().outcome, Outcome::Completed, "{}", agent.story());
    assert_eq!(commits(&real.dir()).len(), 2, "{}", agent.story());
    agent.prompt("scene-commit");
    let request = agent.asked();
    agent.answer(&request, Answer::Deny { message: "not now".to_owned() });
    let end = agent.turn_end();
    assert_eq!(commits(&real.dir()).len(), 2, "{end:?}");
    (agent, end.denied_calls)
}

/// Interrupts the agent while it asks.
pub fn is_interrupted_while_it_asks(agent: &mut AgentProcess) {
    agent.prompt("scene-commit");
    agent.asked();
    agent.interrupt();
    assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
}

pub fn gives_structured_output_or_fails(real: &Real) {
    let mut launch = real.launch();
    launch.output_schema = Some(schema());
    launch.deltas = true;
    let mut agent = real.start(&launch);
    let end = agent.turn("scene-output");
    assert_eq!(end.output, Some(serde_json::json!({"verdict": "good"})), "{}", agent.story());
    assert_eq!(agent.failure("scene-unmet").kind, FailureKind::SchemaNotMet, "{}", agent.story());
    real.keep("schema", &agent.close());
}

pub fn does_not_find_the_session(real: &Real, id: &str) {
    let mut launch = real.launch();
    launch.session = Session::Resume { id: id.to_owned() };
    let agent = real.start(&launch);
    let Some(Event::Ended(end)) = agent.events().last().cloned() else { panic!("{}", agent.story()) };
    let kind = end.failure.map(|failure| failure.kind);
    assert_eq!(kind, Some(FailureKind::SessionUnknown), "{}", agent.story());
    let (failure, recording) = agent.exit();
    assert_eq!(failure.kind, FailureKind::SessionUnknown);
    real.keep("resume_unknown", &recording);
}
