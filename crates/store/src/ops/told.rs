//! Receiving what a message told of: messages come late, twice, in any order, and to whoever listens.

use sprag_lifecycle::ExecutionStatus;

use super::worker::is_readable;
use super::{Assignment, Claimer, Lease, is_for, receive};
use crate::error::{Error, Result};
use crate::rows::{ExecutionRow, Row};
use crate::session::Session;

/// What became of a hand-off that a message told of.
#[derive(Debug)]
pub enum Told {
    /// It is this worker's.
    Received(Box<Assignment>),
    /// It is over: received before, taken back, or never there. Nobody need be told again.
    Stale,
    /// It waits, but not for this worker.
    NotHere,
}

/// Receives one execution that a message told of. One that is over is no event, and leaves no refusal behind: messages
/// come twice as a matter of course.
pub fn receive_told(session: &mut Session<'_>, claimer: &Claimer, told: Lease) -> Result<Told> {
    // The execution first: a message that is over is nobody's reason to wait for a run.
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
        // Reserved since: the one that it is reserved to is told otherwise.
        Some(pin) if pin != claimer.worker => return Ok(Told::Stale),
        None if claimer.reserved_only => return Ok(Told::NotHere),
        _ => {}
    }
    if !claimer.queues.contains(&row.queue) || !is_for(session, claimer.worker, told.execution)? {
        return Ok(Told::NotHere);
    }
    Ok(match receive(session, claimer, told)? {
        Ok(assignment) => Told::Received(Box::new(assignment)),
        Err(_) => Told::Stale,
    })
}
