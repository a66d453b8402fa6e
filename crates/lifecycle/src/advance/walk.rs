//! The walk itself: one step at a time from an agenda, until nothing is left to decide.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::rework::{drive, is_held};
use super::{Needs, RunState, Standing, StepMove, StepNow, Tally, Work, WorkEnd, standing};
use crate::{OnFail, Plan, RunEvent, RunStatus, StepNo, StepStatus};

/// Decides what follows from a change to these steps, and from that, until nothing more does.
pub fn advance<S: RunState>(
    state: &mut S,
    changed: impl IntoIterator<Item = StepNo>,
) -> Result<(), S::Error> {
    if state.run().status.is_terminal() || state.run().status == RunStatus::Queued {
        return Ok(());
    }
    let mut walk = Walk { plan: state.plan(), state, agenda: changed.into_iter().collect() };
    while let Some(no) = walk.agenda.pop_first() {
        walk.visit(no)?;
    }
    walk.finish()
}

/// Recounts every need from the steps themselves, then walks over all of them.
pub fn heal<S: RunState>(state: &mut S) -> Result<(), S::Error> {
    if state.run().status.is_terminal() || state.run().status == RunStatus::Queued {
        return Ok(());
    }
    let plan = state.plan();
    let all = 0..plan.steps.len() as StepNo;
    let mut standings = Vec::with_capacity(plan.steps.len());
    for no in all.clone() {
        standings.push(standing(&state.step(no)?, plan.step(no).policy.on_fail));
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
    // A failure that its writer did not live to report.
    let mut walk = Walk { plan, state, agenda: all.collect() };
    walk.observe_failure()?;
    while let Some(no) = walk.agenda.pop_first() {
        walk.visit(no)?;
    }
    walk.finish()
}

/// How many of these are open, and how many broken.
pub(super) fn count(standings: impl Iterator<Item = Standing>) -> Needs {
    standings.fold(Needs::default(), |mut needs, standing| {
        match standing {
            Standing::Open => needs.open += 1,
            Standing::Broken => needs.broken += 1,
            Standing::Met => {}
        }
        needs
    })
}

pub(super) struct Walk<'s, S> {
    pub(super) plan: Arc<Plan>,
    pub(super) state: &'s mut S,
    pub(super) agenda: BTreeSet<StepNo>,
}

impl<S: RunState> Walk<'_, S> {
    fn visit(&mut self, no: StepNo) -> Result<(), S::Error> {
        let run = self.state.run();
        if run.status.is_terminal() {
            return Ok(());
        }
        if let Some(by) = run.reworking
            && run.status == RunStatus::Running
            && by != no
            && is_held(&self.plan, by, no)
        {
            // It will run again: whatever it did in the meantime only matters for how still it is.
            self.agenda.insert(by);
            return Ok(());
        }
        let step = self.state.step(no)?;
        match step.status {
            StepStatus::Waiting => self.visit_waiting(no, &step),
            StepStatus::Pending | StepStatus::Running => self.visit_working(no, &step),
            StepStatus::Failed if step.rework_pending => drive(self, no),
            StepStatus::Done | StepStatus::Failed | StepStatus::Skipped | StepStatus::Cancelled => Ok(()),
        }
    }

    fn visit_waiting(&mut self, no: StepNo, step: &StepNow) -> Result<(), S::Error> {
        let always = self.plan.step(no).policy.always;
        if !self.state.run().status.starts(always) {
            return self.settle(no, StepMove::Cancelled);
        }
        if step.needs.broken > 0 && !always {
            return self.settle(no, StepMove::Skipped { by_when: false });
        }
        if step.needs.open > 0 {
            return Ok(());
        }
        if !self.state.wanted(no)? {
            return self.settle(no, StepMove::Skipped { by_when: true });
        }
        self.state.move_step(no, StepMove::Ready)?;
        self.state.start_work(no)
    }

    fn visit_working(&mut self, no: StepNo, step: &StepNow) -> Result<(), S::Error> {
        let run = self.state.run().status;
        let starts = run.starts(self.plan.step(no).policy.always);
        match step.work {
            // Its writer died between the two: the work of a step that may still start is made good.
            Work::None if starts => self.state.start_work(no),
            Work::None => self.settle(no, StepMove::Cancelled),
            Work::Unreceived if starts => Ok(()),
            Work::Unreceived => {
                self.state.end_work(no)?;
                self.agenda.insert(no);
                Ok(())
            }
            Work::Live { ending } => {
                if step.status == StepStatus::Pending {
                    self.state.move_step(no, StepMove::Started)?;
                }
                if run == RunStatus::Cancelling && !starts && !ending {
                    self.state.end_work(no)?;
                }
                Ok(())
            }
            Work::Ended(WorkEnd::Cancelled) => self.settle(no, StepMove::Cancelled),
            Work::Ended(WorkEnd::Unschedulable) => self.fail(no, step),
            Work::Ended(end) => {
                if step.status == StepStatus::Pending {
                    self.state.move_step(no, StepMove::Started)?;
                }
                match end {
                    WorkEnd::Succeeded => self.settle(no, StepMove::Succeeded),
                    _ if self.may_retry(no, step, end) => {
                        self.state.move_step(no, StepMove::Retried { lost: end == WorkEnd::Lost })?;
                        self.state.start_work(no)
                    }
                    _ => self.fail(no, step),
                }
            }
        }
    }

    fn may_retry(&self, no: StepNo, step: &StepNow, end: WorkEnd) -> bool {
        let policy = &self.plan.step(no).policy;
        let left = match end {
            WorkEnd::Lost => !policy.at_most_once && step.losses + 1 < policy.losses,
            WorkEnd::Failed { retriable } => retriable && step.tries + 1 < policy.attempts,
            WorkEnd::Succeeded | WorkEnd::Cancelled | WorkEnd::Unschedulable => false,
        };
        left && self.state.run().status.starts(policy.always)
    }

    fn fail(&mut self, no: StepNo, step: &StepNow) -> Result<(), S::Error> {
        let rework = match self.plan.step(no).policy.on_fail {
            OnFail::Rework { max, .. } => step.reworks < max && self.state.run().status == RunStatus::Running,
            OnFail::Fail | OnFail::Continue => false,
        };
        if rework {
            self.state.move_step(no, StepMove::Failed { rework: true })?;
            self.agenda.insert(no);
            Ok(())
        } else {
            self.settle(no, StepMove::Failed { rework: false })
        }
    }

    /// Reports the event that settles the step, and tells those that need it.
    fn settle(&mut self, no: StepNo, to: StepMove) -> Result<(), S::Error> {
        self.state.move_step(no, to)?;
        self.tell(no)
    }

    /// Tells those that need the step, and the run, how it now stands.
    pub(super) fn tell(&mut self, no: StepNo) -> Result<(), S::Error> {
        let stands = standing(&self.state.step(no)?, self.plan.step(no).policy.on_fail);
        let broken = u32::from(stands == Standing::Broken);
        let plan = Arc::clone(&self.plan);
        for dependent in plan.dependents(no) {
            let needs = self.state.step(*dependent)?.needs;
            self.state.set_needs(
                *dependent,
                Needs { open: needs.open.saturating_sub(1), broken: needs.broken + broken },
            )?;
            self.agenda.insert(*dependent);
        }
        let tally = self.state.run().tally;
        self.state.set_tally(Tally {
            unsettled: tally.unsettled.saturating_sub(1),
            broken: tally.broken + broken,
        })?;
        self.observe_failure()
    }

    /// A broken step under a running run: the run is failing, and whatever waits is looked at again.
    fn observe_failure(&mut self) -> Result<(), S::Error> {
        let run = self.state.run();
        if run.status == RunStatus::Running && run.tally.broken > 0 {
            self.state.move_run(RunEvent::FailureObserved)?;
            self.agenda.extend(self.state.unsettled()?);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), S::Error> {
        let run = self.state.run();
        if run.tally.unsettled > 0 {
            return Ok(());
        }
        match run.status {
            RunStatus::Running if !run.open => self.state.move_run(RunEvent::Succeeded),
            RunStatus::Failing => self.state.move_run(RunEvent::FailureSettled),
            RunStatus::Cancelling => self.state.move_run(RunEvent::CancelSettled),
            _ => Ok(()),
        }
    }
}
