//! One turn, and the rules that decide its outcome: an agent's report alone is never a success.

use serde_json::Value;

use crate::event::{LimitNotice, Outcome};
use crate::failure::{Failure, FailureKind};
use crate::text::classify_answer;

/// An open turn.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) number: u64,
    /// The ids of its messages: the prompt, and those steered into it.
    pub(crate) messages: Vec<String>,
    pub(crate) is_started: bool,
    /// The last complete message of the agent.
    pub(crate) text: String,
    /// The pieces of the message that is being written.
    pub(crate) unfinished: String,
    /// Omitted bytes of that message, because it is too long.
    pub(crate) left_out: u64,
    pub(crate) tool_calls: u32,
    pub(crate) denied_calls: u32,
    /// The last error that nothing has contradicted since.
    pub(crate) hint: Option<Failure>,
    pub(crate) limit: Option<LimitNotice>,
    /// Whether the caller asked to end it.
    pub(crate) is_interrupted: bool,
    /// The reason why the driver itself asked to end it.
    pub(crate) given_up: Option<Failure>,
}

/// The end of a turn as the agent reported it.
#[derive(Debug)]
pub(crate) struct Reported {
    pub(crate) end: ReportedEnd,
    /// The agent's word for it.
    pub(crate) reason: String,
    /// The final text, if the report contains one.
    pub(crate) text: Option<String>,
    /// The structured output, if the report contains one.
    pub(crate) output: Option<Value>,
    /// The number of denied tool calls, if the report contains it.
    pub(crate) denied_calls: Option<u32>,
    pub(crate) raw: Value,
}

#[derive(Debug)]
pub(crate) enum ReportedEnd {
    Completed,
    Interrupted,
    Failed(Failure),
}

impl Turn {
    /// Decides the outcome. `wants_output` is true if the caller asked for structured output.
    pub(crate) fn outcome(&self, reported: &Reported, wants_output: bool) -> Outcome {
        // Asked for by the driver, which knows better than the agent's "interrupted" why.
        if let Some(failure) = &self.given_up {
            return Outcome::Failed(self.with_reset(failure.clone()));
        }
        match &reported.end {
            ReportedEnd::Interrupted => Outcome::Interrupted,
            ReportedEnd::Failed(failure) => {
                // After a cancel, agents report errors of all kinds. Only those that are about the account say more than "cancelled".
                let is_about_account = matches!(failure.kind, FailureKind::Limit | FailureKind::Auth);
                if self.is_interrupted && !is_about_account {
                    return Outcome::Interrupted;
                }
                Outcome::Failed(self.with_reset(failure.clone()))
            }
            ReportedEnd::Completed if self.is_interrupted => Outcome::Interrupted,
            ReportedEnd::Completed => match self.contradiction(reported, wants_output) {
                Some(failure) => Outcome::Failed(self.with_reset(failure)),
                None => Outcome::Completed,
            },
        }
    }

    /// Returns the failure that contradicts a reported success, if any.
    fn contradiction(&self, reported: &Reported, wants_output: bool) -> Option<Failure> {
        if let Some(hint) = &self.hint {
            // A limit, a login failure and an outage have their own reactions; any other error makes it a false
            // success.
            let kind = match hint.kind {
                FailureKind::Other => FailureKind::FalseSuccess,
                kind => kind,
            };
            let message = format!("the agent reported success after an error: {}", hint.message);
            return Some(Failure { kind, message, resets: hint.resets });
        }
        let text = reported.text.as_deref().unwrap_or(&self.text);
        if let Some(failure) = classify_answer(text) {
            return Some(failure);
        }
        if text.trim().is_empty() && self.tool_calls == 0 && reported.output.is_none() {
            let message = "the agent reported success and neither said nor did anything";
            return Some(Failure::new(FailureKind::Empty, message));
        }
        if wants_output && reported.output.is_none() {
            let message = "the agent reported success without the structured output that was asked for";
            return Some(Failure::new(FailureKind::SchemaNotMet, message));
        }
        None
    }

    /// Adds the reset time that the agent reported separately.
    fn with_reset(&self, mut failure: Failure) -> Failure {
        if failure.kind == FailureKind::Limit
            && let Some(resets) = self.limit.as_ref().and_then(|limit| limit.resets)
        {
            failure.resets = Some(resets);
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::failure::Reset;

    fn reported(end: ReportedEnd, text: &str) -> Reported {
        Reported {
            end,
            reason: String::new(),
            text: Some(text.to_owned()),
            output: None,
            denied_calls: None,
            raw: Value::Null,
        }
    }

    fn kind(outcome: Outcome) -> Option<FailureKind> {
        match outcome {
            Outcome::Failed(failure) => Some(failure.kind),
            _ => None,
        }
    }

    #[test]
    fn t02_no_reported_success_counts_that_something_contradicts() {
        let done = |text: &str| reported(ReportedEnd::Completed, text);
        let quiet = Turn::default();
        assert_eq!(quiet.outcome(&done("Done."), false), Outcome::Completed);
        assert_eq!(kind(quiet.outcome(&done(" \n"), false)), Some(FailureKind::Empty));
        assert_eq!(kind(quiet.outcome(&done("Done."), true)), Some(FailureKind::SchemaNotMet));
        assert_eq!(kind(quiet.outcome(&done("API Error: 500 oops"), false)), Some(FailureKind::Overload));
        let busy = Turn { tool_calls: 1, ..Turn::default() };
        assert_eq!(busy.outcome(&done(""), false), Outcome::Completed);
        let hinted = |kind| Turn { hint: Some(Failure::new(kind, "x")), ..Turn::default() };
        assert_eq!(
            kind(hinted(FailureKind::Other).outcome(&done("Done."), false)),
            Some(FailureKind::FalseSuccess)
        );
        assert_eq!(kind(hinted(FailureKind::Limit).outcome(&done("Done."), false)), Some(FailureKind::Limit));
        let with_output = Reported { output: Some(json!({})), ..done("") };
        assert_eq!(quiet.outcome(&with_output, true), Outcome::Completed);
    }

    #[test]
    fn t02_no_end_after_a_cancel_is_success() {
        let stopped = Turn { is_interrupted: true, ..Turn::default() };
        assert_eq!(stopped.outcome(&reported(ReportedEnd::Completed, "Done."), false), Outcome::Interrupted);
        let failed = |kind| reported(ReportedEnd::Failed(Failure::new(kind, "x")), "");
        assert_eq!(stopped.outcome(&failed(FailureKind::Other), false), Outcome::Interrupted);
        assert_eq!(kind(stopped.outcome(&failed(FailureKind::Limit), false)), Some(FailureKind::Limit));
    }

    #[test]
    fn a_limit_takes_its_reset_from_the_notice() {
        let limit = LimitNotice { resets: Some(Reset::At(7)), ..LimitNotice::default() };
        let turn = Turn { limit: Some(limit), ..Turn::default() };
        let report = reported(ReportedEnd::Failed(Failure::new(FailureKind::Limit, "full")), "");
        let Outcome::Failed(failure) = turn.outcome(&report, false) else { panic!("it failed") };
        assert_eq!(failure.resets, Some(Reset::At(7)));
    }

    #[test]
    fn a_turn_that_the_driver_gave_up_fails_for_the_drivers_reason() {
        let turn = Turn { given_up: Some(Failure::new(FailureKind::Auth, "401")), ..Turn::default() };
        assert_eq!(
            kind(turn.outcome(&reported(ReportedEnd::Interrupted, ""), false)),
            Some(FailureKind::Auth)
        );
    }
}
