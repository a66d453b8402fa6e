//! Where a run's commands work: its worktree or folder, made when the first of them needs it.
//!
//! ```text
//!   a step begins ─▶ Environments::enter ─▶ store: ready? ── no ─▶ note, then git, then note again
//!                          │                                 yes ─▶ take it over
//!   a step ends ────▶ Entered::leave ──▶ the last one of the run here: left for the next
//! ```
//!
//! Steps of a run share its worktree. A worktree belongs to a process only while a step of its run works there;
//! in between it is marked as kept, so that nobody takes it for a dead run's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_lifecycle::{RunId, StepNo};
use sprag_pipeline::Workplace;
use sprag_process::boot_ms;
use sprag_store::Id;
use sprag_store::ops::{Assignment, Lease, Wanted};
use sprag_worktree::{
    Branch, Cancel, CreateOptions, Kind as GitKind, Ports, Repository, Settings, Worktree, Worktrees,
};

use crate::control::{Control, Signal, pause};
use crate::records::{Provided, Records, Site};

/// How long a step waits for somebody else who makes the same environment.
const LONGEST_WAIT_MS: u64 = 30 * 60 * 1000;
/// How often it looks, should it not be told.
const LOOK: Duration = Duration::from_secs(1);

/// Whose environment it is: a run's, or one step's alone.
type Key = (RunId, Option<StepNo>);

/// The environments that this worker's steps work in.
#[derive(Clone)]
pub struct Environments(Arc<Inner>);

struct Inner {
    records: Arc<dyn Records>,
    data: PathBuf,
    worker: Id,
    live: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<Live>>>>,
}

impl std::fmt::Debug for Environments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environments").field("data", &self.0.data).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Live {
    place: Option<Arc<Place>>,
    users: usize,
}

/// An environment in use.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) env: BTreeMap<String, String>,
    /// None for a plain folder, and where another process of the run owns it.
    worktree: Mutex<Option<Worktree>>,
    /// What must be run in it before anything else.
    pub(crate) setup: tokio::sync::Mutex<Option<Setup>>,
    pub(crate) run: RunId,
}

/// What is to be run in a new worktree before anything else.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) setup: sprag_pipeline::Setup,
    pub(crate) key: String,
}

/// A step that works in an environment.
pub(crate) struct Entered {
    owner: Environments,
    key: Key,
    slot: Arc<tokio::sync::Mutex<Live>>,
    pub(crate) place: Arc<Place>,
}

impl Place {
    fn worktree(&self) -> MutexGuard<'_, Option<Worktree>> {
        self.worktree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the worktree, away from the runtime's threads; none if it is not ours to change.
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
    /// The environments in this data directory, for steps of this worker.
    pub fn new(records: Arc<dyn Records>, data: &Path, worker: Id) -> Self {
        // Git's own paths are canonical, and theirs are compared with ours.
        let data = std::fs::canonicalize(data).unwrap_or_else(|_| data.to_owned());
        Environments(Arc::new(Inner { records, data, worker, live: Mutex::default() }))
    }

    /// The environment that this step works in, made if need be; none if the run works where it was started.
    pub(crate) async fn enter(&self, assignment: &Assignment) -> Result<Option<Entered>, String> {
        let context: Value = serde_json::from_str(&assignment.context).unwrap_or_default();
        let Some((run, plan)) = self.owner_of(assignment, &context).await? else { return Ok(None) };
        let spec = plan.environment.as_ref().map(|surroundings| surroundings.spec.as_str()).unwrap_or("{}");
        let workplace: Workplace = serde_json::from_str(spec)
            .map_err(|error| format!("this version cannot read the run's environment: {error}"))?;
        let workplace = workplace.of_run(&run.to_string(), &plan.name);
        let own = assignment.step().own_environment.then_some(assignment.lease.execution.step);
        let key = (run, own);
        let started_in = context["dir"].as_str().map(PathBuf::from).unwrap_or_default();
        let slot = Arc::clone(self.live().entry(key).or_default());
        let mut live = slot.lock().await;
        let place = match &live.place {
            Some(place) => Arc::clone(place),
            None => Arc::new(self.find_or_make(assignment.lease, key, &workplace, &started_in).await?),
        };
        live.place = Some(Arc::clone(&place));
        live.users += 1;
        drop(live);
        Ok(Some(Entered { owner: self.clone(), key, slot, place }))
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<tokio::sync::Mutex<Live>>>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run whose environment it is: its own, or that of the run whose work it is.
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

    async fn find_or_make(
        &self,
        lease: Lease,
        key: Key,
        workplace: &Workplace,
        started_in: &Path,
    ) -> Result<Place, String> {
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
            return Ok(Place { dir, env, worktree: Mutex::default(), setup: None.into(), run: key.0 });
        }
        let (worktree, dir, fresh) = self.worktree_of(lease, key, workplace, started_in).await?;
        if let Some(worktree) = &worktree {
            env.extend(worktree.environment());
        }
        env.insert("SPRAG_WORKTREE".into(), dir.display().to_string());
        Ok(Place { dir, env, worktree: Mutex::new(worktree), setup: fresh.into(), run: key.0 })
    }

    /// The run's worktree: found, or made, or waited for while somebody else makes it.
    async fn worktree_of(
        &self,
        lease: Lease,
        key: Key,
        workplace: &Workplace,
        started_in: &Path,
    ) -> Result<(Option<Worktree>, PathBuf, Option<Setup>), String> {
        let spec = workplace.worktree.clone().unwrap_or_default();
        if !started_in.exists() {
            return Err(format!(
                "{} is not on this host ({}): a run works on the repository of the host that works on it; \
                 put a clone there, or serve its queue where the repository is",
                started_in.display(),
                host()
            ));
        }
        let repository = {
            let started_in = started_in.to_owned();
            blocking(move || Repository::discover(&started_in)).await?
        };
        let give_up_ms = boot_ms() + LONGEST_WAIT_MS;
        loop {
            let known = self.0.records.find(lease, key.0, key.1).await?;
            let there = known.as_ref().is_some_and(Site::is_here);
            let before: Value =
                known.and_then(|row| serde_json::from_str(&row.details).ok()).unwrap_or_default();
            let details = json!({
                // Where the run began stays, however often its worktree is made again.
                "base_commit": before["base_commit"],
                "repository": repository.common_dir(), "branch": spec.branch, "base": spec.base,
                "keep": spec.keep, "caches": workplace.setup.as_ref().map(|setup| setup.caches.clone()).unwrap_or_default(),
            });
            let wanted = Wanted {
                id: self.0.records.new_id(),
                run: key.0,
                scope: key.1,
                host: host().into(),
                worker: self.0.worker,
                managed: true,
                details: details.to_string().into(),
            };
            match self.0.records.provide(lease, wanted, there).await? {
                Provided::Ready(row) => return self.take_over(&repository, &row, workplace).await,
                Provided::Make(row) => {
                    let making =
                        Making { lease, key, row: &row, repository: &repository, workplace, details };
                    return self.make(making).await;
                }
                Provided::Busy(row) => {
                    if boot_ms() >= give_up_ms {
                        return Err(format!("the environment has been {} for too long", row.status));
                    }
                    self.0.records.wait(key.0, row.owner, LOOK).await?;
                }
            }
        }
    }

    fn worktrees(&self, repository: &Repository) -> Result<Worktrees, sprag_worktree::Error> {
        Worktrees::open(repository.clone(), &self.0.data.join("worktrees"), Settings::default())
    }

    /// Goes on in a worktree that is there.
    async fn take_over(
        &self,
        repository: &Repository,
        row: &Site,
        workplace: &Workplace,
    ) -> Result<(Option<Worktree>, PathBuf, Option<Setup>), String> {
        let run = row.run.map(|run| run.to_string()).unwrap_or_default();
        let (path, setup) = (row.path.to_string(), workplace.setup.clone());
        let (worktrees, repository) = (self.worktrees(repository), repository.clone());
        let adopted = blocking(move || {
            let mut worktree = match worktrees?.adopt(&path, &run) {
                Ok(worktree) => worktree,
                // Another process of the run works in it: so do we, and leave its keeping to that one.
                Err(error) if matches!(error.kind, GitKind::InUse { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            if let Some(state) = repository.chosen_start(&run)? {
                worktree.begin_with(&state, &Cancel::default())?;
                repository.forget_start(&run)?;
            }
            let fresh = setup_of(&worktree, setup)?;
            Ok(Some((worktree, fresh)))
        })
        .await?;
        let path = PathBuf::from(&*row.path);
        Ok(match adopted {
            Some((worktree, fresh)) => (Some(worktree), path, fresh),
            None => (None, path, None),
        })
    }

    /// Makes a worktree: the store knows of it before git does, and hears how it went.
    async fn make(&self, making: Making<'_>) -> Result<(Option<Worktree>, PathBuf, Option<Setup>), String> {
        let Making { lease, key, row, repository, workplace, mut details } = making;
        let spec = workplace.worktree.clone().unwrap_or_default();
        let attempt = row.provision_attempt;
        let was_there = details["base_commit"].is_string();
        let suffix = key.1.map(|step| format!("-s{step}")).unwrap_or_default();
        let again = if attempt > 1 { format!("-{attempt}") } else { String::new() };
        let path = self.0.data.join("worktrees").join(format!("{}{suffix}{again}", key.0));
        let branch = format!("{}{suffix}", spec.branch);
        details["branch"] = branch.clone().into();
        let (path_text, details_text): (Arc<str>, Arc<str>) =
            (path.display().to_string().into(), details.to_string().into());
        self.0.records.describe(lease, row.id, Arc::clone(&path_text), details_text).await?;
        let run = key.0.to_string();
        let mut options = CreateOptions::new(&run, path.clone(), &branch, &spec.base);
        options.submodules = spec.submodules;
        options.sparse = spec.sparse.clone();
        options.include = workplace.include.clone();
        options.markers = vec![("SPRAG_RUN_ID".into(), run.clone())];
        options.use_pool = true;
        let worktrees = self.worktrees(repository);
        let finished = self.0.records.last_finished(lease, key.0).await?;
        let (repository, setup, run) = (repository.clone(), workplace.setup.clone(), run);
        let made = blocking(move || {
            let worktrees = worktrees?;
            let cancel = Cancel::default();
            let mut worktree = create(&worktrees, &mut options, was_there.then_some(attempt), &cancel)?;
            // It goes on where the run was: a state that somebody chose, or the last one that was recorded.
            let last = finished.iter().find_map(|step| repository.find_checkpoint(&run, step).ok());
            if let Some(state) = repository.chosen_start(&run)?.or(last.filter(|_| attempt > 1)) {
                worktree.begin_with(&state, &cancel)?;
                repository.forget_start(&run)?;
            }
            let fresh = setup_of(&worktree, setup)?;
            Ok((worktree, fresh))
        })
        .await;
        let wrong = made.as_ref().err().cloned();
        let counts = self.0.records.made(lease, row.id, attempt, wrong).await?;
        let (worktree, fresh) = made?;
        if !was_there {
            details["base_commit"] = worktree.mark().base.clone().into();
        }
        let details_text: Arc<str> = details.to_string().into();
        self.0.records.describe(lease, row.id, path_text, details_text).await?;
        if !counts {
            // Somebody has given it up meanwhile: what was made goes to clean-up, not to the run.
            drop(worktree);
            return Err("making the environment took so long that it was given up".into());
        }
        Ok((Some(worktree), path, fresh))
    }
}

/// A worktree that is to be made.
struct Making<'m> {
    lease: Lease,
    key: Key,
    row: &'m Site,
    repository: &'m Repository,
    workplace: &'m Workplace,
    details: Value,
}

/// A worktree on the run's branch: a new one; or, if the run had one before, the one that is there, or one
/// beside it.
fn create(
    worktrees: &Worktrees,
    options: &mut CreateOptions,
    again: Option<u32>,
    cancel: &Cancel,
) -> Result<Worktree, sprag_worktree::Error> {
    let Branch::New(branch) = options.branch.clone() else { return worktrees.create(options, cancel) };
    let first = worktrees.create(options, cancel);
    match (first, again) {
        (Err(error), Some(attempt))
            if matches!(error.kind, GitKind::BranchExists { .. } | GitKind::BranchInUse { .. }) =>
        {
            options.branch = Branch::Existing(branch.clone());
            worktrees.create(options, cancel).or_else(|_| {
                options.branch = Branch::New(format!("{branch}-{attempt}"));
                worktrees.create(options, cancel)
            })
        }
        (made, _) => made,
    }
}

/// What is still to be run in a worktree, if anything.
fn setup_of(
    worktree: &Worktree,
    setup: Option<sprag_pipeline::Setup>,
) -> Result<Option<Setup>, sprag_worktree::Error> {
    let Some(setup) = setup else { return Ok(None) };
    let key = format!("{} {}", worktree.setup_key(&setup.files)?, setup.run);
    Ok((worktree.mark().setup_key.as_ref() != Some(&key)).then_some(Setup { setup, key }))
}

/// The name under which the state before a step is recorded; no step's id begins like this.
pub fn before(step: &str) -> String {
    format!("_{step}")
}

impl Entered {
    /// Has the step begin with the right files: a further try with those from before the step, unless others
    /// work beside it or it goes on `here`.
    pub(crate) async fn begin(
        &self,
        run: RunId,
        step: &str,
        is_retry: bool,
        here: bool,
    ) -> Result<(), String> {
        // Nobody of this process comes in while files are put back.
        let live = self.slot.lock().await;
        let (run, name) = (run.to_string(), before(step));
        if is_retry && (here || live.users > 1) {
            return Ok(());
        }
        let done = self.place.with_worktree(move |worktree| {
            let cancel = Cancel::default();
            if !is_retry {
                return worktree.checkpoint(&run, &name, &cancel).map(drop);
            }
            match worktree.repository().find_checkpoint(&run, &name) {
                Ok(state) => worktree.restore(&state, &cancel),
                Err(error) if matches!(error.kind, GitKind::NoSuchCheckpoint { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        });
        done.await.unwrap_or(Ok(())).map_err(|error| error.to_string())
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
                match owner
                    .worktrees(&repository)?
                    .adopt(&place.dir.display().to_string(), &place.run.to_string())
                {
                    Ok(worktree) => {
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
                pause(LOOK).await;
            }
        }
    }

    /// Records what the step has left.
    pub(crate) async fn record(&self, run: RunId, step: &str) {
        let (run, name) = (run.to_string(), step.to_owned());
        let recorded = self
            .place
            .with_worktree(move |worktree| worktree.checkpoint(&run, &name, &Cancel::default()).map(drop));
        if let Some(Err(error)) = recorded.await {
            let (run, path) = (self.place.run, self.place.dir.display());
            tracing::warn!(%run, %path, step, %error, "the step's state was not recorded");
        }
    }

    /// The step is over. Whoever leaves last leaves the worktree for the run's next step.
    pub(crate) async fn leave(self) {
        let Entered { owner, key, slot, place } = self;
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
        let mut all = owner.live();
        // The map's and ours: nobody is on the way in.
        if Arc::strong_count(&slot) == 2 {
            all.remove(&key);
        }
    }
}

/// Something that blocks, with its error in words.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, sprag_worktree::Error> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// This host's name.
pub fn host() -> String {
    sprag_process::current().map_or_else(|_| "localhost".to_owned(), |process| process.host)
}
