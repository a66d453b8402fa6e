//! Workers, threads and enforcements: created here, moved by their tables.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{
    Actor, Enforcement, EnforcementEvent, EnforcementStatus, RunId, Thread, ThreadEvent, ThreadStatus,
    WorkerEvent, WorkerPresence, WorkerStatus,
};

use super::{Lease, Lost, abandon, pin_run};
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{EnforcementRow, Id, Row, ThreadGiven, ThreadRow, WorkerGiven, WorkerRow};
use crate::session::Session;

/// A worker that presents itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewWorker {
    /// Its number, drawn by itself.
    pub id: Id,
    /// What it calls itself.
    pub name: Arc<str>,
    /// Its process, in one text.
    pub process: Arc<str>,
    /// The queues it serves, separated by commas.
    pub queues: Arc<str>,
    /// What it has that steps may ask for, separated by commas.
    #[serde(default = "nothing", skip_serializing_if = "str::is_empty")]
    pub labels: Arc<str>,
    /// How much it takes at once.
    pub slots: u32,
    /// How long it may be silent.
    pub lease_ms: i64,
}

fn nothing() -> Arc<str> {
    "".into()
}

/// Registers a worker, new or come back.
pub fn register_worker(session: &mut Session<'_>, new: &NewWorker) -> Result<Outcome<WorkerPresence>> {
    let now = session.now();
    let until = now.steady_ms + new.lease_ms;
    if session.get::<WorkerRow>(new.id)?.is_none() {
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
    worker_event(session, new.id, WorkerEvent::Registered, Actor::Worker, Some(until))
}

/// A worker leaves, or was told to finish what it has.
pub fn worker_event(
    session: &mut Session<'_>,
    id: Id,
    event: WorkerEvent,
    actor: Actor,
    heartbeat_until_ms: Option<i64>,
) -> Result<Outcome<WorkerPresence>> {
    let given = WorkerGiven { now_ms: session.now().steady_ms, process_gone: false };
    session.apply::<WorkerRow>(id, event, actor, &given, |row, _| {
        if let Some(until) = heartbeat_until_ms {
            row.heartbeat_until_ms = until;
        }
    })
}

/// A worker leaves in good order: nothing of what it held goes on, and runs reserved to it go to anyone.
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

/// A worker shows that it is there; says whether the store still counts on it.
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

/// Begins a conversation.
pub fn create_thread(session: &mut Session<'_>, id: Id, environment: Option<Id>) -> Result<()> {
    let row = ThreadRow {
        id,
        status: ThreadStatus::Created,
        version: 1,
        environment,
        stop_requested: false,
        archived: false,
        deleted: false,
        turn: 1,
        turn_open: true,
        runtime: 1,
    };
    session.create(row, "thread.created", Actor::Executor);
    Ok(())
}

/// Reports an event on a thread.
pub fn thread_event(
    session: &mut Session<'_>,
    id: Id,
    event: ThreadEvent,
    actor: Actor,
    given: &ThreadGiven,
) -> Result<Outcome<Thread>> {
    session.apply::<ThreadRow>(id, event, actor, given, |row, _| {
        if event.opens_turn() {
            row.turn += 1;
            row.turn_open = true;
        }
        if event.ends_turn() {
            row.turn_open = false;
            row.stop_requested = false;
        }
    })
}

/// A wish that outlives a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadIntent {
    /// Stop the turn.
    Stop,
    /// Put it away.
    Archive,
    /// Remove it.
    Delete,
}

/// Notes a wish on a thread; says whether the thread is there.
pub fn thread_intent(session: &mut Session<'_>, id: Id, intent: ThreadIntent) -> Result<bool> {
    if session.get::<ThreadRow>(id)?.is_none() {
        return Ok(false);
    }
    session.note::<ThreadRow>(id, |row| match intent {
        // Without an open turn there is nothing to stop, and nothing would ever end the wish.
        ThreadIntent::Stop => row.stop_requested = row.turn_open,
        ThreadIntent::Archive => row.archived = true,
        ThreadIntent::Delete => row.deleted = true,
    })?;
    Ok(true)
}

/// Notes that a rule matched an event; `false` if it had done so before.
pub fn create_enforcement(
    session: &mut Session<'_>,
    id: Id,
    rule: Arc<str>,
    event: Arc<str>,
) -> Result<bool> {
    if session.get::<EnforcementRow>(id)?.is_some() {
        return Ok(false);
    }
    let row = EnforcementRow { id, status: EnforcementStatus::Created, version: 1, rule, event, run: None };
    session.create(row, "enforcement.created", Actor::Executor);
    Ok(true)
}

/// Reports an event on an enforcement.
pub fn enforcement_event(
    session: &mut Session<'_>,
    id: Id,
    event: EnforcementEvent,
    run: Option<RunId>,
) -> Result<Outcome<Enforcement>> {
    session.apply::<EnforcementRow>(id, event, Actor::Executor, &(), |row, _| {
        if run.is_some() {
            row.run = run;
        }
    })
}
