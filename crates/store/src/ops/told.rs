//! Receives executions that a message announced. Messages arrive late, twice, in any order, and at any listener.

use sprag_lifecycle::ExecutionStatus;

use super::worker::is_readable;
use super::{Assignment, Claimer, Lease, is_for, receive};
use crate::error::{Error, Result};
use crate::rows::{ExecutionRow, Row};
use crate::session::Session;

/// The result of a hand-off that a message announced.
#[derive(Debug)]
pub enum Told {
    /// This worker has received the execution.
    Received(Box<Assignment>),
    /// The hand-off is over: received before, revoked, or never there. The message need not be delivered again.
    Stale,
    /// The execution waits, but not for this worker.
    NotHere,
}

/// Receives one execution that a message announced. A message about a finished hand-off is no event, and leaves no
/// refusal: duplicate messages are normal.
pub fn receive_told(session: &mut Session<'_>, claimer: &Claimer, told: Lease) -> Result<Told> {
    // The execution first: a stale message must not wait for a run.
    let row = match session.get::<ExecutionRow>(told.execution) {
        Err(Error::UnknownWord { .. }) => return Ok(Told::NotHere),
        row => row?,
    };
    let meant = |row: &ExecutionRow| row.status() == ExecutionStatus::Scheduled && row.fence == told.fence;
    let Some(row) = row.filter(meant) else { return Ok(Told::Stale) };
    if !is_readable(session, told.execution)? {
        return Ok(Told::NotHere);
    }
    match row.pin {
        // Reserved since: another message notifies the worker that it is reserved to.
        Some(pin) if pin != claimer.worker => return Ok(Told::Stale),
        None if claimer.reserved_only => return Ok(Told::NotHere),
        _ => {}
    }
    let serves = row.pin == Some(claimer.worker) || claimer.queues.contains(&row.queue);
    if !serves || !is_for(session, claimer, told.execution)? {
        return Ok(Told::NotHere);
    }
    Ok(match receive(session, claimer, told)? {
        Ok(assignment) => Told::Received(Box::new(assignment)),
        Err(_) => Told::Stale,
    })
}
