//! The changes that a run's steps made in its worktree, as a patch.

use serde::Serialize;
use sprag_worker::before;
use sprag_worktree::{Checkpoint, Repository};

use crate::App;
use crate::error::{Error, ErrorKind};
use crate::known::RunWithPlan;
use crate::resume::{host_elsewhere, repository_of, run_environment};

/// The changes between two recorded states of a run's worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunDiff {
    /// The run.
    pub run: String,
    /// The commit of the first state.
    pub from: String,
    /// The commit of the second state.
    pub to: String,
    /// The changes, as git prints them; empty if there are none.
    pub patch: String,
}

/// The most bytes of a patch that a server answers with. It holds the whole of it in memory.
pub const MOST_OVER_HTTP: usize = 32 << 20;

/// Returns what a run changed in its worktree: all of it so far, what one step changed (`STEP`), or the changes between
/// the ends of two steps (`STEP..STEP`). A patch of more than `most` bytes is refused.
pub fn run_diff(app: &App, known: &RunWithPlan, steps: Option<&str>, most: usize) -> Result<RunDiff, Error> {
    let id = known.id();
    let failed = |error: sprag_worktree::Error| Error::failed(error.to_string());
    let Some(repository) = repository_of(app, id)? else {
        if let Some(host) = host_elsewhere(app, id)? {
            let host = crate::text::plain(&host);
            return Err(Error::new(ErrorKind::Refused, format!("the worktree of run {id} is on {host}"))
                .next("look at it there"));
        }
        return Err(Error::new(ErrorKind::Refused, format!("run {id} has no worktree"))
            .next("only runs of pipelines with `environment: { worktree: … }` have one"));
    };
    let state = |step: &str| -> Result<Checkpoint, Error> {
        repository.find_checkpoint(&id.to_string(), step).map_err(|_| no_state(known, &repository, step))
    };
    let (from, to) = match steps {
        Some(pair) if pair.contains("..") => {
            let (from, to) = pair.split_once("..").unwrap_or_default();
            (state(from)?.commit, state(to)?.commit)
        }
        Some(step) => (state(&before(step))?.commit, state(step)?.commit),
        None => {
            let last = app.last_finished(id)?.iter().find_map(|step| state(step).ok());
            let begun = repository.recorded_uncommitted(&id.to_string()).map_err(failed)?;
            let base = match begun {
                Some(begun) => Some(begun.commit),
                None => run_environment(app, id)?.and_then(|(_, details)| details.base_commit),
            };
            match (base, last) {
                (Some(base), Some(last)) => (base, last.commit),
                _ => {
                    let why = format!("no step of run {id} has been recorded yet");
                    return Err(Error::new(ErrorKind::Refused, why));
                }
            }
        }
    };
    let patch = repository.diff(&from, &to, most).map_err(|error| match error.kind {
        sprag_worktree::Kind::TooMuchOutput { most, .. } => {
            let why = format!("the changes of run {id} are larger than {} MB", most >> 20);
            Error::new(ErrorKind::Refused, why)
                .next("look at one step, or use `sprag diff` on the machine with the worktree")
        }
        _ => failed(error),
    })?;
    Ok(RunDiff { run: id.to_string(), from, to, patch })
}

fn no_state(known: &RunWithPlan, repository: &Repository, step: &str) -> Error {
    let all = repository.checkpoints(&known.id().to_string()).unwrap_or_default();
    let names: Vec<&str> = all
        .iter()
        .filter_map(|state| state.name.rsplit('/').next())
        .filter(|name| !name.starts_with('_'))
        .collect();
    let step = step.trim_start_matches('_');
    Error::invalid(format!("nothing is recorded of step {step:?} of run {}", known.id()))
        .next(format!("there is: {}", if names.is_empty() { "nothing yet".into() } else { names.join(", ") }))
}
