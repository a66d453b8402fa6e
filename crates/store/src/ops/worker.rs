//! The operations of workers: receive, renew, finish, release. Every write carries the fence of its lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{
    AccountStatus, Actor, Execution, ExecutionEvent, ExecutionId, ExecutionStatus, Plan, PlanStep, RunState,
    SERVICE_PRIORITY, StepNo, WorkerStatus, advance, mutant,
};

use super::{UsageLimit, UsedServices};
use crate::backend::{Backend, Candidate, Table};
use crate::clock::Now;
use crate::error::Result;
use crate::gathered::{NoRoom, Room, StepsRead};
use crate::outcome::Outcome;
use crate::rows::{AccountRow, ExecutionReport, ExecutionRow, Id, Row, RunRow, StepRow, WorkerRow};
use crate::run_state::HeldRun;
use crate::session::Session;

/// The right to an execution: the holder of this fence may write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The received execution.
    pub execution: ExecutionId,
    /// The fence that the worker got with it.
    pub fence: u32,
}

impl Lease {
    /// Returns a number for outside systems that can refuse an older one. It grows whenever the step's owner changes,
    /// over all its attempts; the fence alone restarts with each attempt.
    pub fn guard(&self) -> u64 {
        u64::from(self.execution.attempt) << 32 | u64::from(self.fence)
    }
}

/// A worker that claims, and the terms of its claim.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claimer {
    /// The worker.
    pub worker: Id,
    /// The queues it serves.
    pub queues: Vec<Arc<str>>,
    /// Whether it takes only executions that are reserved to it.
    pub reserved_only: bool,
    /// Whether it has no free slot, and takes only services, which need none, of runs that it has a part of.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub services_only: bool,
    /// The time for which a lease lasts without renewal, in milliseconds.
    pub lease_ms: i64,
    /// The worker's number for this claim, by which it can repeat the request.
    pub nonce: i64,
}

/// A received execution: the work, and the right to do it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Assignment {
    /// The right to the execution.
    pub lease: Lease,
    /// The time at which the lease expires unless renewed (steady, by the store's clock).
    pub lease_until_ms: i64,
    /// The run's plan.
    pub plan: Arc<Plan>,
    /// The run's inputs, as JSON.
    pub inputs: Arc<str>,
    /// The run's context, as JSON.
    pub context: Arc<str>,
    /// Feedback from its last attempt, or from the step that sent it back.
    pub feedback: Option<Arc<str>>,
    /// The plan's node of the step.
    pub node: StepNo,
    /// The step's name: its id, and the number of its item in a fan-out.
    pub name: String,
    /// The steps that its texts name, with their results.
    pub steps: Option<StepsRead>,
    /// The reason why its texts cannot be filled in, if that is known already: the step fails with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// The value of its item, as JSON; absent if it is no item.
    pub item: Option<Arc<str>>,
    /// The number of its item in the list, from 0; absent if it is no item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_index: Option<u32>,
    /// The run's status when the execution was received; absent in messages of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_status: Option<String>,
    /// The time at which the execution was received (wall clock, in milliseconds), for templates.
    #[serde(default)]
    pub now_ms: i64,
    /// The branch on which the run works, if it has one of its own.
    pub branch: Option<String>,
    /// The services that it uses, all of which this worker has; absent if its run has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<UsedServices>,
    /// The paths in its names at which the server has files that earlier steps passed on. A worker without the server's
    /// data directory fetches them; the list is empty for all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Whether it was tried in this round before.
    pub is_retry: bool,
    /// Whether it tries its account after a hold: the other executions of the account wait for its agent's first answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tries_account: bool,
    /// The agent that stands in for the step's own one, whose account is held; absent for the step's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stand_in: Option<String>,
    /// The round of the step: the number of times that it was sent back.
    #[serde(default)]
    pub round: u32,
    /// The round of its `repeat`, from 1; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat_round: Option<u32>,
}

impl Assignment {
    /// Returns the step to work on, as planned.
    pub fn step(&self) -> &PlanStep {
        self.plan.step(self.node)
    }

    /// Returns all values that the step's texts can name; an item's value is under [`crate::ITEM`].
    pub fn names(&self) -> serde_json::Value {
        let parse = |text: &str| serde_json::from_str(text).unwrap_or(serde_json::Value::Null);
        let mut names = serde_json::json!({
            "inputs": parse(&self.inputs),
            "run": crate::names::run_names(self.lease.execution.run, &self.plan),
            "steps": self.steps.as_ref().map_or_else(|| serde_json::json!({}), StepsRead::value),
        });
        if let Some(item) = &self.item {
            names[crate::names::ITEM] = parse(item);
            names[crate::names::ITEM_INDEX] = self.item_index.into();
        }
        names[crate::names::NOW] = self.now_ms.into();
        if let Some(status) = &self.run_status {
            names["run"]["status"] = status.as_str().into();
        }
        if let Some(branch) = &self.branch {
            names["run"]["branch"] = branch.as_str().into();
        }
        crate::names::unfold_outer(&mut names);
        names
    }
}

/// The end of an execution, as its worker reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ending {
    /// The work succeeded.
    Completed {
        /// The outputs, as JSON.
        result: Option<Arc<str>>,
    },
    /// The work failed.
    Failed {
        /// The known details, as JSON.
        result: Option<Arc<str>>,
        /// Whether a retry makes sense.
        retriable: bool,
    },
    /// The work failed for a reason that only a person can remove. It is neither retried nor reworked; a resume tries
    /// again.
    Blocked {
        /// The known details, as JSON.
        result: Option<Arc<str>>,
    },
    /// The work took too long and was stopped.
    TimedOut {
        /// The known details, as JSON.
        result: Option<Arc<str>>,
    },
    /// The agent met the usage limit of its account. The account is held, and the execution returns to its queue without
    /// a lost try.
    Limited(UsageLimit),
    /// The agent waits for a person's answer. Its process is gone, and the execution returns to its queue without a lost
    /// try; it continues when the question is closed.
    Parked,
    /// The work was stopped on request.
    Cancelled,
}

impl Ending {
    /// Returns the result that the worker reports, as JSON.
    pub fn result(&self) -> Option<&Arc<str>> {
        match self {
            Ending::Completed { result }
            | Ending::Failed { result, .. }
            | Ending::Blocked { result }
            | Ending::TimedOut { result } => result.as_ref(),
            Ending::Limited(_) | Ending::Parked | Ending::Cancelled => None,
        }
    }

    /// Returns the event, the result to store, and whether a retry makes sense.
    pub(super) fn told(&self) -> (ExecutionEvent, Option<Arc<str>>, bool) {
        match self {
            Ending::Completed { result } => (ExecutionEvent::Completed, result.clone(), true),
            Ending::Failed { result, retriable } => (ExecutionEvent::Failed, result.clone(), *retriable),
            Ending::Blocked { result } => (ExecutionEvent::Failed, result.clone(), false),
            Ending::TimedOut { result } => (ExecutionEvent::TimedOut, result.clone(), true),
            Ending::Limited(_) | Ending::Parked => (ExecutionEvent::Released, None, true),
            Ending::Cancelled => (ExecutionEvent::Cancelled, None, true),
        }
    }
}

/// The result of a worker's report.
#[derive(Debug)]
pub struct Finished {
    /// The outcome of the reported event.
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
        // Each service that this claim receives counts for the next one.
        if candidate.rank == -SERVICE_PRIORITY && !super::has_services(session, claimer, row.id)? {
            continue;
        }
        let lease = Lease { execution: row.id, fence: row.fence };
        if let Ok(assignment) = receive(session, claimer, lease)? {
            got.push(assignment);
        }
    }
    Ok(got)
}

/// Returns the executions that may be received, at most `limit`. Skips runs that cannot be read, so that they block
/// no others.
fn candidates(session: &mut Session<'_>, claimer: &Claimer, limit: usize) -> Result<Vec<Candidate>> {
    let lines = lines(session, claimer)?;
    let mut wanted = limit;
    let mut tested: BTreeMap<ExecutionId, bool> = BTreeMap::new();
    // The loop ends: each round but the last looks at twice as many.
    loop {
        let mut found: Vec<Candidate> = Vec::new();
        for (queue, pin) in &lines {
            found.extend(session.db().claimable(queue, *pin, wanted)?);
        }
        if claimer.services_only {
            found.retain(|candidate| candidate.rank == -SERVICE_PRIORITY);
        }
        found.sort_unstable();
        found.truncate(wanted);
        let all = found.len() < wanted;
        let mut readable = Vec::with_capacity(limit);
        for candidate in found {
            let id = candidate.execution;
            let is_for = match tested.get(&id) {
                Some(is_for) => *is_for,
                None => is_readable(session, id)? && super::is_for(session, claimer, id)?,
            };
            tested.insert(id, is_for);
            if is_for && readable.len() < limit {
                readable.push(candidate);
            }
        }
        if all || readable.len() >= limit {
            return Ok(readable);
        }
        wanted *= 2;
    }
}

/// Returns the queues to search for this claimer, each with the worker to which its executions are reserved (0:
/// none).
///
/// A worker that only executes runs reserved to it serves no queue. It executes all their steps, whatever their
/// queues.
fn lines(session: &mut Session<'_>, claimer: &Claimer) -> Result<Vec<(Arc<str>, Id)>> {
    if !claimer.reserved_only {
        let queues = claimer.queues.iter();
        return Ok(queues
            .flat_map(|queue| [0, claimer.worker].map(|pin| (Arc::clone(queue), pin)))
            .collect());
    }
    let mut queues: BTreeSet<Arc<str>> = claimer.queues.iter().cloned().collect();
    for plan in session.db().pinned_plans(claimer.worker)? {
        let plan = session.db().plan(plan)?;
        let steps = plan.iter().flat_map(|plan| &plan.steps).filter(|step| step.is_for_workers());
        queues.extend(steps.map(|step| step.queue.as_str().into()));
    }
    Ok(queues.into_iter().map(|queue| (queue, claimer.worker)).collect())
}

/// Whether this version knows the statuses of the rows that receiving the execution touches.
pub(super) fn is_readable(session: &mut Session<'_>, id: ExecutionId) -> Result<bool> {
    let read = session
        .get::<RunRow>(id.run)
        .map(drop)
        .and_then(|()| session.get::<StepRow>((id.run, id.step)).map(drop))
        .and_then(|()| session.get::<ExecutionRow>(id).map(drop));
    match read {
        Ok(()) => Ok(true),
        Err(error @ crate::Error::UnknownWord { .. }) => {
            tracing::warn!(execution = %id, %error, "skipping an execution that cannot be received");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Receives one execution that a message announced. The message's fence decides whether it is still valid.
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
        // Receiving does not wait for a lock: the process that holds the run advances it, or this process does
        // afterwards.
        session.db().look_later(run, step);
    } else if let Some(mut held) = HeldRun::take(session, run)? {
        advance(&mut held, [step])?;
    }
    Ok(Ok(assignment(session, told.execution)?))
}

/// Changes only the execution's row: receiving does not need the run's.
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

/// Returns the time on the clock that measures leases.
pub(super) fn lease_clock(now: Now) -> i64 {
    if mutant!(WallClockLeases) { now.wall_ms } else { now.steady_ms }
}

fn given(session: &mut Session<'_>, lease: Lease) -> Result<ExecutionReport> {
    let run_epoch = session.get::<RunRow>(lease.execution.run)?.map_or(0, |run| run.epoch);
    Ok(ExecutionReport {
        fence: lease.fence,
        run_epoch,
        run_live: true,
        owner_dead: false,
        now_ms: lease_clock(session.now()),
    })
}

pub(super) fn assignment(session: &mut Session<'_>, id: ExecutionId) -> Result<Assignment> {
    let missing = || crate::Error::bug(format!("{id} is incomplete in the database"));
    let row = session.get::<ExecutionRow>(id)?.ok_or_else(missing)?;
    let run = session.get::<RunRow>(id.run)?.ok_or_else(missing)?;
    let step = session.get::<StepRow>((id.run, id.step))?.ok_or_else(missing)?;
    let plan = session.plan(id.run, run.plan)?;
    let node = step.node();
    let (steps, unreadable) = if plan.step(node).reads.is_empty() {
        (None, None)
    } else {
        match crate::names::step_names(session, &plan, id.run, &step, &mut Room::default())? {
            Ok(steps) => (Some(steps), None),
            Err(_) => (None, Some(NoRoom::TOLD.to_owned())),
        }
    };
    let branch = if plan.environment.is_some() {
        session.evaluator().branch(&plan, &id.run.to_string())
    } else {
        None
    };
    let account = row.account.map(|id| session.get::<AccountRow>(id)).transpose()?.flatten();
    let tries_account = account.as_ref().is_some_and(|account| {
        account.status() == AccountStatus::Probing && account.generation == row.account_generation
    });
    let services = super::used_services(session, id.run, node)?;
    let planned_account = plan.step(node).account.as_ref();
    let stand_in = account.and_then(|account| planned_account?.stand_in(&account.name).map(str::to_owned));
    Ok(Assignment {
        services,
        files: Vec::new(),
        tries_account,
        stand_in,
        is_retry: step.tries > 0 || step.losses > 0,
        round: step.round,
        repeat_round: plan.step(node).repeat.map(|_| step.repeats + 1),
        item_index: step.item,
        run_status: Some(run.status().to_string()),
        now_ms: session.now().wall_ms,
        branch,
        node,
        name: crate::names::step_name(&plan, &step),
        steps,
        unreadable,
        item: crate::names::item_value(session, &step)?,
        lease: Lease { execution: id, fence: row.fence },
        lease_until_ms: row.lease_until_ms,
        plan,
        inputs: run.inputs,
        context: run.context,
        feedback: step.feedback,
    })
}

/// Reports the end of an execution, advances its run and, if `next` asks for it, receives the next execution.
pub fn finish(
    session: &mut Session<'_>,
    lease: Lease,
    ending: &Ending,
    next: Option<&Claimer>,
) -> Result<Finished> {
    if let Ending::Limited(limit) = ending {
        return Ok(Finished { outcome: super::limited(session, lease, limit)?, next: None });
    }
    if matches!(ending, Ending::Parked) {
        return Ok(Finished { outcome: release(session, lease)?, next: None });
    }
    let (event, result, retriable) = ending.told();
    let given = given(session, lease)?;
    if matches!(ending, Ending::Completed { .. }) {
        // An agent that completed its work has answered.
        super::account_answered(session, lease)?;
    }
    let outcome =
        session.apply::<ExecutionRow>(lease.execution, event, Actor::Worker, &given, |row, now| {
            row.result = result;
            row.retriable = retriable;
            row.blocked = matches!(ending, Ending::Blocked { .. });
            row.ended_ms = Some(now.wall_ms);
        })?;
    if !outcome.is_applied() {
        return Ok(Finished { outcome, next: None });
    }
    tell_account(session, lease.execution)?;
    super::leave_thread(session, lease, Actor::Worker)?;
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

/// Receives an execution that this operation has published, if it is for this worker.
fn receive_next(session: &mut Session<'_>, claimer: &Claimer, last: Lease) -> Result<Option<Assignment>> {
    let mut found: Vec<_> = session
        .seen::<ExecutionRow>()
        .filter(|row| {
            row.id.run == last.execution.run
                && row.status() == ExecutionStatus::Scheduled
                && match row.pin {
                    Some(pin) => pin == claimer.worker,
                    None => claimer.queues.contains(&row.queue),
                }
        })
        .map(|row| (std::cmp::Reverse(row.priority), row.id, row.fence))
        .collect();
    found.sort_unstable();
    for (_, execution, fence) in found {
        if super::has_labels(session, claimer.worker, execution)?
            && super::has_services(session, claimer, execution)?
        {
            return Ok(receive(session, claimer, Lease { execution, fence })?.ok());
        }
    }
    Ok(None)
}

/// The state of a lease after a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The worker still holds the lease.
    Held {
        /// The time at which it expires (steady, by the store's clock).
        until_ms: i64,
        /// Whether the execution was asked to stop.
        cancel_requested: bool,
    },
    /// The lease was taken away: the worker must stop the work, because its result will be refused.
    Lost,
}

/// Returns for how many milliseconds from now each lease is certain to stay with its holder although no process can
/// write to the store; `None` if commits succeed, or if the lease was taken away before.
pub fn kept_through_stall(db: &mut dyn Backend, leases: &[Lease]) -> Result<Vec<Option<i64>>> {
    let now_ms = lease_clock(db.now());
    let mut kept = Vec::with_capacity(leases.len());
    for lease in leases {
        let row = Table::<ExecutionRow>::load(db, lease.execution)?;
        let held = row.filter(|row| row.status() == ExecutionStatus::Running && row.fence == lease.fence);
        kept.push(match held {
            Some(row) => db.lease_is_certain_for_ms(row.lease_until_ms - now_ms)?,
            None => None,
        });
    }
    Ok(kept)
}

/// Renews leases, each matched by its fence.
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

/// Wakes a run that waits for a place of the account that an execution has left.
pub(super) fn tell_account(session: &mut Session<'_>, id: ExecutionId) -> Result<()> {
    match session.get::<ExecutionRow>(id)?.and_then(|row| row.account) {
        Some(account) => super::announce_waiting(session, account),
        None => Ok(()),
    }
}

/// Returns an unfinished execution to its queue.
pub fn release(session: &mut Session<'_>, lease: Lease) -> Result<Outcome<Execution>> {
    release_until(session, lease, 0)
}

/// Returns an unfinished execution to its queue, where it waits at least until `not_before_ms` (steady).
pub(super) fn release_until(
    session: &mut Session<'_>,
    lease: Lease,
    not_before_ms: i64,
) -> Result<Outcome<Execution>> {
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
            row.not_before_ms = not_before_ms;
        },
    )?;
    if outcome.is_applied() {
        super::leave_thread(session, lease, Actor::Worker)?;
    }
    if outcome.is_applied()
        && let Some(mut held) = HeldRun::take(session, lease.execution.run)?
    {
        let wanted =
            held.session.get::<ExecutionRow>(lease.execution)?.is_some_and(|row| !row.cancel_requested);
        if wanted {
            held.schedule(lease.execution)?;
        } else {
            held.stop_work(lease.execution.step)?;
        }
        advance(&mut held, [lease.execution.step])?;
    }
    Ok(outcome)
}

/// Registers a claimer, or records a heartbeat for it.
pub(super) fn show_claimer(session: &mut Session<'_>, worker: &super::NewWorker) -> Result<()> {
    let until_ms = session.now().steady_ms + worker.lease_ms;
    match session.get::<WorkerRow>(worker.id)? {
        Some(row) if row.status() == WorkerStatus::Online => {
            // Written only if it makes a difference: one worker may claim many times a second.
            if row.heartbeat_until_ms < until_ms - worker.lease_ms / 2 || row.queues != worker.queues {
                session.note::<WorkerRow>(worker.id, |row| {
                    row.heartbeat_until_ms = until_ms.max(row.heartbeat_until_ms);
                    row.queues = Arc::clone(&worker.queues);
                })?;
            }
            Ok(())
        }
        _ => super::register_worker(session, worker),
    }
}

/// Returns the assignment of this lease again; `None` if it is not held any more.
pub fn assignment_of(session: &mut Session<'_>, lease: Lease) -> Result<Option<Assignment>> {
    match session.get::<ExecutionRow>(lease.execution)? {
        Some(row) if row.status() == ExecutionStatus::Running && row.fence == lease.fence => {
            assignment(session, lease.execution).map(Some)
        }
        _ => Ok(None),
    }
}

/// Renews a lease, and records a heartbeat for its owner.
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
