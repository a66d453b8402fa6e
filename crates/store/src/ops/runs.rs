//! What people do to runs: create, cancel, resume, rewind.

use std::collections::BTreeSet;
use std::sync::Arc;

use sprag_lifecycle::{
    Actor, ExecutionStatus, Needs, OnConflict, OnFail, Plan, Run, RunEvent, RunId, RunState, RunStatus,
    StepMove, StepNo, StepStatus, Tally, advance, mutant, restart, resume_set,
};

use crate::error::{Error, Result};
use crate::outcome::Outcome;
use crate::rows::{ExecutionRow, Id, Row, RunRow, StepKey, StepRow};
use crate::run_state::{DEFAULT_QUEUE, HeldRun, report_run};
use crate::seams::fnv;
use crate::session::Session;

/// A run to be made.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Its name; the caller draws it, so that a repeated request is the same request.
    pub id: RunId,
    /// What it runs.
    pub plan: Arc<Plan>,
    /// The worker to which its default-queue executions are reserved.
    pub pin: Option<Id>,
    /// Added to the priority of its steps.
    pub priority: i32,
    /// The same key never makes a second run.
    pub idempotency_key: Option<Arc<str>>,
    /// The inputs, as JSON.
    pub inputs: Arc<str>,
    /// What else its steps must know, as JSON.
    pub context: Arc<str>,
    /// The step of another run whose work it is.
    pub parent: Option<StepKey>,
    /// A board: it takes tasks until somebody closes it.
    pub open: bool,
}

impl NewRun {
    /// A run of `plan` with nothing special about it.
    pub fn new(id: RunId, plan: Arc<Plan>) -> Self {
        NewRun {
            id,
            plan,
            pin: None,
            priority: 0,
            idempotency_key: None,
            inputs: "{}".into(),
            context: "{}".into(),
            parent: None,
            open: false,
        }
    }
}

/// What became of a request for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It was made.
    New(RunId),
    /// Its key had made this one before.
    Existing(RunId),
    /// Another run has that name: draw another.
    NameTaken,
}

/// The hash by which a plan's content is known (FNV-1a over its JSON).
pub fn plan_hash(plan: &Plan) -> i64 {
    let json = serde_json::to_string(plan).expect("a plan is plain data");
    fnv(&json) as i64
}

/// Makes a run and starts it, if its group has a place.
pub fn create_run(session: &mut Session<'_>, new: &NewRun, plan_hash: i64) -> Result<Created> {
    let created = insert_run(session, new, plan_hash)?;
    if let Created::New(run) = created {
        let _ = start_run(session, run)?;
    }
    Ok(created)
}

/// Makes a run that begins where another had finished a step: that step and all before it are taken over
/// as they are, with what they handed on; everything else runs anew.
pub fn fork_run(
    session: &mut Session<'_>,
    source: RunId,
    from: StepNo,
    new: &NewRun,
    plan_hash: i64,
) -> Result<Created> {
    refuse_board(&new.plan, "begun anew from one of its steps")?;
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

/// What a fork takes over: the step, and all that comes before it.
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
            return Err(Error::Refused(format!("run {source} has no step number {no}")));
        };
        let tolerated = plan.step(no).policy.on_fail == OnFail::Continue;
        let met = match row.status() {
            StepStatus::Done => true,
            StepStatus::Skipped => row.skipped_by_when && no != from,
            StepStatus::Failed => tolerated && !row.rework_pending && no != from,
            _ => false,
        };
        if !met {
            let id = &plan.step(no).id;
            return Err(Error::Refused(format!("step {id:?} of run {source} is {}, not done", row.status())));
        }
        todo.extend(plan.step(no).needs.iter().filter(|need| kept.insert(**need)));
        kept.insert(no);
    }
    Ok(kept)
}

/// Makes a run and its steps, waiting.
fn insert_run(session: &mut Session<'_>, new: &NewRun, plan_hash: i64) -> Result<Created> {
    if let Some(key) = &new.idempotency_key
        && let Some(existing) = session.db().run_by_key(key)?.filter(|_| !mutant!(KeyIgnored))
    {
        return Ok(Created::Existing(existing));
    }
    if session.get::<RunRow>(new.id)?.is_some() {
        return Ok(Created::NameTaken);
    }
    let crowd = resolve_conflict(session, new)?;
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
        pin: new.pin,
        priority: new.priority,
        group: match needs_place(session, new)? {
            true => new.plan.concurrency.as_ref().map(|c| c.group.as_str().into()),
            false => None,
        },
        idempotency_key: new.idempotency_key.clone(),
        inputs: Arc::clone(&new.inputs),
        context: Arc::clone(&new.context),
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
        let _ = cancel_run(session, older)?;
    }
    Ok(Created::New(new.id))
}

/// Whether a run needs a place of its own: not where a run whose work it is holds one of the same group.
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

/// What a run that finds its group full does about it: nothing, or it names those that make room for it.
fn resolve_conflict(session: &mut Session<'_>, new: &NewRun) -> Result<Vec<RunId>> {
    /// Older runs of a group that one new run may cancel.
    const MANY: usize = 10_000;
    let Some(limits) = new.plan.concurrency.as_ref().filter(|_| needs_place(session, new).unwrap_or(true))
    else {
        return Ok(Vec::new());
    };
    let holders = session.places_of(&limits.group)?;
    match limits.on_conflict {
        OnConflict::Queue => Ok(Vec::new()),
        OnConflict::Reject if holders.len() >= limits.limit as usize => Err(Error::Refused(format!(
            "group {:?} is full: {} {} its place",
            limits.group,
            holders.iter().map(RunId::to_string).collect::<Vec<_>>().join(", "),
            if holders.len() == 1 { "holds" } else { "hold" },
        ))),
        OnConflict::Reject => Ok(Vec::new()),
        OnConflict::CancelOlder => {
            let room = limits.limit.saturating_sub(1) as usize;
            let mut older = session.db().queued(&limits.group, MANY)?;
            older.extend(holders.iter().take(holders.len().saturating_sub(room)));
            Ok(older)
        }
    }
}

/// Keeps a plan; the number by which it is found. Another plan with the same hash gets the next number.
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

/// Starts a queued run, if its group has a place; `None` if it has to wait.
pub fn start_run(session: &mut Session<'_>, id: RunId) -> Result<Option<Outcome<Run>>> {
    let Some(mut held) = HeldRun::take(session, id)? else { return Ok(Some(Outcome::NotFound)) };
    let run = held.row()?;
    if run.status() == RunStatus::Queued
        && let (Some(group), Some(limits)) = (&run.group, &held.plan().concurrency)
    {
        if held.session.places_of(group)?.len() >= limits.limit as usize && !mutant!(GroupLimitIgnored) {
            return Ok(None);
        }
        held.session.set_place(group, id, true);
    }
    let outcome = report_run(held.session, &run, RunEvent::Started, Actor::Executor)?;
    if outcome.is_applied() {
        let plan = held.plan();
        if run.tally.unsettled < plan.steps.len() as u32 {
            // Some of it was done by the run that it began in.
            let left = held.unsettled()?;
            advance(&mut held, left)?;
        } else {
            let roots = (0..plan.steps.len() as StepNo).filter(|no| plan.step(*no).needs.is_empty());
            advance(&mut held, roots)?;
        }
    }
    Ok(Some(outcome))
}

/// Asks a run to end.
pub fn cancel_run(session: &mut Session<'_>, id: RunId) -> Result<Outcome<Run>> {
    let Some(mut held) = HeldRun::take(session, id)? else { return Ok(Outcome::NotFound) };
    let run = held.row()?;
    if run.status() == RunStatus::Queued {
        // Nothing has begun: its steps end with it. What it took over from another run stays.
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

/// Tries again what failed or was cancelled, keeping what is done.
pub fn resume_run(session: &mut Session<'_>, id: RunId, pin: Option<Id>) -> Result<Outcome<Run>> {
    refuse_child(session, id)?;
    again(session, id, pin, RunEvent::Resumed, None, |held| resume_set(held))
}

/// Goes on with the run that is the work of a step which goes on.
pub(crate) fn resume_child(session: &mut Session<'_>, id: RunId, pin: Option<Id>) -> Result<Outcome<Run>> {
    session.note::<RunRow>(id, |row| row.reason = None)?;
    again(session, id, pin, RunEvent::Resumed, None, |held| resume_set(held))
}

/// A run that is another's work does not go on by itself: its parent would not know.
fn refuse_child(session: &mut Session<'_>, id: RunId) -> Result<()> {
    match session.get::<RunRow>(id)?.and_then(|run| run.parent) {
        Some((parent, _)) => Err(Error::Refused(format!(
            "run {id} is the work of a step of run {parent}: go on with that one"
        ))),
        None => Ok(()),
    }
}

/// A board's list would be empty again: its tasks are tried again one by one, or by resuming it.
fn refuse_board(plan: &Plan, what: &str) -> Result<()> {
    match plan.steps.iter().any(|step| step.spread.is_some_and(|spread| spread.open)) {
        true => Err(Error::Refused(format!(
            "a board is not {what}: try a task again with `sprag task retry`, or all that failed with `sprag resume`"
        ))),
        false => Ok(()),
    }
}

/// Goes on from an earlier step: it and all that descends from it run again.
pub fn rewind_run(session: &mut Session<'_>, id: RunId, to: StepNo, pin: Option<Id>) -> Result<Outcome<Run>> {
    refuse_child(session, id)?;
    again(session, id, pin, RunEvent::Rewound, Some(to), |held| {
        let plan = held.plan();
        if to as usize >= plan.steps.len() {
            return Err(Error::Refused(format!("run {id} has no step number {to}")));
        }
        refuse_board(&plan, "rewound")?;
        // What else is broken would break the run again, whatever becomes of this step.
        let mut set = resume_set(held)?;
        set.extend(plan.with_descendants(to));
        Ok(set)
    })
}

fn again(
    session: &mut Session<'_>,
    id: RunId,
    pin: Option<Id>,
    event: RunEvent,
    afresh: Option<StepNo>,
    set: impl FnOnce(&mut HeldRun<'_, '_>) -> Result<BTreeSet<StepNo>>,
) -> Result<Outcome<Run>> {
    let Some(mut held) = HeldRun::take(session, id)? else { return Ok(Outcome::NotFound) };
    let run = held.row()?;
    if run.status().is_terminal()
        && let (Some(group), Some(limits)) = (&run.group, &held.plan().concurrency)
        && held.session.places_of(group)?.len() >= limits.limit as usize
    {
        return Err(Error::Refused(format!(
            "group {group:?} is full: wait for one of its runs to end, then try again"
        )));
    }
    let outcome = report_run(held.session, &run, event, Actor::Person)?;
    if outcome.is_applied() {
        held.session.note::<RunRow>(id, |row| row.pin = pin)?;
        if let Some(group) = &run.group {
            held.session.set_place(group, id, true);
        }
        held.epoch_raised = true;
        let set = set(&mut held)?;
        restart(&mut held, &set, afresh)?;
    }
    Ok(outcome)
}

/// Reserves a live run to a worker again, if it is reserved to nobody: one that was silent for too long
/// comes back to its own run.
pub fn reclaim_run(session: &mut Session<'_>, id: RunId, worker: Id) -> Result<bool> {
    match session.get::<RunRow>(id)? {
        Some(run) if run.pin.is_none() => pin_run(session, id, Some(worker)),
        _ => Ok(false),
    }
}

/// Reserves a live run to another worker, or to none: whoever takes over a run whose process died.
pub fn pin_run(session: &mut Session<'_>, id: RunId, pin: Option<Id>) -> Result<bool> {
    let Some(run) = session.get::<RunRow>(id)? else { return Ok(false) };
    if run.status().is_terminal() {
        return Ok(false);
    }
    session.note::<RunRow>(id, |row| row.pin = pin)?;
    let mut executions = session.db().executions(id)?;
    // What this very operation has made or changed stands above what the database holds.
    executions.extend(session.seen::<ExecutionRow>().filter(|row| row.id.run == id).cloned());
    for execution in executions {
        let Some(execution) = session.get::<ExecutionRow>(execution.id)? else { continue };
        let open = matches!(
            execution.status(),
            ExecutionStatus::Requested | ExecutionStatus::Scheduling | ExecutionStatus::Scheduled
        );
        if open && &*execution.queue == DEFAULT_QUEUE {
            session.note::<ExecutionRow>(execution.id, |row| row.pin = pin)?;
        }
    }
    for child in session.db().children(id)? {
        pin_run(session, child, pin)?;
    }
    Ok(true)
}
