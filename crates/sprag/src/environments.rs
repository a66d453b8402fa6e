//! Looking after the environments of runs: removed when they are not needed, tried again when that fails,
//! listed for people. Making them is the worker's affair.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sprag_executor::{Effect, EffectFuture};
use sprag_lifecycle::{EnvironmentEvent, EnvironmentStatus, RunId, RunStatus, WorkerStatus};
use sprag_store::{EnvironmentGiven, EnvironmentRow, Id, Row, RunRow, Store, Table, WorkerRow};
use sprag_worktree::{
    BranchFate, BranchPolicy, Cancel, Kind as GitKind, Mark, Parked, Ports, Removed, Repository, Settings,
    State, Worktrees,
};

/// What becomes of a worktree that its run does not need any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It waits for the next run, if there are not enough that do.
    Pool,
    /// It goes.
    Nothing,
}

/// Looks after environments on this host.
#[derive(Clone)]
pub struct Environments {
    pub(crate) store: Store,
    data: PathBuf,
    worker: Id,
}

/// What is known of an environment beside its row.
#[derive(Debug, Clone, Default)]
pub struct Details {
    /// The repository's git directory.
    pub repository: Option<PathBuf>,
    /// Its branch.
    pub branch: Option<String>,
    /// The commit that it began with.
    pub base_commit: Option<String>,
    /// When it stays: `never`, `on_failure`, `always`.
    pub keep: String,
    /// Paths in it that stay when it is used again.
    pub caches: Vec<String>,
}

impl Details {
    /// What a row tells.
    pub fn of(row: &EnvironmentRow) -> Details {
        Details::read(&row.details)
    }

    /// What the text of a row's details tells.
    pub fn read(details: &str) -> Details {
        let told: Value = serde_json::from_str(details).unwrap_or_default();
        let caches = told["caches"].as_array().cloned().unwrap_or_default();
        Details {
            repository: told["repository"].as_str().map(PathBuf::from),
            branch: told["branch"].as_str().map(str::to_owned),
            base_commit: told["base_commit"].as_str().map(str::to_owned),
            keep: told["keep"].as_str().unwrap_or("never").to_owned(),
            caches: caches.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }
}

impl Environments {
    /// Looks after the environments in this data directory, in the name of this worker.
    pub fn new(store: Store, data: &Path, worker: Id) -> Self {
        Environments { store, data: data.to_owned(), worker }
    }

    /// Why an environment is still there; none if nothing keeps it.
    pub fn kept_because(&self, row: &EnvironmentRow) -> Result<Option<String>, String> {
        let Some(run) = row.run else { return Ok(None) };
        let status =
            self.store.read(|db| Table::<RunRow>::load(db, run)).map_err(|error| error.to_string())?;
        let Some(status) = status.map(|run| run.status()) else { return Ok(None) };
        let keep = Details::of(row).keep;
        Ok(match (status.is_terminal(), row.cleanup_requested, keep.as_str()) {
            (false, _, _) => Some(format!("its run is {status}")),
            (true, true, _) => None,
            (true, false, "always") => Some("keep: always".into()),
            (true, false, "on_failure") if status != RunStatus::Completed => {
                Some(format!("keep: on_failure, and its run {}", ended(status)))
            }
            _ => None,
        })
    }

    /// Why an environment is still there, in words.
    pub fn why_there(&self, row: &EnvironmentRow) -> String {
        let kept = self.kept_because(row).unwrap_or_else(Some);
        match (kept, &row.reason) {
            (Some(kept), _) => kept,
            (None, Some(reason)) => crate::text::plain(reason),
            (None, None) => "to be removed".into(),
        }
    }

    /// Removes what a run that has ended does not need any more.
    pub async fn run_ended(&self, run: RunId) -> Result<(), String> {
        let rows = self.store.read(|db| db.environments_of(run)).map_err(|error| error.to_string())?;
        self.fence_off(run);
        let mut wrong = Vec::new();
        // What is on another host is removed by whoever works there.
        let here = sprag_worker::host();
        let rows = rows.iter().filter(|row| *row.host == *here);
        for row in rows.filter(|row| row.status() != EnvironmentStatus::Destroyed) {
            if self.kept_because(row)?.is_none()
                && let Err(error) = self.remove(row, Then::Pool).await
            {
                wrong.push(error);
            }
        }
        if let Ok(ports) = Ports::open(&self.data) {
            let _ = ports.release(&run.to_string());
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Removes an environment, or gives its worktree to the pool. Its work is saved first; the words tell where.
    pub async fn remove(&self, row: &EnvironmentRow, then: Then) -> Result<String, String> {
        let told = |error: sprag_store::Error| error.to_string();
        sprag_worker::bury(&self.store, row.owner).await;
        let path = PathBuf::from(&*row.path);
        // One that could not be removed may have been moved aside. One whose host was lost is nowhere.
        let somewhere = !row.path.is_empty() && !row.host.is_empty();
        let present = somewhere && (path.exists() || row.status() == EnvironmentStatus::Error);
        let attempt =
            self.store.claims().dispatch_destroy(row.id, self.worker, present).await.map_err(told)?;
        let Some(attempt) = attempt else {
            return match present {
                true => Err(format!("{} is in use, or somebody else removes it", path.display())),
                false => Ok("it was gone already".into()),
            };
        };
        let (details, run) = (Details::of(row), row.run.map(|run| run.to_string()).unwrap_or_default());
        let (root, place) = (self.data.join("worktrees"), path.clone());
        let removed = tokio::task::spawn_blocking(move || put_away(&details, &root, &place, &run, then))
            .await
            .map_err(|e| e.to_string())?;
        let given = EnvironmentGiven { attempt, ..EnvironmentGiven::default() };
        let (event, reason) = match &removed {
            Ok(_) => (EnvironmentEvent::DestroySucceeded, None),
            Err(why) => (EnvironmentEvent::DestroyFailed, Some(why.clone())),
        };
        let run = row.run.map(|run| run.to_string()).unwrap_or_default();
        match &removed {
            Ok(how) => tracing::info!(run, path = %path.display(), how, "environment removed"),
            Err(why) => {
                tracing::warn!(run, path = %path.display(), why, "environment not removed; it is tried again")
            }
        }
        let _ = self.store.claims().environment(row.id, event, given, reason).await.map_err(told)?;
        removed
    }

    /// Nobody lands for a run that has ended: one that was paused in the middle of it finds its fence moved on.
    fn fence_off(&self, run: RunId) {
        let found = self.store.read(|db| {
            let Some(row) = Table::<RunRow>::load(db, run)? else { return Ok(None) };
            let Some(plan) = db.plan(row.plan)? else { return Ok(None) };
            let lands = |node: u32| plan.step(node).spec.contains("\"land\":");
            let steps = db.steps(run)?;
            let landers: Vec<(u32, u32)> =
                steps.iter().filter(|step| lands(step.node())).map(|step| (step.no, step.attempt)).collect();
            if landers.is_empty() {
                return Ok(None);
            }
            let context: Value = serde_json::from_str(&row.context).unwrap_or_default();
            let place =
                context["environment_of"].as_str().and_then(|above| above.parse().ok()).unwrap_or(run);
            Ok(db.environments_of(place)?.first().map(|row| (Details::of(row), landers)))
        });
        let Ok(Some((details, landers))) = found else { return };
        let Some(repository) = details.repository.and_then(|path| Repository::discover(&path).ok()) else {
            return;
        };
        for (step, attempt) in landers {
            let name = sprag_worker::fence_name(run, step);
            // Above all that was given out for an attempt so far, below what the next one gets.
            let number = u64::from(attempt) << 32 | u64::from(u32::MAX);
            let held = repository.fence(&name).ok().flatten().map(|fence| fence.number);
            if held.is_none_or(|held| held < number)
                && let Err(error) = repository.move_fence(&name, held, number)
            {
                let path = repository.common_dir().display();
                tracing::warn!(%run, %path, %error, "moving the fence of a run that has ended");
            }
        }
    }

    /// What is due: environments whose removal failed or was never begun, and those whose maker is gone.
    pub async fn sweep(&self) -> Result<usize, String> {
        let told = |error: sprag_store::Error| error.to_string();
        let mut done = 0;
        for row in self.store.read(|db| db.environments(false)).map_err(told)? {
            // Of any host: whoever made it, there or here, is known to be gone by the store.
            if row.status() == EnvironmentStatus::Provisioning && self.is_gone(row.owner).map_err(told)? {
                let given =
                    EnvironmentGiven { attempt: row.provision_attempt, ..EnvironmentGiven::default() };
                let event = EnvironmentEvent::ProvisionFailed;
                let _ = self.store.reaper().environment(row.id, event, given).await.map_err(told)?;
            }
        }
        let mut due = self.due_on(&sprag_worker::host())?;
        // What was lost with its host is nowhere, and anybody's to forget.
        due.extend(self.due_on("")?);
        for row in due {
            if self.remove(&row, Then::Pool).await.is_ok() {
                done += 1;
            }
        }
        self.recover()?;
        Ok(done)
    }

    /// The environments on a host that nobody needs any more.
    pub fn due_on(&self, host: &str) -> Result<Vec<EnvironmentRow>, String> {
        let told = |error: sprag_store::Error| error.to_string();
        let mut due = Vec::new();
        for row in self.store.read(|db| db.environments(false)).map_err(told)? {
            let over = match row.run {
                Some(run) => {
                    let found = self.store.read(|db| Table::<RunRow>::load(db, run)).map_err(told)?;
                    found.is_none_or(|run| run.status().is_terminal())
                }
                None => true,
            };
            if *row.host == *host && over && self.kept_because(&row)?.is_none() {
                due.push(row);
            }
        }
        Ok(due)
    }

    /// Deletes what processes that were killed have left aside, in all repositories.
    pub fn recover(&self) -> Result<(), String> {
        for repository in self.repositories()? {
            let recovered =
                self.worktrees(repository)?.recover(&|_| true).map_err(|error| error.to_string())?;
            for left in recovered.leftovers {
                let (run, path) = (&left.run, left.path.display());
                tracing::warn!(run, %path, reason = left.reason, remedy = left.remedy, "still there");
            }
        }
        Ok(())
    }

    fn is_gone(&self, worker: Option<Id>) -> sprag_store::Result<bool> {
        let Some(worker) = worker else { return Ok(true) };
        let row = self.store.read(|db| Table::<WorkerRow>::load(db, worker))?;
        Ok(row.is_none_or(|row| row.status() == WorkerStatus::Offline))
    }

    /// The repositories that runs have worked in, as far as they are there.
    pub fn repositories(&self) -> Result<Vec<Repository>, String> {
        let rows = self.store.read(|db| db.environments(true)).map_err(|error| error.to_string())?;
        let paths: BTreeSet<PathBuf> = rows.iter().filter_map(|row| Details::of(row).repository).collect();
        Ok(paths.iter().filter_map(|path| Repository::discover(path).ok()).collect())
    }

    pub(crate) fn worktrees(&self, repository: Repository) -> Result<Worktrees, String> {
        let root = self.data.join("worktrees");
        Worktrees::open(repository, &root, Settings::default()).map_err(|error| error.to_string())
    }

    /// Worktrees in this data directory that wait for the next run.
    pub fn pooled(&self) -> Result<Vec<Mark>, String> {
        let mut found = Vec::new();
        for repository in self.repositories()? {
            let worktrees = self.worktrees(repository)?;
            let root = worktrees.root().to_owned();
            let listed = worktrees.list().map_err(|error| error.to_string())?;
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

fn ended(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Cancelled => "was cancelled",
        _ => "failed",
    }
}

/// Saves what is in a worktree, then gives it to the pool or removes it.
pub fn put_away(
    details: &Details,
    root: &Path,
    path: &Path,
    run: &str,
    then: Then,
) -> Result<String, String> {
    let told = |error: sprag_worktree::Error| error.to_string();
    let repository = details.repository.as_deref().ok_or("its repository is not known")?;
    let repository = Repository::discover(repository).map_err(told)?;
    let worktrees = Worktrees::open(repository, root, Settings::default()).map_err(told)?;
    let worktree = match worktrees.adopt(&path.display().to_string(), run) {
        Ok(worktree) => worktree,
        // Somebody removed it by hand: only its folder may be left.
        Err(error) if matches!(error.kind, GitKind::NoSuchWorktree { .. }) => {
            return match std::fs::remove_dir(path) {
                Ok(()) => Ok("only an empty folder was left".into()),
                Err(_) if !path.exists() => delete_debris(&worktrees, run),
                Err(_) => Err(format!(
                    "{} is no worktree any more, and not empty: look at it, then remove it",
                    path.display()
                )),
            };
        }
        Err(error) => return Err(told(error)),
    };
    let (policy, cancel) = (BranchPolicy::DeleteIfMerged, Cancel::default());
    let parked = match then {
        Then::Pool => worktrees.park(worktree, policy, &details.caches, &cancel),
        Then::Nothing => worktrees.remove(worktree, policy, &cancel).map(Parked::Removed),
    };
    match parked {
        Ok(Parked::Ready { salvaged, branch }) => {
            let saved = salvaged.map(|saved| format!("; work saved as {}", saved.name)).unwrap_or_default();
            Ok(format!("kept ready for the next run{}{saved}", branch_text(&branch)))
        }
        Ok(Parked::Removed(removed)) => match removed.leftovers.first() {
            Some(left) => Err(format!("{}: {} ({})", left.path.display(), left.reason, left.remedy)),
            None => Ok(told_of(&removed)),
        },
        Err(error) => Err(told(error)),
    }
}

/// Tries again to delete what was moved aside of a run's worktrees.
fn delete_debris(worktrees: &Worktrees, run: &str) -> Result<String, String> {
    let recovered = worktrees.recover(&|_| true).map_err(|error| error.to_string())?;
    match recovered.leftovers.iter().find(|left| is_of(&left.path, run)) {
        Some(left) => Err(format!("{}: {} ({})", left.path.display(), left.reason, left.remedy)),
        None => Ok("it was gone already".into()),
    }
}

/// Whether what was moved aside was a worktree of this run: its name tells.
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

pub(crate) fn told_of(removed: &Removed) -> String {
    let saved =
        removed.salvaged.as_ref().map(|saved| format!("; work saved as {}", saved.name)).unwrap_or_default();
    format!("removed{}{saved}", branch_text(&removed.branch))
}

/// Removes the environments of runs that have ended.
pub(crate) struct RemoveEnvironments(pub(crate) Environments);

impl Effect for RemoveEnvironments {
    fn name(&self) -> &'static str {
        "environments"
    }

    fn run_ended(&self, run: RunId) -> EffectFuture<'_> {
        Box::pin(self.0.run_ended(run))
    }
}
