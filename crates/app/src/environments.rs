//! Looking after the environments of runs: removes those that are not needed, retries failed removals, and lists them
//! for people. Workers make them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sprag_lifecycle::{EnvironmentEvent, EnvironmentStatus, RunId, RunStatus, StepNo, WorkerStatus};
use sprag_pipeline::{Kind, StepSpec};
use sprag_store::{
    EnvironmentDetails, EnvironmentReport, EnvironmentRow, Id, KeptBecause, Row, Store, kept_because,
};
use sprag_sweeper::{Effect, EffectFuture};
use sprag_worktree::{
    BranchFate, BranchPolicy, Cancel, Kind as GitKind, Leftover, Mark, Parked, Ports, Removed, Repository,
    Salvaged, SavedModule, Settings, State, Worktrees,
};

use crate::App;
use crate::error::{Error, ErrorKind};
use crate::local_files::LocalFiles;

/// The fate of a worktree that its run no longer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The worktree joins the pool for the next run, unless the pool is full.
    Pool,
    /// The worktree is removed.
    Nothing,
}

/// The keeper of the environments on this host.
#[derive(Clone)]
pub struct Environments {
    pub(crate) store: Store,
    data: PathBuf,
    worker: Id,
}

/// A person's checkout that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfOrder {
    /// The checkout.
    pub checkout: PathBuf,
    /// The problem, for people.
    pub why: String,
    /// The command that puts it in order.
    pub repair: String,
}

/// The steps of a run that land its work.
struct Landings {
    /// The files of the run's environment.
    files: LocalFiles,
    /// The number and the present attempt of each step.
    steps: Vec<(StepNo, u32)>,
}

impl Environments {
    /// Looks after the environments in this data directory, in the name of this worker.
    pub fn new(app: &App, worker: Id) -> Self {
        Environments { store: app.store.clone(), data: app.data().to_owned(), worker }
    }

    /// Returns the reason why an environment is kept; none if nothing keeps it.
    pub fn kept_because(&self, row: &EnvironmentRow) -> Result<Option<String>, Error> {
        let Some(run) = row.run else { return Ok(None) };
        let run = self.store.queries().run(run)?;
        let because = kept_because(row, run.map(|run| run.status()))?;
        Ok(because.map(|because| match because {
            KeptBecause::RunIsLive(status) => format!("its run is {status}"),
            KeptBecause::Always => "keep: always".into(),
            KeptBecause::OnFailure(status) => format!("keep: on_failure, and its run {}", ended(status)),
        }))
    }

    /// Returns the reason why an environment is still there, as text for people.
    pub fn why_there(&self, row: &EnvironmentRow) -> String {
        let kept = self.kept_because(row).unwrap_or_else(|error| Some(error.message));
        match (kept, &row.reason) {
            (Some(kept), _) => kept,
            (None, Some(reason)) => crate::text::plain(reason),
            (None, None) => "to be removed".into(),
        }
    }

    /// Removes what a run that has ended no longer needs.
    pub async fn run_ended(&self, run: RunId) -> Result<(), Error> {
        let rows = self.store.queries().environments_of(run)?;
        self.fence_off(run);
        let mut wrong = Vec::new();
        // Workers of another host or of another data directory remove their own environments.
        let rows = rows.iter().filter(|row| self.has_here(row));
        for row in rows.filter(|row| row.status() != EnvironmentStatus::Destroyed) {
            if self.kept_because(row)?.is_none()
                && let Err(error) = self.remove(row, Then::Pool).await
            {
                wrong.push(error.message);
            }
        }
        if let Ok(ports) = Ports::open(&self.data) {
            let _ = ports.release(&run.to_string());
        }
        if wrong.is_empty() { Ok(()) } else { Err(Error::failed(wrong.join("; "))) }
    }

    /// Whether an environment's files are in this data directory.
    pub(crate) fn has_here(&self, row: &EnvironmentRow) -> bool {
        LocalFiles::of(row).is_some_and(|files| files.are_in(&self.data.join("worktrees")))
    }

    /// Whether an environment's files are nowhere: it was never made, or its host was lost.
    fn is_nowhere(row: &EnvironmentRow) -> bool {
        row.path.is_empty() || row.host.is_empty()
    }

    /// Asks the workers of an environment's own host and data directory to remove it.
    async fn ask_its_workers(&self, row: &EnvironmentRow) -> Result<String, Error> {
        let asked = self.store.person().request_cleanup(row.id).await?;
        let whose = format!("{} on {}", row.path, crate::text::plain(&row.host));
        Ok(if asked {
            format!("{whose} is not in this data directory: the workers there are asked to remove it")
        } else {
            "it was already gone".into()
        })
    }

    /// Removes an environment of this data directory, or gives its worktree to the pool. Saves its work first and
    /// returns where. Leaves any other environment to the workers that have it.
    pub async fn remove(&self, row: &EnvironmentRow, then: Then) -> Result<String, Error> {
        sprag_worker::bury(&self.store, row.owner).await;
        if !Self::is_nowhere(row) && !self.has_here(row) {
            return self.ask_its_workers(row).await;
        }
        let files = LocalFiles::of(row);
        let path = files.as_ref().map(|files| files.path.clone()).unwrap_or_default();
        // A worktree that could not be removed may have been moved aside.
        let present = files.is_some() && (path.exists() || row.status() == EnvironmentStatus::Error);
        let attempt = self.store.claims().dispatch_destroy(row.id, self.worker, present).await?;
        let (Some(attempt), Some(files)) = (attempt, files) else {
            return if present {
                let why = format!("{} is in use, or another process removes it", path.display());
                Err(Error::new(ErrorKind::Refused, why))
            } else {
                Ok("it was already gone".into())
            };
        };
        let caches = EnvironmentDetails::of_readable(row).caches;
        let (root, run) =
            (self.data.join("worktrees"), row.run.map(|run| run.to_string()).unwrap_or_default());
        let removed = tokio::task::spawn_blocking(move || remove_or_pool(&files, &caches, &root, &run, then))
            .await
            .map_err(|error| Error::bug(format!("the work of a removal is gone: {error}")))?;
        let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
        let (event, reason) = match &removed {
            Ok(_) => (EnvironmentEvent::DestroySucceeded, None),
            Err(why) => (EnvironmentEvent::DestroyFailed, Some(why.message.clone())),
        };
        let run = row.run.map(|run| run.to_string()).unwrap_or_default();
        match &removed {
            Ok(how) => tracing::info!(run, path = %path.display(), how, "environment removed"),
            Err(why) => {
                tracing::warn!(run, path = %path.display(), %why, "removing an environment failed: it is retried")
            }
        }
        let _ = self.store.claims().environment(row.id, event, given, reason).await?;
        removed
    }

    /// Moves the fences of a run that has ended, so that no process lands its work any more. A process that was
    /// paused while it landed finds its fence moved.
    fn fence_off(&self, run: RunId) {
        let Ok(Some(Landings { files, steps })) = self.landings(run) else { return };
        let Some(repository) = files.repository() else { return };
        for (step, attempt) in steps {
            let name = sprag_worker::fence_name(run, step);
            // Above every number given out for an attempt so far, below those of the next attempt.
            let number = u64::from(attempt) << 32 | u64::from(u32::MAX);
            let held = repository.fence(&name).ok().flatten().map(|fence| fence.number);
            if held.is_none_or(|held| held < number)
                && let Err(error) = repository.move_fence(&name, held, number)
            {
                let path = repository.common_dir().display();
                tracing::warn!(%run, %path, %error, "moving the fence of an ended run failed");
            }
        }
    }

    /// Returns the landing steps of a run, and the files that they land; none if it has no such steps.
    fn landings(&self, run: RunId) -> sprag_store::Result<Option<Landings>> {
        let Some(known) = self.store.queries().run_with_steps(run)? else { return Ok(None) };
        let Some(plan) = &known.plan else { return Ok(None) };
        let landing = known.steps.iter().filter(|step| is_landing(&plan.step(step.node()).spec));
        let steps: Vec<_> = landing.map(|step| (step.no, step.attempt)).collect();
        if steps.is_empty() {
            return Ok(None);
        }
        let place = sprag_store::environment_of(&known.run.context).unwrap_or(run);
        let environments = self.store.queries().environments_of(place)?;
        Ok(environments.first().and_then(LocalFiles::of).map(|files| Landings { files, steps }))
    }

    /// Cleans up what is due: environments whose removal failed or was never begun, and those whose maker is gone.
    /// Returns how many were removed.
    pub async fn sweep(&self) -> Result<usize, Error> {
        let mut done = 0;
        for row in self.store.queries().environments(false)? {
            // This includes rows of other hosts: the store knows whether the maker is gone, wherever it ran.
            if row.status() == EnvironmentStatus::Provisioning && self.is_gone(row.owner)? {
                let given =
                    EnvironmentReport { attempt: row.provision_attempt, ..EnvironmentReport::default() };
                let event = EnvironmentEvent::ProvisionFailed;
                let _ = self.store.reaper().environment(row.id, event, given).await?;
            }
        }
        let mut due = self.due_on(&sprag_worker::host())?;
        // The files of these environments were lost with their host, so any process may remove the rows.
        due.extend(self.due_on("")?);
        for row in due.into_iter().filter(|row| Self::is_nowhere(row) || self.has_here(row)) {
            if self.remove(&row, Then::Pool).await.is_ok() {
                done += 1;
            }
        }
        self.recover()?;
        Ok(done)
    }

    /// Returns the environments on a host that no run needs any more.
    pub fn due_on(&self, host: &str) -> Result<Vec<EnvironmentRow>, Error> {
        let mut due = Vec::new();
        for row in self.store.queries().environments(false)? {
            let over = match row.run {
                Some(run) => {
                    let found = self.store.queries().run(run)?;
                    found.is_none_or(|run| run.status().is_terminal())
                }
                None => true,
            };
            if *row.host != *host || !over {
                continue;
            }
            match self.kept_because(&row) {
                Ok(None) => due.push(row),
                Ok(Some(_)) => {}
                // The environment stays, and the others are cleaned up.
                Err(error) => tracing::warn!(%error, "looking whether an environment is kept"),
            }
        }
        Ok(due)
    }

    /// Deletes in all repositories what killed processes have left aside. Returns the checkouts that were repaired.
    pub fn recover(&self) -> Result<Vec<PathBuf>, Error> {
        let mut repaired = Vec::new();
        for repository in self.repositories()? {
            let recovered = self.worktrees(repository)?.recover(&|_| true)?;
            repaired.extend(recovered.repaired);
            for left in recovered.leftovers {
                let (run, path) = (&left.run, left.path.display());
                tracing::warn!(run, %path, reason = left.reason, remedy = left.remedy, "still there");
            }
        }
        Ok(repaired)
    }

    /// Returns checkouts that are not as they should be, in all repositories that runs have worked in.
    pub fn checkouts_out_of_order(&self) -> Result<Vec<OutOfOrder>, Error> {
        let mut found = Vec::new();
        for repository in self.repositories()? {
            for cut_off in repository.interrupted_moves() {
                let (run, branch) = (&cut_off.run, &cut_off.branch);
                let why = format!(
                    "a landing of run {run} on {branch} was interrupted here, and the checkout is locked"
                );
                found.extend(cut_off.checkouts.into_iter().map(|checkout| OutOfOrder {
                    checkout,
                    why: why.clone(),
                    repair: "sprag env gc".into(),
                }));
            }
            for left in repository.outdated_checkouts()? {
                let (branch, files) = (&left.branch, left.files.join(", "));
                let why = format!(
                    "files from before a landing on {branch} are staged here, and the next commit would undo it: {files}"
                );
                found.push(OutOfOrder { checkout: left.checkout, why, repair: left.repair });
            }
        }
        Ok(found)
    }

    fn is_gone(&self, worker: Option<Id>) -> sprag_store::Result<bool> {
        let Some(worker) = worker else { return Ok(true) };
        let row = self.store.queries().worker(worker)?;
        Ok(row.is_none_or(|row| row.status() == WorkerStatus::Offline))
    }

    /// Returns the repositories that runs have worked in, as far as they are on this host.
    pub fn repositories(&self) -> Result<Vec<Repository>, Error> {
        let rows = self.store.queries().environments(true)?;
        let paths: BTreeSet<PathBuf> = rows.iter().filter_map(LocalFiles::repository_of).collect();
        Ok(paths.iter().filter_map(|path| Repository::discover(path).ok()).collect())
    }

    pub(crate) fn worktrees(&self, repository: Repository) -> Result<Worktrees, Error> {
        let root = self.data.join("worktrees");
        Ok(Worktrees::open(repository, &root, Settings::default())?)
    }

    /// Returns the worktrees in this data directory that wait in the pool for the next run.
    pub fn pooled(&self) -> Result<Vec<Mark>, Error> {
        let mut found = Vec::new();
        for repository in self.repositories()? {
            let worktrees = self.worktrees(repository)?;
            let root = worktrees.root().to_owned();
            let listed = worktrees.list()?;
            found.extend(
                listed
                    .into_iter()
                    .map(|listed| listed.mark)
                    .filter(|mark| mark.state == State::Pooled && mark.root == root),
            );
        }
        Ok(found)
    }
}

/// Whether a step lands the work of its run.
pub fn is_landing(spec: &str) -> bool {
    serde_json::from_str::<StepSpec>(spec).is_ok_and(|spec| matches!(spec.kind, Kind::Land { .. }))
}

fn ended(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Cancelled => "was cancelled",
        _ => "failed",
    }
}

/// Saves the work in a worktree below `root`, then gives the worktree to the pool or removes it. Refuses a worktree
/// that is not the run's.
pub fn remove_or_pool(
    files: &LocalFiles,
    caches: &[String],
    root: &Path,
    run: &str,
    then: Then,
) -> Result<String, Error> {
    let path = &files.path;
    if !files.are_in(root) {
        return Err(Error::failed(format!("{} is not in {}", path.display(), root.display())));
    }
    let repository =
        files.repository.as_deref().ok_or_else(|| Error::failed("its repository is not known"))?;
    let repository = Repository::discover(repository)?;
    let worktrees = Worktrees::open(repository, root, Settings::default())?;
    let worktree = match worktrees.adopt_to_remove(path, run) {
        Ok(worktree) => worktree,
        // The worktree was removed by hand: only its folder may be left.
        Err(error) if matches!(error.kind, GitKind::NoSuchWorktree { .. }) => {
            return match std::fs::remove_dir(path) {
                Ok(()) => Ok("only an empty folder was left".into()),
                Err(_) if !path.exists() => delete_debris(&worktrees, run),
                Err(_) => Err(Error::failed(format!(
                    "{} is no longer a worktree, and not empty: check its files, then remove it",
                    path.display()
                ))),
            };
        }
        Err(error) => return Err(error.into()),
    };
    let (policy, cancel) = (BranchPolicy::DeleteIfMerged, Cancel::default());
    let parked = match then {
        Then::Pool => worktrees.park(worktree, policy, caches, &cancel),
        Then::Nothing => worktrees.remove(worktree, policy, &cancel).map(Parked::Removed),
    };
    match parked {
        Ok(Parked::Ready { salvaged, modules, branch }) => {
            let saved = saved_text(salvaged.as_ref(), &modules);
            Ok(format!("kept ready for the next run{}{saved}", branch_text(&branch)))
        }
        Ok(Parked::Removed(removed)) => match removed.leftovers.first() {
            Some(left) => Err(left_over(left)),
            None => Ok(told_of(&removed)),
        },
        Err(error) => Err(error.into()),
    }
}

/// Returns the error for files that could not be removed.
fn left_over(left: &Leftover) -> Error {
    Error::failed(format!("{}: {} ({})", left.path.display(), left.reason, left.remedy))
}

/// Retries the deletion of a run's worktrees that were moved aside.
fn delete_debris(worktrees: &Worktrees, run: &str) -> Result<String, Error> {
    let recovered = worktrees.recover(&|_| true)?;
    match recovered.leftovers.iter().find(|left| is_of(&left.path, run)) {
        Some(left) => Err(left_over(left)),
        None => Ok("it was already gone".into()),
    }
}

/// Whether a folder that was moved aside was a worktree of this run: its name tells.
pub(crate) fn is_of(path: &Path, run: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !run.is_empty() && name.starts_with(&format!("sprag-{run}-"))
}

fn branch_text(fate: &BranchFate) -> String {
    match fate {
        BranchFate::Kept(why) => format!("; its branch stays: {why}"),
        BranchFate::None | BranchFate::Deleted => String::new(),
    }
}

/// Describes where work was saved: that of the worktree, and that of its submodules.
fn saved_text(salvaged: Option<&Salvaged>, modules: &[SavedModule]) -> String {
    let work = salvaged.map(|saved| format!("; work saved as {}", saved.name));
    let modules = modules.iter().map(|saved| {
        let (path, git_dir) = (saved.path.display(), saved.git_dir.display());
        format!("; work in {path} saved as {} in {git_dir}", saved.name)
    });
    work.into_iter().chain(modules).collect()
}

pub(crate) fn told_of(removed: &Removed) -> String {
    let saved = saved_text(removed.salvaged.as_ref(), &removed.modules);
    format!("removed{}{saved}", branch_text(&removed.branch))
}

/// The effect that removes the environments of runs that have ended.
pub(crate) struct RemoveEnvironments(pub(crate) Environments);

impl Effect for RemoveEnvironments {
    fn name(&self) -> &'static str {
        "environments"
    }

    fn run_ended(&self, run: RunId) -> EffectFuture<'_> {
        Box::pin(async move { self.0.run_ended(run).await.map_err(|error| error.to_string()) })
    }
}
