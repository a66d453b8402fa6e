//! The rule for success in one place, and the failure of a process that exits early.
//!
//! A turn succeeds if there is a terminal event, no error hint, some content, no cancel, and the output matches its
//! schema. The first four are decided when the turn ends ([`crate::Outcome`]). The caller checks the schema and the
//! step's own conditions.

use serde_json::Value;

use crate::event::{Outcome, TurnEnd};
use crate::failure::{Failure, FailureKind};
use crate::text::{classify_error, shorten};

/// The judgement of a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The turn succeeded.
    Success,
    /// The turn was cancelled.
    Interrupted,
    /// The turn failed.
    Failed(Failure),
}

/// A check of structured output against its schema. The error describes the mismatch.
pub type SchemaCheck<'a> = &'a dyn Fn(&Value) -> Result<(), String>;

/// Judges a turn. `validate` checks the structured output against its schema; pass it if and only if the launch had a
/// schema.
pub fn judge(end: &TurnEnd, validate: Option<SchemaCheck<'_>>) -> Verdict {
    match (&end.outcome, validate) {
        (Outcome::Failed(failure), _) => Verdict::Failed(failure.clone()),
        (Outcome::Interrupted, _) => Verdict::Interrupted,
        (Outcome::Completed, None) => Verdict::Success,
        (Outcome::Completed, Some(validate)) => {
            let checked = match &end.output {
                None => Err("there is none".to_owned()),
                Some(output) => validate(output),
            };
            match checked {
                Ok(()) => Verdict::Success,
                Err(reason) => {
                    let message = format!("the structured output does not fit its schema: {reason}");
                    Verdict::Failed(Failure::new(FailureKind::SchemaNotMet, message))
                }
            }
        }
    }
}

/// The end of a process, as its supervisor reports it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exit<'a> {
    /// The exit code, if it exited.
    pub code: Option<i32>,
    /// The signal, if one killed it.
    pub signal: Option<i32>,
    /// The last lines of its stderr.
    pub stderr: &'a str,
}

/// Returns the failure of a process that exited without a terminal event. Some agents report only on stderr why they do
/// not start.
pub fn explain_exit(exit: Exit<'_>) -> Failure {
    let end = match (exit.code, exit.signal) {
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        (Some(code), None) => format!("exited with code {code}"),
        (None, None) => "ended".to_owned(),
    };
    // Programs print progress first and the reason last.
    let lines: Vec<&str> = exit.stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tail = lines[lines.len().saturating_sub(5)..].join(" / ");
    if tail.is_empty() {
        return Failure::new(FailureKind::Exited, format!("the agent {end} without ending its turn"));
    }
    let said = classify_error(&tail);
    // An outage does not make an agent exit; only failures that prevent a start explain the exit.
    let kind = match said.kind {
        FailureKind::Auth | FailureKind::Limit | FailureKind::SessionUnknown | FailureKind::SessionInUse => {
            said.kind
        }
        _ => FailureKind::Exited,
    };
    Failure::new(kind, shorten(&format!("the agent {end}: {tail}"))).resets(said.resets)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::usage::Usage;

    fn end(outcome: Outcome, output: Option<Value>) -> TurnEnd {
        TurnEnd {
            turn: 1,
            outcome,
            text: "Done.".to_owned(),
            output,
            usage: Usage::default(),
            tool_calls: 0,
            denied_calls: 0,
            reason: "end_turn".to_owned(),
            raw: Value::Null,
        }
    }

    #[test]
    fn t02_output_that_does_not_fit_is_no_success() {
        let has_verdict = |output: &Value| -> Result<(), String> {
            output["verdict"].as_str().map(|_| ()).ok_or_else(|| "verdict must be a string".to_owned())
        };
        let fits = end(Outcome::Completed, Some(json!({"verdict": "good"})));
        assert_eq!(judge(&fits, Some(&has_verdict)), Verdict::Success);
        for output in [Some(json!({"verdict": 7})), None] {
            let Verdict::Failed(failure) = judge(&end(Outcome::Completed, output), Some(&has_verdict)) else {
                panic!("it does not fit")
            };
            assert_eq!(failure.kind, FailureKind::SchemaNotMet);
        }
        assert_eq!(judge(&end(Outcome::Completed, None), None), Verdict::Success);
        assert_eq!(judge(&end(Outcome::Interrupted, None), None), Verdict::Interrupted);
    }

    #[test]
    fn the_end_of_a_process_is_explained_by_its_stderr() {
        let exit = |stderr| explain_exit(Exit { code: Some(1), signal: None, stderr });
        assert_eq!(exit("").kind, FailureKind::Exited);
        assert_eq!(exit("Error: Session ID 1b72 is already in use.\n").kind, FailureKind::SessionInUse);
        assert_eq!(exit("No conversation found with session ID: x").kind, FailureKind::SessionUnknown);
        assert_eq!(exit("panicked at src/main.rs").kind, FailureKind::Exited);
        let killed = explain_exit(Exit { code: None, signal: Some(9), stderr: "" });
        assert!(killed.message.contains("signal 9"), "{killed}");
    }
}
