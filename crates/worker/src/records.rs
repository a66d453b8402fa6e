//! The records of environments, for the code that creates environments and works in them: kept by the store itself,
//! or by a server in front of it. Each caller holds a step of the run, and proves it with its lease.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{
    EnvironmentEvent, EnvironmentStatus, ExecutionStatus, Plan, RunId, StepNo, ThreadEvent, Word, WorkKind,
};
use sprag_store::{
    EnvironmentDetails, EnvironmentReport, EnvironmentRequest, EnvironmentRow, ExecutionRow, Id, KeptBecause,
    Lease, PermissionAsk, PermissionState, Provide, Row, RunInFull, Sighting, StepRow, Store, ThreadEntry,
    ThreadReport, Topic, kept_because, thread_id,
};

use crate::step_token::sign_step_token;

/// The future of an answer from the records, or of an error message.
pub type RecordsFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// An environment as the store records it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnRecord {
    /// The environment's id in the store.
    pub id: Id,
    /// The run that it was created for; none if it has none.
    pub run: Option<RunId>,
    /// The step that has it alone; none if the whole run shares it.
    pub scope: Option<StepNo>,
    /// The status in the environment's lifecycle, as text.
    pub status: String,
    /// The version of its row; every write increments it.
    pub version: u32,
    /// The environment's directory; empty if it has none.
    pub path: Arc<str>,
    /// The repository, the branch and other details, as JSON.
    pub details: Arc<str>,
    /// The number of the present attempt to create it.
    pub provision_attempt: u32,
    /// The worker that is creating or removing it; none if no worker is.
    pub owner: Option<Id>,
}

impl OnRecord {
    /// Converts a row of the store.
    pub fn of(row: &EnvironmentRow) -> OnRecord {
        OnRecord {
            id: row.id,
            run: row.run,
            scope: row.scope,
            status: row.status().to_string(),
            version: row.version(),
            path: Arc::clone(&row.path),
            details: Arc::clone(&row.details),
            provision_attempt: row.provision_attempt,
            owner: row.owner,
        }
    }

    /// Whether it is ready for use, according to the store.
    pub fn is_ready(&self) -> bool {
        self.status == EnvironmentStatus::Ready.as_str()
    }

    /// Reads the repository, the branch and other details.
    pub fn details(&self) -> Result<EnvironmentDetails, String> {
        EnvironmentDetails::read(&self.details)
            .map_err(|error| format!("the details of environment {} cannot be read: {error}", self.id))
    }

    /// Checks whether its files are on this machine.
    pub fn look(&self) -> Sighting {
        let is_present = !self.path.is_empty() && Path::new(&*self.path).join(".git").exists();
        Sighting { version: self.version, is_present }
    }
}

/// The answer to a request for an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provided {
    /// The caller has to create it, as this attempt.
    Make(OnRecord),
    /// It is ready.
    Ready(OnRecord),
    /// Another process is creating or removing it.
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

/// The result of creating an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Made {
    /// It is ready.
    Ready,
    /// The creation failed, with the reason.
    Failed(String),
    /// The step was stopped before.
    Cancelled,
}

impl Made {
    /// Returns the event to report, with the reason for a failure.
    pub fn event(self) -> (EnvironmentEvent, Option<String>) {
        match self {
            Made::Ready => (EnvironmentEvent::ProvisionSucceeded, None),
            Made::Failed(why) => (EnvironmentEvent::ProvisionFailed, Some(why)),
            Made::Cancelled => (EnvironmentEvent::ProvisionCancelled, None),
        }
    }
}

/// An environment that was taken from a dead run and is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The environment's id in the store.
    pub id: Id,
    /// The dead run.
    pub run: RunId,
    /// The number of this attempt to remove it.
    pub attempt: u32,
}

/// The thread of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadOf {
    /// The run of the step.
    pub run: RunId,
    /// The step's number in the run.
    pub step: StepNo,
}

/// A report about a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadSaid {
    /// The word of the event.
    pub event: String,
    /// The turn that the worker opened.
    pub turn: u32,
    /// The number of the agent's process.
    pub runtime: u32,
}

impl ThreadSaid {
    /// Returns the event, and the report for the store.
    pub fn event(&self) -> Option<(ThreadEvent, ThreadReport)> {
        let report = ThreadReport { turn: self.turn, runtime: self.runtime, ..ThreadReport::default() };
        Some((ThreadEvent::parse(&self.event)?, report))
    }
}

/// See the module's documentation.
pub trait Records: Send + Sync + 'static {
    /// Returns an id for a new row.
    fn new_id(&self) -> Id;

    /// Returns the plan of a run, if there is one.
    fn plan(&self, lease: Lease, run: RunId) -> RecordsFuture<'_, Option<Arc<Plan>>>;

    /// Returns the run's environment, or the step's own if `scope` is set.
    fn find(&self, lease: Lease, run: RunId, scope: Option<StepNo>) -> RecordsFuture<'_, Option<OnRecord>>;

    /// Returns the environment if it is ready, or records that the caller creates it.
    fn provide(
        &self,
        lease: Lease,
        wanted: EnvironmentRequest,
        seen: Option<Sighting>,
    ) -> RecordsFuture<'_, Provided>;

    /// Updates the details of an environment.
    fn describe(&self, lease: Lease, id: Id, details: Arc<str>) -> RecordsFuture<'_, ()>;

    /// Reports the result of this attempt to create it. Returns whether the attempt still counts.
    fn made(&self, lease: Lease, id: Id, attempt: u32, how: Made) -> RecordsFuture<'_, bool>;

    /// Starts to remove the environment at a path of this worker's host, if it belongs to a dead run.
    fn take_from_dead(
        &self,
        lease: Lease,
        worker: Id,
        host: String,
        path: String,
    ) -> RecordsFuture<'_, Option<Taken>>;

    /// Reports the result of removing it; `wrong` is the error, if any.
    fn removed(&self, lease: Lease, id: Id, attempt: u32, wrong: Option<String>) -> RecordsFuture<'_, ()>;

    /// Returns the names of the run's steps that have been executed, the last one to end first.
    fn last_finished(&self, lease: Lease, run: RunId) -> RecordsFuture<'_, Vec<String>>;

    /// Makes a step the holder of a thread, before its agent is started.
    fn enter_thread(&self, lease: Lease, thread: ThreadOf) -> RecordsFuture<'_, ThreadEntry>;

    /// Reports an event on a thread that the step holds. Returns whether it counts.
    fn thread_event(&self, lease: Lease, thread: ThreadOf, said: ThreadSaid) -> RecordsFuture<'_, bool>;

    /// Asks for a permission that the agent of a step wants, or returns its state.
    fn ask_permission(&self, lease: Lease, asked: PermissionAsk) -> RecordsFuture<'_, PermissionState>;

    /// Withdraws the question of a step's agent.
    fn withdraw_permission(&self, lease: Lease) -> RecordsFuture<'_, ()>;

    /// Returns the token with which the step's own agent uses the tools of `mcp: [sprag]`.
    fn step_token(&self, lease: Lease) -> RecordsFuture<'_, String>;

    /// Waits until something about the run may have changed, at most for `limit`. Before that, records that the owner
    /// of its environment is gone, if its process is seen to be gone.
    fn wait(&self, run: RunId, owner: Option<Id>, limit: Duration) -> RecordsFuture<'_, ()>;
}

/// The store, accessed directly.
impl Records for Store {
    fn new_id(&self) -> Id {
        Store::new_id(self)
    }

    fn plan(&self, _: Lease, run: RunId) -> RecordsFuture<'_, Option<Arc<Plan>>> {
        Box::pin(async move { self.queries().plan_of(run).map_err(|error| error.to_string()) })
    }

    fn find(&self, _: Lease, run: RunId, scope: Option<StepNo>) -> RecordsFuture<'_, Option<OnRecord>> {
        Box::pin(async move {
            let rows = self.queries().environments_of(run).map_err(|error| error.to_string())?;
            Ok(rows.iter().find(|row| row.scope == scope).map(OnRecord::of))
        })
    }

    fn provide(
        &self,
        _: Lease,
        wanted: EnvironmentRequest,
        seen: Option<Sighting>,
    ) -> RecordsFuture<'_, Provided> {
        Box::pin(async move {
            let provide = self.claims().provide_environment(wanted, seen).await;
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
            let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
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
            let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
            let event = match wrong {
                None => EnvironmentEvent::DestroySucceeded,
                Some(_) => EnvironmentEvent::DestroyFailed,
            };
            let outcome = self.claims().environment(id, event, given, wrong).await;
            outcome.map(drop).map_err(|error| error.to_string())
        })
    }

    fn last_finished(&self, _: Lease, run: RunId) -> RecordsFuture<'_, Vec<String>> {
        Box::pin(async move {
            let run = self.queries().run_in_full(run).map_err(|error| error.to_string())?;
            Ok(run.map(|run| last_finished(&run)).unwrap_or_default())
        })
    }

    fn enter_thread(&self, lease: Lease, thread: ThreadOf) -> RecordsFuture<'_, ThreadEntry> {
        Box::pin(async move {
            let entered = self.worker(lease).enter_thread(thread.run, thread.step).await;
            entered.map_err(|error| error.to_string())
        })
    }

    fn thread_event(&self, lease: Lease, thread: ThreadOf, said: ThreadSaid) -> RecordsFuture<'_, bool> {
        Box::pin(async move {
            let (event, report) = said.event().ok_or_else(|| format!("{:?} is no event", said.event))?;
            let id = thread_id(thread.run, thread.step);
            let outcome = self.worker(lease).thread(id, event, report).await;
            outcome.map(|outcome| outcome.is_applied()).map_err(|error| error.to_string())
        })
    }

    fn ask_permission(&self, lease: Lease, asked: PermissionAsk) -> RecordsFuture<'_, PermissionState> {
        Box::pin(
            async move { self.worker(lease).ask_permission(asked).await.map_err(|error| error.to_string()) },
        )
    }

    fn withdraw_permission(&self, lease: Lease) -> RecordsFuture<'_, ()> {
        Box::pin(
            async move { self.worker(lease).withdraw_permission().await.map_err(|error| error.to_string()) },
        )
    }

    fn step_token(&self, lease: Lease) -> RecordsFuture<'_, String> {
        Box::pin(async move {
            let key = self.queries().token_key().map_err(|error| error.to_string())?;
            Ok(sign_step_token(&key, lease))
        })
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

/// Records that a worker is gone, if its process is seen to be gone: it cannot report that itself.
pub async fn bury(store: &Store, worker: Option<Id>) {
    let Some(worker) = worker else { return };
    let row = store.queries().worker(worker);
    let Ok(Some(row)) = row else { return };
    let process: Option<sprag_process::ProcessId> = row.process.parse().ok();
    if process.is_some_and(|process| sprag_process::is_alive(&process) == sprag_process::Liveness::Dead) {
        let _ = store.reaper().worker_lost(worker, sprag_store::Lost::ProcessGone).await;
    }
}

/// Whether an attempt is known to have worked in its run's environment, which means that its state was recorded. A
/// cancelled attempt may have been cancelled before that.
pub fn worked(row: &ExecutionRow) -> bool {
    match row.status() {
        ExecutionStatus::Completed | ExecutionStatus::TimedOut => true,
        ExecutionStatus::Failed if row.owner.is_some() => {
            let facts =
                row.result.as_deref().and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
            facts.is_none_or(|facts| facts["reason"] != "environment" && facts["in_environment"] != false)
        }
        _ => false,
    }
}

/// Returns the names of a run's steps that have been executed, the last one to end first.
pub fn last_finished(run: &RunInFull) -> Vec<String> {
    let Some(plan) = &run.plan else { return Vec::new() };
    let mut steps = run.steps.clone();
    let has_worked = |step: &StepRow| run.executions.iter().any(|row| row.id.step == step.no && worked(row));
    steps.retain(|step| step.ended_ms.is_some() && step.started_ms.is_some() && has_worked(step));
    // Other steps leave no state: gates, child runs, services, and fan-outs, which only have items.
    steps.retain(|step| {
        let planned = plan.step(step.node());
        let has_state = planned.work == WorkKind::Execution && !planned.service;
        has_state && (step.item_of.is_some() || planned.spread.is_none())
    });
    // The state of an item with a worktree of its own is not the run's state.
    steps.retain(|step| step.item_of.is_none() || !plan.step(step.node()).own_environment);
    steps.sort_by_key(|step| std::cmp::Reverse((step.ended_ms, step.no)));
    steps.iter().map(|step| sprag_store::step_name(plan, step)).collect()
}

/// Starts to remove the environment at a path, if its run is dead.
async fn take_from_dead(
    store: &Store,
    worker: Id,
    host: &str,
    path: &str,
) -> sprag_store::Result<Option<Taken>> {
    let rows = store.queries().environments(false)?;
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

/// Whether a run has ended and its worktree is kept nevertheless.
fn is_kept(store: &Store, row: &EnvironmentRow, run: RunId) -> sprag_store::Result<bool> {
    let status = store.queries().run(run)?.map(|run| run.status());
    let kept = kept_because(row, status)?;
    Ok(kept.is_some_and(|because| !matches!(because, KeptBecause::RunIsLive(_))))
}

/// Records which workers of a run, and of the child runs of its steps, are gone.
async fn bury_those_of(store: &Store, run: RunId) -> sprag_store::Result<()> {
    for owner in store.queries().workers_of(run)? {
        bury(store, Some(owner)).await;
    }
    Ok(())
}
