//! What cannot be done for somebody, told so that they can act on it.

use std::fmt;

/// Of what kind a complaint is: whoever shows it chooses exit code or HTTP status by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What is named is not there.
    NotFound,
    /// What is asked for makes no sense.
    Wrong,
    /// It makes sense, but not now.
    Refused,
    /// Something failed.
    Failed,
}

/// What cannot be done, why, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// Of what kind.
    pub kind: Kind,
    /// What happened.
    pub message: String,
    /// What to do next.
    pub next: Option<String>,
    /// The refused transition, if there was one.
    pub refused: Option<sprag_store::NotApplied>,
}

impl Complaint {
    /// A complaint of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Complaint { kind, message: message.into(), next: None, refused: None }
    }

    /// Something failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Complaint::new(Kind::Failed, message)
    }

    /// Says what to do next.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Complaint {}

impl From<sprag_store::Error> for Complaint {
    fn from(error: sprag_store::Error) -> Self {
        let kind = match error {
            sprag_store::Error::NoSuchRun(_) => Kind::NotFound,
            sprag_store::Error::Refused(_) => Kind::Refused,
            _ => Kind::Failed,
        };
        Complaint::new(kind, error.to_string())
    }
}

impl From<sprag_store::NotApplied> for Complaint {
    fn from(refused: sprag_store::NotApplied) -> Self {
        let kind = match refused {
            sprag_store::NotApplied::NotFound { .. } => Kind::NotFound,
            _ => Kind::Refused,
        };
        Complaint { refused: Some(refused.clone()), ..Complaint::new(kind, refused.to_string()) }
    }
}
