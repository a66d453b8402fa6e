//! The checkout that a run is started in: whether a worktree can start from it, and its uncommitted changes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::Plan;
use sprag_pipeline::{DirtyPolicy, StepSpec, Workplace};
use sprag_process::withhold;
use sprag_worktree::{Cancel, Kind as GitKind, Repository, Uncommitted};
use tokio::sync::Semaphore;

use crate::error::{Error, ErrorKind};
use crate::view::UncommittedView;

/// The longest that the search for changes may delay the start of a run.
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// Checks that a run with a worktree can start in a folder of this machine: the folder is in a git repository, which has
/// the commit that the worktree starts from.
pub fn check_worktree(plan: &Plan, folder: &Path) -> Result<(), Error> {
    let Some(workplace) = workplace_of(plan) else { return Ok(()) };
    let base = |workplace: Workplace| workplace.worktree.map(|worktree| worktree.base);
    let Some(wanted) = base(workplace.clone()) else { return Ok(()) };
    withhold_secrets(plan);
    let found = Repository::discover(folder).and_then(|repository| {
        // A base that contains the id of the run is known when there is a run.
        let is_known = base(workplace.for_run("", "")).as_ref() == Some(&wanted);
        if is_known { repository.check_base(&wanted).map(drop) } else { Ok(()) }
    });
    found.map_err(|error| {
        let (message, next) = (error.kind.to_string(), error.kind.remedy());
        let error = match error.kind {
            GitKind::UnknownBase { .. } => Error::invalid(message),
            _ => Error::new(ErrorKind::Refused, message),
        };
        next.into_iter().fold(error, Error::next)
    })
}

/// Looks for uncommitted changes in the checkout around a folder, before a run with a worktree is started there.
/// Returns what to tell the person; an error if the pipeline refuses to begin beside them.
pub fn refuse_uncommitted(plan: &Plan, folder: &Path) -> Result<Option<UncommittedView>, Error> {
    match look(plan, folder) {
        Some((told, DirtyPolicy::Refuse)) if told.count.is_some() => {
            Err(Error::new(ErrorKind::Refused, told.message)
                .next("commit or stash them, then start the run again"))
        }
        found => Ok(found.map(|(told, _)| told)),
    }
}

/// Looks for uncommitted changes in the checkout around a folder in which a run with a worktree is started. Returns
/// what to tell the person. If the pipeline refuses to begin beside them, the worker blocks the run.
pub fn uncommitted(plan: &Plan, folder: &Path) -> Option<UncommittedView> {
    look(plan, folder).map(|(told, _)| told)
}

/// The number of checkouts that a server looks at in one moment.
const LOOKS_AT_ONCE: usize = 4;

/// The search for uncommitted changes on behalf of a server's callers. A slow checkout does not delay callers that
/// start a run elsewhere.
#[derive(Debug, Clone)]
pub struct CheckoutLooks {
    /// None where no run begins in a folder of this machine: git is not run there for a caller.
    places: Option<Arc<Semaphore>>,
}

impl CheckoutLooks {
    /// Looks only if runs may begin on this machine.
    pub fn new(runs_begin_here: bool) -> Self {
        CheckoutLooks { places: runs_begin_here.then(|| Arc::new(Semaphore::new(LOOKS_AT_ONCE))) }
    }

    /// Does the same as [`uncommitted`], without blocking the tasks that answer other requests.
    pub async fn uncommitted(&self, plan: &Arc<Plan>, folder: &Path) -> Option<UncommittedView> {
        dirty_of(plan)?;
        let unknown =
            |why: &str| UncommittedView::unknown(format!("cannot check for uncommitted changes: {why}"));
        let Ok(place) = Arc::clone(self.places.as_ref()?).try_acquire_owned() else {
            return Some(unknown("the server is busy with other checkouts"));
        };
        let (plan, folder) = (Arc::clone(plan), folder.to_owned());
        // The caller may disconnect: its place becomes free when the search is over, not before.
        let look = tokio::task::spawn_blocking(move || {
            let told = uncommitted(&plan, &folder);
            drop(place);
            told
        });
        look.await.unwrap_or_else(|error| Some(unknown(&error.to_string())))
    }
}

fn look(plan: &Plan, folder: &Path) -> Option<(UncommittedView, DirtyPolicy)> {
    let dirty = dirty_of(plan)?;
    withhold_secrets(plan);
    let found = match Uncommitted::of(folder, &Cancel::default(), LONGEST_LOOK) {
        Ok(found) => found?,
        Err(error) => return Some((UncommittedView::unknown(error.to_string()), dirty)),
    };
    let message = match dirty {
        DirtyPolicy::Ignore => {
            format!("not part of this run: {found}; commit, or set `worktree: {{ dirty: include }}`")
        }
        DirtyPolicy::Include => format!("this run starts with {found}"),
        DirtyPolicy::Refuse => {
            format!("the run does not start because of {found}: `worktree.dirty` is `refuse`")
        }
    };
    Some((UncommittedView { count: Some(found.count), files: found.files, message }, dirty))
}

fn dirty_of(plan: &Plan) -> Option<DirtyPolicy> {
    Some(workplace_of(plan)?.worktree?.dirty)
}

fn workplace_of(plan: &Plan) -> Option<Workplace> {
    serde_json::from_str(&plan.environment.as_ref()?.spec).ok()
}

/// Keeps the secrets of a pipeline from git processes that this process starts, so that filters and hooks get none.
/// Every step names all of them.
fn withhold_secrets(plan: &Plan) {
    let spec = plan.steps.iter().find_map(|step| serde_json::from_str::<StepSpec>(&step.spec).ok());
    withhold(spec.iter().flat_map(|spec| &spec.masks).map(String::as_str));
}
