//! The environments of runs: which worker creates one, which runs use it, and who may remove it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{
    Actor, Environment, EnvironmentEvent, EnvironmentStatus, RunId, StepNo, WorkerStatus, mutant,
};

use super::EnvironmentDetails;
use crate::backend::{Backend, Table};
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{EnvironmentReport, EnvironmentRow, Id, Row, RunRow, WorkerRow};
use crate::session::Session;

/// An environment that a worker needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentRequest {
    /// The number of the environment, if it is new.
    pub id: Id,
    /// The run that works in it.
    pub run: RunId,
    /// The step that uses it alone; absent if the whole run uses it.
    pub scope: Option<StepNo>,
    /// The environment's host.
    pub host: Arc<str>,
    /// The worker that asks, and that creates the environment if there is none.
    pub worker: Id,
    /// Whether Sprag creates it, so that Sprag may remove it.
    pub managed: bool,
    /// The path of the environment. A further attempt gets a suffix, because it must not use remains of an earlier
    /// one.
    pub path: Arc<str>,
    /// Other facts about it, as JSON.
    pub details: Arc<str>,
}

/// The answer to a request for an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provide {
    /// The caller creates it, as this attempt.
    Make(EnvironmentRow),
    /// The environment exists and can be used.
    Ready(EnvironmentRow),
    /// Another worker is creating or removing it.
    Busy(EnvironmentRow),
}

/// A worker's check of the files of an environment.
///
/// It counts only for the version of the row that the worker had read before the check: missing files may have been
/// created since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sighting {
    /// The version of the row that the worker had read.
    pub version: u32,
    /// Whether the files exist.
    pub is_present: bool,
}

/// Finds a run's environment, or records that the caller creates it, before the caller touches the disk. `seen` is
/// the caller's last check of its files; `None` if there was no row.
pub fn provide_environment(
    session: &mut Session<'_>,
    wanted: &EnvironmentRequest,
    seen: Option<Sighting>,
) -> Result<Provide> {
    let found = session.db().environments_of(wanted.run)?.into_iter().find(|row| row.scope == wanted.scope);
    let Some(row) = found else {
        let row = EnvironmentRow {
            id: wanted.id,
            status: EnvironmentStatus::Provisioning,
            version: 1,
            run: Some(wanted.run),
            scope: wanted.scope,
            host: Arc::clone(&wanted.host),
            path: Arc::clone(&wanted.path),
            managed: wanted.managed,
            cleanup_requested: false,
            provision_attempt: 1,
            destroy_attempt: 0,
            owner: Some(wanted.worker),
            reason: None,
            details: Arc::clone(&wanted.details),
            created_ms: session.now().wall_ms,
        };
        session.create(row.clone(), "environment.created", Actor::Executor);
        return Ok(Provide::Make(row));
    };
    let is_present = seen.is_some_and(|seen| seen.is_present);
    let is_stale = seen.is_none_or(|seen| seen.version != row.version) && !mutant!(StaleSightingCounts);
    match row.status() {
        EnvironmentStatus::Ready if is_present => return Ok(Provide::Ready(row)),
        EnvironmentStatus::Ready | EnvironmentStatus::Destroying if is_stale => {
            return Ok(Provide::Busy(row));
        }
        EnvironmentStatus::Ready | EnvironmentStatus::Error | EnvironmentStatus::Destroyed => {}
        EnvironmentStatus::Provisioning
            if row.owner == Some(wanted.worker) || is_gone(session, row.owner)? =>
        {
            // The worker that was creating it cannot report any more.
            let given = EnvironmentReport { attempt: row.provision_attempt, ..EnvironmentReport::default() };
            let _ =
                environment_event(session, row.id, EnvironmentEvent::ProvisionFailed, Actor::Reaper, &given)?;
        }
        EnvironmentStatus::Destroying if is_gone(session, row.owner)? => {
            let given = EnvironmentReport {
                path_present: is_present,
                destroyer_gone: true,
                ..EnvironmentReport::default()
            };
            let _ = environment_event(session, row.id, EnvironmentEvent::DestroyLost, Actor::Reaper, &given)?;
        }
        EnvironmentStatus::Provisioning | EnvironmentStatus::Destroying => return Ok(Provide::Busy(row)),
    }
    let before = (Arc::clone(&row.path), row.reason.clone());
    session.note::<EnvironmentRow>(row.id, |row| {
        row.path = format!("{}-{}", wanted.path, row.provision_attempt + 1).into();
        row.reason = None;
    })?;
    let given = EnvironmentReport::default();
    let event = EnvironmentEvent::ProvisionRequested;
    if !environment_event(session, row.id, event, Actor::Executor, &given)?.is_applied() {
        session.note::<EnvironmentRow>(row.id, |row| (row.path, row.reason) = before)?;
        return Ok(Provide::Busy(row));
    }
    session.note::<EnvironmentRow>(row.id, |row| {
        row.owner = Some(wanted.worker);
        // The new host may differ from the host of the removed environment.
        row.host = Arc::clone(&wanted.host);
        row.details = Arc::clone(&wanted.details);
    })?;
    Ok(Provide::Make(session.get::<EnvironmentRow>(row.id)?.unwrap_or(row)))
}

/// Returns the run whose environment a run uses, if it is another run's.
pub fn environment_of(context: &str) -> Option<RunId> {
    // Most runs use their own: their contexts need not be parsed.
    if !context.contains("environment_of") {
        return None;
    }
    let context: serde_json::Value = serde_json::from_str(context).ok()?;
    context["environment_of"].as_str()?.parse().ok()
}

/// Whether a worker is known to be gone.
pub(super) fn is_gone(session: &mut Session<'_>, worker: Option<Id>) -> Result<bool> {
    let Some(worker) = worker else { return Ok(true) };
    Ok(session.get::<WorkerRow>(worker)?.is_none_or(|row| row.status() == WorkerStatus::Offline))
}

/// Returns the environments of a run on hosts that it may leave, because a remote has their states.
pub fn leavable_environments(db: &mut dyn Backend, run: RunId) -> Result<Vec<EnvironmentRow>> {
    let Some(row) = Table::<RunRow>::load(db, run)? else { return Ok(Vec::new()) };
    let of = environment_of(&row.context).unwrap_or(run);
    let mut leavable = Vec::new();
    for row in db.environments_of(of)? {
        if row.status() != EnvironmentStatus::Destroyed
            && !row.host.is_empty()
            && EnvironmentDetails::of(&row)?.remote.is_some()
        {
            leavable.push(row);
        }
    }
    Ok(leavable)
}

/// Whether a run's files exist nowhere: their host was lost, and no worker has created them again since.
pub(super) fn is_nowhere(row: &EnvironmentRow) -> Result<bool> {
    Ok(row.status() == EnvironmentStatus::Error && EnvironmentDetails::of(row)?.lost_host.is_some())
}

/// Marks an environment's host as lost if no worker has been on it since `since_ms`. The environment is then created
/// again on the host where the run continues. Returns false if a worker is on the host, or was since.
pub fn host_lost(session: &mut Session<'_>, id: Id, since_ms: i64) -> Result<bool> {
    let Some(row) = session.get::<EnvironmentRow>(id)? else { return Ok(false) };
    let was_there = |worker: &WorkerRow| worker.heartbeat_until_ms > since_ms;
    let owner = row.owner.map(|owner| session.get::<WorkerRow>(owner)).transpose()?.flatten();
    let somebody = session.db().workers()?.iter().any(|worker| *worker.host() == *row.host);
    if row.host.is_empty() || somebody || owner.is_some_and(|owner| was_there(&owner)) {
        return Ok(false);
    }
    let reason = format!("its host {} was lost", row.host);
    // An environment in error cannot be lost: it is only created elsewhere.
    if row.status() != EnvironmentStatus::Error {
        let given = EnvironmentReport { host_lease_lapsed: true, ..EnvironmentReport::default() };
        let event = EnvironmentEvent::HostLost;
        if !environment_event(session, id, event, Actor::Reaper, &given)?.is_applied() {
            return Ok(false);
        }
    }
    let details =
        EnvironmentDetails { lost_host: Some(row.host.to_string()), ..EnvironmentDetails::of(&row)? };
    session.note::<EnvironmentRow>(id, |row| {
        row.host = "".into();
        row.owner = None;
        row.reason = Some(reason.into());
        row.details = details.text();
    })?;
    Ok(true)
}

/// Stores the present facts about an environment.
pub fn describe_environment(session: &mut Session<'_>, id: Id, details: &Arc<str>) -> Result<()> {
    session.note::<EnvironmentRow>(id, |row| row.details = Arc::clone(details))
}

/// Reports an event on an environment.
pub fn environment_event(
    session: &mut Session<'_>,
    id: Id,
    event: EnvironmentEvent,
    actor: Actor,
    given: &EnvironmentReport,
) -> Result<Outcome<Environment>> {
    environment_event_because(session, id, event, actor, given, None)
}

/// Reports an event with its reason, which stays in the row until the next event.
pub fn environment_event_because(
    session: &mut Session<'_>,
    id: Id,
    event: EnvironmentEvent,
    actor: Actor,
    given: &EnvironmentReport,
    reason: Option<&str>,
) -> Result<Outcome<Environment>> {
    let outcome = session.apply::<EnvironmentRow>(id, event, actor, given, |row, _| {
        row.reason = reason.map(Into::into);
        match event {
            EnvironmentEvent::ProvisionRequested => {
                row.cleanup_requested = false;
                row.provision_attempt += 1;
            }
            EnvironmentEvent::DestroyDispatched => row.destroy_attempt += 1,
            EnvironmentEvent::DestroySucceeded | EnvironmentEvent::CleanupCompleted => {
                row.cleanup_requested = false
            }
            _ => {}
        }
    })?;
    // Most environments are removed after their run has ended: the run's journal continues until then.
    if outcome.is_applied()
        && let Some(run) = session.get::<EnvironmentRow>(id)?.and_then(|row| row.run)
    {
        session.note::<RunRow>(run, |_| {})?;
    }
    Ok(outcome)
}

/// Requests the removal of an environment.
pub fn request_cleanup(session: &mut Session<'_>, id: Id) -> Result<bool> {
    if session.get::<EnvironmentRow>(id)?.is_none() {
        return Ok(false);
    }
    session.note::<EnvironmentRow>(id, |row| row.cleanup_requested = true)?;
    session.note_act("environment.cleanup_requested", &id.to_string())?;
    Ok(true)
}

/// Starts to remove an environment, unless its run is live. A resume of the run and a removal of the environment
/// cannot both succeed. Returns the number of the new attempt, if the removal may start.
pub fn dispatch_destroy(
    session: &mut Session<'_>,
    id: Id,
    worker: Id,
    path_present: bool,
) -> Result<Option<u32>> {
    let Some(row) = session.get::<EnvironmentRow>(id)? else { return Ok(None) };
    let live = match row.run {
        Some(run) => session.get::<RunRow>(run)?.is_some_and(|run| !run.status().is_terminal()),
        None => false,
    };
    if live && !mutant!(CleanedUpUnderARun) {
        // The request is refused and not stored: the end of the run decides again.
        let given = EnvironmentReport { path_present, live_users: 1, ..EnvironmentReport::default() };
        let event = EnvironmentEvent::DestroyDispatched;
        return environment_event(session, id, event, Actor::Worker, &given).map(|_| None);
    }
    begin_destroy(session, &row, worker, path_present)
}

/// Starts to remove an environment that no run uses. Returns the number of the attempt, if there is something to
/// remove.
pub(super) fn begin_destroy(
    session: &mut Session<'_>,
    row: &EnvironmentRow,
    worker: Id,
    path_present: bool,
) -> Result<Option<u32>> {
    let id = row.id;
    // A worker that asks again is not removing it any more: it reported its result, but the report was lost.
    let gone = row.owner == Some(worker) || is_gone(session, row.owner)?;
    session.note::<EnvironmentRow>(id, |row| {
        row.cleanup_requested = true;
    })?;
    if row.status() == EnvironmentStatus::Provisioning && gone {
        let given = EnvironmentReport { attempt: row.provision_attempt, ..EnvironmentReport::default() };
        let _ = environment_event(session, id, EnvironmentEvent::ProvisionFailed, Actor::Reaper, &given)?;
    }
    let given = EnvironmentReport { path_present, destroyer_gone: gone, ..EnvironmentReport::default() };
    if row.status() == EnvironmentStatus::Destroying {
        // The worker that was removing it is gone; some of the files may be left.
        let _ = environment_event(session, id, EnvironmentEvent::DestroyLost, Actor::Reaper, &given)?;
    }
    if !path_present {
        let _ = environment_event(session, id, EnvironmentEvent::CleanupCompleted, Actor::Worker, &given)?;
        return Ok(None);
    }
    let event = EnvironmentEvent::DestroyDispatched;
    if !environment_event(session, id, event, Actor::Worker, &given)?.is_applied() {
        return Ok(None);
    }
    session.note::<EnvironmentRow>(id, |row| row.owner = Some(worker))?;
    Ok(session.get::<EnvironmentRow>(id)?.map(|row| row.destroy_attempt))
}
