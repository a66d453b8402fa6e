//! Errors of use cases: their kind, what happened, and what to do next as data that each interface puts into words.

use std::fmt;

use sprag_lifecycle::{RunId, RunStatus};
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
    /// The caller may not do this: its token does not permit it, or the object names others who may.
    Forbidden,
    /// The request is larger than it may be: the caller's mistake.
    TooLarge,
    /// The caller has or asks for too much at once, and may ask again after this many seconds.
    TooMany {
        /// The seconds to wait.
        retry_after_s: u64,
    },
    /// The store cannot be used at the moment, through no fault of the caller.
    Unavailable,
    /// The store did not answer: the request may have been carried out or not.
    UnknownOutcome,
    /// Git, the disk or another part of this machine failed.
    Failed,
    /// A bug, or a damaged store. No caller can mend it.
    Bug,
}

impl ErrorKind {
    /// Returns the word that programs see, unless the error has one of its own.
    pub fn code(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "not_found",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Refused => "refused",
            ErrorKind::Forbidden => "forbidden",
            ErrorKind::TooLarge => "too_large",
            ErrorKind::TooMany { .. } => "rate_limited",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::UnknownOutcome => "unknown",
            ErrorKind::Failed | ErrorKind::Bug => "failed",
        }
    }
}

/// Advice on what to do next. The command line puts it into words as commands, MCP as tools, and the server as
/// endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// Words that fit every caller.
    Text(String),
    /// Look up what a run waits for.
    ExplainRun(RunId),
    /// Name the step whose question is meant, such as this one.
    NameStep {
        /// The run that asks several questions.
        run: RunId,
        /// A step that asks one.
        step: String,
    },
    /// Look at a run.
    LookAtRun(RunId),
    /// Watch a run that another process works on, or cancel it.
    WatchOrCancel(RunId),
    /// Start the first run.
    StartARun,
    /// List the runs.
    ListRuns,
    /// List the boards, or create one.
    ListBoards {
        /// The open board with the most similar name, if one is close.
        near: Option<String>,
    },
    /// The run whose id is nearest to the one that was given.
    NearestRun {
        /// The run.
        run: RunId,
        /// Its pipeline.
        pipeline: String,
        /// Its status.
        status: RunStatus,
    },
    /// Start a new run, because cleaning up has forgotten the states of this one.
    StatesForgotten,
    /// Register the worker.
    RegisterWorker,
    /// Stop the work: another worker has it, or it is over.
    StopWork,
    /// Ask how much of a log has been received.
    AskForLogSize,
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
    /// The part of the request that is wrong, if it is the caller's mistake and in one part.
    pub field: Option<&'static str>,
    /// Advice on what to do next, if there is something better than what the kind suggests.
    pub hint: Option<Box<Hint>>,
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
            field: None,
            hint: None,
            refused: None,
            diagnostics: None,
        }
    }

    /// Returns the error for a caller's mistake.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    /// Returns the error for a mistake in one part of the request.
    pub(crate) fn field(field: &'static str, why: impl fmt::Display) -> Self {
        Error { field: Some(field), ..Error::invalid(format!("{field}: {why}")) }
    }

    /// Returns the error for a failure of this machine.
    pub fn failed(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Failed, message)
    }

    /// Returns the error for a failure that no caller can mend, which is logged and counted.
    pub fn bug(message: impl Into<String>) -> Self {
        let error = Error::new(ErrorKind::Bug, message);
        sprag_store::record_bug(&error.message);
        error
    }

    /// Sets advice on what to do next that fits every caller.
    pub fn next(self, next: impl Into<String>) -> Self {
        self.hint(Hint::Text(next.into()))
    }

    /// Sets advice on what to do next.
    pub fn hint(mut self, hint: Hint) -> Self {
        self.hint = Some(Box::new(hint));
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
        let message = error.to_string();
        let kind = match &error {
            StoreError::Refused { outcome, .. } => {
                return Error { message, ..Error::from(outcome.clone()) };
            }
            StoreError::Invalid { field, .. } => {
                return Error { field: Some(field), ..Error::invalid(message) };
            }
            StoreError::Forbidden { .. } => ErrorKind::Forbidden,
            StoreError::NoSuchRun(_) => ErrorKind::NotFound,
            StoreError::Conflict { .. } => ErrorKind::Refused,
            StoreError::Unknown { .. } => ErrorKind::UnknownOutcome,
            StoreError::Io { .. } | StoreError::Open { .. } => ErrorKind::Unavailable,
            _ if error.is_unavailable() => ErrorKind::Unavailable,
            // The store has logged and counted it.
            StoreError::Bug(_) => ErrorKind::Bug,
            _ => return Error::bug(message),
        };
        let hint = match &error {
            StoreError::Conflict { .. } => Some("read it again, then decide"),
            StoreError::Newer { .. } => Some("restart this process with the sprag that changed the database"),
            StoreError::Unknown { .. } => Some("check whether it was done before you repeat it"),
            _ => None,
        };
        Error { hint: hint.map(|hint| Box::new(Hint::Text(hint.to_owned()))), ..Error::new(kind, message) }
    }
}

impl From<sprag_worktree::Error> for Error {
    fn from(error: sprag_worktree::Error) -> Self {
        Error::failed(error.to_string())
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
