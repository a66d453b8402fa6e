//! The environment of a run's commands: its worktree or folder, created when the first command needs it.
//!
//! ```text
//!   a step starts ─▶ Environments::enter ─▶ store: ready? ── no ─▶ note, then git, then note again   (making.rs)
//!                          │                                 yes ─▶ take it over, or work beside its owner
//!   a step ends ────▶ Entered::leave ──▶ the last one of the run here: left for the next             (entered.rs)
//! ```
//!
//! Steps of a run share its worktree, even across several processes. A process owns a worktree only while a step of
//! its run works there. In between the worktree is marked as kept, so that no process mistakes it for a dead run's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use sprag_lifecycle::{RunId, StepNo};
use sprag_pipeline::Workplace;
use sprag_process::Secrets;
use sprag_store::{Assignment, Id};
use sprag_worktree::{Cancel, Kind as GitKind, Ports, SharedWorktree, Worktree};

use crate::control::{Control, Signal};
use crate::entered::Entered;
use crate::making::Site;
use crate::records::Records;

/// The number of times that a worktree may disappear while a step enters it. More than that is not chance.
const TRIES: u32 = 10;

/// The owner of an environment: a run, or a single step of it.
pub(crate) type Key = (RunId, Option<StepNo>);

/// The environments that this worker's steps work in.
#[derive(Clone)]
pub struct Environments(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) records: Arc<dyn Records>,
    pub(crate) data: PathBuf,
    pub(crate) worker: Id,
    live: Mutex<BTreeMap<Key, Slot>>,
}

/// An environment that this process uses or is creating.
pub(crate) type Slot = Arc<tokio::sync::Mutex<Live>>;

impl std::fmt::Debug for Environments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environments").field("data", &self.0.data).finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(crate) struct Live {
    pub(crate) place: Option<Arc<RunEnvironment>>,
    pub(crate) users: usize,
}

/// An environment in use by this process.
pub(crate) struct RunEnvironment {
    pub(crate) dir: PathBuf,
    pub(crate) env: BTreeMap<String, String>,
    /// The shared handle for the steps that work in the worktree; none for a plain folder.
    pub(crate) guest: Option<SharedWorktree>,
    /// The owner's handle of the worktree; none if another process of the run owns it.
    worktree: Mutex<Option<Worktree>>,
    /// The setup that must run before any step; none once it has run.
    pub(crate) setup: tokio::sync::Mutex<Option<Setup>>,
    pub(crate) run: RunId,
    /// The remote to which the states after steps are pushed; none if the run has none.
    pub(crate) remote: Option<String>,
}

/// The setup command of a new worktree, and the key by which its result is recognised.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) setup: sprag_pipeline::Setup,
    pub(crate) key: String,
}

/// The reason why a step has no environment.
#[derive(Debug)]
pub(crate) enum EnterError {
    /// It could not be created or found.
    Failed(String),
    /// A person has to change something first.
    Blocked(Box<GitKind>),
    /// The step is stopped before it has one.
    Stopped,
    /// The worker is draining, and the step only waits for another process to provide it.
    Draining,
}

impl From<String> for EnterError {
    fn from(why: String) -> Self {
        EnterError::Failed(why)
    }
}

/// A listener that cancels the creation of an environment when its step is to stop.
pub(crate) struct Stop {
    pub(crate) cancel: Cancel,
    control: Control,
    listening: tokio::task::JoinHandle<()>,
}

impl Stop {
    pub(crate) fn listen(control: &Control) -> Self {
        let (cancel, control) = (Cancel::default(), control.clone());
        let listening = tokio::spawn(stopped(control.clone(), cancel.clone()));
        Stop { cancel, control, listening }
    }

    /// Waits for `work`, or fails with `EnterError::Stopped` if the step is to stop first.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T, EnterError> {
        tokio::select! {
            done = work => Ok(done),
            () = stopped(self.control.clone(), self.cancel.clone()) => Err(EnterError::Stopped),
        }
    }

    /// Whether the step's worker is draining.
    pub(crate) fn is_draining(&self) -> bool {
        self.control.is_draining()
    }

    /// Returns the reason to report for a failure: `EnterError::Stopped` if the step is to stop anyway.
    pub(crate) fn told(&self, why: String) -> EnterError {
        if self.cancel.is_cancelled() { EnterError::Stopped } else { EnterError::Failed(why) }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Waits until the step is to stop, then cancels `cancel`.
pub(crate) async fn stopped(mut control: Control, cancel: Cancel) {
    let mut signal = control.now();
    while matches!(signal, Signal::Renewed { .. }) {
        signal = control.next().await;
    }
    cancel.cancel();
}

impl RunEnvironment {
    pub(crate) fn worktree(&self) -> MutexGuard<'_, Option<Worktree>> {
        self.worktree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the worktree on a blocking thread. Returns none if this process does not own the worktree.
    pub(crate) async fn with_worktree<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Worktree) -> Result<T, sprag_worktree::Error> + Send + 'static,
    ) -> Option<Result<T, sprag_worktree::Error>> {
        let place = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || place.worktree().as_mut().map(work));
        done.await.ok().flatten()
    }
}

impl Environments {
    /// Creates the registry of environments in this data directory, for steps of this worker.
    pub fn new(records: Arc<dyn Records>, data: &Path, worker: Id) -> Self {
        // Git reports canonical paths, and they are compared with ours.
        let data = std::fs::canonicalize(data).unwrap_or_else(|_| data.to_owned());
        Environments(Arc::new(Inner { records, data, worker, live: Mutex::default() }))
    }

    /// Enters the environment that this step works in, and creates it if needed. Returns none if the run works where
    /// it was started.
    pub(crate) async fn enter(
        &self,
        assignment: &Assignment,
        secrets: &Secrets,
        control: &Control,
    ) -> Result<Option<Entered>, EnterError> {
        let context: Value = serde_json::from_str(&assignment.context).unwrap_or_default();
        let Some((run, plan)) = self.owner_of(assignment, &context).await? else { return Ok(None) };
        let spec = plan.environment.as_ref().map(|runtime| runtime.spec.as_str()).unwrap_or("{}");
        let workplace: Workplace = serde_json::from_str(spec)
            .map_err(|error| format!("this version cannot read the run's environment: {error}"))?;
        let workplace = workplace.for_run(&run.to_string(), &plan.name);
        let own = assignment.step().own_environment.then_some(assignment.lease.execution.step);
        let started_in = context["dir"].as_str().map(PathBuf::from).unwrap_or_default();
        let lease = assignment.lease;
        let forked_from = context["forked_from"]["run"].as_str();
        let (key, workplace, started_in) = ((run, own), &workplace, &*started_in);
        let pipeline = &*plan.name;
        let site = Site { lease, key, workplace, pipeline, started_in, forked_from, secrets };
        let stop = Stop::listen(control);
        let slot = Arc::clone(self.live().entry(site.key).or_default());
        let entered = self.come_in(&site, &slot, &stop).await;
        if entered.is_err() {
            self.forget(site.key, &slot);
        }
        entered.map(Some)
    }

    async fn come_in(&self, site: &Site<'_>, slot: &Slot, stop: &Stop) -> Result<Entered, EnterError> {
        for _ in 0..TRIES {
            let mut live = stop.or(slot.lock()).await?;
            let place = match &live.place {
                Some(place) => Arc::clone(place),
                None => Arc::new(self.find_or_make(site, stop).await?),
            };
            let visit = match &place.guest {
                Some(guest) => {
                    let (guest, cancel) = (guest.clone(), stop.cancel.clone());
                    match tokio::task::spawn_blocking(move || guest.enter(&cancel)).await {
                        Ok(Ok(visit)) => Some(visit),
                        // A process that took the run for dead has taken the worktree in between. The store knows
                        // about it by now.
                        Ok(Err(error)) if matches!(error.kind, GitKind::NoSuchWorktree { .. }) => {
                            live.place = None;
                            continue;
                        }
                        Ok(Err(error)) => return Err(stop.told(error.to_string())),
                        Err(error) => return Err(EnterError::Failed(error.to_string())),
                    }
                }
                None => None,
            };
            live.place = Some(Arc::clone(&place));
            live.users += 1;
            return Ok(Entered::new(self.clone(), site.key, Arc::clone(slot), place, visit));
        }
        Err(EnterError::Failed("its worktree was removed repeatedly".into()))
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<Key, Slot>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the entry of an environment that no step uses or is about to enter.
    pub(crate) fn forget(&self, key: Key, slot: &Slot) {
        let mut all = self.live();
        // Two references: the map's and the caller's.
        if Arc::strong_count(slot) == 2 {
            all.remove(&key);
        }
    }

    /// Returns the run that owns the environment: the step's own run, or the parent run that this run is part of.
    async fn owner_of(
        &self,
        assignment: &Assignment,
        context: &Value,
    ) -> Result<Option<(RunId, Arc<sprag_lifecycle::Plan>)>, String> {
        if assignment.plan.environment.is_some() {
            return Ok(Some((assignment.lease.execution.run, Arc::clone(&assignment.plan))));
        }
        let Some(above) = context["environment_of"].as_str() else { return Ok(None) };
        let run: RunId = above.parse().map_err(|_| format!("{above:?} is no run"))?;
        let plan = self.0.records.plan(assignment.lease, run).await?;
        plan.map(|plan| Some((run, plan)))
            .ok_or_else(|| format!("run {run}, whose environment it works in, is gone"))
    }

    async fn find_or_make(&self, site: &Site<'_>, stop: &Stop) -> Result<RunEnvironment, EnterError> {
        let Site { key, workplace, started_in, .. } = *site;
        let mut env = workplace.env.clone();
        let run = key.0.to_string();
        if !workplace.ports.is_empty() {
            let ports = Ports::open(&self.0.data).and_then(|ports| ports.lease(&run, &workplace.ports));
            for (name, port) in ports.map_err(|error| error.to_string())? {
                env.insert(format!("SPRAG_PORT_{}", name.to_uppercase()), port.to_string());
            }
        }
        if let Some(directory) = &workplace.directory {
            let dir = started_in.join(directory);
            std::fs::create_dir_all(&dir)
                .map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
            let (worktree, setup) = (Mutex::default(), None.into());
            return Ok(RunEnvironment { dir, env, guest: None, worktree, setup, run: key.0, remote: None });
        }
        let found = self.worktree_of(site, stop).await?;
        let dir = found.guest.path().to_owned();
        env.extend(found.guest.environment());
        env.insert("SPRAG_WORKTREE".into(), dir.display().to_string());
        let (worktree, setup) = (Mutex::new(found.worktree), found.setup.into());
        let remote = workplace.worktree.as_ref().and_then(|worktree| worktree.remote.clone());
        Ok(RunEnvironment { dir, env, guest: Some(found.guest), worktree, setup, run: key.0, remote })
    }
}

/// Returns the name under which the state before a step is recorded; no step's id begins with an underscore.
pub fn before(step: &str) -> String {
    format!("_{step}")
}

/// Runs blocking work on a thread for that, and returns its error as text.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, sprag_worktree::Error> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns this host's name.
pub fn host() -> String {
    sprag_process::current().map_or_else(|_| "localhost".to_owned(), |process| process.host)
}
