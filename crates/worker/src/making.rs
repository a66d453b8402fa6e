//! Finds or creates a run's worktree: the store has a record before git creates anything, and is told the result.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sprag_pipeline::{DirtyPolicy, KeepPolicy, Workplace, WorktreeSpec};
use sprag_process::{Secrets, boot_ms};
use sprag_store::{EnvironmentDetails, EnvironmentRequest, Keep, Lease};
use sprag_worktree::{
    Branch, Cancel, Checkpoint, CreateOptions, Error as GitError, Kind as GitKind, Repository, Settings,
    SharedWorktree, Uncommitted, Worktree, Worktrees,
};

use crate::environment::{EnterError, Environments, Key, Setup, Stop, blocking, host};
use crate::records::{Made, OnRecord, Provided};

/// The longest time that a step waits for another process that creates the same environment.
pub(crate) const LONGEST_WAIT_MS: u64 = 30 * 60 * 1000;
/// The polling interval while it waits, in case no notification arrives.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// The polling interval for whether another process has made its worktree ready for steps, because no notification is
/// sent.
const LOOK_IN: Duration = Duration::from_millis(100);

/// The environment that a step needs, with its specification.
#[derive(Clone, Copy)]
pub(crate) struct Site<'s> {
    /// The lease of the step that needs it.
    pub(crate) lease: Lease,
    pub(crate) key: Key,
    pub(crate) workplace: &'s Workplace,
    /// The name of the pipeline whose run it is.
    pub(crate) pipeline: &'s str,
    pub(crate) started_in: &'s Path,
    /// The secrets to mask in error messages.
    pub(crate) secrets: &'s Secrets,
    /// The run that this one was forked from; the states that it recorded are also this run's past.
    pub(crate) forked_from: Option<&'s str>,
}

/// A worktree in which steps can run.
pub(crate) struct Found {
    /// The owner's handle; none if another process of the run owns the worktree.
    pub(crate) worktree: Option<Worktree>,
    pub(crate) guest: SharedWorktree,
    /// The setup that must run first; none if nothing is due.
    pub(crate) setup: Option<Setup>,
}

/// A worktree that is being created.
struct Making<'m> {
    row: &'m OnRecord,
    repository: &'m Repository,
    details: EnvironmentDetails,
}

impl Environments {
    /// Returns the run's worktree: finds it, creates it, or waits while another process creates it.
    pub(crate) async fn worktree_of(&self, site: &Site<'_>, stop: &Stop) -> Result<Found, EnterError> {
        let Site { lease, key, workplace, started_in, .. } = *site;
        let spec = workplace.worktree.clone().unwrap_or_default();
        if !started_in.exists() {
            return Err(format!(
                "{} is not on this host ({}): a run works on the repository of the host that works on it; \
                 put a clone there, or serve its queue where the repository is",
                started_in.display(),
                host()
            )
            .into());
        }
        let repository = {
            let started_in = started_in.to_owned();
            blocking(move || Repository::discover(&started_in)).await?
        };
        let suffix = key.1.map(|step| format!("-s{step}")).unwrap_or_default();
        let path = self.0.data.join("worktrees").join(format!("{}{suffix}", key.0));
        let give_up_ms = boot_ms() + LONGEST_WAIT_MS;
        loop {
            let known = self.0.records.find(lease, key.0, key.1).await?;
            let seen = known.as_ref().map(OnRecord::look);
            let before = known.map(|row| row.details()).transpose()?.unwrap_or_default();
            let details = EnvironmentDetails {
                repository: Some(text_of(repository.common_dir())?),
                branch: Some(format!("{}{suffix}", spec.branch)),
                base: Some(spec.base.clone()),
                keep: keep_of(spec.keep),
                remote: spec.remote.clone(),
                caches: workplace.setup.as_ref().map(|setup| setup.caches.clone()).unwrap_or_default(),
                base_commit: before.base_commit,
                lost_host: before.lost_host,
            };
            let wanted = EnvironmentRequest {
                id: self.0.records.new_id(),
                run: key.0,
                scope: key.1,
                host: host().into(),
                worker: self.0.worker,
                managed: true,
                path: path.display().to_string().into(),
                details: details.text(),
            };
            let busy = match self.0.records.provide(lease, wanted, seen).await? {
                Provided::Ready(row) => match self.take_over(&repository, &row, site, stop).await? {
                    Some(found) => return Ok(found),
                    None => row,
                },
                Provided::Make(row) => {
                    let making = Making { row: &row, repository: &repository, details };
                    return self.make(site, making, stop).await;
                }
                // It became ready after the check of its files: check again.
                Provided::Busy(row) if row.is_ready() => row,
                Provided::Busy(row) => {
                    stop.or(self.0.records.wait(key.0, row.owner, LOOK)).await??;
                    row
                }
            };
            if stop.is_draining() {
                return Err(EnterError::Draining);
            }
            if boot_ms() >= give_up_ms {
                let status = busy.status;
                return Err(format!("the environment has been {status} for too long").into());
            }
        }
    }

    pub(crate) fn worktrees(&self, repository: &Repository) -> Result<Worktrees, GitError> {
        Worktrees::open(repository.clone(), &self.0.data.join("worktrees"), Settings::default())
    }

    /// Takes over an existing worktree. Returns none if it is not ready for that and it makes sense to check again.
    async fn take_over(
        &self,
        repository: &Repository,
        row: &OnRecord,
        site: &Site<'_>,
        stop: &Stop,
    ) -> Result<Option<Found>, EnterError> {
        let run = row.run.map(|run| run.to_string()).unwrap_or_default();
        let (path, setup) = (PathBuf::from(&*row.path), site.workplace.setup.clone());
        let (worktrees, repository, cancel) =
            (self.worktrees(repository), repository.clone(), stop.cancel.clone());
        let is_shared = site.key.1.is_none();
        let found = blocking(move || {
            let worktrees = worktrees?;
            let mut worktree = match worktrees.adopt(&path.display().to_string(), &run) {
                Ok(worktree) => worktree,
                // Another process of the run owns it. Steps share it as soon as that process has made it ready.
                Err(error) if matches!(error.kind, GitKind::InUse { .. }) => {
                    return Ok(worktrees
                        .shared(&path)
                        .ok()
                        .filter(SharedWorktree::is_prepared)
                        .map(|guest| Found { worktree: None, guest, setup: None }));
                }
                // It was removed between two checks.
                Err(_) if !path.join(".git").exists() => return Ok(None),
                Err(error) => return Err(error),
            };
            if is_shared && let Some(state) = repository.start_checkpoint(&run)? {
                worktree.start_from(&state, &cancel)?;
                repository.clear_start(&run)?;
            }
            prepare(worktree, setup).map(Some)
        });
        let found = found.await.map_err(|why| stop.told(why))?;
        if found.is_none() {
            stop.or(crate::control::pause(LOOK_IN)).await?;
        }
        Ok(found)
    }

    /// Creates a worktree. The store has a record of it before git creates anything, and is told the result.
    async fn make(&self, site: &Site<'_>, making: Making<'_>, stop: &Stop) -> Result<Found, EnterError> {
        let Making { row, repository, mut details } = making;
        let spec = site.workplace.worktree.clone().unwrap_or_default();
        let attempt = row.provision_attempt;
        let was_there = details.base_commit.is_some();
        let run = site.key.0.to_string();
        let branch = details.branch.clone().unwrap_or_default();
        let mut options = CreateOptions::new(&run, &*row.path, &branch, &spec.base);
        options.submodules = spec.submodules;
        options.sparse = spec.sparse.clone();
        options.hooks = spec.hooks;
        options.include = site.workplace.include.clone();
        options.markers = vec![("SPRAG_RUN_ID".into(), run.clone())];
        options.use_pool = true;
        // A pooled worktree may already contain the result of the same setup.
        options.setup_key = site.workplace.setup.as_ref().and_then(|setup| {
            let key = repository.setup_key(&spec.base, &setup.files).ok()?;
            Some(full_key(&key, setup))
        });
        // A pipeline sees only its own caches, separately for each base.
        options.cache_key = Some(serde_json::json!([site.pipeline, spec.base]).to_string());
        let again = was_there.then_some(attempt);
        let finished = self.0.records.last_finished(site.lease, site.key.0).await?;
        let lost_host = details.lost_host.clone();
        let here = match (&spec.remote, &lost_host) {
            // A host that has come back has its own states, and no other host has newer ones.
            (Some(remote), Some(lost)) if sprag_process::reported_host_name(lost) != host() => {
                fetch(repository, remote, &run, &stop.cancel).await
            }
            _ => Ok(()),
        };
        let is_shared = site.key.1.is_none();
        let has_past = was_there || lost_host.is_some() || site.forked_from.is_some();
        let is_first = !has_past && (finished.is_empty() || !is_shared);
        let mut blocked = None;
        let mut uncommitted = None;
        let here = match here {
            Ok(()) if is_first => match uncommitted_of(site, &spec, repository, &stop.cancel).await {
                Ok(state) => {
                    uncommitted = state;
                    Ok(())
                }
                Err(error) => {
                    let why = error.to_string();
                    let by_person = matches!(error.kind, GitKind::UncommittedChanges { .. });
                    blocked = by_person.then(|| Box::new(error.kind));
                    Err(why)
                }
            },
            other => other,
        };
        let created = match here {
            Ok(()) => self.create(site.lease, self.worktrees(repository), options, again, &stop.cancel).await,
            Err(why) => Err(why),
        };
        let (setup, cancel, repository) =
            (site.workplace.setup.clone(), stop.cancel.clone(), repository.clone());
        let mut past = vec![run.clone()];
        past.extend(site.forked_from.map(str::to_owned));
        let made = match created {
            Ok(mut worktree) => {
                let begun = blocking(move || {
                    // The worktree continues where the run was: at a state that a user chose, or at the last one that
                    // was recorded. A worktree that belongs to one step starts with that step's own states, when the
                    // step starts. A state older than the last one would undo steps that are known to be done.
                    let was_there = attempt > 1 || lost_host.is_some();
                    let last = finished.first().filter(|_| was_there && is_shared);
                    let state = match (repository.start_checkpoint(&run)?.filter(|_| is_shared), last) {
                        (Some(chosen), _) => Some(chosen),
                        (None, Some(step)) => Some(find_recorded(&repository, &past, step)?),
                        (None, None) => uncommitted,
                    };
                    if let Some(state) = state {
                        worktree.start_from(&state, &cancel)?;
                        if is_shared {
                            repository.clear_start(&run)?;
                        }
                    }
                    prepare(worktree, setup)
                });
                begun.await
            }
            Err(why) => Err(why),
        };
        let how = match &made {
            Ok(_) => Made::Ready,
            Err(_) if stop.cancel.is_cancelled() => Made::Cancelled,
            Err(why) => Made::Failed(site.secrets.mask(why)),
        };
        let counts = self.0.records.made(site.lease, row.id, attempt, how).await?;
        if let Some(kind) = blocked {
            return Err(EnterError::Blocked(kind));
        }
        let found = made.map_err(|why| stop.told(not_elsewhere(details.lost_host.as_deref(), why)))?;
        if let Some(worktree) = &found.worktree {
            if !was_there {
                details.base_commit = Some(worktree.mark().base.clone());
            }
            details.lost_host = None;
            // A worktree beside the run's first one has a branch beside the first one.
            details.branch = worktree.mark().branch.clone();
        }
        self.0.records.describe(site.lease, row.id, details.text()).await?;
        if !counts {
            // The creation was given up meanwhile: the worktree is left to clean-up and is not used by the run.
            return Err("creating the environment took too long".to_owned().into());
        }
        Ok(found)
    }

    /// Creates a worktree on the run's branch. That is a new branch; or, if the run had a worktree before, the
    /// existing branch or one beside it. If a dead run has the branch, its worktree is removed.
    async fn create(
        &self,
        lease: Lease,
        worktrees: Result<Worktrees, GitError>,
        mut options: CreateOptions,
        again: Option<u32>,
        cancel: &Cancel,
    ) -> Result<Worktree, String> {
        let worktrees = worktrees.map_err(|error| error.to_string())?;
        let Branch::New(branch) = options.branch.clone() else { return Err("it has no branch".into()) };
        let first = create_with(&worktrees, &options, cancel).await?;
        let error = match first {
            Ok(worktree) => return Ok(worktree),
            Err(error) => error,
        };
        if !matches!(error.kind, GitKind::BranchExists { .. } | GitKind::BranchInUse { .. }) {
            return Err(error.to_string());
        }
        if let Some(attempt) = again {
            // Use the branch only if this run has committed to it, because a run must not continue another run's
            // work.
            if worktrees.repository().is_branch_of(&branch, &options.run) {
                options.branch = Branch::Existing(branch.clone());
                if let Ok(worktree) = create_with(&worktrees, &options, cancel).await? {
                    return Ok(worktree);
                }
            }
            options.branch = Branch::New(format!("{branch}-{attempt}"));
            return create_with(&worktrees, &options, cancel).await?.map_err(|error| error.to_string());
        }
        if self.make_way(lease, &worktrees, &branch).await? {
            create_with(&worktrees, &options, cancel).await?.map_err(|error| error.to_string())
        } else {
            Err(error.to_string())
        }
    }
}

/// Handles uncommitted changes in the checkout that a run was started in, as the pipeline file asks. Returns the
/// state that the run starts with, or an error if the run must not start.
async fn uncommitted_of(
    site: &Site<'_>,
    spec: &WorktreeSpec,
    repository: &Repository,
    cancel: &Cancel,
) -> Result<Option<Checkpoint>, GitError> {
    let timeout = Settings::default().git_timeout;
    let (run, folder, base) = (site.key.0.to_string(), site.started_in.to_owned(), spec.base.clone());
    let (repository, cancel, dirty) = (repository.clone(), cancel.clone(), spec.dirty);
    let looked = tokio::task::spawn_blocking(move || match dirty {
        DirtyPolicy::Ignore => Ok(None),
        DirtyPolicy::Refuse => match Uncommitted::of(&folder, &cancel, timeout)? {
            None => Ok(None),
            Some(found) => Err(found.refused("the run does not start with them (`dirty: refuse`)")),
        },
        DirtyPolicy::Include => repository.record_uncommitted(&run, &folder, &base, &cancel, timeout),
    });
    looked.await.unwrap_or_else(|error| {
        Err(GitError { attempt: format!("look for uncommitted changes ({error})"), kind: GitKind::Cancelled })
    })
}

/// Returns the state after a step, from the first of these runs that has recorded it; an error that names it if none
/// has.
fn find_recorded(repository: &Repository, runs: &[String], step: &str) -> Result<Checkpoint, GitError> {
    let mut found = runs.iter().map(|run| repository.find_checkpoint(run, step));
    let first = found.next().unwrap_or_else(|| repository.find_checkpoint("", step));
    match first {
        Err(error) if matches!(error.kind, GitKind::NoSuchCheckpoint { .. }) => {
            found.find_map(Result::ok).ok_or(error)
        }
        other => other,
    }
}

/// Fetches the states that a run on another host has pushed to a remote.
async fn fetch(repository: &Repository, remote: &str, run: &str, cancel: &Cancel) -> Result<(), String> {
    let timeout = Settings::default().git_timeout;
    let (repository, remote) = (repository.clone(), remote.to_owned());
    let (run, cancel) = (run.to_owned(), cancel.clone());
    blocking(move || repository.fetch_checkpoints(&remote, &run, timeout, &cancel)).await
}

/// Returns a path as text, which the store can keep.
fn text_of(path: &Path) -> Result<String, String> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("{} is not UTF-8: a repository needs a path that is", path.display()))
}

/// Returns the pipeline's setting as the store keeps it.
fn keep_of(policy: KeepPolicy) -> Keep {
    match policy {
        KeepPolicy::Never => Keep::Never,
        KeepPolicy::OnFailure => Keep::OnFailure,
        KeepPolicy::Always => Keep::Always,
    }
}

/// Returns the error message for a run that lost its host and cannot continue here.
fn not_elsewhere(lost_host: Option<&str>, why: String) -> String {
    match lost_host {
        Some(host) => format!(
            "the run worked on {host}, which is lost, and cannot go on here: {why}; start a worker on {host} and \
             `sprag resume`"
        ),
        None => why,
    }
}

/// Creates the worktree on a blocking thread.
async fn create_with(
    worktrees: &Worktrees,
    options: &CreateOptions,
    cancel: &Cancel,
) -> Result<Result<Worktree, GitError>, String> {
    let (worktrees, options, cancel) = (worktrees.clone(), options.clone(), cancel.clone());
    let made = tokio::task::spawn_blocking(move || worktrees.create(&options, &cancel));
    made.await.map_err(|error| error.to_string())
}

/// Determines the setup that is still due in a worktree. If none is, marks the worktree as ready for steps.
fn prepare(mut worktree: Worktree, setup: Option<sprag_pipeline::Setup>) -> Result<Found, GitError> {
    let mut due = None;
    if let Some(setup) = setup {
        let key = full_key(&worktree.setup_key(&setup.files)?, &setup);
        due = (worktree.mark().setup_key.as_ref() != Some(&key)).then_some(Setup { setup, key });
    }
    if due.is_none() {
        worktree.set_prepared(None)?;
    }
    Ok(Found { guest: worktree.as_shared(), worktree: Some(worktree), setup: due })
}

/// Returns the key of a setup's result: the files that it names, and the command that it runs.
fn full_key(files: &str, setup: &sprag_pipeline::Setup) -> String {
    format!("{files} {}", setup.run)
}

#[cfg(test)]
mod tests {
    use sprag_pipeline::branch_problem;
    use sprag_worktree::check_branch;

    #[test]
    fn a_file_and_a_repository_agree_on_names_of_branches() {
        let parts = ["a", "/", ".", "..", "-", "@", "{", ".lock", " ", "~", "HEAD", "ü", "\u{7f}", "x"];
        for first in parts {
            for second in parts {
                for third in parts {
                    let name = format!("{first}{second}{third}");
                    assert_eq!(branch_problem(&name).is_none(), check_branch(&name).is_ok(), "{name:?}");
                }
            }
        }
        for name in ["", "@", "HEAD", "a", "a/b"] {
            assert_eq!(branch_problem(name).is_none(), check_branch(name).is_ok(), "{name:?}");
        }
    }
}
