//! What workers do that may not hear the answer: they ask again, and get what they got before.

use sprag_lifecycle::{Execution, ExecutionPredicate, ExecutionStatus};

use super::{Assignment, Claimer, Ending, Finished, Lease, claim, finish};
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{ExecutionRow, Id, Row, WorkerRow};
use crate::session::Session;

/// What a claim got.
#[derive(Debug)]
pub struct Got {
    /// The work.
    pub assignments: Vec<Assignment>,
    /// It was received before, by a claim of the same nonce.
    pub before: bool,
}

/// Receives up to `limit` executions. The same nonce gets what it got before, for as long as that is held.
pub fn claim_again(session: &mut Session<'_>, claimer: &Claimer, limit: usize) -> Result<Got> {
    let held = got_by(session, claimer)?;
    if !held.is_empty() {
        return Ok(Got { assignments: held, before: true });
    }
    // One that has fallen silent may be stopped, with its question still open: it would only lose what it is given.
    let now_ms = session.now().steady_ms;
    let worker = session.get::<WorkerRow>(claimer.worker)?;
    if worker.is_none_or(|row| row.heartbeat_until_ms <= now_ms) {
        return Ok(Got { assignments: Vec::new(), before: false });
    }
    Ok(Got { assignments: claim(session, claimer, limit)?, before: false })
}

/// What the worker holds by this nonce.
fn got_by(session: &mut Session<'_>, claimer: &Claimer) -> Result<Vec<Assignment>> {
    let held = session.db().held_by(claimer.worker)?;
    let by_nonce = held.into_iter().filter(|row| row.nonce == claimer.nonce);
    by_nonce.map(|row| super::worker::assignment(session, row.id)).collect()
}

/// What became of a report that may have come before.
#[derive(Debug)]
pub struct Heard {
    /// What became of it, and what follows.
    pub finished: Finished,
    /// The very same had been reported, and stands.
    pub before: bool,
}

/// Reports how an execution ended. What stands already, word for word, is told again instead of refused: the
/// first answer was lost.
pub fn finish_again(
    session: &mut Session<'_>,
    worker: Id,
    lease: Lease,
    ending: &Ending,
    next: Option<&Claimer>,
) -> Result<Heard> {
    let row = session.get::<ExecutionRow>(lease.execution)?;
    if let Some(row) = &row
        && (row.owner, row.fence) == (Some(worker), lease.fence)
        && stands(row, ending)
    {
        let status = row.status();
        let next = match next {
            Some(claimer) => got_by(session, claimer)?.pop(),
            None => None,
        };
        let finished = Finished { outcome: Outcome::Illegal { status, wrong_actor: false }, next };
        return Ok(Heard { finished, before: true });
    }
    // Any other refusal is the table's.
    if let Some(row) = row.filter(|row| row.fence == lease.fence)
        && let Some(refused) = refused(Some(&row), worker)
    {
        return Ok(Heard { finished: Finished { outcome: refused, next: None }, before: false });
    }
    Ok(Heard { finished: finish(session, lease, ending, next)?, before: false })
}

/// Whether an execution has ended in exactly this way.
fn stands(row: &ExecutionRow, ending: &Ending) -> bool {
    let (_, result, retriable) = ending.told();
    let status = match ending {
        Ending::Completed { .. } => ExecutionStatus::Completed,
        Ending::Failed { .. } => ExecutionStatus::Failed,
        Ending::TimedOut { .. } => ExecutionStatus::TimedOut,
        Ending::Cancelled => ExecutionStatus::Cancelled,
    };
    row.status() == status && row.result == result && row.retriable == retriable
}

/// Fences are small numbers: from elsewhere, an execution is its owner's alone, whoever guesses right.
fn refused(row: Option<&ExecutionRow>, worker: Id) -> Option<Outcome<Execution>> {
    match row {
        Some(row) if row.owner == Some(worker) => None,
        Some(_) => Some(Outcome::Superseded(ExecutionPredicate::MatchingFence)),
        None => Some(Outcome::NotFound),
    }
}

/// Why this worker may not write to an execution any more; none if it may.
pub fn not_held(session: &mut Session<'_>, worker: Id, lease: Lease) -> Result<Option<Outcome<Execution>>> {
    let row = session.get::<ExecutionRow>(lease.execution)?;
    Ok(refused(row.as_ref(), worker).or_else(|| match row {
        Some(row) if row.fence != lease.fence => Some(Outcome::Superseded(ExecutionPredicate::MatchingFence)),
        Some(row) if row.status() != ExecutionStatus::Running => {
            Some(Outcome::Illegal { status: row.status(), wrong_actor: false })
        }
        _ => None,
    }))
}
