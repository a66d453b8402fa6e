//! The role of a remote worker that holds an execution: its questions and reports about environments on its own host.

use std::sync::Arc;

use sprag_lifecycle::{Actor, EnvironmentEvent, Plan, RunId, StepNo, ThreadEvent};

use crate::handle::Store;
use crate::ops::{
    self, AskRefused, Decided, EnvironmentRequest, Lease, PermissionAsk, PermissionState, Provide, Sighting,
    ThreadEntry,
};
use crate::queries::{RunInFull, run_in_full};
use crate::rows::{EnvironmentRow, Id, RunRow, ThreadReport, WorkerRow};
use crate::session::Session;

/// The role of a remote worker for one execution. Each verb first checks, in its transaction, that the worker holds the
/// execution and that the execution works in the environment.
#[derive(Clone, Copy)]
pub struct RemoteHolder<'s> {
    store: &'s Store,
    worker: Id,
    lease: Lease,
}

impl Store {
    /// Returns the operations of a remote worker on the environment of an execution that it holds.
    pub fn remote_worker(&self, worker: Id, lease: Lease) -> RemoteHolder<'_> {
        RemoteHolder { store: self, worker, lease }
    }
}

impl RemoteHolder<'_> {
    /// Runs an operation about a run, if the worker may ask about it.
    async fn about_run<T: Send + 'static, E: From<AskRefused> + Send + 'static>(
        self,
        run: RunId,
        mut operation: impl FnMut(&mut Session<'_>) -> Decided<T, E> + Send + 'static,
    ) -> Decided<T, E> {
        let RemoteHolder { store, worker, lease } = self;
        store
            .write(move |session| match ops::may_ask_about_run(session, worker, lease, run)? {
                Ok(()) => operation(session),
                Err(refused) => Ok(Err(refused.into())),
            })
            .await
    }

    /// Runs an operation about an environment, if the worker may report on it.
    async fn about_environment<T: Send + 'static, E: From<AskRefused> + Send + 'static>(
        self,
        environment: Id,
        mut operation: impl FnMut(&mut Session<'_>) -> Decided<T, E> + Send + 'static,
    ) -> Decided<T, E> {
        let RemoteHolder { store, worker, lease } = self;
        store
            .write(move |session| match ops::may_report_on(session, worker, lease, environment)? {
                Ok(()) => operation(session),
                Err(refused) => Ok(Err(refused.into())),
            })
            .await
    }

    /// Confirms that the worker holds the execution.
    pub async fn holds(self) -> Decided<()> {
        self.about_run(self.lease.execution.run, |_| Ok(Ok(()))).await
    }

    /// Returns the host of the worker.
    pub async fn host(self) -> Decided<String> {
        let (worker, run) = (self.worker, self.lease.execution.run);
        self.about_run(run, move |session| {
            Ok(ops::registered(session, worker)?.map(|row| row.host().to_owned()))
        })
        .await
    }

    /// Returns a run's plan.
    pub async fn plan(self, run: RunId) -> Decided<Option<Arc<Plan>>> {
        self.about_run(run, move |session| {
            let plan = match session.get::<RunRow>(run)? {
                Some(row) => session.db().plan(row.plan)?,
                None => None,
            };
            Ok(Ok(plan))
        })
        .await
    }

    /// Makes the execution the holder of the thread of a step. A remote worker reaches the threads of its own run, and of
    /// the run in whose environment it works.
    pub async fn enter_thread(self, run: RunId, step: StepNo) -> Decided<ThreadEntry> {
        let lease = self.lease;
        self.about_run(run, move |session| ops::enter_thread(session, lease, run, step).map(Ok)).await
    }

    /// Reports an event on a thread that the execution holds.
    pub async fn thread_event(
        self,
        run: RunId,
        step: StepNo,
        event: ThreadEvent,
        report: ThreadReport,
    ) -> Decided<bool> {
        let report = ThreadReport { holder: Some(self.lease), ..report };
        self.about_run(run, move |session| {
            let id = ops::thread_id(run, step);
            let outcome = ops::thread_event(session, id, event, Actor::Worker, &report)?;
            Ok(Ok(outcome.is_applied()))
        })
        .await
    }

    /// Asks for a permission that the agent of the execution wants, or returns its state.
    pub async fn ask_permission(self, asked: PermissionAsk) -> Decided<PermissionState> {
        let lease = self.lease;
        self.about_run(lease.execution.run, move |session| {
            ops::ask_permission(session, lease, &asked).map(Ok)
        })
        .await
    }

    /// Withdraws the question of the execution's agent.
    pub async fn withdraw_permission(self) -> Decided<()> {
        let lease = self.lease;
        self.about_run(lease.execution.run, move |session| ops::withdraw_permission(session, lease).map(Ok))
            .await
    }

    /// Returns a run with its steps and attempts.
    pub async fn run_in_full(self, run: RunId) -> Decided<Option<RunInFull>> {
        self.about_run(run, move |session| run_in_full(session.db(), run).map(Ok)).await
    }

    /// Returns the environment of a run, or of one step of it.
    pub async fn environment(self, run: RunId, scope: Option<StepNo>) -> Decided<Option<EnvironmentRow>> {
        self.about_run(run, move |session| {
            let rows = session.db().environments_of(run)?;
            Ok(Ok(rows.into_iter().find(|row| row.scope == scope)))
        })
        .await
    }

    /// Finds the environment of a run, or of one step of it, or records that the worker creates it. `check` turns the
    /// worker's request into one that the store can trust: from the worker's row, and the environment's row if there is
    /// one.
    pub async fn provide_environment<E: From<AskRefused> + Send + 'static>(
        self,
        run: RunId,
        scope: Option<StepNo>,
        seen: Option<Sighting>,
        check: impl Fn(&WorkerRow, Option<&EnvironmentRow>) -> std::result::Result<EnvironmentRequest, E>
        + Send
        + 'static,
    ) -> Decided<Provide, E> {
        let worker = self.worker;
        self.about_run(run, move |session| ops::provide_checked(session, worker, (run, scope), seen, &check))
            .await
    }

    /// Stores the present facts about an environment. `check` returns them in a form that the store can trust; it gets
    /// the row of an environment that is not ready.
    pub async fn describe_environment<E: From<AskRefused> + Send + 'static>(
        self,
        environment: Id,
        check: impl Fn(Option<&EnvironmentRow>) -> std::result::Result<Arc<str>, E> + Send + 'static,
    ) -> Decided<(), E> {
        self.about_environment(environment, move |session| {
            ops::describe_checked(session, environment, &check)
        })
        .await
    }

    /// Reports the result of creating an environment. Returns whether the report stands: it counts, or the same was
    /// reported before and the answer was lost.
    pub async fn environment_created(
        self,
        environment: Id,
        attempt: u32,
        event: EnvironmentEvent,
        reason: Option<String>,
    ) -> Decided<bool> {
        self.about_environment(environment, move |session| {
            ops::environment_created(session, environment, attempt, event, reason.as_deref()).map(Ok)
        })
        .await
    }
}
