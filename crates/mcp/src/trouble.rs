//! What could not be done, told so that an agent knows what to do next.

use rmcp::ErrorData;
use serde_json::{Value, json};
use sprag::boards::BoardError;
use sprag::{Complaint, ComplaintKind, Diagnostics};

/// Why a tool could not do what it was asked.
#[derive(Debug)]
pub(crate) struct Trouble {
    code: &'static str,
    message: String,
    next: String,
}

impl Trouble {
    pub(crate) fn new(code: &'static str, message: impl Into<String>, next: impl Into<String>) -> Self {
        Trouble { code, message: message.into(), next: next.into() }
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn gone() -> Self {
        Trouble::new("cancelled", "the call was cancelled", "call it again if it is still wanted")
    }

    /// As the agent reads it.
    pub(crate) fn told(&self) -> Value {
        json!({ "error": self.code, "message": self.message, "next": self.next })
    }

    /// For requests that are not tools, and have no other way to say it.
    pub(crate) fn into_error(self) -> ErrorData {
        ErrorData::invalid_params(format!("{}; {}", self.message, self.next), Some(self.told()))
    }
}

impl From<BoardError> for Trouble {
    fn from(error: BoardError) -> Self {
        Trouble::new(error.code(), error.to_string(), error.next())
    }
}

impl From<Complaint> for Trouble {
    fn from(complaint: Complaint) -> Self {
        let (code, next) = match complaint.kind {
            ComplaintKind::NotFound => ("not_found", "look at what there is: run_list"),
            ComplaintKind::Wrong => ("invalid", "correct it and try again; nothing was changed"),
            ComplaintKind::Refused => ("refused", "look at the run before trying again: run_status"),
            ComplaintKind::Failed => ("failed", "try again in a moment"),
        };
        Trouble::new(code, complaint.message, complaint.next.unwrap_or_else(|| next.to_owned()))
    }
}

impl From<sprag_store::Error> for Trouble {
    fn from(error: sprag_store::Error) -> Self {
        Complaint::from(error).into()
    }
}

impl From<sprag_store::NotApplied> for Trouble {
    fn from(refused: sprag_store::NotApplied) -> Self {
        Complaint::from(refused).into()
    }
}

impl From<Diagnostics> for Trouble {
    fn from(diagnostics: Diagnostics) -> Self {
        Trouble::new("invalid", diagnostics.to_string(), "correct the pipeline or its inputs and try again")
    }
}
