//! Making a run's worktree, or finding it: the store knows of it before git does, and hears how it went.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_pipeline::Workplace;
use sprag_process::boot_ms;
use sprag_store::ops::{Lease, Wanted};
use sprag_worktree::{
    Branch, Cancel, CreateOptions, Error as GitError, Guest, Kind as GitKind, Repository, Settings, Worktree,
    Worktrees,
};

use crate::environment::{Environments, Key, Setup, Stop, Without, blocking, host};
use crate::records::{Made, OnRecord, Provided};

/// How long a step waits for somebody else who makes the same environment.
pub(crate) const LONGEST_WAIT_MS: u64 = 30 * 60 * 1000;
/// How often it looks, should it not be told.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// How often it looks whether a worktree that another process has is ready for steps: nobody tells.
const LOOK_IN: Duration = Duration::from_millis(100);

/// Which environment is wanted, and what it is to be like.
#[derive(Clone, Copy)]
pub(crate) struct Site<'s> {
    /// The step that wants it.
    pub(crate) lease: Lease,
    pub(crate) key: Key,
    pub(crate) workplace: &'s Workplace,
    pub(crate) started_in: &'s Path,
}

/// A worktree in which steps can work.
pub(crate) struct Found {
    /// For its owner; none if another process of the run owns it.
    pub(crate) worktree: Option<Worktree>,
    pub(crate) guest: Guest,
    /// What is to be run in it first.
    pub(crate) setup: Option<Setup>,
}

/// A worktree that is to be made.
struct Making<'m> {
    row: &'m OnRecord,
    repository: &'m Repository,
    details: Value,
}

impl Environments {
    /// The run's worktree: found, or made, or waited for while somebody else makes it.
    pub(crate) async fn worktree_of(&self, site: &Site<'_>, stop: &Stop) -> Result<Found, Without> {
        let Site { lease, key, workplace, started_in } = *site;
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
            let there = known.as_ref().is_some_and(OnRecord::is_here);
            let before: Value =
                known.and_then(|row| serde_json::from_str(&row.details).ok()).unwrap_or_default();
            let details = json!({
                // Where the run began stays, however often its worktree is made again.
                "base_commit": before["base_commit"],
                "repository": repository.common_dir(), "branch": format!("{}{suffix}", spec.branch),
                "base": spec.base, "keep": spec.keep,
                "remote": spec.remote, "lost_host": before["lost_host"],
                "caches": workplace.setup.as_ref().map(|setup| setup.caches.clone()).unwrap_or_default(),
            });
            let wanted = Wanted {
                id: self.0.records.new_id(),
                run: key.0,
                scope: key.1,
                host: host().into(),
                worker: self.0.worker,
                managed: true,
                path: path.display().to_string().into(),
                details: details.to_string().into(),
            };
            let busy = match self.0.records.provide(lease, wanted, there).await? {
                Provided::Ready(row) => match self.take_over(&repository, &row, site, stop).await? {
                    Some(found) => return Ok(found),
                    None => row,
                },
                Provided::Make(row) => {
                    let making = Making { row: &row, repository: &repository, details };
                    return self.make(site, making, stop).await;
                }
                Provided::Busy(row) => {
                    stop.or(self.0.records.wait(key.0, row.owner, LOOK)).await??;
                    row
                }
            };
            if boot_ms() >= give_up_ms {
                let status = busy.status;
                return Err(format!("the environment has been {status} for too long").into());
            }
        }
    }

    pub(crate) fn worktrees(&self, repository: &Repository) -> Result<Worktrees, GitError> {
        Worktrees::open(repository.clone(), &self.0.data.join("worktrees"), Settings::default())
    }

    /// Goes on in a worktree that is there; none if it is not ready for that, and it is worth to look again.
    async fn take_over(
        &self,
        repository: &Repository,
        row: &OnRecord,
        site: &Site<'_>,
        stop: &Stop,
    ) -> Result<Option<Found>, Without> {
        let run = row.run.map(|run| run.to_string()).unwrap_or_default();
        let (path, setup) = (PathBuf::from(&*row.path), site.workplace.setup.clone());
        let (worktrees, repository, cancel) =
            (self.worktrees(repository), repository.clone(), stop.cancel.clone());
        let is_shared = site.key.1.is_none();
        let found = blocking(move || {
            let worktrees = worktrees?;
            let mut worktree = match worktrees.adopt(&path.display().to_string(), &run) {
                Ok(worktree) => worktree,
                // Another process of the run works in it: so do we, as soon as that one has made it ready.
                Err(error) if matches!(error.kind, GitKind::InUse { .. }) => {
                    return Ok(worktrees.guest(&path).ok().filter(Guest::is_prepared).map(|guest| Found {
                        worktree: None,
                        guest,
                        setup: None,
                    }));
                }
                // It went between two looks.
                Err(_) if !path.join(".git").exists() => return Ok(None),
                Err(error) => return Err(error),
            };
            if is_shared && let Some(state) = repository.chosen_start(&run)? {
                worktree.begin_with(&state, &cancel)?;
                repository.forget_start(&run)?;
            }
            prepare(worktree, setup).map(Some)
        });
        let found = found.await.map_err(|why| stop.told(why))?;
        if found.is_none() {
            stop.or(crate::control::pause(LOOK_IN)).await?;
        }
        Ok(found)
    }

    /// Makes a worktree: the store knows of it before git does, and hears how it went.
    async fn make(&self, site: &Site<'_>, making: Making<'_>, stop: &Stop) -> Result<Found, Without> {
        let Making { row, repository, mut details } = making;
        let spec = site.workplace.worktree.clone().unwrap_or_default();
        let attempt = row.provision_attempt;
        let was_there = details["base_commit"].is_string();
        let run = site.key.0.to_string();
        let branch = details["branch"].as_str().unwrap_or_default().to_owned();
        let mut options = CreateOptions::new(&run, &*row.path, &branch, &spec.base);
        options.submodules = spec.submodules;
        options.sparse = spec.sparse.clone();
        options.include = site.workplace.include.clone();
        options.markers = vec![("SPRAG_RUN_ID".into(), run.clone())];
        options.use_pool = true;
        // What was done for the same files before is there in one that was kept ready.
        options.setup_key = site.workplace.setup.as_ref().and_then(|setup| {
            let key = repository.setup_key(&spec.base, &setup.files).ok()?;
            Some(full_key(&key, setup))
        });
        let again = was_there.then_some(attempt);
        let lost_host = details["lost_host"].as_str().map(str::to_owned);
        let here = match (&spec.remote, &lost_host) {
            // A host that has come back has its own states, and nobody newer ones.
            (Some(remote), Some(lost)) if *lost != host() => {
                fetch(repository, remote, &run, &stop.cancel).await
            }
            _ => Ok(()),
        };
        let created = match here {
            Ok(()) => self.create(site.lease, self.worktrees(repository), options, again, &stop.cancel).await,
            Err(why) => Err(why),
        };
        let finished = self.0.records.last_finished(site.lease, site.key.0).await?;
        let is_shared = site.key.1.is_none();
        let (setup, cancel, repository) =
            (site.workplace.setup.clone(), stop.cancel.clone(), repository.clone());
        let made = match created {
            Ok(mut worktree) => {
                let begun = blocking(move || {
                    // It goes on where the run was: a state that somebody chose, or the last one that was recorded.
                    // One that a step has alone begins with that step's own states, when the step does.
                    let mut states = finished.iter().map(|step| repository.find_checkpoint(&run, step));
                    let state = match (repository.chosen_start(&run)?, &lost_host) {
                        (Some(chosen), _) => Some(chosen),
                        // What is older than the last one would undo what is known to be done.
                        (None, Some(_)) => states.next().transpose()?,
                        (None, None) => states.find_map(Result::ok).filter(|_| attempt > 1),
                    };
                    if let Some(state) = state.filter(|_| is_shared) {
                        worktree.begin_with(&state, &cancel)?;
                        repository.forget_start(&run)?;
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
            Err(why) => Made::Failed(why.clone()),
        };
        let counts = self.0.records.made(site.lease, row.id, attempt, how).await?;
        let found = made.map_err(|why| stop.told(not_elsewhere(&details, why)))?;
        if let Some(worktree) = &found.worktree {
            if !was_there {
                details["base_commit"] = worktree.mark().base.clone().into();
            }
            details["lost_host"] = Value::Null;
            // One beside its first one has a branch beside the first one.
            details["branch"] = worktree.mark().branch.clone().into();
        }
        let details: Arc<str> = details.to_string().into();
        self.0.records.describe(site.lease, row.id, details).await?;
        if !counts {
            // Somebody has given it up meanwhile: what was made goes to clean-up, not to the run.
            return Err("making the environment took so long that it was given up".to_owned().into());
        }
        Ok(found)
    }

    /// A worktree on the run's branch: a new one; or, if the run had one before, on the branch that is there, or on
    /// one beside it. A dead run that has the branch gives way.
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
            // What the run itself has committed there; another run's work is not ours to go on with.
            if worktrees.repository().is_branch_of(&branch, &options.run) {
                options.branch = Branch::Existing(branch.clone());
                if let Ok(worktree) = create_with(&worktrees, &options, cancel).await? {
                    return Ok(worktree);
                }
            }
            options.branch = Branch::New(format!("{branch}-{attempt}"));
            return create_with(&worktrees, &options, cancel).await?.map_err(|error| error.to_string());
        }
        match self.make_way(lease, &worktrees, &branch).await? {
            true => create_with(&worktrees, &options, cancel).await?.map_err(|error| error.to_string()),
            false => Err(error.to_string()),
        }
    }
}

/// Fetches what a run that worked on another host has left at a remote.
async fn fetch(repository: &Repository, remote: &str, run: &str, cancel: &Cancel) -> Result<(), String> {
    let timeout = Settings::default().git_timeout;
    let (repository, remote) = (repository.clone(), remote.to_owned());
    let (run, cancel) = (run.to_owned(), cancel.clone());
    blocking(move || repository.fetch_checkpoints(&remote, &run, timeout, &cancel)).await
}

/// Why a run that lost its host cannot go on here.
fn not_elsewhere(details: &Value, why: String) -> String {
    match details["lost_host"].as_str() {
        Some(host) => format!(
            "the run worked on {host}, which is lost, and cannot go on here: {why}; start a worker on {host} and \
             `sprag resume`"
        ),
        None => why,
    }
}

/// Makes it away from the runtime's threads.
async fn create_with(
    worktrees: &Worktrees,
    options: &CreateOptions,
    cancel: &Cancel,
) -> Result<Result<Worktree, GitError>, String> {
    let (worktrees, options, cancel) = (worktrees.clone(), options.clone(), cancel.clone());
    let made = tokio::task::spawn_blocking(move || worktrees.create(&options, &cancel));
    made.await.map_err(|error| error.to_string())
}

/// Finds out what is still to be run in a worktree; if nothing is, steps may come in.
fn prepare(mut worktree: Worktree, setup: Option<sprag_pipeline::Setup>) -> Result<Found, GitError> {
    let mut due = None;
    if let Some(setup) = setup {
        let key = full_key(&worktree.setup_key(&setup.files)?, &setup);
        due = (worktree.mark().setup_key.as_ref() != Some(&key)).then_some(Setup { setup, key });
    }
    if due.is_none() {
        worktree.set_prepared(None)?;
    }
    Ok(Found { guest: worktree.as_guest(), worktree: Some(worktree), setup: due })
}

/// What a setup depends on: the files that it names, and what it runs.
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
