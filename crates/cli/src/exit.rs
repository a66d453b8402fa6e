//! Exit codes, documented and stable, and the output of errors.

use std::process::ExitCode;

use sprag_app::{ErrorKind, Hint};
use sprag_lifecycle::RunStatus;

/// The exit codes of the program. The numbers are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Ok = 0,
    /// An error.
    Error = 1,
    /// The command line or a file is wrong, or names something that does not exist.
    Usage = 2,
    /// There was nothing to do.
    Nothing = 4,
    /// The run waits for a person's answer.
    WaitsForPerson = 5,
    /// The run failed.
    RunFailed = 100,
    /// The time limit passed.
    TimedOut = 124,
    /// The run was cancelled.
    Cancelled = 130,
}

/// The meaning of the exit codes, for `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0 ok · 1 error · 2 usage: the command line or a file is wrong, or names
  something that does not exist · 4 nothing to do · 5 waiting for a person
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

/// An error as the user sees it: the message, and what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    pub(crate) next: Option<String>,
    /// Whether the message is a rendered report with its own headings.
    pub(crate) drawn: bool,
    /// The problems of a pipeline or its inputs, for `--json`.
    pub(crate) diagnostics: Option<Box<sprag_app::Diagnostics>>,
}

impl Failure {
    pub(crate) fn error(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Error, message: message.into(), next: None, drawn: false, diagnostics: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Usage, ..Failure::error(message) }
    }

    /// A request about a run that has ended, which leaves nothing to do. `at` is added to the commands that it names.
    pub(crate) fn ended(run: &str, status: &str, at: &str) -> Self {
        let next = if status == "completed" {
            format!("run a step again with `sprag retry {run} --step STEP{at}`")
        } else {
            format!("look at it with `sprag status {run}{at}`, or continue it with `sprag resume {run}{at}`")
        };
        let failure = Failure::error(format!("run {run} is {status}: there is nothing to do")).next(next);
        Failure { exit: Exit::Nothing, ..failure }
    }

    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl From<sprag_app::Error> for Failure {
    fn from(error: sprag_app::Error) -> Self {
        let exit = match (error.code, error.kind) {
            // The command line is wrong, or names something that does not exist.
            ("no_token", _) | (_, ErrorKind::Invalid | ErrorKind::NotFound) => Exit::Usage,
            ("cancelled", _) => Exit::Cancelled,
            ("no_worktree", _) => Exit::Nothing,
            _ => Exit::Error,
        };
        Failure {
            exit,
            next: error.hint.map(|hint| words(*hint)),
            diagnostics: error.diagnostics,
            ..Failure::error(error.message)
        }
    }
}

/// Puts advice into words for people at a terminal.
fn words(hint: Hint) -> String {
    match hint {
        Hint::Text(text) => text,
        Hint::ExplainRun(run) => format!("see what it waits for: sprag explain {run}"),
        Hint::NameStep { run, step } => format!("name the step: sprag approve {run} {step}"),
        Hint::LookAtRun(run) => format!("look at it with `sprag status {run}`"),
        Hint::WatchOrCancel(run) => {
            format!("watch it with `sprag logs -f {run}`, or cancel it with `sprag cancel {run}`")
        }
        Hint::StartARun => "start one: sprag run FILE".into(),
        Hint::ListRuns => "list the runs: sprag ls".into(),
        Hint::ListBoards { near } => {
            let near = near.map(|near| format!("did you mean {near:?}? ")).unwrap_or_default();
            format!("{near}`sprag board ls` lists the boards, `sprag board new NAME` creates one")
        }
        Hint::NearestRun { run, pipeline, status } => {
            format!("did you mean {run} ({pipeline}, {status})? `sprag ls` lists the runs")
        }
        Hint::StatesForgotten => {
            "`sprag env gc` deletes the states of old runs; start a new run instead".into()
        }
        Hint::RegisterWorker => "register the worker first".into(),
        Hint::StopWork => "stop the work: another worker has it, or it is over".into(),
        Hint::AskForLogSize => "ask how much has been received".into(),
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::error(error.to_string())
    }
}

/// Prints the error on stderr, or as JSON, and returns its exit code.
pub(crate) fn report(failure: &Failure, json: bool) -> ExitCode {
    if json {
        let mut told = serde_json::json!({
            "type": "error", "code": failure.exit as u8, "message": failure.message, "next": failure.next,
        });
        if let Some(diagnostics) = &failure.diagnostics {
            // The rendered report is for people.
            let problems = serde_json::json!(diagnostics);
            told["message"] = problems[0]["message"].clone();
            told["diagnostics"] = problems;
        }
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
