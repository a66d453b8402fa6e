//! Operations of workers that may lose the answer: a worker repeats its request, and gets the same answer again.

use sprag_lifecycle::{Execution, ExecutionPredicate, ExecutionStatus, mutant};

use super::{
    Assignment, Claimer, Ending, Finished, Lease, NewWorker, Renewal, claim, finish, heartbeat, renew,
};
use crate::author::Author;
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{ExecutionRow, Id, Row, WorkerRow};
use crate::session::Session;

/// The result of a claim.
#[derive(Debug)]
pub struct Got {
    /// The received executions.
    pub assignments: Vec<Assignment>,
    /// Whether an earlier claim with the same nonce received them.
    pub before: bool,
}

impl Got {
    /// Returns the execution of a claim for at most one.
    pub fn one(mut self) -> Option<Assignment> {
        self.assignments.pop()
    }
}

/// Receives up to `limit` executions. The same nonce gets the same executions, while the claimer still holds them: the
/// first answer may have been lost. A nonce of 0 never gets anything again.
///
/// `agent` is the presence of an agent or a person, identified by name, which is registered once it has received
/// something. Without it the claimer is a worker that has registered itself.
pub fn claim_once(
    session: &mut Session<'_>,
    claimer: &Claimer,
    limit: usize,
    agent: Option<&NewWorker>,
) -> Result<Got> {
    let mut held = got_by(session, claimer)?;
    if agent.is_some() {
        // An agent may use the same number for another board.
        held.retain(|row| claimer.queues.contains(&row.queue));
        held.truncate(limit);
    }
    if !held.is_empty() {
        let assignments: Result<_> =
            held.into_iter().map(|row| super::worker::assignment(session, row.id)).collect();
        return Ok(Got { assignments: assignments?, before: true });
    }
    if agent.is_none() && !is_present(session, claimer.worker)? {
        return Ok(Got { assignments: Vec::new(), before: false });
    }
    if let Some(agent) = agent {
        session.set_author(&Author::agent(&agent.name));
    }
    let assignments = claim(session, claimer, limit)?;
    if let Some(agent) = agent
        && !assignments.is_empty()
    {
        super::worker::show_claimer(session, agent)?;
    }
    Ok(Got { assignments, before: false })
}

/// Whether a worker sends heartbeats. One without them may be stopped while its request is still open: it would only
/// lose the executions that it gets.
fn is_present(session: &mut Session<'_>, worker: Id) -> Result<bool> {
    let now_ms = session.now().steady_ms;
    Ok(session.get::<WorkerRow>(worker)?.is_some_and(|row| row.heartbeat_until_ms > now_ms))
}

/// Returns the executions that the claimer holds by its nonce.
fn got_by(session: &mut Session<'_>, claimer: &Claimer) -> Result<Vec<ExecutionRow>> {
    if claimer.nonce == 0 || mutant!(NonceIgnored) {
        return Ok(Vec::new());
    }
    let mut held = session.db().held_by(claimer.worker)?;
    held.retain(|row| row.nonce == claimer.nonce);
    Ok(held)
}

/// The result of a report that may have been repeated.
#[derive(Debug)]
pub struct Heard {
    /// The result of the report, and the next execution.
    pub finished: Finished,
    /// Whether the same report was accepted before.
    pub before: bool,
}

/// Reports the end of an execution. A report that was accepted before, word for word, is confirmed again instead of
/// refused, because the first answer was lost.
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
            Some(claimer) => match got_by(session, claimer)?.pop() {
                Some(row) => Some(super::worker::assignment(session, row.id)?),
                None => None,
            },
            None => None,
        };
        let finished = Finished { outcome: Outcome::Illegal { status, wrong_actor: false }, next };
        return Ok(Heard { finished, before: true });
    }
    // The table decides about every other refusal.
    if let Some(row) = row.filter(|row| row.fence == lease.fence)
        && let Some(refused) = refused(Some(&row), worker)
    {
        return Ok(Heard { finished: Finished { outcome: refused, next: None }, before: false });
    }
    Ok(Heard { finished: finish(session, lease, ending, next)?, before: false })
}

/// Reports the end of a task for the bearer of its token. The token names the execution and the fence, and its bearer
/// acts for the owner.
pub fn finish_by_token(session: &mut Session<'_>, lease: Lease, ending: &Ending) -> Result<Heard> {
    let owner = session.get::<ExecutionRow>(lease.execution)?.and_then(|row| row.owner);
    match owner.filter(|_| !mutant!(RepeatedReportLost)) {
        Some(owner) => finish_again(session, owner, lease, ending, None),
        None => Ok(Heard { finished: finish(session, lease, ending, None)?, before: false }),
    }
}

/// Whether an execution has ended in exactly this way.
fn stands(row: &ExecutionRow, ending: &Ending) -> bool {
    let (_, result, retriable) = ending.told();
    let status = match ending {
        Ending::Completed { .. } => ExecutionStatus::Completed,
        Ending::Failed { .. } | Ending::Blocked { .. } => ExecutionStatus::Failed,
        Ending::TimedOut { .. } => ExecutionStatus::TimedOut,
        Ending::Cancelled => ExecutionStatus::Cancelled,
        // It has not ended: it waits in its queue, and this lease is void.
        Ending::Limited(_) | Ending::Parked => return false,
    };
    let blocked = matches!(ending, Ending::Blocked { .. });
    row.status() == status && row.result == result && (row.retriable, row.blocked) == (retriable, blocked)
}

/// Returns the refusal for a worker that is not the owner. Fences are small numbers that can be guessed, so a remote
/// caller must also be the owner.
fn refused(row: Option<&ExecutionRow>, worker: Id) -> Option<Outcome<Execution>> {
    match row {
        Some(row) if row.owner == Some(worker) => None,
        Some(_) => Some(Outcome::Superseded(ExecutionPredicate::MatchingFence)),
        None => Some(Outcome::NotFound),
    }
}

/// Returns the reason why this worker may not write to an execution any more; `None` if it may.
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

/// The result of a remote worker's heartbeat.
#[derive(Debug)]
pub struct RemoteBeat {
    /// Whether the store still counts the worker as present.
    pub known: bool,
    /// The moment until which the renewed leases last (steady).
    pub until_ms: i64,
    /// The result for each lease, in the order in which they were given.
    pub renewals: Vec<Renewal>,
}

/// Records the heartbeat of a remote worker, and renews its leases. A lease that another worker holds is lost.
pub fn heartbeat_of(
    session: &mut Session<'_>,
    worker: Id,
    leases: &[Lease],
    lease_ms: i64,
) -> Result<RemoteBeat> {
    let known = heartbeat(session, worker, lease_ms)?;
    let until_ms = session.now().steady_ms + lease_ms;
    let mut renewals = Vec::with_capacity(leases.len());
    for lease in leases {
        renewals.push(match not_held(session, worker, *lease)? {
            Some(_) => Renewal::Lost,
            None => renew(session, &[*lease], lease_ms)?.pop().unwrap_or(Renewal::Lost),
        });
    }
    Ok(RemoteBeat { known, until_ms, renewals })
}
