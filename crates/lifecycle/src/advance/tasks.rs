//! Boards: a fan-out whose list grows while its run is open, and whose items may need each other.
//!
//! A task is an item with two additions: it notifies the tasks that need it, and a person can cancel or retry
//! it separately.

use super::walk::{Walk, is_requeued};
use super::{Items, Needs, RunState, Standing, StepMove, StepNow, standing};
use crate::mutant;
use crate::{Plan, PlanStep, RunStatus, StepNo, StepStatus};

/// A need between two tasks of a board, seen from one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskNeed {
    /// The other task.
    pub item: StepNo,
    /// Whether any settled status meets the need, even a failure.
    pub tolerant: bool,
}

/// Returns whether the step is the fan-out of a board.
pub(super) fn is_open(planned: &PlanStep) -> bool {
    planned.spread.is_some_and(|spread| spread.open)
}

/// Admits new items of an open fan-out, whose needs are already stored.
pub fn admit_items<S: RunState>(state: &mut S, of: StepNo, added: &[StepNo]) -> Result<(), S::Error> {
    let items = state.step(of)?.items.unwrap_or_default();
    let more = added.len() as u32;
    state.set_items(of, Items { total: items.total + more, created: items.created + more, ..items })?;
    for no in added {
        recount(state, *no)?;
    }
    super::advance(state, added.iter().copied())
}

/// Cancels one item: at once if no worker has it, else by a cancel request to its owner. Returns false if the
/// item or the run has already ended.
pub fn cancel_item<S: RunState>(state: &mut S, no: StepNo) -> Result<bool, S::Error> {
    if state.run().status != RunStatus::Running || state.step(no)?.status.is_settled() {
        return Ok(false);
    }
    let mut walk = Walk { plan: state.plan(), state, agenda: Default::default(), at_work: None };
    match walk.state.step(no)?.status {
        StepStatus::Waiting => {
            walk.leave_queue(no)?;
            walk.settle(no, StepMove::Cancelled)?;
        }
        _ => walk.stop_now(no)?,
    }
    walk.run()?;
    Ok(true)
}

/// Retries an unsuccessful item and the items that were skipped because of it. Returns false if the item
/// succeeded or is unsettled, or if the run is not running.
pub fn reopen_item<S: RunState>(state: &mut S, no: StepNo) -> Result<bool, S::Error> {
    let unsuccessful =
        matches!(state.step(no)?.status, StepStatus::Failed | StepStatus::Cancelled | StepStatus::Skipped);
    if !unsuccessful || state.run().status != RunStatus::Running {
        return Ok(false);
    }
    let mut reopened = std::collections::BTreeSet::from([no]);
    let mut affected = std::collections::BTreeSet::from([no]);
    let mut todo = vec![no];
    while let Some(next) = todo.pop() {
        for TaskNeed { item, .. } in state.tasks_needing(next)? {
            let step = state.step(item)?;
            if step.status == StepStatus::Skipped && reopened.insert(item) {
                todo.push(item);
            }
            affected.insert(item);
        }
    }
    for item in &reopened {
        reopen(state, *item)?;
    }
    for item in &affected {
        if !state.step(*item)?.status.is_settled() {
            recount(state, *item)?;
        }
    }
    super::advance(state, reopened)?;
    Ok(true)
}

fn reopen<S: RunState>(state: &mut S, no: StepNo) -> Result<(), S::Error> {
    let step = state.step(no)?;
    state.move_step(no, StepMove::Reopened)?;
    let Some(parent) = step.item_of else { return Ok(()) };
    let items = state.step(parent)?.items.unwrap_or_default();
    let waits = u32::from(is_requeued(&state.step(no)?));
    let less = |count: u32, status: StepStatus| count.saturating_sub(u32::from(step.status == status));
    state.set_items(
        parent,
        Items {
            settled: items.settled.saturating_sub(1),
            failed: less(items.failed, StepStatus::Failed),
            cancelled: less(items.cancelled, StepStatus::Cancelled),
            requeued: items.requeued + waits,
            ..items
        },
    )
}

/// Updates the counts of the tasks that need this one.
pub(super) fn notify_tasks<S: RunState>(
    walk: &mut Walk<'_, S>,
    no: StepNo,
    step: &StepNow,
) -> Result<(), S::Error> {
    let broken = standing(step, &walk.planned(step).policy) == Standing::Broken;
    for TaskNeed { item, tolerant } in walk.state.tasks_needing(no)? {
        let Needs { open, broken: before } = walk.state.step(item)?.needs;
        let broken = before + u32::from(broken && !tolerant);
        walk.state.set_needs(item, Needs { open: open.saturating_sub(1), broken })?;
        walk.agenda.insert(item);
    }
    Ok(())
}

/// Recounts the needs of every unsettled item.
pub(super) fn recount_tasks<S: RunState>(state: &mut S, of: StepNo) -> Result<(), S::Error> {
    for item in state.items(of, true)? {
        recount(state, item)?;
    }
    Ok(())
}

/// Recounts an item's needs from the items themselves.
fn recount<S: RunState>(state: &mut S, no: StepNo) -> Result<(), S::Error> {
    let plan = state.plan();
    let mut needs = Needs::default();
    for TaskNeed { item, tolerant } in state.needs_of_task(no)? {
        match standing_in(&plan, &state.step(item)?) {
            Standing::Open => needs.open += u32::from(!mutant!(TaskNeedsForgotten)),
            Standing::Broken if !tolerant => needs.broken += 1,
            Standing::Broken | Standing::Met => {}
        }
    }
    if state.step(no)?.needs == needs { Ok(()) } else { state.set_needs(no, needs) }
}

fn standing_in(plan: &Plan, step: &StepNow) -> Standing {
    standing(step, &plan.step(step.node).policy)
}
