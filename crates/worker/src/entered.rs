//! A step in its environment: restores the files it starts with, records the state it leaves, and frees the worktree
//! for the next step.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sprag_lifecycle::{ExecutionId, RunId};
use sprag_process::boot_ms;
use sprag_worktree::{Cancel, Checkpoint, Error as GitError, Kind as GitKind, Repository, UsageLock};

use crate::control::{Control, Signal, pause};
use crate::environment::{Environments, Key, RunEnvironment, Slot, before, blocking};
use crate::making::{LONGEST_WAIT_MS, LOOK};

/// A step that works in an environment.
pub(crate) struct Entered {
    owner: Environments,
    key: Key,
    slot: Slot,
    pub(crate) place: Arc<RunEnvironment>,
    /// The lock on the worktree's use. While this step holds it, no process restores files in the worktree or takes
    /// it.
    visit: Mutex<Option<UsageLock>>,
}

/// The parameters that decide which files a step starts with.
pub(crate) struct Begin<'b> {
    /// The run whose step it is.
    pub(crate) run: RunId,
    /// The step's name.
    pub(crate) step: &'b str,
    /// Whether an earlier attempt at the step has started.
    pub(crate) is_retry: bool,
    /// Whether a retry continues with the files that the last attempt left.
    pub(crate) here: bool,
    /// Whether it is a further round of a step with `repeat`, which continues with the files of the round before.
    pub(crate) later_round: bool,
    /// The run that this one was forked from; none if it is not a fork.
    pub(crate) forked_from: Option<String>,
}

impl Entered {
    pub(crate) fn new(
        owner: Environments,
        key: Key,
        slot: Slot,
        place: Arc<RunEnvironment>,
        visit: Option<UsageLock>,
    ) -> Self {
        Entered { owner, key, slot, place, visit: Mutex::new(visit) }
    }

    /// Restores the files that the step starts with: the recorded state from before it, if it has started before.
    /// Otherwise records the present files as that state. An attempt that ended before it had recorded the state has
    /// not started. Returns a remark that a person should read, if any.
    pub(crate) async fn begin(&self, begin: Begin<'_>) -> Result<Option<String>, String> {
        let Some(guest) = self.place.guest.clone() else { return Ok(None) };
        let name = before(begin.step);
        let mut runs = vec![begin.run.to_string()];
        runs.extend(begin.forked_from.filter(|_| self.is_own()));
        // A step with its own worktree has started before if its state was recorded: it was rewound, resumed or
        // forked.
        let wanted = if begin.is_retry { !begin.here } else { self.is_own() && !begin.later_round };
        let remark = if wanted { self.put_back(runs, name.clone()).await? } else { None };
        let (run, place, is_retry) = (begin.run.to_string(), Arc::clone(&self.place), begin.is_retry);
        let record = move || {
            let repository = Repository::discover(&place.dir)?;
            if is_retry && find_first(&repository, std::slice::from_ref(&run), &name)?.is_some() {
                return Ok(());
            }
            guest.checkpoint(&run, &name, &Cancel::default()).map(drop)
        };
        blocking(record).await?;
        Ok(remark)
    }

    /// Whether this step has a worktree of its own.
    fn is_own(&self) -> bool {
        self.key.1.is_some()
    }

    /// Restores a recorded state of the first of these runs that has it, unless other steps work in the worktree.
    async fn put_back(&self, runs: Vec<String>, name: String) -> Result<Option<String>, String> {
        let Some(guest) = self.place.guest.clone() else { return Ok(None) };
        // Release this step's own lock, because it would prevent the exclusive one.
        drop(self.visit().take());
        let (place, ours) = (Arc::clone(&self.place), guest.clone());
        let done = blocking(move || {
            let repository = Repository::discover(&place.dir)?;
            let Some(state) = find_first(&repository, &runs, &name)? else { return Ok(true) };
            let Some(_alone) = ours.try_exclusive()? else { return Ok(false) };
            match place.worktree().as_mut() {
                Some(worktree) => worktree.start_from(&state, &Cancel::default()).map(|()| true),
                None => Ok(false),
            }
        });
        let done = done.await;
        let visit = blocking(move || guest.enter(&Cancel::default())).await?;
        *self.visit() = Some(visit);
        Ok((!done?).then(|| {
            "other steps run in the same worktree: this one continues with the current files, not with those from \
             before the step"
                .to_owned()
        }))
    }

    fn visit(&self) -> std::sync::MutexGuard<'_, Option<UsageLock>> {
        self.visit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes ownership of the worktree for this process, and waits until another process of the run has left it.
    /// Returns false if the step is stopped before, or if its worker is draining.
    pub(crate) async fn own(&self, control: &Control) -> Result<bool, String> {
        let give_up_ms = boot_ms() + LONGEST_WAIT_MS;
        loop {
            if self.place.worktree().is_some() {
                return Ok(true);
            }
            if !matches!(control.now(), Signal::Renewed { .. }) {
                return Ok(false);
            }
            let (owner, place) = (self.owner.clone(), Arc::clone(&self.place));
            let taken = blocking(move || {
                let repository = Repository::discover(&place.dir)?;
                let path = place.dir.display().to_string();
                match owner.worktrees(&repository)?.adopt(&path, &place.run.to_string()) {
                    Ok(mut worktree) => {
                        // Steps work in it already, so the previous owner has prepared it.
                        worktree.set_prepared(None)?;
                        *place.worktree() = Some(worktree);
                        Ok(())
                    }
                    Err(error) if matches!(error.kind, GitKind::InUse { .. }) => Ok(()),
                    Err(error) => Err(error),
                }
            });
            taken.await?;
            if boot_ms() >= give_up_ms {
                return Err("another process of this run holds its worktree".into());
            }
            if self.place.worktree().is_none() {
                if control.is_draining() {
                    return Ok(false);
                }
                pause(LOOK.min(Duration::from_millis(200))).await;
            }
        }
    }

    /// Records the state that the step has left, and pushes it to the remote from which another host can continue the
    /// run. Returns a warning that a person should read, if any.
    pub(crate) async fn record(&self, execution: ExecutionId, step: &str) -> Option<String> {
        let ExecutionId { run, attempt, .. } = execution;
        let guest = self.place.guest.clone()?;
        let (of, name, recorder) = (run.to_string(), step.to_owned(), guest.clone());
        let recorded =
            blocking(move || recorder.checkpoint_attempt(&of, &name, attempt, &Cancel::default())).await;
        let path = self.place.dir.display();
        let state = match recorded {
            Ok(state) => state,
            Err(error) => {
                tracing::warn!(%run, %path, step, %error, "the step's state was not recorded");
                return Some(format!(
                    "the files of this step were not recorded, and the run cannot go back to them: {error}"
                ));
            }
        };
        let remote = self.place.remote.clone()?;
        let sent = blocking(move || guest.send(&remote, &state, &Cancel::default())).await;
        sent.err().map(|error| {
            tracing::warn!(%run, %path, step, %error, "the step's state was not pushed");
            format!("if this host is lost, the run cannot continue elsewhere from this step: {error}")
        })
    }

    /// Leaves the environment at the end of the step. The last step to leave keeps the worktree for the run's next
    /// step.
    pub(crate) async fn leave(self) {
        let Entered { owner, key, slot, place, visit } = self;
        drop(visit);
        let mut live = slot.lock().await;
        live.users = live.users.saturating_sub(1);
        if live.users > 0 {
            return;
        }
        live.place = None;
        let worktree = place.worktree().take();
        if let Some(worktree) = worktree {
            let (run, path) = (key.0, worktree.path().to_owned());
            let kept =
                tokio::task::spawn_blocking(move || worktree.keep(&format!("run {run} continues in it")));
            if let Ok(Err(error)) = kept.await {
                tracing::warn!(%run, path = %path.display(), %error, "leaving a worktree failed");
            }
        }
        drop(live);
        owner.forget(key, &slot);
    }
}

/// Returns the state of this name from the first of these runs that has recorded it.
fn find_first(repository: &Repository, runs: &[String], name: &str) -> Result<Option<Checkpoint>, GitError> {
    for run in runs {
        match repository.find_checkpoint(run, name) {
            Ok(state) => return Ok(Some(state)),
            Err(error) if matches!(error.kind, GitKind::NoSuchCheckpoint { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
