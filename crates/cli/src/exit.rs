//! Exit codes, documented and stable, and how an error is told.

use std::process::ExitCode;

use sprag_lifecycle::RunStatus;

/// How the program ends. The numbers are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// Something went wrong.
    Error = 1,
    /// The command line or a file makes no sense.
    Usage = 2,
    /// There was nothing to do.
    Nothing = 4,
    /// The run goes on when a person has answered.
    WaitsForPerson = 5,
    /// The run failed.
    RunFailed = 100,
    /// The time limit passed.
    TimedOut = 124,
    /// The run was cancelled.
    Cancelled = 130,
}

/// What the numbers mean, for `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0 ok · 1 error · 2 usage · 4 nothing to do · 5 waiting for a person
  100 run failed · 124 timed out · 130 cancelled";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

impl From<RunStatus> for Exit {
    fn from(status: RunStatus) -> Exit {
        match status {
            RunStatus::Failed | RunStatus::Failing => Exit::RunFailed,
            RunStatus::Cancelled | RunStatus::Cancelling => Exit::Cancelled,
            RunStatus::Queued | RunStatus::Running | RunStatus::Completed => Exit::Ok,
        }
    }
}

/// An error as the user sees it: what happened, and what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    pub(crate) next: Option<String>,
    /// The message is a picture of its own, with its own headings.
    pub(crate) drawn: bool,
}

impl Failure {
    pub(crate) fn error(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Error, message: message.into(), next: None, drawn: false }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Usage, ..Failure::error(message) }
    }

    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl From<sprag_store::Error> for Failure {
    fn from(error: sprag_store::Error) -> Self {
        Failure::error(error.to_string())
    }
}

impl From<sprag::Complaint> for Failure {
    fn from(complaint: sprag::Complaint) -> Self {
        let exit = match complaint.kind {
            sprag::ComplaintKind::Wrong => Exit::Usage,
            _ => Exit::Error,
        };
        Failure { exit, next: complaint.next, ..Failure::error(complaint.message) }
    }
}

impl From<sprag::Error> for Failure {
    fn from(error: sprag::Error) -> Self {
        Failure::error(error.to_string())
    }
}

impl From<sprag::boards::BoardError> for Failure {
    fn from(error: sprag::boards::BoardError) -> Self {
        use sprag::boards::BoardError;
        let exit = match &error {
            BoardError::Invalid(_) | BoardError::NoToken(_) => Exit::Usage,
            BoardError::Cancelled { .. } => Exit::Cancelled,
            _ => Exit::Error,
        };
        Failure { exit, ..Failure::error(error.to_string()).next(error.next()) }
    }
}

impl From<sprag_store::NotApplied> for Failure {
    fn from(refused: sprag_store::NotApplied) -> Self {
        Failure::error(refused.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::error(error.to_string())
    }
}

/// Tells the error on stderr, or as JSON, and gives its code.
pub(crate) fn report(failure: &Failure, json: bool) -> ExitCode {
    if json {
        let told = serde_json::json!({
            "type": "error", "code": failure.exit as u8, "message": failure.message, "next": failure.next,
        });
        eprintln!("{told}");
    } else if failure.drawn {
        eprintln!("{}", failure.message);
    } else {
        let style = crate::show::Style::stderr();
        eprintln!("{}: {}", style.red("error"), failure.message);
        if let Some(next) = &failure.next {
            eprintln!("{}: {next}", style.bold("next"));
        }
    }
    failure.exit.into()
}
