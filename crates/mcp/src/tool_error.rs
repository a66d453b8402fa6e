//! Errors of tools, with a hint that tells the agent what to do next.

use rmcp::ErrorData;
use serde_json::{Value, json};
use sprag_app::{Diagnostics, Error, ErrorKind};

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
            ErrorKind::Unavailable | ErrorKind::Bug => "try again in a moment",
            ErrorKind::UnknownOutcome => "check whether it was done before you repeat it",
        };
        let code = if error.diagnostics.is_some() { "invalid" } else { error.code };
        ToolError::new(code, error.message, error.next.unwrap_or_else(|| next.to_owned()))
    }
}

impl From<Diagnostics> for ToolError {
    fn from(diagnostics: Diagnostics) -> Self {
        Error::from(diagnostics).into()
    }
}
