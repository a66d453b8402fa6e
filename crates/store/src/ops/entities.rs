//! Workers: created here, moved by their table.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{Actor, WorkerEvent, WorkerPresence, WorkerStatus};

use super::{Lease, Lost, abandon, pin_run};
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{Id, Row, WorkerReport, WorkerRow};
use crate::session::Session;

/// A worker that registers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewWorker {
    /// The worker's id, which it drew itself.
    pub id: Id,
    /// The worker's name for itself.
    pub name: Arc<str>,
    /// The worker's process, in one text.
    pub process: Arc<str>,
    /// The queues it serves, separated by commas.
    pub queues: Arc<str>,
    /// The labels that steps may require, separated by commas.
    #[serde(default = "nothing", skip_serializing_if = "str::is_empty")]
    pub labels: Arc<str>,
    /// The most executions that it holds at once; 0 for a claimer, which stays registered while it holds something.
    pub slots: u32,
    /// The time without a heartbeat after which the worker counts as lost.
    pub lease_ms: i64,
}

fn nothing() -> Arc<str> {
    "".into()
}

/// Registers a worker, new or returning. For a worker that is online already, records a heartbeat, unless it has just
/// sent one.
pub fn register_worker(session: &mut Session<'_>, new: &NewWorker) -> Result<()> {
    let now = session.now();
    let until = now.steady_ms + new.lease_ms;
    let there = session.get::<WorkerRow>(new.id)?;
    if let Some(row) = there.as_ref().filter(|row| row.status() == WorkerStatus::Online) {
        if row.heartbeat_until_ms < until - new.lease_ms / 2 {
            heartbeat(session, new.id, new.lease_ms)?;
        }
        return Ok(());
    }
    if there.is_none() {
        let row = WorkerRow {
            id: new.id,
            status: WorkerStatus::Offline,
            version: 1,
            name: Arc::clone(&new.name),
            process: Arc::clone(&new.process),
            queues: Arc::clone(&new.queues),
            labels: Arc::clone(&new.labels),
            slots: new.slots,
            heartbeat_until_ms: until,
            created_ms: now.wall_ms,
        };
        session.create_quietly(row);
    }
    worker_event(session, new.id, WorkerEvent::Registered, Actor::Worker, Some(until)).map(drop)
}

/// Reports that a worker leaves, or that it was told to finish its executions and take no more.
pub fn worker_event(
    session: &mut Session<'_>,
    id: Id,
    event: WorkerEvent,
    actor: Actor,
    heartbeat_until_ms: Option<i64>,
) -> Result<Outcome<WorkerPresence>> {
    let given = WorkerReport { now_ms: session.now().steady_ms, process_gone: false };
    session.apply::<WorkerRow>(id, event, actor, &given, |row, _| {
        if let Some(until) = heartbeat_until_ms {
            row.heartbeat_until_ms = until;
        }
    })
}

/// Removes a worker in good order: abandons the executions that it held, and releases the runs reserved to it to any
/// worker.
pub fn leave(session: &mut Session<'_>, id: Id) -> Result<Outcome<WorkerPresence>> {
    for row in session.db().held_by(id)? {
        let lease = Lease { execution: row.id, fence: row.fence };
        let _ = abandon(session, lease, Lost::ProcessGone)?;
    }
    for run in session.db().pinned_runs(id)? {
        pin_run(session, run, None)?;
    }
    worker_event(session, id, WorkerEvent::Left, Actor::Worker, None)
}

/// Records a worker's heartbeat. Returns whether the store still counts the worker as present.
pub fn heartbeat(session: &mut Session<'_>, id: Id, lease_ms: i64) -> Result<bool> {
    let until = session.now().steady_ms + lease_ms;
    match session.get::<WorkerRow>(id)? {
        Some(row) if row.status() != WorkerStatus::Offline => {
            session.note::<WorkerRow>(id, |row| row.heartbeat_until_ms = until)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
