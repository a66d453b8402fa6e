//! A step in its environment: it begins with the right files, records what it leaves, and makes room for the next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_process::boot_ms;
use sprag_worktree::{Cancel, Checkpoint, Error as GitError, Kind as GitKind, Repository, Visit};

use crate::control::{Control, Signal, pause};
use crate::environment::{Environments, Key, Place, Slot, before, blocking};
use crate::making::{LONGEST_WAIT_MS, LOOK};

/// A step that works in an environment.
pub(crate) struct Entered {
    owner: Environments,
    key: Key,
    slot: Slot,
    pub(crate) place: Arc<Place>,
    /// As long as it is there, nobody puts files back or takes the worktree.
    visit: Mutex<Option<Visit>>,
}

/// With which files a step begins.
pub(crate) struct Begin<'b> {
    /// The run whose step it is.
    pub(crate) run: RunId,
    /// The step's name.
    pub(crate) step: &'b str,
    /// It was tried before, and this is a further try.
    pub(crate) is_retry: bool,
    /// A further try goes on with what the last one left.
    pub(crate) here: bool,
    /// The run that this one was forked from.
    pub(crate) forked_from: Option<String>,
}

impl Entered {
    pub(crate) fn new(
        owner: Environments,
        key: Key,
        slot: Slot,
        place: Arc<Place>,
        visit: Option<Visit>,
    ) -> Self {
        Entered { owner, key, slot, place, visit: Mutex::new(visit) }
    }

    /// Has the step begin with the right files: those from before it, where it has begun before; else the present
    /// ones, which are recorded. Says what a person should know.
    pub(crate) async fn begin(&self, begin: Begin<'_>) -> Result<Option<String>, String> {
        let Some(guest) = self.place.guest.clone() else { return Ok(None) };
        let name = before(begin.step);
        let mut runs = vec![begin.run.to_string()];
        runs.extend(begin.forked_from.filter(|_| self.is_own()));
        // One that has a worktree alone has begun before if its state was recorded: rewound, resumed or forked.
        let wanted = if begin.is_retry { !begin.here } else { self.is_own() };
        let remark = match wanted {
            true => self.put_back(runs, name.clone()).await?,
            false => None,
        };
        if !begin.is_retry {
            let run = begin.run.to_string();
            blocking(move || guest.checkpoint(&run, &name, &Cancel::default()).map(drop)).await?;
        }
        Ok(remark)
    }

    /// Whether this step has the worktree alone.
    fn is_own(&self) -> bool {
        self.key.1.is_some()
    }

    /// Brings the files back to a recorded state, of the first of these runs that has it; unless others work there.
    async fn put_back(&self, runs: Vec<String>, name: String) -> Result<Option<String>, String> {
        let Some(guest) = self.place.guest.clone() else { return Ok(None) };
        // Ours must not be in our own way.
        drop(self.visit().take());
        let (place, ours) = (Arc::clone(&self.place), guest.clone());
        let done = blocking(move || {
            let repository = Repository::discover(&place.dir)?;
            let Some(state) = find_first(&repository, &runs, &name)? else { return Ok(true) };
            let Some(_alone) = ours.alone()? else { return Ok(false) };
            match place.worktree().as_mut() {
                Some(worktree) => worktree.begin_with(&state, &Cancel::default()).map(|()| true),
                None => Ok(false),
            }
        });
        let done = done.await;
        let visit = blocking(move || guest.come_in(&Cancel::default())).await?;
        *self.visit() = Some(visit);
        Ok((!done?).then(|| {
            "others work in the same worktree: it goes on with the files as they are, not with those from before \
             the step"
                .to_owned()
        }))
    }

    fn visit(&self) -> std::sync::MutexGuard<'_, Option<Visit>> {
        self.visit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the worktree belong to this process: waits until another one of the run has left it. False if the
    /// step is to end before.
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
                        // Steps work in it: whoever left it had made it ready.
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
                pause(LOOK.min(Duration::from_millis(200))).await;
            }
        }
    }

    /// Records what the step has left, and sends it to the remote that the run is to survive by. Says what a person
    /// should know.
    pub(crate) async fn record(&self, run: RunId, step: &str) -> Option<String> {
        let guest = self.place.guest.clone()?;
        let (of, name, recorder) = (run.to_string(), step.to_owned(), guest.clone());
        let recorded = blocking(move || recorder.checkpoint(&of, &name, &Cancel::default())).await;
        let path = self.place.dir.display();
        let state = match recorded {
            Ok(state) => state,
            Err(error) => {
                tracing::warn!(%run, %path, step, %error, "the step's state was not recorded");
                return None;
            }
        };
        let remote = self.place.remote.clone()?;
        let sent = blocking(move || guest.send(&remote, &state, &Cancel::default())).await;
        sent.err().map(|error| {
            tracing::warn!(%run, %path, step, %error, "the step's state was not sent");
            format!("should this host be lost, the run cannot go on elsewhere with what this step has done: {error}")
        })
    }

    /// The step is over. Whoever leaves last leaves the worktree for the run's next step.
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
                tokio::task::spawn_blocking(move || worktree.keep(&format!("run {run} goes on in it")));
            if let Ok(Err(error)) = kept.await {
                tracing::warn!(%run, path = %path.display(), %error, "leaving a worktree");
            }
        }
        drop(live);
        owner.forget(key, &slot);
    }
}

/// The state of this name that one of these runs has recorded.
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
