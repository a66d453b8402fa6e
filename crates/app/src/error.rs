//! Errors of use cases: their kind, what happened, and what to do next.

use std::fmt;

use sprag_pipeline::Diagnostics;
use sprag_store::NotApplied;

/// The kind of an error. It decides the exit code and the HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The thing that the caller names does not exist.
    NotFound,
    /// The request makes no sense: the caller's mistake.
    Invalid,
    /// The request makes sense, but not in the present state.
    Refused,
    /// The store cannot be used at the moment, through no fault of the caller.
    Unavailable,
    /// The store did not answer: the request may have been carried out or not.
    UnknownOutcome,
    /// A bug, a broken store, or a failure of this machine. No caller can mend it.
    Bug,
}

impl ErrorKind {
    /// Returns the word that programs see, unless the error has one of its own.
    fn code(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "not_found",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Refused => "refused",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::UnknownOutcome => "unknown",
            ErrorKind::Bug => "failed",
        }
    }
}

/// An error of a use case.
#[derive(Debug, Clone)]
pub struct Error {
    /// The kind, which decides the exit code and the HTTP status.
    pub kind: ErrorKind,
    /// A word for programs, such as `lost` for a task's token that was taken away.
    pub code: &'static str,
    /// A message for people: what happened.
    pub message: String,
    /// Advice on what to do next, if there is something better than what the kind suggests.
    pub next: Option<String>,
    /// The refused transition, if a table refused one.
    pub refused: Option<Box<NotApplied>>,
    /// The problems of a pipeline or its inputs, each with its place.
    pub diagnostics: Option<Box<Diagnostics>>,
}

impl Error {
    /// Returns an error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error {
            kind,
            code: kind.code(),
            message: message.into(),
            next: None,
            refused: None,
            diagnostics: None,
        }
    }

    /// Returns the error for a caller's mistake.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    /// Returns the error for a failure that no caller can mend.
    pub fn bug(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Bug, message)
    }

    /// Sets the advice on what to do next.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Sets a more specific word for programs.
    pub(crate) fn coded(mut self, code: &'static str) -> Self {
        self.code = code;
        self
    }

    /// Sets the transition that was refused.
    pub(crate) fn because(mut self, refused: NotApplied) -> Self {
        self.refused = Some(Box::new(refused));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<sprag_store::Error> for Error {
    fn from(error: sprag_store::Error) -> Self {
        use sprag_store::Error as StoreError;
        let (kind, next) = match error {
            StoreError::NoSuchRun(_) => (ErrorKind::NotFound, None),
            StoreError::Refused(_) => (ErrorKind::Refused, None),
            StoreError::Conflict { .. } => (ErrorKind::Refused, Some("read it again, then decide")),
            StoreError::Newer { .. } => (
                ErrorKind::Unavailable,
                Some("restart this process with the sprag that changed the database"),
            ),
            _ if error.is_unavailable() => (ErrorKind::Unavailable, None),
            StoreError::Unknown { .. } => {
                (ErrorKind::UnknownOutcome, Some("check whether it was done before you repeat it"))
            }
            _ => (ErrorKind::Bug, None),
        };
        Error { next: next.map(str::to_owned), ..Error::new(kind, error.to_string()) }
    }
}

impl From<NotApplied> for Error {
    fn from(refused: NotApplied) -> Self {
        let kind = match refused {
            NotApplied::NotFound { .. } => ErrorKind::NotFound,
            _ => ErrorKind::Refused,
        };
        Error::new(kind, refused.to_string()).because(refused)
    }
}

impl From<Diagnostics> for Error {
    fn from(problems: Diagnostics) -> Self {
        let mut error = Error::invalid(problems.to_string()).coded("pipeline");
        error.diagnostics = Some(Box::new(problems));
        error
    }
}
