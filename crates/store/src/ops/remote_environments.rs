//! Environments on other hosts: each question or report of a remote worker is decided in the transaction that checks the
//! worker's right to it.

use std::sync::Arc;

use sprag_lifecycle::{Actor, Environment, EnvironmentEvent, EnvironmentStatus, Execution, RunId, StepNo};

use super::{
    EnvironmentRequest, Lease, NewWorker, Provide, Sighting, describe_environment, dispatch_destroy,
    environment_event_because, environment_of, not_held, provide_environment, register_worker,
};
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{EnvironmentReport, EnvironmentRow, Id, Row, RunRow, WorkerRow};
use crate::session::Session;

/// The reason why a remote worker may not ask or report something.
#[derive(Debug)]
pub enum AskRefused {
    /// The worker does not hold the step any more.
    NotHeld(Outcome<Execution>),
    /// The worker has not registered.
    NotRegistered,
    /// The environment is not the one that the step works in.
    OtherEnvironment,
    /// The environment is not on the worker's host.
    OtherHost,
}

/// The result of a question that was decided inside a transaction. An error of the store undoes the transaction; a
/// refusal writes nothing.
pub type Decided<T, E = AskRefused> = Result<std::result::Result<T, E>>;

/// The limit on the workers that are present on hosts with the same end of their names.
#[derive(Debug, Clone)]
pub struct WorkerLimit {
    /// The end of the hosts' names.
    pub host_suffix: String,
    /// The most workers.
    pub most: usize,
}

/// Registers a worker within a limit. Returns false if the limit is reached and this would be one more worker.
pub fn register_within(session: &mut Session<'_>, new: &NewWorker, limit: &WorkerLimit) -> Result<bool> {
    let workers = session.db().workers()?;
    let is_there = workers.iter().any(|row| row.id == new.id);
    let count = workers.iter().filter(|row| row.host().ends_with(&limit.host_suffix)).count();
    if !is_there && count >= limit.most {
        return Ok(false);
    }
    register_worker(session, new)?;
    Ok(true)
}

/// Returns the row of a worker that has registered.
pub fn registered(session: &mut Session<'_>, worker: Id) -> Decided<WorkerRow> {
    Ok(session.get::<WorkerRow>(worker)?.ok_or(AskRefused::NotRegistered))
}

/// Checks whether the worker that holds this step may ask about this run: its own, or the run whose environment it uses.
pub fn may_ask_about_run(session: &mut Session<'_>, worker: Id, lease: Lease, run: RunId) -> Decided<()> {
    if let Some(outcome) = not_held(session, worker, lease)? {
        return Ok(Err(AskRefused::NotHeld(outcome)));
    }
    let is_its = is_run_of(session, lease, run)?;
    Ok(if is_its { Ok(()) } else { Err(AskRefused::OtherEnvironment) })
}

/// Checks whether the worker that holds this step may report on this environment: its step works in it, and the worker
/// owns it.
pub fn may_report_on(session: &mut Session<'_>, worker: Id, lease: Lease, environment: Id) -> Decided<()> {
    if let Some(outcome) = not_held(session, worker, lease)? {
        return Ok(Err(AskRefused::NotHeld(outcome)));
    }
    let row = session.get::<EnvironmentRow>(environment)?.filter(|row| row.owner == Some(worker));
    let is_its = match row.and_then(|row| row.run) {
        Some(run) => is_run_of(session, lease, run)?,
        None => false,
    };
    Ok(if is_its { Ok(()) } else { Err(AskRefused::OtherEnvironment) })
}

fn is_run_of(session: &mut Session<'_>, lease: Lease, run: RunId) -> Result<bool> {
    let own = lease.execution.run;
    let above = session.get::<RunRow>(own)?.and_then(|row| environment_of(&row.context));
    Ok(run == own || Some(run) == above)
}

/// Provides an environment for a remote worker. `check` turns the worker's request into one that the store can trust.
pub fn provide_checked<E: From<AskRefused>>(
    session: &mut Session<'_>,
    worker: Id,
    (run, scope): (RunId, Option<StepNo>),
    seen: Option<Sighting>,
    check: impl FnOnce(&WorkerRow, Option<&EnvironmentRow>) -> std::result::Result<EnvironmentRequest, E>,
) -> Decided<Provide, E> {
    let rows = session.db().environments_of(run)?;
    let found = rows.iter().find(|row| row.scope == scope);
    let checked = registered(session, worker)?.map_err(E::from).and_then(|worker| check(&worker, found));
    match checked {
        Ok(wanted) => provide_environment(session, &wanted, seen).map(Ok),
        Err(refused) => Ok(Err(refused)),
    }
}

/// Stores the facts that a remote worker gives of its environment. `check` turns them into facts that the store can
/// trust; it gets the row of an environment that is not ready.
pub fn describe_checked<E>(
    session: &mut Session<'_>,
    environment: Id,
    check: impl FnOnce(Option<&EnvironmentRow>) -> std::result::Result<Arc<str>, E>,
) -> Decided<(), E> {
    let row = session.get::<EnvironmentRow>(environment)?;
    let not_ready = row.filter(|row| row.status() != EnvironmentStatus::Ready);
    match check(not_ready.as_ref()) {
        Ok(details) => describe_environment(session, environment, &details).map(Ok),
        Err(refused) => Ok(Err(refused)),
    }
}

/// Records the result of creating an environment. Returns whether the report stands: it counts, or the same was reported
/// before and the answer was lost.
pub fn environment_created(
    session: &mut Session<'_>,
    environment: Id,
    attempt: u32,
    event: EnvironmentEvent,
    reason: Option<&str>,
) -> Result<bool> {
    let row = session.get::<EnvironmentRow>(environment)?;
    let is_ready =
        |row: EnvironmentRow| row.status() == EnvironmentStatus::Ready && row.provision_attempt == attempt;
    if event == EnvironmentEvent::ProvisionSucceeded && row.is_some_and(is_ready) {
        return Ok(true);
    }
    let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
    let outcome = environment_event_because(session, environment, event, Actor::Worker, &given, reason)?;
    Ok(outcome.is_applied())
}

/// Starts to remove an environment on the worker's own host. Returns the number of the attempt, if the removal may
/// start.
pub fn destroy_on_own_host(
    session: &mut Session<'_>,
    environment: Id,
    worker: Id,
    path_present: bool,
) -> Decided<Option<u32>> {
    let host = match registered(session, worker)? {
        Ok(worker) => worker.host().to_owned(),
        Err(refused) => return Ok(Err(refused)),
    };
    if session.get::<EnvironmentRow>(environment)?.is_some_and(|row| *row.host == *host) {
        dispatch_destroy(session, environment, worker, path_present).map(Ok)
    } else {
        Ok(Err(AskRefused::OtherHost))
    }
}

/// Records the result of removing an environment; `None` if another worker removes it.
pub fn environment_removed(
    session: &mut Session<'_>,
    environment: Id,
    worker: Id,
    attempt: u32,
    wrong: Option<&str>,
) -> Result<Option<Outcome<Environment>>> {
    if session.get::<EnvironmentRow>(environment)?.is_none_or(|row| row.owner != Some(worker)) {
        return Ok(None);
    }
    let event = match wrong {
        None => EnvironmentEvent::DestroySucceeded,
        Some(_) => EnvironmentEvent::DestroyFailed,
    };
    let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
    environment_event_because(session, environment, event, Actor::Worker, &given, wrong).map(Some)
}
