//! What is on record about environments, for whoever makes them and works in them: the store itself, or a server
//! in front of it. Each is asked by somebody who holds a step of the run, and shows so.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{EnvironmentEvent, ExecutionStatus, Plan, RunId, RunStatus, StepNo, WorkKind};
use sprag_store::ops::{Lease, Provide, Wanted};
use sprag_store::{Backend, EnvironmentGiven, EnvironmentRow, Id, Row, RunRow, Store, Table, Topic};

/// What records answer, or in words why they cannot.
pub type RecordsFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// An environment as it is on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnRecord {
    /// Its number.
    pub id: Id,
    /// The run it was made for.
    pub run: Option<RunId>,
    /// The step that has it alone; none for the whole run.
    pub scope: Option<StepNo>,
    /// Its status.
    pub status: String,
    /// The directory.
    pub path: Arc<str>,
    /// The repository, the branch and what else is known of it, as JSON.
    pub details: Arc<str>,
    /// Which attempt to make it is the present one.
    pub provision_attempt: u32,
    /// Who is making or removing it.
    pub owner: Option<Id>,
}

impl OnRecord {
    /// What a row tells.
    pub fn of(row: &EnvironmentRow) -> OnRecord {
        OnRecord {
            id: row.id,
            run: row.run,
            scope: row.scope,
            status: row.status().to_string(),
            path: Arc::clone(&row.path),
            details: Arc::clone(&row.details),
            provision_attempt: row.provision_attempt,
            owner: row.owner,
        }
    }

    /// Whether its files are on this machine.
    pub fn is_here(&self) -> bool {
        !self.path.is_empty() && Path::new(&*self.path).join(".git").exists()
    }
}

/// What becomes of the wish for an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provided {
    /// It is for the one who asks to make it, as this attempt.
    Make(OnRecord),
    /// It is there.
    Ready(OnRecord),
    /// Somebody else is making or removing it.
    Busy(OnRecord),
}

impl From<Provide> for Provided {
    fn from(provide: Provide) -> Self {
        match provide {
            Provide::Make(row) => Provided::Make(OnRecord::of(&row)),
            Provide::Ready(row) => Provided::Ready(OnRecord::of(&row)),
            Provide::Busy(row) => Provided::Busy(OnRecord::of(&row)),
        }
    }
}

/// How making an environment went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Made {
    /// It is there.
    Ready,
    /// It is not, and why.
    Failed(String),
    /// The step was to end before.
    Cancelled,
}

impl Made {
    /// What is reported, with the reason.
    pub fn event(self) -> (EnvironmentEvent, Option<String>) {
        match self {
            Made::Ready => (EnvironmentEvent::ProvisionSucceeded, None),
            Made::Failed(why) => (EnvironmentEvent::ProvisionFailed, Some(why)),
            Made::Cancelled => (EnvironmentEvent::ProvisionCancelled, None),
        }
    }
}

/// An environment that was taken from a dead run, and is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The environment.
    pub id: Id,
    /// The dead run.
    pub run: RunId,
    /// The number of this attempt to remove it.
    pub attempt: u32,
}

/// See the module's documentation.
pub trait Records: Send + Sync + 'static {
    /// A number for something new.
    fn new_id(&self) -> Id;

    /// The plan of a run.
    fn plan(&self, lease: Lease, run: RunId) -> RecordsFuture<'_, Option<Arc<Plan>>>;

    /// The run's environment, or the step's own.
    fn find(&self, lease: Lease, run: RunId, scope: Option<StepNo>) -> RecordsFuture<'_, Option<OnRecord>>;

    /// Finds it ready, or notes that the one who asks makes it.
    fn provide(&self, lease: Lease, wanted: Wanted, there: bool) -> RecordsFuture<'_, Provided>;

    /// Notes what is known of it by now.
    fn describe(&self, lease: Lease, id: Id, details: Arc<str>) -> RecordsFuture<'_, ()>;

    /// Says how this attempt to make it went; whether that still counts.
    fn made(&self, lease: Lease, id: Id, attempt: u32, how: Made) -> RecordsFuture<'_, bool>;

    /// Begins to remove what is at a path of this worker's host, if it belongs to a dead run.
    fn take_from_dead(
        &self,
        lease: Lease,
        worker: Id,
        host: String,
        path: String,
    ) -> RecordsFuture<'_, Option<Taken>>;

    /// Says how removing it went.
    fn removed(&self, lease: Lease, id: Id, attempt: u32, wrong: Option<String>) -> RecordsFuture<'_, ()>;

    /// The names of the run's steps that have been worked on, the last one to end first.
    fn last_finished(&self, lease: Lease, run: RunId) -> RecordsFuture<'_, Vec<String>>;

    /// Waits until something about the run may have changed, at most this long; first notes that whoever was at
    /// its environment is gone, if that is seen.
    fn wait(&self, run: RunId, owner: Option<Id>, limit: Duration) -> RecordsFuture<'_, ()>;
}

/// The store of this machine.
impl Records for Store {
    fn new_id(&self) -> Id {
        Store::new_id(self)
    }

    fn plan(&self, _: Lease, run: RunId) -> RecordsFuture<'_, Option<Arc<Plan>>> {
        Box::pin(async move {
            let plan = self.read(|db| {
                let row = Table::<RunRow>::load(db, run)?;
                row.map(|row| db.plan(row.plan)).transpose().map(Option::flatten)
            });
            plan.map_err(|error| error.to_string())
        })
    }

    fn find(&self, _: Lease, run: RunId, scope: Option<StepNo>) -> RecordsFuture<'_, Option<OnRecord>> {
        Box::pin(async move {
            let rows = self.read(|db| db.environments_of(run)).map_err(|error| error.to_string())?;
            Ok(rows.iter().find(|row| row.scope == scope).map(OnRecord::of))
        })
    }

    fn provide(&self, _: Lease, wanted: Wanted, there: bool) -> RecordsFuture<'_, Provided> {
        Box::pin(async move {
            let provide = self.claims().provide_environment(wanted, there).await;
            provide.map(Provided::from).map_err(|error| error.to_string())
        })
    }

    fn describe(&self, _: Lease, id: Id, details: Arc<str>) -> RecordsFuture<'_, ()> {
        Box::pin(async move {
            let described = self.claims().describe_environment(id, details).await;
            described.map_err(|error| error.to_string())
        })
    }

    fn made(&self, _: Lease, id: Id, attempt: u32, how: Made) -> RecordsFuture<'_, bool> {
        Box::pin(async move {
            let given = EnvironmentGiven { attempt, ..EnvironmentGiven::default() };
            let (event, reason) = how.event();
            let outcome = self.claims().environment(id, event, given, reason).await;
            outcome.map(|outcome| outcome.is_applied()).map_err(|error| error.to_string())
        })
    }

    fn take_from_dead(
        &self,
        _: Lease,
        worker: Id,
        host: String,
        path: String,
    ) -> RecordsFuture<'_, Option<Taken>> {
        Box::pin(async move {
            let taken = take_from_dead(self, worker, &host, &path).await;
            taken.map_err(|error| error.to_string())
        })
    }

    fn removed(&self, _: Lease, id: Id, attempt: u32, wrong: Option<String>) -> RecordsFuture<'_, ()> {
        Box::pin(async move {
            let given = EnvironmentGiven { attempt, ..EnvironmentGiven::default() };
            let event = match wrong {
                None => EnvironmentEvent::DestroySucceeded,
                Some(_) => EnvironmentEvent::DestroyFailed,
            };
            let outcome = self.claims().environment(id, event, given, wrong).await;
            outcome.map(drop).map_err(|error| error.to_string())
        })
    }

    fn last_finished(&self, _: Lease, run: RunId) -> RecordsFuture<'_, Vec<String>> {
        Box::pin(async move { self.read(|db| last_finished(db, run)).map_err(|error| error.to_string()) })
    }

    fn wait(&self, run: RunId, owner: Option<Id>, limit: Duration) -> RecordsFuture<'_, ()> {
        Box::pin(async move {
            let wake = self.subscribe(vec![Topic::Run(run)]);
            bury(self, owner).await;
            wake.wait(limit).await;
            Ok(())
        })
    }
}

/// Notes that a worker is gone, if its process is seen to be: it cannot say so itself.
pub async fn bury(store: &Store, worker: Option<Id>) {
    let Some(worker) = worker else { return };
    let row = store.read(|db| Table::<sprag_store::WorkerRow>::load(db, worker));
    let Ok(Some(row)) = row else { return };
    let process: Option<sprag_process::ProcessId> = row.process.parse().ok();
    if process.is_some_and(|process| sprag_process::is_alive(&process) == sprag_process::Liveness::Dead) {
        let _ = store.reaper().worker_lost(worker, sprag_store::ops::Lost::ProcessGone).await;
    }
}

/// The names of a run's steps that have been worked on, the last one to end first.
pub fn last_finished(db: &mut dyn Backend, run: RunId) -> sprag_store::Result<Vec<String>> {
    let Some(row) = Table::<RunRow>::load(db, run)? else { return Ok(Vec::new()) };
    let Some(plan) = db.plan(row.plan)? else { return Ok(Vec::new()) };
    let mut steps = db.steps(run)?;
    steps.retain(|step| step.ended_ms.is_some() && step.started_ms.is_some());
    // Others leave no state: gates, child runs, those that only have items.
    steps.retain(|step| {
        let planned = plan.step(step.node());
        planned.work == WorkKind::Execution && (step.item_of.is_some() || planned.spread.is_none())
    });
    // What an item with a worktree of its own has left is not the run's.
    steps.retain(|step| step.item_of.is_none() || !plan.step(step.node()).own_environment);
    steps.sort_by_key(|step| std::cmp::Reverse((step.ended_ms, step.no)));
    Ok(steps.iter().map(|step| sprag_store::step_name(&plan, step)).collect())
}

/// Begins to remove the environment at a path, if its run is dead.
async fn take_from_dead(
    store: &Store,
    worker: Id,
    host: &str,
    path: &str,
) -> sprag_store::Result<Option<Taken>> {
    let rows = store.read(|db| db.environments(false))?;
    let Some(row) = rows.into_iter().find(|row| *row.path == *path && *row.host == *host) else {
        return Ok(None);
    };
    let Some(run) = row.run else { return Ok(None) };
    if is_kept(store, &row, run)? {
        return Ok(None);
    }
    bury_those_of(store, run).await?;
    let attempt = store.claims().take_environment_of_dead_run(row.id, worker).await?;
    Ok(attempt.map(|attempt| Taken { id: row.id, run, attempt }))
}

/// Whether a run has ended and its worktree is kept all the same.
fn is_kept(store: &Store, row: &EnvironmentRow, run: RunId) -> sprag_store::Result<bool> {
    let status = store.read(|db| Table::<RunRow>::load(db, run))?.map(|run| run.status());
    let details: serde_json::Value = serde_json::from_str(&row.details).unwrap_or_default();
    Ok(match (status, details["keep"].as_str()) {
        (Some(status), Some("always")) => status.is_terminal(),
        (Some(status), Some("on_failure")) => status.is_terminal() && status != RunStatus::Completed,
        _ => false,
    })
}

/// Notes which of those who worked on a run, and on the runs that are its steps' work, are gone.
async fn bury_those_of(store: &Store, run: RunId) -> sprag_store::Result<()> {
    let mut runs = vec![run];
    let mut owners = Vec::new();
    while let Some(run) = runs.pop() {
        store.read(|db| {
            owners.extend(Table::<RunRow>::load(db, run)?.and_then(|row| row.pin));
            let running = |status| status == ExecutionStatus::Running;
            let executions = db.executions(run)?;
            owners.extend(executions.iter().filter(|row| running(row.status())).filter_map(|row| row.owner));
            runs.extend(db.children(run)?);
            Ok(())
        })?;
    }
    for owner in owners {
        bury(store, Some(owner)).await;
    }
    Ok(())
}
