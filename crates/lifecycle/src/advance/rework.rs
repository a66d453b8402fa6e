//! Going back: a failed step that sends an earlier one back, and a person who resumes or rewinds a run.

use crate::mutant;
use std::collections::BTreeSet;

use super::tasks::{is_open, recount_tasks};
use super::walk::{Walk, count, is_begun};
use super::{Items, Needs, RunState, Standing, StepMove, Tally, Work, standing};
use crate::{OnFail, Plan, RunStatus, StepNo, StepStatus};

/// Whether `no` belongs to what the rework of `by` resets.
pub(super) fn is_held(plan: &Plan, by: StepNo, no: StepNo) -> bool {
    match plan.step(by).policy.on_fail {
        OnFail::Rework { step, .. } => plan.with_descendants(step).contains(&no),
        OnFail::Fail | OnFail::Continue => false,
    }
}

/// Drives the rework that `by` asked for: ends the live work among the target's descendants, or waits for
/// it where it is `always`; once all of it is still, resets them.
pub(super) fn drive<S: RunState>(walk: &mut Walk<'_, S>, by: StepNo) -> Result<(), S::Error> {
    let run = walk.state.run();
    let target = match walk.plan.step(by).policy.on_fail {
        OnFail::Rework { step, .. } if run.status == RunStatus::Running => step,
        // The run does not go on: the failure stands.
        _ => {
            if run.reworking == Some(by) {
                walk.state.set_reworking(None)?;
            }
            walk.state.drop_rework(by)?;
            return walk.tell(by);
        }
    };
    match run.reworking {
        Some(other) if other != by => {
            // One at a time; the other asks again for all when it is through.
            return Ok(());
        }
        Some(_) => {}
        None => walk.state.set_reworking(Some(by))?,
    }

    let set = walk.plan.with_descendants(target);
    let mut still = true;
    for no in set.iter().copied().filter(|no| *no != by) {
        let step = walk.state.step(no)?;
        if is_begun(step.status) && walk.plan.step(no).policy.always {
            still = false;
        } else if is_begun(step.status) {
            if matches!(step.work, Work::Unreceived | Work::Open | Work::Live { ending: false }) {
                walk.state.end_work(no)?;
                if step.items.is_some() {
                    walk.agenda.extend(walk.state.items(no, true)?);
                }
            }
            let work = walk.state.step(no)?.work;
            still &= !matches!(work, Work::Live { .. } | Work::Open | Work::Unreceived);
        }
    }
    if still || mutant!(ReworkDoesNotWait) {
        reset(walk, &set, by)?;
    }
    Ok(())
}

fn reset<S: RunState>(walk: &mut Walk<'_, S>, set: &BTreeSet<StepNo>, by: StepNo) -> Result<(), S::Error> {
    // The failed step last: what it has to say is read off its present attempt.
    for no in set.iter().filter(|no| **no != by).chain([&by]) {
        let step = walk.state.step(*no)?;
        if is_begun(step.status) {
            walk.state.move_step(*no, StepMove::Cancelled)?;
            walk.state.move_step(*no, StepMove::Reworked { by })?;
            continue;
        }
        let stands = standing(&step, walk.plan.step(*no).policy.on_fail);
        if step.status.is_settled() {
            walk.state.move_step(*no, StepMove::Reworked { by })?;
        }
        uncount(walk.state, stands)?;
    }
    walk.state.set_reworking(None)?;
    recount_needs(walk.state, set)?;
    walk.agenda.extend(set);
    let waiting = walk.state.unsettled()?;
    walk.agenda.extend(waiting);
    Ok(())
}

/// What a resume starts again: all that is broken, every `always` step, and what descends from these.
pub fn resume_set<S: RunState>(state: &mut S) -> Result<BTreeSet<StepNo>, S::Error> {
    let plan = state.plan();
    let mut set = BTreeSet::new();
    for no in 0..plan.steps.len() as StepNo {
        let policy = &plan.step(no).policy;
        let broken = standing(&state.step(no)?, policy.on_fail) == Standing::Broken;
        if (broken || policy.always) && !set.contains(&no) {
            set.extend(plan.with_descendants(no));
        }
    }
    Ok(set)
}

/// Resets these steps of a run that a person resumed or rewound (its epoch is already raised), and
/// walks on from there. What is done of a fan-out that is broken stays done, unless something before it
/// runs again or it is `afresh` itself.
pub fn restart<S: RunState>(
    state: &mut S,
    set: &BTreeSet<StepNo>,
    afresh: Option<StepNo>,
) -> Result<(), S::Error> {
    let plan = state.plan();
    for no in set {
        let step = state.step(*no)?;
        let stands = standing(&step, plan.step(*no).policy.on_fail);
        if step.status.is_settled() {
            let keep = stands == Standing::Broken
                && afresh != Some(*no)
                && !plan.step(*no).needs.iter().any(|need| set.contains(need));
            state.move_step(*no, StepMove::Reset { keep })?;
            if keep && step.items.is_some() {
                reset_items(state, *no, step.status)?;
            }
        }
        uncount(state, stands)?;
    }
    recount_needs(state, set)?;
    super::advance(state, set.iter().copied())
}

/// Sends back the items that did not come to a good end; the others stay as they are.
fn reset_items<S: RunState>(state: &mut S, of: StepNo, was: StepStatus) -> Result<(), S::Error> {
    let Some(mut items) = state.step(of)?.items else { return Ok(()) };
    let grows = is_open(state.plan().step(of));
    for item in state.items(of, false)? {
        let status = state.step(item)?.status;
        // A task that was skipped because of a broken one has its chance with it.
        let skipped = grows && status == StepStatus::Skipped;
        // What was taken back from a board stays so, unless all of it was.
        let cancelled = status == StepStatus::Cancelled && (!grows || was == StepStatus::Cancelled);
        if skipped || cancelled || status == StepStatus::Failed {
            state.move_step(item, StepMove::Reset { keep: true })?;
            items.settled = items.settled.saturating_sub(1);
            items.again += 1;
        }
    }
    let cancelled = if grows && was != StepStatus::Cancelled { items.cancelled } else { 0 };
    state.set_items(of, Items { failed: 0, cancelled, ending: false, ..items })?;
    if grows { recount_tasks(state, of) } else { Ok(()) }
}

/// The run has one settled step less.
fn uncount<S: RunState>(state: &mut S, stood: Standing) -> Result<(), S::Error> {
    let Tally { unsettled, broken } = state.run().tally;
    match stood {
        Standing::Open => Ok(()),
        Standing::Met => state.set_tally(Tally { unsettled: unsettled + 1, broken }),
        Standing::Broken => {
            state.set_tally(Tally { unsettled: unsettled + 1, broken: broken.saturating_sub(1) })
        }
    }
}

fn recount_needs<S: RunState>(state: &mut S, set: &BTreeSet<StepNo>) -> Result<(), S::Error> {
    let plan = state.plan();
    for no in set {
        let mut standings = Vec::new();
        for need in &plan.step(*no).needs {
            standings.push(standing(&state.step(*need)?, plan.step(*need).policy.on_fail));
        }
        let needs: Needs = count(standings.into_iter());
        if state.step(*no)?.needs != needs {
            state.set_needs(*no, needs)?;
        }
    }
    Ok(())
}
