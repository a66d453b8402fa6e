//! Repeating steps: the rework that a failed step requests, and the resume or rewind by a person.

use crate::mutant;
use std::collections::BTreeSet;

use super::tasks::{is_open, recount_tasks};
use super::walk::{Walk, count, is_started};
use super::{Items, Needs, RunState, Standing, StepMove, Tally, Work, standing};
use crate::{OnFail, Plan, RunStatus, StepNo, StepStatus};

/// Returns whether the rework of `by` will reset `no`.
pub(super) fn is_reset_by(plan: &Plan, by: StepNo, no: StepNo) -> bool {
    match plan.step(by).policy.on_fail {
        OnFail::Rework { step, .. } => plan.with_descendants(step).contains(&no),
        OnFail::Fail | OnFail::Continue => false,
    }
}

/// Continues the rework that `by` requested. Stops the live work among the target's descendants, or waits for
/// it if the step is `always`. Resets them once all are idle.
pub(super) fn continue_rework<S: RunState>(walk: &mut Walk<'_, S>, by: StepNo) -> Result<(), S::Error> {
    let run = walk.state.run();
    let target = match walk.plan.step(by).policy.on_fail {
        OnFail::Rework { step, .. } if run.status == RunStatus::Running => step,
        // The run is not running any more, so the failure stands.
        _ => {
            if run.reworking == Some(by) {
                walk.state.set_reworking(None)?;
            }
            walk.state.drop_rework(by)?;
            return walk.notify_dependents(by);
        }
    };
    match run.reworking {
        Some(other) if other != by => {
            // One rework at a time: the reset at its end revisits all unsettled steps.
            return Ok(());
        }
        Some(_) => {}
        None => walk.state.set_reworking(Some(by))?,
    }

    let set = walk.plan.with_descendants(target);
    let mut idle = true;
    for no in set.iter().copied().filter(|no| *no != by) {
        let step = walk.state.step(no)?;
        if is_started(step.status) && walk.plan.step(no).policy.always {
            idle = false;
        } else if is_started(step.status) {
            if matches!(step.work, Work::Unreceived | Work::Open | Work::Live { ending: false }) {
                walk.state.stop_work(no)?;
                if step.items.is_some() {
                    walk.agenda.extend(walk.state.items(no, true)?);
                }
            }
            let work = walk.state.step(no)?.work;
            idle &= !matches!(work, Work::Live { .. } | Work::Open | Work::Unreceived);
        }
    }
    if idle || mutant!(ReworkDoesNotWait) {
        reset(walk, &set, by)?;
    }
    Ok(())
}

fn reset<S: RunState>(walk: &mut Walk<'_, S>, set: &BTreeSet<StepNo>, by: StepNo) -> Result<(), S::Error> {
    walk.at_work = None;
    // The failed step comes last, because its feedback is read from its current attempt.
    for no in set.iter().filter(|no| **no != by).chain([&by]) {
        let step = walk.state.step(*no)?;
        if is_started(step.status) {
            walk.state.move_step(*no, StepMove::Cancelled)?;
            walk.state.move_step(*no, StepMove::Reworked { by })?;
            continue;
        }
        let stands = standing(&step, &walk.plan.step(*no).policy);
        if step.status.is_settled() {
            walk.state.move_step(*no, StepMove::Reworked { by })?;
        }
        unsettle(walk.state, stands)?;
    }
    walk.state.set_reworking(None)?;
    recount_needs(walk.state, set)?;
    walk.agenda.extend(set);
    let waiting = walk.state.unsettled()?;
    walk.agenda.extend(waiting);
    Ok(())
}

/// Returns the steps that a resume runs again: broken steps, `always` steps, and all their descendants.
pub fn resume_set<S: RunState>(state: &mut S) -> Result<BTreeSet<StepNo>, S::Error> {
    let plan = state.plan();
    let mut set = BTreeSet::new();
    for no in 0..plan.steps.len() as StepNo {
        let policy = &plan.step(no).policy;
        let broken = standing(&state.step(no)?, policy) == Standing::Broken;
        if (broken || policy.always) && !set.contains(&no) {
            set.extend(plan.with_descendants(no));
        }
    }
    Ok(set)
}

/// The place to which a person sends a run back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackTo {
    /// The steps that are broken: a resume.
    #[default]
    Broken,
    /// A step, of which nothing is kept.
    Step(StepNo),
    /// A step of the child run of this step or item, which is kept and goes back itself.
    Inside(StepNo),
}

/// Resets these steps of a resumed or rewound run, whose epoch is already raised, and advances it. The
/// completed items of a broken fan-out are kept, unless a step before it runs again or the run goes back to it.
pub fn restart<S: RunState>(state: &mut S, set: &BTreeSet<StepNo>, to: BackTo) -> Result<(), S::Error> {
    let plan = state.plan();
    let inside = match to {
        BackTo::Inside(no) => Some((state.step(no)?.item_of.unwrap_or(no), no)),
        BackTo::Broken | BackTo::Step(_) => None,
    };
    for no in set {
        let step = state.step(*no)?;
        let stands = standing(&step, &plan.step(*no).policy);
        if step.status.is_settled() {
            let entered = inside.filter(|(of, _)| of == no).map(|(_, row)| row);
            let keep = (stands == Standing::Broken || entered.is_some())
                && to != BackTo::Step(*no)
                && !plan.step(*no).needs.iter().any(|need| set.contains(need));
            state.move_step(*no, StepMove::Reset { keep })?;
            if keep && step.items.is_some() {
                reset_items(state, *no, step.status, entered)?;
            }
        }
        unsettle(state, stands)?;
    }
    recount_needs(state, set)?;
    super::advance(state, set.iter().copied())
}

/// Requeues the unsuccessful items, and the one whose child run goes back; the others stay as they are.
fn reset_items<S: RunState>(
    state: &mut S,
    of: StepNo,
    was: StepStatus,
    entered: Option<StepNo>,
) -> Result<(), S::Error> {
    let Some(mut items) = state.step(of)?.items else { return Ok(()) };
    let is_board = is_open(state.plan().step(of));
    for item in state.items(of, false)? {
        let status = state.step(item)?.status;
        // A task that was skipped because of a broken one runs again with it.
        let skipped = is_board && status == StepStatus::Skipped;
        // A cancelled task stays cancelled, unless the whole board was cancelled.
        let cancelled = status == StepStatus::Cancelled && (!is_board || was == StepStatus::Cancelled);
        if skipped || cancelled || status == StepStatus::Failed || entered == Some(item) {
            state.move_step(item, StepMove::Reset { keep: true })?;
            items.settled = items.settled.saturating_sub(1);
            items.requeued += 1;
        }
    }
    let cancelled = if is_board && was != StepStatus::Cancelled { items.cancelled } else { 0 };
    state.set_items(of, Items { failed: 0, cancelled, ending: false, ..items })?;
    if is_board { recount_tasks(state, of) } else { Ok(()) }
}

/// Removes one settled step from the run's counts.
fn unsettle<S: RunState>(state: &mut S, stood: Standing) -> Result<(), S::Error> {
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
            standings.push(standing(&state.step(*need)?, &plan.step(*need).policy));
        }
        let needs: Needs = count(standings.into_iter());
        if state.step(*no)?.needs != needs {
            state.set_needs(*no, needs)?;
        }
    }
    Ok(())
}
