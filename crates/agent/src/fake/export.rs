//! Exports a recorded thread as a script, so that the fake agent repeats it.

use serde_json::Value;

use super::script::{Script, ScriptTurn};
use super::step::{Ending, Step};
use crate::event::{Event, Outcome, PermissionRequest, ToolCall, ToolResult};
use crate::failure::{FailureKind, Reset};

/// Returns a script that repeats the turns of a thread: texts, commands, other tools as simulated calls, permission
/// requests, usage, outputs and ends. An interrupted turn stays silent at its end, so that it can be interrupted again.
pub fn script_of(events: &[Event]) -> Script {
    let mut turns = Vec::new();
    let mut steps = Vec::new();
    let mut asked: Option<&PermissionRequest> = None;
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::TurnStarted { .. } => steps.clear(),
            Event::Text { text, parent: None } => steps.push(Step::Say(text.clone())),
            Event::Thinking { text } => steps.push(Step::Think(text.clone())),
            Event::PermissionRequested(request) => {
                // Most agents report the call just before they ask about it.
                if let Some(step) = steps.last_mut() {
                    mark_asking(step);
                }
                asked = Some(request);
            }
            Event::ToolCall(call) if call.parent.is_none() => {
                let asks =
                    asked.take().is_some_and(|request| request.call.as_deref() == Some(call.id.as_str()));
                steps.push(step_of(call, result_of(&events[at..], &call.id), asks));
            }
            Event::TurnEnded(end) => {
                asked = None;
                steps.push(Step::Usage(end.usage));
                steps.extend(end.output.clone().map(Step::Output));
                steps.push(end_of(&end.outcome));
                turns.push(ScriptTurn { when: None, steps: std::mem::take(&mut steps) });
            }
            _ => {}
        }
    }
    Script { start: Vec::new(), turns }
}

fn mark_asking(step: &mut Step) {
    match step {
        Step::Shell(command) => *step = Step::Ask(std::mem::take(command)),
        Step::Tool { asks, .. } => *asks = true,
        _ => {}
    }
}

fn result_of<'a>(events: &'a [Event], call: &str) -> Option<&'a ToolResult> {
    events.iter().find_map(|event| match event {
        Event::ToolResult(result) if result.id == call => Some(result),
        _ => None,
    })
}

fn step_of(call: &ToolCall, result: Option<&ToolResult>, asks: bool) -> Step {
    match call.input["command"].as_str() {
        Some(command) if asks => Step::Ask(command.to_owned()),
        Some(command) => Step::Shell(command.to_owned()),
        None => Step::Tool {
            name: call.name.clone(),
            input: if call.input.is_null() {
                Value::Object(serde_json::Map::new())
            } else {
                call.input.clone()
            },
            output: result.map(|result| result.output.clone()).unwrap_or_default(),
            asks,
        },
    }
}

fn end_of(outcome: &Outcome) -> Step {
    let failure = match outcome {
        Outcome::Completed => return Step::End(Ending::Ok),
        Outcome::Interrupted => return Step::Silent,
        Outcome::Failed(failure) => failure,
    };
    Step::End(match failure.kind {
        FailureKind::Limit => Ending::Limit(failure.resets.unwrap_or(Reset::InSeconds(3600))),
        FailureKind::Auth => Ending::Auth,
        FailureKind::Refusal => Ending::Refusal,
        FailureKind::MaxTurns | FailureKind::MaxTokens | FailureKind::Budget => Ending::MaxTurns,
        FailureKind::Empty => Ending::Empty,
        FailureKind::FalseSuccess => Ending::FalseSuccess,
        FailureKind::SchemaNotMet => Ending::BadSchema,
        _ => Ending::Error500,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::{ToolStatus, TurnEnd};
    use crate::failure::Failure;
    use crate::usage::Usage;

    #[test]
    fn a_thread_becomes_a_script() {
        let call = |id: &str, input: Value| {
            Event::ToolCall(ToolCall {
                id: id.to_owned(),
                name: "Tool".to_owned(),
                input,
                ..ToolCall::default()
            })
        };
        let ended = |outcome: Outcome| {
            Event::TurnEnded(TurnEnd {
                turn: 1,
                outcome,
                text: String::new(),
                output: None,
                usage: Usage::default(),
                tool_calls: 0,
                denied_calls: 0,
                reason: String::new(),
                raw: Value::Null,
            })
        };
        let request = PermissionRequest { call: Some("a".to_owned()), ..PermissionRequest::default() };
        let result = ToolResult { id: "b".to_owned(), status: ToolStatus::Ok, output: "read".to_owned() };
        let events = [
            Event::TurnStarted { turn: 1, message: None },
            Event::Text { text: "hi".to_owned(), parent: None },
            call("a", json!({"command": "ls"})),
            Event::PermissionRequested(request),
            call("b", json!({"file_path": "x"})),
            Event::ToolResult(result),
            ended(Outcome::Completed),
            Event::TurnStarted { turn: 2, message: None },
            ended(Outcome::Failed(Failure::new(FailureKind::Limit, "").resets(Reset::At(7)))),
            Event::TurnStarted { turn: 3, message: None },
            ended(Outcome::Interrupted),
        ];
        let script = script_of(&events);
        let read = Step::Tool {
            name: "Tool".to_owned(),
            input: json!({"file_path": "x"}),
            output: "read".to_owned(),
            asks: false,
        };
        let usage = Step::Usage(Usage::default());
        let expected = [
            Step::Say("hi".to_owned()),
            Step::Ask("ls".to_owned()),
            read,
            usage.clone(),
            Step::End(Ending::Ok),
        ];
        assert_eq!(script.turns[0].steps, expected);
        assert_eq!(script.turns[1].steps, [usage.clone(), Step::End(Ending::Limit(Reset::At(7)))]);
        assert_eq!(script.turns[2].steps, [usage, Step::Silent]);
        assert_eq!(Script::parse(&script.to_yaml()), Ok(script), "it can be read back");
    }
}
