//! Cleaning up what no run needs any more. The chores are listed first and done afterwards, so that a person can see
//! them before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sprag_lifecycle::{EnvironmentStatus, RunId};
use sprag_store::{EnvironmentDetails, EnvironmentRow, Id, Row, RunEnvironments};
use sprag_worktree::{BranchFate, BranchPolicy, BrokenRef, Cancel, RefPurpose, Repository, RunRef, State};

use crate::environments::{Environments, Then, is_of, told_of};
use crate::error::{Error, ErrorKind};
use crate::local_files::LocalFiles;

/// One thing that cleaning up does, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chore {
    /// The removal of an environment whose run is over.
    Remove {
        /// The environment.
        id: Id,
        /// The environment's folder.
        path: PathBuf,
        /// The reason, for people.
        why: String,
    },
    /// The removal of a ready worktree that waits in the pool for the next run.
    Unpool {
        /// The worktree's folder.
        path: PathBuf,
    },
    /// The removal of a worktree that no run knows of.
    Recover {
        /// The worktree's folder.
        path: PathBuf,
        /// The run that it was made for.
        run: String,
    },
    /// The remains of a worktree that could not be deleted, or was never finished.
    Debris {
        /// The repository of the worktree.
        repository: PathBuf,
        /// The folder of the remains.
        path: PathBuf,
    },
    /// The removal of a branch that was made for a run. All of its commits are on other branches.
    DeleteBranch {
        /// The repository of the branch.
        repository: PathBuf,
        /// The branch's name.
        branch: String,
    },
    /// The removal of refs that a repository keeps for a run that ended long ago: recorded states, starts, fences.
    Forget {
        /// The repository with the refs.
        repository: PathBuf,
        /// The run that ended.
        run: RunId,
        /// The refs to remove.
        refs: Vec<RunRef>,
    },
    /// The removal of a Sprag ref that leads to objects which are gone: `git gc` fails while it is there.
    DropBroken {
        /// The repository with the ref.
        repository: PathBuf,
        /// The broken ref.
        broken: BrokenRef,
    },
    /// The removal of saved work that is not needed any more. It was saved when its worktree was removed.
    DropSalvage {
        /// The repository with the saved work.
        repository: PathBuf,
        /// The ref to remove.
        saved: RunRef,
        /// The reason, for people.
        why: &'static str,
    },
}

/// The most runs whose refs one transaction of git deletes.
const RUNS_FORGOTTEN_AT_ONCE: usize = 200;

impl Chore {
    /// Returns whether both delete refs of runs in the same repository.
    fn is_forgotten_with(&self, other: &Chore) -> bool {
        match (self, other) {
            (Chore::Forget { repository, .. }, Chore::Forget { repository: same, .. }) => repository == same,
            _ => false,
        }
    }
}

/// The limits of a clean-up: what it may remove beyond what no run needs.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The age after which recorded states and saved work of ended runs may go, counted from the run's end.
    pub older_than: Duration,
    /// Whether saved work that no branch holds may go too.
    pub salvage: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { older_than: Duration::from_secs(14 * 24 * 3600), salvage: false }
    }
}

impl Environments {
    /// Returns everything that [`Environments::do_chores`] would do now to free space, in order.
    pub fn chores(&self, limits: Limits) -> Result<Vec<Chore>, Error> {
        let mut rows = self.store.queries().environments(true)?;
        // Rows of another host say nothing about this machine's disk.
        rows.retain(|row| LocalFiles::of(row).is_some());
        let mut chores = Vec::new();
        for row in
            rows.iter().filter(|row| self.has_here(row) && row.status() != EnvironmentStatus::Destroyed)
        {
            if self.kept_because(row)?.is_none() {
                let why = row
                    .reason
                    .as_deref()
                    .map_or("its run has ended".to_owned(), |why| format!("again: {why}"));
                chores.push(Chore::Remove { id: row.id, path: PathBuf::from(&*row.path), why });
            }
        }
        let known: BTreeSet<&str> = rows
            .iter()
            .filter(|row| row.status() != EnvironmentStatus::Destroyed)
            .map(|row| &*row.path)
            .collect();
        for repository in self.repositories()? {
            let common_dir = repository.common_dir().to_owned();
            let worktrees = self.worktrees(repository)?;
            let root = worktrees.root().to_owned();
            for listed in worktrees.list()? {
                let mark = listed.mark;
                if mark.root != root || listed.is_held || known.contains(mark.path.to_string_lossy().as_ref())
                {
                    continue;
                }
                chores.push(match mark.state {
                    State::Pooled => Chore::Unpool { path: mark.path },
                    _ => Chore::Recover { path: mark.path, run: mark.run },
                });
            }
            let being_removed = |path: &Path| {
                let mut removed = rows.iter().filter(|row| known.contains(&*row.path));
                removed.any(|row| row.run.is_some_and(|run| is_of(path, &run.to_string())))
            };
            for path in worktrees.debris()? {
                if !being_removed(&path) {
                    chores.push(Chore::Debris { repository: common_dir.clone(), path });
                }
            }
            for branch in branches_of(&rows, worktrees.repository()) {
                chores.push(Chore::DeleteBranch { repository: common_dir.clone(), branch });
            }
            let broken = worktrees.repository().broken_refs()?;
            let whole = |kept: &RunRef| {
                !broken.iter().any(|broken| broken.name == kept.name && broken.git_dir == kept.git_dir)
            };
            chores.extend(self.forgettable(worktrees.repository(), limits, whole)?);
            chores.extend(
                broken.into_iter().map(|broken| Chore::DropBroken { repository: common_dir.clone(), broken }),
            );
        }
        Ok(chores)
    }

    /// Returns chores that remove the refs of this store's runs that ended long enough ago, and whose worktrees are not
    /// kept.
    fn forgettable(
        &self,
        repository: &Repository,
        limits: Limits,
        wanted: impl Fn(&RunRef) -> bool,
    ) -> Result<Vec<Chore>, Error> {
        let common_dir = repository.common_dir().to_owned();
        let mut of_runs: BTreeMap<RunId, Vec<RunRef>> = BTreeMap::new();
        let refs = repository.run_refs()?;
        for kept in refs.into_iter().filter(wanted) {
            // Other data directories may have runs in this repository too.
            if let Ok(run) = kept.run.parse() {
                of_runs.entry(run).or_default().push(kept);
            }
        }
        let mut chores = Vec::new();
        for (run, refs) in of_runs {
            if !self.is_forgettable(run, limits.older_than)? {
                continue;
            }
            let (saved, refs): (Vec<RunRef>, Vec<RunRef>) =
                refs.into_iter().partition(|kept| kept.purpose == RefPurpose::Salvage);
            if !refs.is_empty() {
                chores.push(Chore::Forget { repository: common_dir.clone(), run, refs });
            }
            for saved in saved {
                let merged = repository.is_merged_salvage(&saved)?;
                let why = match (merged, limits.salvage) {
                    (true, _) => "a branch contains it",
                    (false, true) => "asked for",
                    (false, false) => continue,
                };
                chores.push(Chore::DropSalvage { repository: common_dir.clone(), saved, why });
            }
        }
        Ok(chores)
    }

    fn is_forgettable(&self, run: RunId, older_than: Duration) -> Result<bool, Error> {
        let RunEnvironments { run: row, environments: rows } =
            self.store.queries().run_and_environments(run)?;
        let Some(row) = row else {
            // The run itself is forgotten. A run that this store never had has no environments here.
            let gone = |row: &EnvironmentRow| row.status() == EnvironmentStatus::Destroyed;
            return Ok(!rows.is_empty() && rows.iter().all(gone));
        };
        let ended_ms = row.ended_ms.filter(|_| row.status().is_terminal());
        let oldest_ms = self.store.now().wall_ms - older_than.as_millis() as i64;
        if ended_ms.is_none_or(|ended_ms| ended_ms > oldest_ms) {
            return Ok(false);
        }
        for row in rows.iter().filter(|row| row.status() != EnvironmentStatus::Destroyed) {
            if self.kept_because(row)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does the chores in order, and tells the result of each. The refs of many runs are deleted at once, because git
    /// rewrites all packed refs for each deletion.
    pub async fn do_chores(&self, chores: &[Chore], mut tell: impl FnMut(&Chore, Result<String, Error>)) {
        for group in chores.chunk_by(Chore::is_forgotten_with) {
            for part in group.chunks(RUNS_FORGOTTEN_AT_ONCE) {
                match self.forget_together(part) {
                    Ok(true) => part.iter().for_each(|chore| tell(chore, Ok("deleted".into()))),
                    // Every other deletion would wait for the same lock, and fail.
                    Err(error) if matches!(error.kind, sprag_worktree::Kind::StaleGitLock { .. }) => {
                        part.iter().for_each(|chore| tell(chore, Err(Error::failed(error.to_string()))));
                    }
                    Ok(false) | Err(_) => {
                        for chore in part {
                            tell(chore, self.do_chore(chore).await);
                        }
                    }
                }
            }
        }
    }

    /// Deletes the refs of several runs in one transaction. Returns false if they are not forgotten together: a run is
    /// live again, or the chores are others.
    fn forget_together(&self, chores: &[Chore]) -> Result<bool, sprag_worktree::Error> {
        let mut all = Vec::new();
        let mut of = None;
        for chore in chores {
            let Chore::Forget { repository, run, refs } = chore else { return Ok(false) };
            if !self.is_forgettable(*run, Duration::ZERO).unwrap_or(false) {
                return Ok(false);
            }
            of = Some(repository);
            all.extend_from_slice(refs);
        }
        let Some(repository) = of else { return Ok(false) };
        Repository::discover(repository)?.delete_run_refs(&all).map(|()| true)
    }

    /// Does one of the chores, and returns a message about the result.
    async fn do_chore(&self, chore: &Chore) -> Result<String, Error> {
        match chore {
            Chore::Remove { id, .. } => {
                let row = self.store.queries().environment(*id)?;
                match row {
                    Some(row) => self.remove(&row, Then::Nothing).await,
                    None => Ok("it was already gone".into()),
                }
            }
            Chore::Unpool { path } | Chore::Recover { path, .. } => {
                for repository in self.repositories()? {
                    let worktrees = self.worktrees(repository)?;
                    let path = path.display().to_string();
                    let Ok(worktree) = worktrees.adopt(&path, "gc") else { continue };
                    let removed =
                        worktrees.remove(worktree, BranchPolicy::DeleteIfMerged, &Cancel::default());
                    return Ok(told_of(&removed?));
                }
                Ok("it was already gone".into())
            }
            Chore::Debris { repository, path } => {
                let repository = Repository::discover(repository)?;
                let recovered = self.worktrees(repository)?.recover(&|_| true);
                let left = recovered?.leftovers;
                match left.iter().find(|left| left.path == *path) {
                    Some(left) => Err(Error::failed(format!("{} ({})", left.reason, left.remedy))),
                    None => Ok("removed".into()),
                }
            }
            Chore::Forget { repository, run, refs } => {
                if !self.is_forgettable(*run, Duration::ZERO)? {
                    let why = format!("run {run} is live, or its worktree still exists");
                    return Err(Error::new(ErrorKind::Refused, why));
                }
                let repository = Repository::discover(repository)?;
                repository.delete_run_refs(refs)?;
                Ok("deleted".into())
            }
            Chore::DropBroken { repository, broken } => {
                let repository = Repository::discover(repository)?;
                repository.delete_broken_ref(broken)?;
                Ok(format!("deleted: objects of {} are gone, probably by `git prune`", broken.object))
            }
            Chore::DropSalvage { repository, saved, .. } => {
                let repository = Repository::discover(repository)?;
                let one = std::slice::from_ref(saved);
                repository.delete_run_refs(one)?;
                Ok("deleted".into())
            }
            Chore::DeleteBranch { repository, branch } => {
                let repository = Repository::discover(repository)?;
                match repository.delete_merged_branch(branch)? {
                    BranchFate::Deleted => Ok("deleted".into()),
                    BranchFate::None => Ok("it was already gone".into()),
                    BranchFate::Kept(why) => Ok(format!("kept: {why}")),
                }
            }
        }
    }
}

/// Returns branches of destroyed environments of this host that still exist and are merged into another branch.
fn branches_of(rows: &[EnvironmentRow], repository: &Repository) -> BTreeSet<String> {
    let gone = rows.iter().filter(|row| row.status() == EnvironmentStatus::Destroyed);
    let gone = gone.map(EnvironmentDetails::of_readable);
    let of_this =
        gone.filter(|details| details.repository.as_deref().map(Path::new) == Some(repository.common_dir()));
    let branches = of_this.filter_map(|details| details.branch).collect();
    repository.merged_branches(branches).unwrap_or_else(|error| {
        // Broken refs, which the same clean-up repairs, hide the answer until they are gone.
        tracing::warn!(%error, "merged branches are not looked for");
        BTreeSet::new()
    })
}
