//! Where runs work: who makes an environment, who uses it, who may remove it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{
    Actor, Environment, EnvironmentEvent, EnvironmentStatus, RunId, StepNo, WorkerStatus, mutant,
};

use crate::backend::{Backend, Table};
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{EnvironmentGiven, EnvironmentRow, Id, Row, RunRow, WorkerRow};
use crate::session::Session;

/// An environment that a worker needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// A number for it, should it be new.
    pub id: Id,
    /// The run that works in it.
    pub run: RunId,
    /// The step that has it alone; none for the whole run.
    pub scope: Option<StepNo>,
    /// The host it is on.
    pub host: Arc<str>,
    /// Who asks, and makes it if nobody has.
    pub worker: Id,
    /// Sprag makes it, so Sprag may remove it.
    pub managed: bool,
    /// Where it is to be. A further attempt gets a suffix: what a former one may have left is not used.
    pub path: Arc<str>,
    /// What else is known of it, as JSON.
    pub details: Arc<str>,
}

/// What becomes of the wish for an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provide {
    /// It is for the one who asks to make it, as this attempt.
    Make(EnvironmentRow),
    /// It is there.
    Ready(EnvironmentRow),
    /// Somebody else is making or removing it.
    Busy(EnvironmentRow),
}

/// Finds a run's environment, or notes that the one who asks makes it: before anything is touched on disk.
/// `there` says whether one that is said to be ready really is.
pub fn provide_environment(session: &mut Session<'_>, wanted: &Wanted, there: bool) -> Result<Provide> {
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
    match row.status() {
        EnvironmentStatus::Ready if there => return Ok(Provide::Ready(row)),
        EnvironmentStatus::Ready | EnvironmentStatus::Error | EnvironmentStatus::Destroyed => {}
        EnvironmentStatus::Provisioning
            if row.owner == Some(wanted.worker) || is_gone(session, row.owner)? =>
        {
            // Whoever was at it cannot say so any more.
            let given = EnvironmentGiven { attempt: row.provision_attempt, ..EnvironmentGiven::default() };
            let _ =
                environment_event(session, row.id, EnvironmentEvent::ProvisionFailed, Actor::Reaper, &given)?;
        }
        EnvironmentStatus::Destroying if is_gone(session, row.owner)? => {
            let given =
                EnvironmentGiven { path_present: there, destroyer_gone: true, ..EnvironmentGiven::default() };
            let _ = environment_event(session, row.id, EnvironmentEvent::DestroyLost, Actor::Reaper, &given)?;
        }
        EnvironmentStatus::Provisioning | EnvironmentStatus::Destroying => return Ok(Provide::Busy(row)),
    }
    let before = (Arc::clone(&row.path), row.reason.clone());
    session.note::<EnvironmentRow>(row.id, |row| {
        row.path = format!("{}-{}", wanted.path, row.provision_attempt + 1).into();
        row.reason = None;
    })?;
    let given = EnvironmentGiven::default();
    let event = EnvironmentEvent::ProvisionRequested;
    if !environment_event(session, row.id, event, Actor::Executor, &given)?.is_applied() {
        session.note::<EnvironmentRow>(row.id, |row| (row.path, row.reason) = before)?;
        return Ok(Provide::Busy(row));
    }
    session.note::<EnvironmentRow>(row.id, |row| {
        row.owner = Some(wanted.worker);
        // It may be made on another host than the one that was removed.
        row.host = Arc::clone(&wanted.host);
        row.details = Arc::clone(&wanted.details);
    })?;
    Ok(Provide::Make(session.get::<EnvironmentRow>(row.id)?.unwrap_or(row)))
}

/// The run whose environment a run works in, if that is another one's.
pub fn environment_of(context: &str) -> Option<RunId> {
    // Most runs have none: their contexts need not be read.
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

/// The environments that a run works in, on hosts that it may leave: a remote has its states.
pub fn leavable_environments(db: &mut dyn Backend, run: RunId) -> Result<Vec<EnvironmentRow>> {
    let Some(row) = Table::<RunRow>::load(db, run)? else { return Ok(Vec::new()) };
    let of = environment_of(&row.context).unwrap_or(run);
    let mut rows = db.environments_of(of)?;
    rows.retain(|row| {
        row.status() != EnvironmentStatus::Destroyed
            && !row.host.is_empty()
            && details_of(row)["remote"].is_string()
    });
    Ok(rows)
}

/// Whether a run's files are nowhere: their host was lost, and nobody has made them anew since.
pub(super) fn is_nowhere(row: &EnvironmentRow) -> bool {
    row.status() == EnvironmentStatus::Error && details_of(row)["lost_host"].is_string()
}

fn details_of(row: &EnvironmentRow) -> serde_json::Value {
    serde_json::from_str(&row.details).unwrap_or_default()
}

/// Takes an environment from a host where nobody has worked since then: it is made anew wherever the run goes on.
/// False if somebody is there, or was there since.
pub fn host_lost(session: &mut Session<'_>, id: Id, since_ms: i64) -> Result<bool> {
    let Some(row) = session.get::<EnvironmentRow>(id)? else { return Ok(false) };
    let was_there = |worker: &WorkerRow| worker.heartbeat_until_ms > since_ms;
    let owner = row.owner.map(|owner| session.get::<WorkerRow>(owner)).transpose()?.flatten();
    let somebody = session.db().workers()?.iter().any(|worker| *worker.host() == *row.host);
    if row.host.is_empty() || somebody || owner.is_some_and(|owner| was_there(&owner)) {
        return Ok(false);
    }
    let reason = format!("its host {} was lost", row.host);
    // One that is in error is nobody's to lose: it is only made elsewhere.
    if row.status() != EnvironmentStatus::Error {
        let given = EnvironmentGiven { host_lease_lapsed: true, ..EnvironmentGiven::default() };
        let event = EnvironmentEvent::HostLost;
        if !environment_event(session, id, event, Actor::Reaper, &given)?.is_applied() {
            return Ok(false);
        }
    }
    let mut details = details_of(&row);
    details["lost_host"] = (*row.host).into();
    session.note::<EnvironmentRow>(id, |row| {
        row.host = "".into();
        row.owner = None;
        row.reason = Some(reason.into());
        row.details = details.to_string().into();
    })?;
    Ok(true)
}

/// Notes what is known of an environment by now.
pub fn describe_environment(session: &mut Session<'_>, id: Id, details: &Arc<str>) -> Result<()> {
    session.note::<EnvironmentRow>(id, |row| row.details = Arc::clone(details))
}

/// Reports an event on an environment.
pub fn environment_event(
    session: &mut Session<'_>,
    id: Id,
    event: EnvironmentEvent,
    actor: Actor,
    given: &EnvironmentGiven,
) -> Result<Outcome<Environment>> {
    environment_event_because(session, id, event, actor, given, None)
}

/// Reports an event with the reason for it, which stays with the row until the next one.
pub fn environment_event_because(
    session: &mut Session<'_>,
    id: Id,
    event: EnvironmentEvent,
    actor: Actor,
    given: &EnvironmentGiven,
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
    // Most are removed after their run has ended: its journal goes on until then.
    if outcome.is_applied()
        && let Some(run) = session.get::<EnvironmentRow>(id)?.and_then(|row| row.run)
    {
        session.note::<RunRow>(run, |_| {})?;
    }
    Ok(outcome)
}

/// Asks for an environment to be removed.
pub fn request_cleanup(session: &mut Session<'_>, id: Id) -> Result<bool> {
    if session.get::<EnvironmentRow>(id)?.is_none() {
        return Ok(false);
    }
    session.note::<EnvironmentRow>(id, |row| row.cleanup_requested = true)?;
    Ok(true)
}

/// Begins to remove an environment, unless its run lives: whoever resumes the run and whoever removes the
/// environment cannot both pass. The new attempt's number, if it may.
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
        // Refused, and forgotten: the run's end decides anew.
        let given = EnvironmentGiven { path_present, live_users: 1, ..EnvironmentGiven::default() };
        let event = EnvironmentEvent::DestroyDispatched;
        return environment_event(session, id, event, Actor::Worker, &given).map(|_| None);
    }
    begin_destroy(session, &row, worker, path_present)
}

/// Begins to remove an environment that nobody uses; the attempt's number, if there is something to remove.
pub(super) fn begin_destroy(
    session: &mut Session<'_>,
    row: &EnvironmentRow,
    worker: Id,
    path_present: bool,
) -> Result<Option<u32>> {
    let id = row.id;
    // Whoever asks anew is not at it any more: how that went was told, and never heard.
    let gone = row.owner == Some(worker) || is_gone(session, row.owner)?;
    session.note::<EnvironmentRow>(id, |row| {
        row.cleanup_requested = true;
    })?;
    if row.status() == EnvironmentStatus::Provisioning && gone {
        let given = EnvironmentGiven { attempt: row.provision_attempt, ..EnvironmentGiven::default() };
        let _ = environment_event(session, id, EnvironmentEvent::ProvisionFailed, Actor::Reaper, &given)?;
    }
    let given = EnvironmentGiven { path_present, destroyer_gone: gone, ..EnvironmentGiven::default() };
    if row.status() == EnvironmentStatus::Destroying {
        // Whoever was at it is gone; the files may be half there.
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
