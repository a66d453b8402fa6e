//! Boards: a fan-out whose list grows while its run is open, and whose items may need each other.
//!
//! A task is an item like any other; what is added here is that items tell those that need them, and that
//! one of them can be cancelled or tried again by itself.

use super::walk::{Walk, waits_again};
use super::{Items, Needs, RunState, Standing, StepMove, StepNow, standing};
use crate::mutant;
use crate::{Plan, PlanStep, RunStatus, StepNo, StepStatus};

/// A need between two items of an open fan-out, seen from one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Following {
    /// The other one.
    pub item: StepNo,
    /// It is enough that the need is settled, however.
    pub tolerant: bool,
}

/// Whether it is the fan-out of a board.
pub(super) fn is_open(planned: &PlanStep) -> bool {
    planned.spread.is_some_and(|spread| spread.open)
}

/// Takes up items that were just added to an open fan-out, with the needs that are noted for them.
pub fn take_up<S: RunState>(state: &mut S, of: StepNo, added: &[StepNo]) -> Result<(), S::Error> {
    let items = state.step(of)?.items.unwrap_or_default();
    let more = added.len() as u32;
    state.set_items(of, Items { total: items.total + more, created: items.created + more, ..items })?;
    for no in added {
        recount(state, *no)?;
    }
    super::advance(state, added.iter().copied())
}

/// Ends one item: at once if nobody is at it, else by an intent that its owner acts on. Says whether there
/// was anything to end.
pub fn cancel_item<S: RunState>(state: &mut S, no: StepNo) -> Result<bool, S::Error> {
    if state.run().status != RunStatus::Running || state.step(no)?.status.is_settled() {
        return Ok(false);
    }
    let mut walk = Walk { plan: state.plan(), state, agenda: Default::default() };
    match walk.state.step(no)?.status {
        StepStatus::Waiting => {
            walk.leave_line(no)?;
            walk.settle(no, StepMove::Cancelled)?;
        }
        _ => walk.end_now(no)?,
    }
    walk.work_off()?;
    Ok(true)
}

/// Sends back one item that did not come to a good end, and whatever was skipped because of it. Says whether
/// there was anything to send back.
pub fn reopen_item<S: RunState>(state: &mut S, no: StepNo) -> Result<bool, S::Error> {
    let may =
        matches!(state.step(no)?.status, StepStatus::Failed | StepStatus::Cancelled | StepStatus::Skipped);
    if !may || state.run().status != RunStatus::Running {
        return Ok(false);
    }
    let mut again = std::collections::BTreeSet::from([no]);
    let mut affected = std::collections::BTreeSet::from([no]);
    let mut todo = vec![no];
    while let Some(next) = todo.pop() {
        for Following { item, .. } in state.followers(next)? {
            let step = state.step(item)?;
            if step.status == StepStatus::Skipped && again.insert(item) {
                todo.push(item);
            }
            affected.insert(item);
        }
    }
    for item in &again {
        reopen(state, *item)?;
    }
    for item in &affected {
        if !state.step(*item)?.status.is_settled() {
            recount(state, *item)?;
        }
    }
    super::advance(state, again)?;
    Ok(true)
}

fn reopen<S: RunState>(state: &mut S, no: StepNo) -> Result<(), S::Error> {
    let step = state.step(no)?;
    state.move_step(no, StepMove::Reopened)?;
    let Some(parent) = step.item_of else { return Ok(()) };
    let items = state.step(parent)?.items.unwrap_or_default();
    let waits = u32::from(waits_again(&state.step(no)?));
    let less = |count: u32, status: StepStatus| count.saturating_sub(u32::from(step.status == status));
    state.set_items(
        parent,
        Items {
            settled: items.settled.saturating_sub(1),
            failed: less(items.failed, StepStatus::Failed),
            cancelled: less(items.cancelled, StepStatus::Cancelled),
            again: items.again + waits,
            ..items
        },
    )
}

/// Tells the items that need this one how it now stands.
pub(super) fn tell_followers<S: RunState>(
    walk: &mut Walk<'_, S>,
    no: StepNo,
    step: &StepNow,
) -> Result<(), S::Error> {
    let broken = standing(step, walk.planned(step).policy.on_fail) == Standing::Broken;
    for Following { item, tolerant } in walk.state.followers(no)? {
        let Needs { open, broken: was } = walk.state.step(item)?.needs;
        let broken = was + u32::from(broken && !tolerant);
        walk.state.set_needs(item, Needs { open: open.saturating_sub(1), broken })?;
        walk.agenda.insert(item);
    }
    Ok(())
}

/// Counts the needs of every item that is not settled.
pub(super) fn recount_tasks<S: RunState>(state: &mut S, of: StepNo) -> Result<(), S::Error> {
    for item in state.items(of, true)? {
        recount(state, item)?;
    }
    Ok(())
}

/// Counts an item's needs from the items themselves.
fn recount<S: RunState>(state: &mut S, no: StepNo) -> Result<(), S::Error> {
    let plan = state.plan();
    let mut needs = Needs::default();
    for Following { item, tolerant } in state.followed(no)? {
        match stands(&plan, &state.step(item)?) {
            Standing::Open => needs.open += u32::from(!mutant!(TaskNeedsForgotten)),
            Standing::Broken if !tolerant => needs.broken += 1,
            Standing::Broken | Standing::Met => {}
        }
    }
    if state.step(no)?.needs == needs { Ok(()) } else { state.set_needs(no, needs) }
}

fn stands(plan: &Plan, step: &StepNow) -> Standing {
    standing(step, plan.step(step.node).policy.on_fail)
}
