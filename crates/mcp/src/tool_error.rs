//! Errors of tools, with a hint that tells the agent what to do next.

use rmcp::ErrorData;
use serde_json::{Value, json};
use sprag_app::{Diagnostics, Error, ErrorKind, Hint};

/// The error of a tool.
#[derive(Debug)]
pub(crate) struct ToolError {
    code: &'static str,
    message: String,
    next: String,
}

impl ToolError {
    pub(crate) fn new(code: &'static str, message: impl Into<String>, next: impl Into<String>) -> Self {
        ToolError { code, message: message.into(), next: next.into() }
    }

    /// Creates the error of a call that was cancelled, because its caller no longer waits for the answer.
    pub(crate) fn gone() -> Self {
        ToolError::new("cancelled", "the call was cancelled", "call it again if you still need it")
    }

    /// Returns the error as the agent reads it.
    pub(crate) fn told(&self) -> Value {
        json!({ "error": self.code, "message": self.message, "next": self.next })
    }

    /// Converts the error for requests that are not tools, which can fail in no other way.
    pub(crate) fn into_error(self) -> ErrorData {
        ErrorData::invalid_params(format!("{}; {}", self.message, self.next), Some(self.told()))
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        let next = match error.kind {
            ErrorKind::NotFound => "list the runs: run_list",
            ErrorKind::Invalid if error.diagnostics.is_some() => {
                "correct the pipeline or its inputs and try again"
            }
            ErrorKind::Invalid => "correct it and try again; nothing was changed",
            ErrorKind::Refused => "check the run before you try again: run_status",
            ErrorKind::Forbidden => "ask the person who gave you the token; do not try again",
            ErrorKind::TooLarge => "send less",
            ErrorKind::TooMany { .. } => "wait a minute and try again",
            ErrorKind::Unavailable | ErrorKind::Failed | ErrorKind::Bug => "try again in a moment",
            ErrorKind::UnknownOutcome => "check whether it was done before you repeat it",
        };
        let code = if error.diagnostics.is_some() { "invalid" } else { error.code };
        ToolError::new(code, error.message, error.hint.map_or_else(|| next.to_owned(), |hint| words(*hint)))
    }
}

/// Puts advice into words for agents.
fn words(hint: Hint) -> String {
    match hint {
        Hint::Text(text) => text,
        Hint::ExplainRun(run) => format!("see what it waits for: run_explain {run}"),
        Hint::NameStep { step, .. } => format!("name the step, such as {step:?}"),
        Hint::LookAtRun(run) => format!("look at it: run_status {run}"),
        Hint::WatchOrCancel(run) => {
            format!("watch it with run_status {run}, or end it with run_cancel {run}")
        }
        Hint::StartARun => "start one: run_start".into(),
        Hint::ListRuns => "list the runs: run_list".into(),
        Hint::ListBoards { near } => {
            let near = near.map(|near| format!("did you mean {near:?}? ")).unwrap_or_default();
            format!("{near}board_list lists the boards, board_create creates one")
        }
        Hint::NearestRun { run, pipeline, status } => {
            format!("the nearest is {run} ({pipeline}, {status}); run_list lists them")
        }
        Hint::StatesForgotten => {
            "the states of old runs are forgotten when cleaning up; start a new run".into()
        }
        Hint::RegisterWorker => "register the worker first".into(),
        Hint::StopWork => "stop the work: another worker has it, or it is over".into(),
        Hint::AskForLogSize => "ask how much has been received".into(),
    }
}

impl From<Diagnostics> for ToolError {
    fn from(diagnostics: Diagnostics) -> Self {
        Error::from(diagnostics).into()
    }
}
