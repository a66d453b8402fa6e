//! Threads: the reports of the worker in whose execution an agent lives, and the requests of persons.
//!
//! The execution decides which worker may act for a thread. Whatever ends, releases or abandons it closes the thread's open
//! turn and clears the holder in the same transaction, so that the next attempt finds the thread free.

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{Actor, ExecutionStatus, RunId, StepNo, Thread, ThreadEvent, ThreadStatus, mutant};

use super::Lease;
use crate::clock::fnv;
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{EnvironmentRow, ExecutionRow, Id, Row, ThreadGiven, ThreadReport, ThreadRow};
use crate::session::Session;

/// Creates a thread without a turn.
pub fn create_thread(session: &mut Session<'_>, id: Id, environment: Option<Id>) -> Result<()> {
    let row = ThreadRow {
        id,
        status: ThreadStatus::Created,
        version: 1,
        environment,
        holder: None,
        stop_requested: false,
        archived: false,
        deleted: false,
        turn: 0,
        turn_open: false,
        runtime: 0,
    };
    session.create(row, "thread.created", Actor::Executor);
    Ok(())
}

/// Returns the number of the thread of a step: the conversation that all its attempts, and people, have with its agent.
pub fn thread_id(run: RunId, step: StepNo) -> Id {
    (fnv(&format!("thread {run} {step}")) >> 2) as Id + 1
}

/// The result of entering a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entered", rename_all = "snake_case")]
pub enum ThreadEntry {
    /// The execution holds the thread, and may start its agent.
    Entered {
        /// The number of the turn that was opened.
        turn: u32,
        /// The number of the agent's process.
        runtime: u32,
    },
    /// Another execution holds it.
    Busy {
        /// The run of that execution.
        run: RunId,
    },
    /// The execution may not start an agent any more.
    Refused,
}

/// Makes an execution the holder of a thread and opens a turn, before the agent's process exists. The thread is created if
/// it does not exist.
pub fn enter_thread(
    session: &mut Session<'_>,
    lease: Lease,
    run: RunId,
    step: StepNo,
) -> Result<ThreadEntry> {
    let id = thread_id(run, step);
    match session.get::<ThreadRow>(id)? {
        None => create_thread(session, id, None)?,
        Some(row) if row.holder == Some(lease) => {
            // A further process of the same attempt.
            leave_thread(session, lease, Actor::Worker)?;
        }
        Some(_) => {}
    }
    let report = ThreadReport { holder: Some(lease), ..ThreadReport::default() };
    let outcome = thread_event(session, id, ThreadEvent::ReprovisionStarted, Actor::Worker, &report)?;
    let row = session.get::<ThreadRow>(id)?;
    Ok(match row {
        Some(row) if outcome.is_applied() => ThreadEntry::Entered { turn: row.turn, runtime: row.runtime },
        Some(ThreadRow { holder: Some(holder), .. }) => ThreadEntry::Busy { run: holder.execution.run },
        _ => ThreadEntry::Refused,
    })
}

/// Reports an event on a thread.
pub fn thread_event(
    session: &mut Session<'_>,
    id: Id,
    event: ThreadEvent,
    actor: Actor,
    report: &ThreadReport,
) -> Result<Outcome<Thread>> {
    let holder_runs = match report.holder {
        Some(lease) => session.get::<ExecutionRow>(lease.execution)?.is_some_and(|row| {
            row.status() == ExecutionStatus::Running && row.fence == lease.fence && !row.cancel_requested
        }),
        None => false,
    };
    let environment = session.get::<ThreadRow>(id)?.and_then(|row| row.environment);
    let provision_attempt_matches = match environment {
        Some(environment) => session
            .get::<EnvironmentRow>(environment)?
            .is_some_and(|row| row.provision_attempt == report.provision_attempt),
        None => true,
    };
    let given = ThreadGiven { report: *report, holder_runs, provision_attempt_matches };
    let outcome = session.apply::<ThreadRow>(id, event, actor, &given, |row, _| {
        if event.opens_turn() {
            row.turn += 1;
            row.turn_open = true;
        }
        if event == ThreadEvent::ReprovisionStarted {
            row.runtime += u32::from(!mutant!(RuntimeStays));
            row.holder = report.holder;
        }
        if event.ends_turn() {
            row.turn_open = false;
            row.stop_requested = false;
        }
    })?;
    if outcome.is_applied()
        && event == ThreadEvent::ReprovisionStarted
        && let Some(lease) = report.holder
    {
        session.note::<ExecutionRow>(lease.execution, |row| row.thread = Some(id))?;
    }
    Ok(outcome)
}

/// Closes the open turn of the thread that an execution held, and clears the holder. `lease` is the right that the
/// execution's owner had until now, and `actor` the reporter of the execution's end.
pub(super) fn leave_thread(session: &mut Session<'_>, lease: Lease, actor: Actor) -> Result<()> {
    let thread = session.get::<ExecutionRow>(lease.execution)?.and_then(|row| row.thread);
    let Some(id) = thread.filter(|_| !mutant!(HolderKept)) else { return Ok(()) };
    let Some(row) = session.get::<ThreadRow>(id)?.filter(|row| row.holder == Some(lease)) else {
        return Ok(());
    };
    if row.turn_open {
        let event = match actor {
            _ if row.stop_requested => ThreadEvent::StopCompleted,
            Actor::Reaper => ThreadEvent::SessionLost,
            _ => ThreadEvent::TurnInterrupted,
        };
        let report =
            ThreadReport { holder: Some(lease), turn: row.turn, runtime: row.runtime, provision_attempt: 0 };
        let _ = thread_event(session, id, event, actor, &report)?;
    }
    session.note::<ThreadRow>(id, |row| row.holder = None)
}

/// A request on a thread that survives a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadIntent {
    /// Stop the open turn.
    Stop,
    /// Archive the thread.
    Archive,
    /// Delete the thread, which also stops its open turn.
    Delete,
}

/// Records a request on a thread. Returns whether the thread exists.
pub fn thread_intent(session: &mut Session<'_>, id: Id, intent: ThreadIntent) -> Result<bool> {
    if session.get::<ThreadRow>(id)?.is_none() {
        return Ok(false);
    }
    session.note::<ThreadRow>(id, |row| {
        match intent {
            ThreadIntent::Stop => {}
            ThreadIntent::Archive => row.archived = true,
            ThreadIntent::Delete => row.deleted = true,
        }
        if intent != ThreadIntent::Archive {
            // Without an open turn there is nothing to stop, and nothing would ever clear the request.
            row.stop_requested = row.turn_open;
        }
    })?;
    let act = match intent {
        ThreadIntent::Stop => "thread.stop_requested",
        ThreadIntent::Archive => "thread.archived",
        ThreadIntent::Delete => "thread.deleted",
    };
    session.note_act(act, &id.to_string())?;
    Ok(true)
}
