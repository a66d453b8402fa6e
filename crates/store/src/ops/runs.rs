//! The operations of people on runs: create, cancel, resume, rewind.

use std::collections::BTreeSet;
use std::sync::Arc;

use sprag_lifecycle::{
    Actor, BackTo, ExecutionStatus, Needs, OnConflict, Plan, Run, RunEvent, RunId, RunState, RunStatus,
    StepMove, StepNo, StepStatus, Tally, WorkKind, advance, mutant, restart, resume_set,
};

use super::{NewWorker, illegal};
use crate::clock::fnv;
use crate::error::{Error, Result};
use crate::outcome::{NotApplied, Outcome};
use crate::rows::{ExecutionRow, Id, Row, RunRow, StepKey, StepRow};
use crate::run_state::{HeldRun, report_run};
use crate::session::Session;

/// The refusal of a run whose group has no free place.
const NO_PLACE: NotApplied = NotApplied::Superseded { entity: "run", predicate: "a free place in its group" };

/// A run to create.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// The run's id. The caller draws it, so that a repeated request is the same request.
    pub id: RunId,
    /// The plan to run.
    pub plan: Arc<Plan>,
    /// The worker to which its executions are reserved.
    pub pin: Option<Id>,
    /// The same for a worker that is not registered yet: the transaction that creates the run registers it.
    pub worker: Option<NewWorker>,
    /// The number added to the priority of its steps.
    pub priority: i32,
    /// The key of the request; the same key never creates a second run.
    pub idempotency_key: Option<Arc<str>>,
    /// The inputs, as JSON.
    pub inputs: Arc<str>,
    /// Other facts that its steps need, as JSON.
    pub context: Arc<str>,
    /// The step whose work this run is; absent if it is no child run.
    pub parent: Option<StepKey>,
    /// Whether it is a board, which takes tasks until it is closed.
    pub open: bool,
}

impl NewRun {
    /// Creates a request for a run of `plan` with defaults for the rest.
    pub fn new(id: RunId, plan: Arc<Plan>) -> Self {
        NewRun {
            id,
            plan,
            pin: None,
            worker: None,
            priority: 0,
            idempotency_key: None,
            inputs: "{}".into(),
            context: "{}".into(),
            parent: None,
            open: false,
        }
    }
}

/// The result of a request for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The run was created.
    New(RunId),
    /// An earlier request with the same key created this run.
    Existing(RunId),
    /// Another run has this id: the caller draws another.
    NameTaken,
}

/// Returns the hash that identifies a plan's content (FNV-1a over its JSON).
pub fn plan_hash(plan: &Plan) -> i64 {
    let json = serde_json::to_string(plan).expect("a plan is plain data");
    fnv(&json) as i64
}

/// Creates a run and starts it, if its group has a free place.
pub fn create_run(session: &mut Session<'_>, new: &NewRun, plan_hash: i64) -> Result<Created> {
    let created = insert_run(session, new, plan_hash)?;
    if let Created::New(run) = created {
        let _ = start_run(session, run)?;
    }
    Ok(created)
}

/// Creates a run that starts after a finished step of another run. It takes over that step and all before it
/// unchanged, with their outputs; everything else runs again. A key that has created a run before gets that run, even if
/// the other run could not be forked any more.
pub fn fork_run(
    session: &mut Session<'_>,
    source: RunId,
    from: StepNo,
    new: &NewRun,
    plan_hash: i64,
) -> Result<Created> {
    if let Some(existing) = created_before(session, new)? {
        return Ok(Created::Existing(existing));
    }
    refuse_board(&new.plan, "forked")?;
    let kept = kept_by_fork(session, source, from, &new.plan)?;
    let created = insert_run(session, new, plan_hash)?;
    let Created::New(run) = created else { return Ok(created) };
    let mut steps = new.plan.steps.len() as u32;
    for no in &kept {
        steps = steps.max(super::inherit_step(session, source, run, *no)?);
    }
    for (no, step) in new.plan.steps.iter().enumerate() {
        let no = no as StepNo;
        if !kept.contains(&no) && step.needs.iter().any(|need| kept.contains(need)) {
            let open = step.needs.iter().filter(|need| !kept.contains(need)).count() as u32;
            session.note::<StepRow>((run, no), |row| row.needs = Needs { open, broken: 0 })?;
        }
    }
    let unsettled = (new.plan.steps.len() - kept.len()) as u32;
    session.note::<RunRow>(run, |row| {
        row.tally = Tally { unsettled, broken: 0 };
        row.steps = steps;
    })?;
    let _ = start_run(session, run)?;
    Ok(created)
}

/// Returns the steps that a fork takes over: the step, and all before it.
fn kept_by_fork(
    session: &mut Session<'_>,
    source: RunId,
    from: StepNo,
    plan: &Plan,
) -> Result<BTreeSet<StepNo>> {
    let mut kept = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(no) = todo.pop() {
        let Some(row) = session.get::<StepRow>((source, no))?.filter(|row| row.item_of.is_none()) else {
            return Err(Error::invalid("step", format!("run {source} has no step number {no}")));
        };
        let tolerated = plan.step(no).policy.tolerates_failure();
        let met = match row.status() {
            StepStatus::Done => true,
            StepStatus::Skipped => row.skipped_by_when && no != from,
            StepStatus::Failed => tolerated && !row.rework_pending && no != from,
            _ => false,
        };
        if !met {
            let id = &plan.step(no).id;
            let why = format!("step {id:?} of run {source} is {}, not done", row.status());
            return Err(Error::refused(illegal("step", row.status()), why));
        }
        todo.extend(plan.step(no).needs.iter().filter(|need| kept.insert(**need)));
        kept.insert(no);
    }
    Ok(kept)
}

/// Returns the run that the request's key has created before.
fn created_before(session: &mut Session<'_>, new: &NewRun) -> Result<Option<RunId>> {
    match &new.idempotency_key {
        Some(key) => Ok(session.db().run_by_key(key)?.filter(|_| !mutant!(KeyIgnored))),
        None => Ok(None),
    }
}

/// Creates a run and its steps, which wait.
fn insert_run(session: &mut Session<'_>, new: &NewRun, plan_hash: i64) -> Result<Created> {
    if let Some(existing) = created_before(session, new)? {
        return Ok(Created::Existing(existing));
    }
    if session.get::<RunRow>(new.id)?.is_some() {
        return Ok(Created::NameTaken);
    }
    let crowd = resolve_conflict(session, new)?;
    let pin = reservation(session, new)?;
    let plan_hash = keep_plan(session, plan_hash, &new.plan)?;
    let steps = &new.plan.steps;
    let root = match new.parent {
        Some((parent, _)) => session.get::<RunRow>(parent)?.map_or(parent, |row| row.root),
        None => new.id,
    };
    let row = RunRow {
        id: new.id,
        status: RunStatus::Queued,
        version: 1,
        epoch: 1,
        open: new.open,
        tally: Tally { unsettled: steps.len() as u32, broken: 0 },
        reworking: None,
        plan: plan_hash,
        pipeline: new.plan.name.as_str().into(),
        pin,
        priority: new.priority,
        group: if needs_place(session, new)? {
            new.plan.concurrency.as_ref().map(|c| c.group.as_str().into())
        } else {
            None
        },
        idempotency_key: new.idempotency_key.clone(),
        inputs: Arc::clone(&new.inputs),
        context: super::with_starter(session, new),
        reason: None,
        parent: new.parent,
        root,
        steps: steps.len() as u32,
        first_seq: 0,
        last_seq: 0,
        created_ms: session.now().wall_ms,
        started_ms: None,
        ended_ms: None,
    };
    session.create(row, "run.created", Actor::Person);
    for (no, step) in steps.iter().enumerate() {
        let needs = Needs { open: step.needs.len() as u32, broken: 0 };
        session.create_quietly(StepRow::new(new.id, no as StepNo, needs));
    }
    for older in crowd {
        let group = new.plan.concurrency.as_ref().map_or("", |limits| limits.group.as_str());
        let why = format!("the newer run {} took its place in group {group:?}", new.id);
        session.note::<RunRow>(older, |row| row.reason = Some(why.as_str().into()))?;
        let _ = cancel_run(session, older)?;
    }
    Ok(Created::New(new.id))
}

/// Returns the worker to which a new run is reserved, and registers it if necessary.
fn reservation(session: &mut Session<'_>, new: &NewRun) -> Result<Option<Id>> {
    match &new.worker {
        Some(worker) => {
            super::register_worker(session, worker)?;
            Ok(Some(worker.id))
        }
        None => Ok(new.pin),
    }
}

/// Whether a run needs its own place: not if an ancestor run belongs to the same group.
fn needs_place(session: &mut Session<'_>, new: &NewRun) -> Result<bool> {
    let Some(limits) = &new.plan.concurrency else { return Ok(false) };
    let mut above = new.parent.map(|(run, _)| run);
    while let Some(run) = above {
        let Some(row) = session.get::<RunRow>(run)? else { break };
        if row.group.as_deref() == Some(limits.group.as_str()) {
            return Ok(false);
        }
        above = row.parent.map(|(run, _)| run);
    }
    Ok(true)
}

/// Resolves a new run's conflict with its group. Returns the runs to cancel for it, or refuses it if the group is
/// full and rejects new runs.
fn resolve_conflict(session: &mut Session<'_>, new: &NewRun) -> Result<Vec<RunId>> {
    /// The most older runs of a group that one new run may cancel.
    const MANY: usize = 10_000;
    let Some(limits) = new.plan.concurrency.as_ref().filter(|_| needs_place(session, new).unwrap_or(true))
    else {
        return Ok(Vec::new());
    };
    let holders = session.places_of(&limits.group)?;
    match limits.on_conflict {
        OnConflict::Queue => Ok(Vec::new()),
        OnConflict::Reject if holders.len() >= limits.limit as usize => Err(Error::refused(
            NO_PLACE,
            format!(
                "group {:?} is full: {} {} its place",
                limits.group,
                holders.iter().map(RunId::to_string).collect::<Vec<_>>().join(", "),
                if holders.len() == 1 { "holds" } else { "hold" },
            ),
        )),
        OnConflict::Reject => Ok(Vec::new()),
        OnConflict::CancelOlder => {
            let room = limits.limit.saturating_sub(1) as usize;
            let mut older = session.db().queued(&limits.group, MANY)?;
            older.extend(holders.iter().take(holders.len().saturating_sub(room)));
            Ok(older)
        }
    }
}

/// Stores a plan and returns the number by which it is found. A different plan with the same hash gets the next
/// number.
fn keep_plan(session: &mut Session<'_>, mut hash: i64, plan: &Arc<Plan>) -> Result<i64> {
    while let Some(kept) = session.db().plan(hash)? {
        if kept.is_same(plan) {
            return Ok(hash);
        }
        hash = hash.wrapping_add(1);
    }
    session.db().put_plan(hash, plan)?;
    Ok(hash)
}

/// Returns the first group of a run that has no free place.
fn full_group(session: &mut Session<'_>, run: &RunRow, plan: &Plan) -> Result<Option<Arc<str>>> {
    let first = run.group.clone().zip(plan.concurrency.as_ref().map(|limits| limits.limit as usize));
    let second = plan.second_group.clone().filter(|_| !mutant!(SecondGroupIgnored)).map(|group| (group, 1));
    for (group, limit) in first.into_iter().chain(second) {
        if session.places_of(&group)?.len() >= limit {
            return Ok(Some(group));
        }
    }
    Ok(None)
}

/// Gives a run a place in each of its groups.
fn take_places(session: &mut Session<'_>, run: &RunRow, plan: &Plan) {
    for group in run.group.iter().chain(&plan.second_group) {
        session.set_place(group, run.id, true);
    }
}

/// Starts a queued run, if its groups have a free place; `None` if it has to wait.
pub fn start_run(session: &mut Session<'_>, id: RunId) -> Result<Option<Outcome<Run>>> {
    let Some(mut held) = HeldRun::take(session, id)? else { return Ok(Some(Outcome::NotFound)) };
    let run = held.row()?;
    if run.status() == RunStatus::Queued {
        let plan = held.plan();
        if full_group(held.session, &run, &plan)?.is_some() && !mutant!(GroupLimitIgnored) {
            return Ok(None);
        }
        take_places(held.session, &run, &plan);
    }
    let outcome = report_run(held.session, &run, RunEvent::Started, Actor::Executor)?;
    if outcome.is_applied() {
        let plan = held.plan();
        if run.tally.unsettled < plan.steps.len() as u32 {
            // The run from which it was forked has done some of its steps.
            let left = held.unsettled()?;
            advance(&mut held, left)?;
        } else {
            let roots = (0..plan.steps.len() as StepNo).filter(|no| plan.step(*no).needs.is_empty());
            advance(&mut held, roots)?;
        }
    }
    Ok(Some(outcome))
}

/// The answer to a request that is meant for one version of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfCurrent<T> {
    /// The row still had that version, or does not exist: the result of the request.
    Done(T),
    /// The row has this version by now, and nothing was done.
    Changed {
        /// The present version.
        version: u32,
    },
}

/// Cancels a run, if its row still has this version.
pub fn cancel_run_at(session: &mut Session<'_>, id: RunId, version: u32) -> Result<IfCurrent<Outcome<Run>>> {
    if let Some(row) = session.get::<RunRow>(id)?.filter(|row| row.version() != version) {
        return Ok(IfCurrent::Changed { version: row.version() });
    }
    cancel_run(session, id).map(IfCurrent::Done)
}

/// Requests the cancellation of a run.
pub fn cancel_run(session: &mut Session<'_>, id: RunId) -> Result<Outcome<Run>> {
    let Some(mut held) = HeldRun::take(session, id)? else { return Ok(Outcome::NotFound) };
    let run = held.row()?;
    if run.status() == RunStatus::Queued {
        // No step has started, so the steps end with the run. Steps that it took over from another run stay.
        let plan = held.plan();
        let open: BTreeSet<StepNo> = held.unsettled()?.into_iter().collect();
        for no in &open {
            held.move_step(*no, StepMove::Cancelled)?;
            let broken = plan.step(*no).needs.iter().filter(|need| open.contains(need)).count() as u32;
            held.set_needs(*no, Needs { open: 0, broken })?;
        }
        held.set_tally(Tally { unsettled: 0, broken: open.len() as u32 })?;
    }
    let outcome = report_run(held.session, &run, RunEvent::CancelRequested, Actor::Person)?;
    if outcome.is_applied() {
        if run.open {
            held.session.note::<RunRow>(id, |row| row.open = false)?;
            super::mark_closed(held.session, id)?;
        }
        let all = held.unsettled()?;
        advance(&mut held, all)?;
    }
    Ok(outcome)
}

/// The worker to which a continued run is reserved.
#[derive(Clone, Copy)]
enum Reserve<'a> {
    /// This worker, or none. It registers in the same transaction.
    For(Option<&'a NewWorker>),
    /// The worker to which the parent run is reserved.
    AsParent(Option<Id>),
}

/// Retries failed and cancelled steps, and keeps the finished ones. Reserves the run to `worker`.
pub fn resume_run(session: &mut Session<'_>, id: RunId, worker: Option<&NewWorker>) -> Result<Outcome<Run>> {
    refuse_child(session, id)?;
    again(session, id, Reserve::For(worker), RunEvent::Resumed, BackTo::Broken, |held| resume_set(held))
}

/// Resumes the child run of a step that continues, or rewinds it to the step that a person has chosen inside it.
pub(crate) fn resume_child(session: &mut Session<'_>, id: RunId, pin: Option<Id>) -> Result<Outcome<Run>> {
    session.note::<RunRow>(id, |row| row.reason = None)?;
    match session.get::<RunRow>(id)?.and_then(|run| run.reworking) {
        Some(row) => go_back(session, id, Reserve::AsParent(pin), row),
        None => again(session, id, Reserve::AsParent(pin), RunEvent::Resumed, BackTo::Broken, |held| {
            resume_set(held)
        }),
    }
}

/// Rewinds a run to the step or item with this row, or into its child run if that is to go back, too.
fn go_back(session: &mut Session<'_>, id: RunId, reserve: Reserve<'_>, row: StepNo) -> Result<Outcome<Run>> {
    let step = session.get::<StepRow>((id, row))?;
    let child = step.as_ref().and_then(|step| step.work).map(RunId::from_i64);
    let enters = match child {
        Some(child) => session.get::<RunRow>(child)?.is_some_and(|child| {
            child.parent == Some((id, row)) && child.status().is_terminal() && child.reworking.is_some()
        }),
        None => false,
    };
    let node = step.as_ref().map_or(row, StepRow::node);
    let to = if enters { BackTo::Inside(row) } else { BackTo::Step(node) };
    again(session, id, reserve, RunEvent::Rewound, to, |held| {
        let plan = held.plan();
        if node as usize >= plan.steps.len() {
            return Err(Error::invalid("step", format!("run {id} has no step number {node}")));
        }
        refuse_board(&plan, "rewound")?;
        // Other failed steps would fail the run again, whatever the result of this step.
        let mut set = resume_set(held)?;
        set.extend(plan.with_descendants(node));
        Ok(set)
    })
}

/// Refuses to resume or rewind a child run by itself, because its parent would not notice.
fn refuse_child(session: &mut Session<'_>, id: RunId) -> Result<()> {
    match session.get::<RunRow>(id)?.and_then(|run| run.parent) {
        Some((parent, _)) => Err(Error::refused(
            NotApplied::Superseded { entity: "run", predicate: "no parent" },
            format!("run {id} is a child of run {parent}: resume that one"),
        )),
        None => Ok(()),
    }
}

/// Refuses an operation that would empty a board's list. A person retries its tasks one by one, or resumes the board.
fn refuse_board(plan: &Plan, what: &str) -> Result<()> {
    if plan.steps.iter().any(|step| step.spread.is_some_and(|spread| spread.open)) {
        return Err(Error::refused(
            NotApplied::Superseded { entity: "run", predicate: "no board" },
            format!("a board cannot be {what}: retry a task, or resume the board to retry all that failed"),
        ));
    }
    Ok(())
}

/// Continues from an earlier step: it and all its descendants run again. Reserves the run to `worker`.
pub fn rewind_run(
    session: &mut Session<'_>,
    id: RunId,
    to: StepNo,
    worker: Option<&NewWorker>,
) -> Result<Outcome<Run>> {
    refuse_child(session, id)?;
    go_back(session, id, Reserve::For(worker), to)
}

/// Continues from a step inside a step: `path` has the rows on the way to it, each in the child run of the one before. The
/// items and inner steps that it does not lead to, and that do not need it, keep their results.
pub fn rewind_inside(
    session: &mut Session<'_>,
    id: RunId,
    path: &[StepNo],
    worker: Option<&NewWorker>,
) -> Result<Outcome<Run>> {
    refuse_child(session, id)?;
    let Some(first) = path.first().copied() else { return Ok(Outcome::NotFound) };
    if !session.get::<RunRow>(id)?.is_some_and(|run| run.status().is_terminal()) {
        // The table says why.
        return go_back(session, id, Reserve::For(worker), first);
    }
    let mut run = id;
    for pair in path.windows(2) {
        let no_child =
            || Error::invalid("step", format!("step number {} of run {run} has no steps inside it", pair[0]));
        let step = session.get::<StepRow>((run, pair[0]))?.ok_or_else(no_child)?;
        let row = session.get::<RunRow>(run)?.ok_or_else(no_child)?;
        let planned = session.plan(run, row.plan)?.step(step.node()).clone();
        if planned.repeat.is_some() {
            let why = format!(
                "the rounds of step {} do not continue one by one: rewind to the step itself",
                planned.id
            );
            return Err(Error::invalid("step", why));
        }
        let child = step.work.filter(|_| planned.work == WorkKind::Child).map(RunId::from_i64);
        let child = child.ok_or_else(no_child)?;
        session.db().hold(child)?;
        session.note::<RunRow>(child, |row| row.reworking = Some(pair[1]))?;
        run = child;
    }
    go_back(session, id, Reserve::For(worker), first)
}

fn again(
    session: &mut Session<'_>,
    id: RunId,
    reserve: Reserve<'_>,
    event: RunEvent,
    to: BackTo,
    set: impl FnOnce(&mut HeldRun<'_, '_>) -> Result<BTreeSet<StepNo>>,
) -> Result<Outcome<Run>> {
    let Some(mut held) = HeldRun::take(session, id)? else { return Ok(Outcome::NotFound) };
    let run = held.row()?;
    let plan = held.plan();
    if run.status().is_terminal()
        && let Some(group) = full_group(held.session, &run, &plan)?
    {
        let why = format!("group {group:?} is full: wait for one of its runs to end, then try again");
        return Err(Error::refused(NO_PLACE, why));
    }
    let outcome = report_run(held.session, &run, event, Actor::Person)?;
    if outcome.is_applied() {
        let pin = match reserve {
            Reserve::AsParent(pin) => pin,
            Reserve::For(None) => None,
            Reserve::For(Some(worker)) => {
                super::register_worker(held.session, worker)?;
                Some(worker.id)
            }
        };
        held.session.note::<RunRow>(id, |row| row.pin = pin)?;
        take_places(held.session, &run, &plan);
        held.epoch_raised = true;
        let set = set(&mut held)?;
        restart(&mut held, &set, to)?;
    }
    Ok(outcome)
}

/// Reserves a live run to a worker again, if it is reserved to none: a worker without heartbeats for too long returns
/// to its own run.
pub fn reclaim_run(session: &mut Session<'_>, id: RunId, worker: Id) -> Result<bool> {
    match session.get::<RunRow>(id)? {
        Some(run) if run.pin.is_none() => pin_run(session, id, Some(worker)),
        _ => Ok(false),
    }
}

/// Reserves a live run to `worker`, which registers in the same transaction. `seen` is the reservation that the
/// caller found and judged useless. Returns false if a present worker has another reservation by now.
pub fn take_over_run(
    session: &mut Session<'_>,
    id: RunId,
    seen: Option<Id>,
    worker: &NewWorker,
) -> Result<bool> {
    let Some(run) = session.get::<RunRow>(id)?.filter(|run| !run.status().is_terminal()) else {
        return Ok(false);
    };
    if run.pin != seen && !super::is_gone(session, run.pin)? {
        return Ok(false);
    }
    super::register_worker(session, worker)?;
    pin_run(session, id, Some(worker.id))
}

/// Reserves a live run to a present worker, if its reservation still is `seen`, which the caller judged useless.
/// Returns whether it did.
pub fn adopt_run(session: &mut Session<'_>, id: RunId, seen: Option<Id>, worker: Id) -> Result<bool> {
    match session.get::<RunRow>(id)? {
        Some(run) if run.pin == seen => pin_run(session, id, Some(worker)),
        _ => Ok(false),
    }
}

/// Releases a live run to any worker if the worker that it is reserved to is gone. Returns whether it did.
pub fn free_orphan(session: &mut Session<'_>, id: RunId) -> Result<bool> {
    let pin = session.get::<RunRow>(id)?.and_then(|run| run.pin);
    let orphaned = pin.is_some() && super::is_gone(session, pin)? && !mutant!(OrphansNotLookedAt);
    Ok(orphaned && pin_run(session, id, None)?)
}

/// Reserves a live run, with its child runs, to another worker or to none.
pub fn pin_run(session: &mut Session<'_>, id: RunId, pin: Option<Id>) -> Result<bool> {
    let Some(run) = session.get::<RunRow>(id)? else { return Ok(false) };
    if run.status().is_terminal() {
        return Ok(false);
    }
    session.note::<RunRow>(id, |row| row.pin = pin)?;
    let plan = session.plan(id, run.plan)?;
    let mut executions = session.db().executions(id)?;
    // Rows that this operation has created or changed override those in the database.
    executions.extend(session.seen::<ExecutionRow>().filter(|row| row.id.run == id).cloned());
    for execution in executions {
        let Some(execution) = session.get::<ExecutionRow>(execution.id)? else { continue };
        let open = matches!(
            execution.status(),
            ExecutionStatus::Requested | ExecutionStatus::Scheduling | ExecutionStatus::Scheduled
        );
        let Some(step) = session.get::<StepRow>((id, execution.id.step))? else { continue };
        if open && plan.step(step.node()).is_for_workers() {
            session.note::<ExecutionRow>(execution.id, |row| row.pin = pin)?;
        }
    }
    for child in session.db().children(id)? {
        pin_run(session, child, pin)?;
    }
    Ok(true)
}
