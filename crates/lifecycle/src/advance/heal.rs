//! Healing: recounts what a walk keeps counted, after a crash or an older program may have left it wrong.

use super::tasks::{is_open, recount_tasks};
use super::walk::{Walk, count, count_item, is_requeued};
use super::{Items, RunState, Tally, standing};
use crate::{RunStatus, StepNo};

/// Recounts every need and every item from the steps themselves, then visits all steps.
pub fn heal<S: RunState>(state: &mut S) -> Result<(), S::Error> {
    if state.run().status.is_terminal() || state.run().status == RunStatus::Queued {
        return Ok(());
    }
    let plan = state.plan();
    let all = 0..plan.steps.len() as StepNo;
    let mut standings = Vec::with_capacity(plan.steps.len());
    for no in all.clone() {
        let step = state.step(no)?;
        standings.push(standing(&step, &plan.step(no).policy));
        if let Some(items) = step.items {
            recount_items(state, no, items)?;
            if is_open(plan.step(no)) {
                recount_tasks(state, no)?;
            }
        }
    }
    for no in all.clone() {
        let needs = count(plan.step(no).needs.iter().map(|need| standings[*need as usize]));
        if state.step(no)?.needs != needs {
            state.set_needs(no, needs)?;
        }
    }
    let counted = count(standings.iter().copied());
    let tally = Tally { unsettled: counted.open, broken: counted.broken };
    if state.run().tally != tally {
        state.set_tally(tally)?;
    }
    // Report a failure that a crash kept from being reported.
    let mut walk = Walk { plan, agenda: all.chain(state.unsettled()?).collect(), state, at_work: None };
    walk.observe_failure()?;
    walk.run()
}

fn recount_items<S: RunState>(state: &mut S, of: StepNo, was: Items) -> Result<(), S::Error> {
    let mut now = Items { created: 0, settled: 0, failed: 0, cancelled: 0, requeued: 0, ..was };
    for item in state.items(of, false)? {
        let item = state.step(item)?;
        now.created += 1;
        now.requeued += u32::from(is_requeued(&item));
        count_item(&mut now, item.status);
    }
    if now == was { Ok(()) } else { state.set_items(of, now) }
}
