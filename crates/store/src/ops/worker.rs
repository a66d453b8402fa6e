//! What workers do: receive, renew, finish, give back. Every write carries the fence it was given.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{
    Actor, Execution, ExecutionEvent, ExecutionId, ExecutionStatus, Plan, PlanStep, RunState, StepNo,
    WorkerStatus, advance, mutant,
};

use crate::backend::Candidate;
use crate::error::Result;
use crate::outcome::Outcome;
use crate::rows::{ExecutionGiven, ExecutionRow, Id, Row, RunRow, StepRow, WorkerRow};
use crate::run_state::HeldRun;
use crate::seams::Now;
use crate::session::Session;

/// The right to an execution: whoever shows this fence may write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// What was received.
    pub execution: ExecutionId,
    /// The fence that receiving it gave.
    pub fence: u32,
}

/// Who claims, and on what terms.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claimer {
    /// The worker.
    pub worker: Id,
    /// The queues it serves.
    pub queues: Vec<Arc<str>>,
    /// Takes only what is reserved to it.
    pub reserved_only: bool,
    /// How long it may be silent.
    pub lease_ms: i64,
    /// What it calls this claim.
    pub nonce: i64,
}

/// A received execution: what to do, and the right to do it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Assignment {
    /// The right.
    pub lease: Lease,
    /// Until when it lasts unless renewed (steady, by the store's clock).
    pub lease_until_ms: i64,
    /// The run's plan.
    pub plan: Arc<Plan>,
    /// The run's inputs, as JSON.
    pub inputs: Arc<str>,
    /// The run's context, as JSON.
    pub context: Arc<str>,
    /// What its last try, or the step that sent it back, had to say.
    pub feedback: Option<Arc<str>>,
    /// The node of the plan that the step stands for.
    pub node: StepNo,
    /// The step's name: its id, and which item of a fan-out it is.
    pub name: String,
    /// What became of the steps that its texts name, as JSON.
    pub steps: Option<Arc<str>>,
    /// The value of the item that it stands for, as JSON.
    pub item: Option<Arc<str>>,
    /// The branch that the run works on, if it has one of its own.
    pub branch: Option<String>,
    /// Somebody has tried it in this round before.
    pub is_retry: bool,
}

impl Assignment {
    /// The step to work on, as it was planned.
    pub fn step(&self) -> &PlanStep {
        self.plan.step(self.node)
    }

    /// Everything that the step's texts can name; an item's value stands under [`crate::ITEM`].
    pub fn names(&self) -> serde_json::Value {
        let parse = |text: &str| serde_json::from_str(text).unwrap_or(serde_json::Value::Null);
        let mut names = serde_json::json!({
            "inputs": parse(&self.inputs),
            "run": crate::names::run_names(self.lease.execution.run, &self.plan),
            "steps": self.steps.as_deref().map_or_else(|| serde_json::json!({}), parse),
        });
        if let Some(item) = &self.item {
            names[crate::names::ITEM] = parse(item);
        }
        if let Some(branch) = &self.branch {
            names["run"]["branch"] = branch.as_str().into();
        }
        names
    }
}

/// How an execution ended, as its worker tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ending {
    /// Well.
    Completed {
        /// What it produced, as JSON.
        result: Option<Arc<str>>,
    },
    /// Badly.
    Failed {
        /// What is known of it, as JSON.
        result: Option<Arc<str>>,
        /// Whether another try makes sense.
        retriable: bool,
    },
    /// It took too long and was ended.
    TimedOut {
        /// What is known of it, as JSON.
        result: Option<Arc<str>>,
    },
    /// It was ended because somebody wanted so.
    Cancelled,
}

impl Ending {
    /// The event, what is kept of it, and whether another try makes sense.
    pub(super) fn told(&self) -> (ExecutionEvent, Option<Arc<str>>, bool) {
        match self {
            Ending::Completed { result } => (ExecutionEvent::Completed, result.clone(), true),
            Ending::Failed { result, retriable } => (ExecutionEvent::Failed, result.clone(), *retriable),
            Ending::TimedOut { result } => (ExecutionEvent::TimedOut, result.clone(), true),
            Ending::Cancelled => (ExecutionEvent::Cancelled, None, true),
        }
    }
}

/// What became of a worker's report.
#[derive(Debug)]
pub struct Finished {
    /// Whether it stands.
    pub outcome: Outcome<Execution>,
    /// The next execution of the same run, received in the same transaction.
    pub next: Option<Assignment>,
}

/// Receives up to `limit` executions: by priority, then first in, first out.
pub fn claim(session: &mut Session<'_>, claimer: &Claimer, limit: usize) -> Result<Vec<Assignment>> {
    let candidates = candidates(session, claimer, limit)?;
    let mut got = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let Some(row) = session.get::<ExecutionRow>(candidate.execution)? else { continue };
        let lease = Lease { execution: row.id, fence: row.fence };
        if let Ok(assignment) = receive(session, claimer, lease)? {
            got.push(assignment);
        }
    }
    Ok(got)
}

/// What may be received, at most `limit`. A run that cannot be read holds up no other: it is passed over.
fn candidates(session: &mut Session<'_>, claimer: &Claimer, limit: usize) -> Result<Vec<Candidate>> {
    let mut wanted = limit;
    // Ends: each round passes over at least one more, or is the last.
    loop {
        let mut found: Vec<Candidate> = Vec::new();
        for queue in &claimer.queues {
            let anyones = (!claimer.reserved_only).then_some(0);
            for pin in anyones.into_iter().chain([claimer.worker]) {
                found.extend(session.db().claimable(queue, pin, wanted)?);
            }
        }
        found.sort_unstable();
        found.truncate(wanted);
        let all = found.len() < wanted;
        let mut readable = Vec::with_capacity(limit);
        for candidate in found {
            if is_readable(session, candidate.execution)?
                && super::is_for(session, claimer.worker, candidate.execution)?
            {
                readable.push(candidate);
            }
        }
        if all || readable.len() >= limit {
            return Ok(readable);
        }
        wanted += limit - readable.len();
    }
}

/// Whether this version knows the statuses of the rows that receiving it touches.
pub(super) fn is_readable(session: &mut Session<'_>, id: ExecutionId) -> Result<bool> {
    let read = session
        .get::<RunRow>(id.run)
        .map(drop)
        .and_then(|()| session.get::<StepRow>((id.run, id.step)).map(drop))
        .and_then(|()| session.get::<ExecutionRow>(id).map(drop));
    match read {
        Ok(()) => Ok(true),
        Err(error @ crate::Error::UnknownWord { .. }) => {
            tracing::warn!(execution = %id, %error, "passed over: it cannot be received");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Receives one execution that a message told of: the message's fence decides whether it is still meant.
pub fn receive(
    session: &mut Session<'_>,
    claimer: &Claimer,
    told: Lease,
) -> Result<std::result::Result<Assignment, Outcome<Execution>>> {
    let outcome = receive_row(session, claimer, told)?;
    if !outcome.is_applied() {
        return Ok(Err(outcome));
    }
    let ExecutionId { run, step, .. } = told.execution;
    if !session.db().is_held(run) {
        // Receiving waits for nobody: whoever has the run looks at it, or this process does afterwards.
        session.db().look_later(run, step);
    } else if let Some(mut held) = HeldRun::take(session, run)? {
        advance(&mut held, [step])?;
    }
    Ok(Ok(assignment(session, told.execution)?))
}

/// Touches the execution's row alone: the run's is not needed to receive.
fn receive_row(session: &mut Session<'_>, claimer: &Claimer, told: Lease) -> Result<Outcome<Execution>> {
    let given = given(session, told)?;
    session.apply::<ExecutionRow>(
        told.execution,
        ExecutionEvent::HandoffReceived,
        Actor::Worker,
        &given,
        |row, now| {
            row.fence += u32::from(!mutant!(FenceStaysAtReceipt));
            row.owner = Some(claimer.worker);
            row.lease_until_ms = lease_clock(now) + claimer.lease_ms;
            row.nonce = claimer.nonce;
            row.started_ms = Some(now.wall_ms);
        },
    )
}

/// The clock that leases are measured by.
pub(super) fn lease_clock(now: Now) -> i64 {
    if mutant!(WallClockLeases) { now.wall_ms } else { now.steady_ms }
}

fn given(session: &mut Session<'_>, lease: Lease) -> Result<ExecutionGiven> {
    let run_epoch = session.get::<RunRow>(lease.execution.run)?.map_or(0, |run| run.epoch);
    Ok(ExecutionGiven {
        fence: lease.fence,
        run_epoch,
        run_live: true,
        owner_dead: false,
        now_ms: lease_clock(session.now()),
    })
}

pub(super) fn assignment(session: &mut Session<'_>, id: ExecutionId) -> Result<Assignment> {
    let missing = || crate::Error::Refused(format!("{id} is incomplete in the database"));
    let row = session.get::<ExecutionRow>(id)?.ok_or_else(missing)?;
    let run = session.get::<RunRow>(id.run)?.ok_or_else(missing)?;
    let step = session.get::<StepRow>((id.run, id.step))?.ok_or_else(missing)?;
    let plan = session.plan(id.run, run.plan)?;
    let node = step.node();
    let steps = match plan.step(node).reads.is_empty() {
        true => None,
        false => Some(crate::names::step_names(session, &plan, id.run, &step)?.to_string().into()),
    };
    let branch = match plan.environment.is_some() {
        true => session.language().branch(&plan, &id.run.to_string()),
        false => None,
    };
    Ok(Assignment {
        is_retry: step.tries > 0 || step.losses > 0,
        branch,
        node,
        name: crate::names::step_name(&plan, &step),
        steps,
        item: crate::names::item_value(session, &step)?,
        lease: Lease { execution: id, fence: row.fence },
        lease_until_ms: row.lease_until_ms,
        plan,
        inputs: run.inputs,
        context: run.context,
        feedback: step.feedback,
    })
}

/// Reports how an execution ended, advances its run and, if `next` asks for it, receives what follows.
pub fn finish(
    session: &mut Session<'_>,
    lease: Lease,
    ending: &Ending,
    next: Option<&Claimer>,
) -> Result<Finished> {
    let (event, result, retriable) = ending.told();
    let given = given(session, lease)?;
    let outcome =
        session.apply::<ExecutionRow>(lease.execution, event, Actor::Worker, &given, |row, now| {
            row.result = result;
            row.retriable = retriable;
            row.ended_ms = Some(now.wall_ms);
        })?;
    if !outcome.is_applied() {
        return Ok(Finished { outcome, next: None });
    }
    if !mutant!(AdvanceForgotten)
        && let Some(mut held) = HeldRun::take(session, lease.execution.run)?
    {
        advance(&mut held, [lease.execution.step])?;
    }
    let next = match next {
        Some(claimer) => receive_next(session, claimer, lease)?,
        None => None,
    };
    Ok(Finished { outcome, next })
}

/// Receives what this very operation has handed over, if it is for this worker.
fn receive_next(session: &mut Session<'_>, claimer: &Claimer, last: Lease) -> Result<Option<Assignment>> {
    let mut found: Vec<_> = session
        .seen::<ExecutionRow>()
        .filter(|row| {
            row.id.run == last.execution.run
                && row.status() == ExecutionStatus::Scheduled
                && row.pin.is_none_or(|pin| pin == claimer.worker)
                && claimer.queues.contains(&row.queue)
        })
        .map(|row| (std::cmp::Reverse(row.priority), row.id, row.fence))
        .collect();
    found.sort_unstable();
    for (_, execution, fence) in found {
        if super::has_labels(session, claimer.worker, execution)? {
            return Ok(receive(session, claimer, Lease { execution, fence })?.ok());
        }
    }
    Ok(None)
}

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// It lasts until then (steady, by the store's clock).
    Held {
        /// Until when.
        until_ms: i64,
        /// Somebody wants the execution to end.
        cancel_requested: bool,
    },
    /// It was taken away: end the work, its result will be refused.
    Lost,
}

/// Prolongs leases, each matched by its fence.
pub fn renew(session: &mut Session<'_>, leases: &[Lease], lease_ms: i64) -> Result<Vec<Renewal>> {
    let until_ms = lease_clock(session.now()) + lease_ms;
    let mut renewals = Vec::with_capacity(leases.len());
    for lease in leases {
        renewals.push(match session.get::<ExecutionRow>(lease.execution)? {
            Some(row)
                if row.status() == ExecutionStatus::Running
                    && (row.fence == lease.fence || mutant!(RenewedByName)) =>
            {
                session.note::<ExecutionRow>(lease.execution, |row| row.lease_until_ms = until_ms)?;
                Renewal::Held { until_ms, cancel_requested: row.cancel_requested }
            }
            _ => Renewal::Lost,
        });
    }
    Ok(renewals)
}

/// Gives an execution back unfinished; it goes to the queue again.
pub fn release(session: &mut Session<'_>, lease: Lease) -> Result<Outcome<Execution>> {
    let given = given(session, lease)?;
    let outcome = session.apply::<ExecutionRow>(
        lease.execution,
        ExecutionEvent::Released,
        Actor::Worker,
        &given,
        |row, _| {
            row.fence += u32::from(!mutant!(FenceStaysWhenGivenBack));
            row.owner = None;
            row.lease_until_ms = 0;
            row.started_ms = None;
        },
    )?;
    if outcome.is_applied()
        && let Some(mut held) = HeldRun::take(session, lease.execution.run)?
    {
        let wanted =
            held.session.get::<ExecutionRow>(lease.execution)?.is_some_and(|row| !row.cancel_requested);
        if wanted {
            held.schedule(lease.execution)?;
        } else {
            held.end_work(lease.execution.step)?;
        }
        advance(&mut held, [lease.execution.step])?;
    }
    Ok(outcome)
}

/// Receives one execution for whoever comes by from time to time, and is known by its name: an agent, a person.
/// The same nonce gets what it got before, for as long as that is still held: the answer may have been lost.
pub fn claim_as(
    session: &mut Session<'_>,
    worker: &super::NewWorker,
    claimer: &Claimer,
) -> Result<Option<Assignment>> {
    let until_ms = session.now().steady_ms + worker.lease_ms;
    match session.get::<WorkerRow>(worker.id)? {
        Some(row) if row.status() == WorkerStatus::Online => {
            // Told anew only where it makes a difference: many claims a second are one worker's.
            if row.heartbeat_until_ms < until_ms - worker.lease_ms / 2 || row.queues != worker.queues {
                session.note::<WorkerRow>(worker.id, |row| {
                    row.heartbeat_until_ms = until_ms.max(row.heartbeat_until_ms);
                    row.queues = Arc::clone(&worker.queues);
                })?;
            }
        }
        _ => {
            let _ = super::register_worker(session, worker)?;
        }
    }
    if claimer.nonce != 0 && !mutant!(NonceIgnored) {
        let held = session.db().held_by(claimer.worker)?;
        let same = |row: &ExecutionRow| row.nonce == claimer.nonce && claimer.queues.contains(&row.queue);
        if let Some(row) = held.into_iter().find(same) {
            return assignment(session, row.id).map(Some);
        }
    }
    Ok(claim(session, claimer, 1)?.pop())
}

/// What is held by this lease, told again; none if it is not held any more.
pub fn assignment_of(session: &mut Session<'_>, lease: Lease) -> Result<Option<Assignment>> {
    match session.get::<ExecutionRow>(lease.execution)? {
        Some(row) if row.status() == ExecutionStatus::Running && row.fence == lease.fence => {
            assignment(session, lease.execution).map(Some)
        }
        _ => Ok(None),
    }
}

/// Prolongs a lease, and shows that whoever has it is there.
pub fn keep(session: &mut Session<'_>, lease: Lease, lease_ms: i64) -> Result<Renewal> {
    let renewal = renew(session, &[lease], lease_ms)?.pop().unwrap_or(Renewal::Lost);
    if renewal != Renewal::Lost
        && let Some(owner) = session.get::<ExecutionRow>(lease.execution)?.and_then(|row| row.owner)
    {
        let until_ms = session.now().steady_ms + lease_ms;
        session.note::<WorkerRow>(owner, |row| {
            row.heartbeat_until_ms = row.heartbeat_until_ms.max(until_ms);
        })?;
    }
    Ok(renewal)
}
