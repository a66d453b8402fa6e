//! The walk itself: one step at a time from an agenda, until nothing is left to decide.

use crate::mutant;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::rework::{drive, is_held};
use super::tasks::{is_open, recount_tasks, tell_followers};
use super::{Items, Needs, RunState, Standing, StepMove, StepNow, Tally, Work, WorkEnd, standing};
use crate::{OnFail, Plan, PlanStep, RunEvent, RunStatus, StepNo, StepStatus};

/// More items of one fan-out than this are not live at once: a list of a million must not fill the queues.
const LIVE_ITEMS: u32 = 1_000;
/// More items than this are not made in one go: others want to write too. Each item that settles makes
/// room for as many again, up to what may be live.
const ITEMS_AT_ONCE: u32 = 64;

/// Decides what follows from a change to these steps, and from that, until nothing more does.
pub fn advance<S: RunState>(
    state: &mut S,
    changed: impl IntoIterator<Item = StepNo>,
) -> Result<(), S::Error> {
    if state.run().status.is_terminal() || state.run().status == RunStatus::Queued {
        return Ok(());
    }
    Walk { plan: state.plan(), state, agenda: changed.into_iter().collect() }.work_off()
}

/// Recounts every need and every item from the steps themselves, then walks over all of them.
pub fn heal<S: RunState>(state: &mut S) -> Result<(), S::Error> {
    if state.run().status.is_terminal() || state.run().status == RunStatus::Queued {
        return Ok(());
    }
    let plan = state.plan();
    let all = 0..plan.steps.len() as StepNo;
    let mut standings = Vec::with_capacity(plan.steps.len());
    for no in all.clone() {
        let step = state.step(no)?;
        standings.push(standing(&step, plan.step(no).policy.on_fail));
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
    // A failure that its writer did not live to report.
    let mut walk = Walk { plan, agenda: all.chain(state.unsettled()?).collect(), state };
    walk.observe_failure()?;
    walk.work_off()
}

fn recount_items<S: RunState>(state: &mut S, of: StepNo, was: Items) -> Result<(), S::Error> {
    let mut now = Items { created: 0, settled: 0, failed: 0, cancelled: 0, again: 0, ..was };
    for item in state.items(of, false)? {
        let item = state.step(item)?;
        now.created += 1;
        now.again += u32::from(waits_again(&item));
        count_item(&mut now, item.status);
    }
    if now == was { Ok(()) } else { state.set_items(of, now) }
}

/// Counts an item in this status among the settled, if it is.
fn count_item(items: &mut Items, status: StepStatus) {
    items.settled += u32::from(status.is_settled());
    items.failed += u32::from(status == StepStatus::Failed);
    items.cancelled += u32::from(status == StepStatus::Cancelled);
}

/// Whether its work may exist, and is not over.
pub(super) fn is_begun(status: StepStatus) -> bool {
    matches!(status, StepStatus::Pending | StepStatus::Running)
}

/// Whether it is an item that was sent back and has not had its turn since.
pub(super) fn waits_again(item: &StepNow) -> bool {
    item.status == StepStatus::Waiting && item.attempt > 1
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

/// Whether a step may begin anything, and if not, whether what it has begun must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum May {
    /// It may.
    Start,
    /// What goes on goes on to its end; nothing else begins.
    GoOn,
    /// It is to end.
    End,
}

impl<S: RunState> Walk<'_, S> {
    /// Looks at one step after the other until there is nothing left to look at.
    pub(super) fn work_off(&mut self) -> Result<(), S::Error> {
        while let Some(no) = self.agenda.pop_first() {
            self.visit(no)?;
        }
        self.finish()
    }

    fn visit(&mut self, no: StepNo) -> Result<(), S::Error> {
        let run = self.state.run();
        if run.status.is_terminal() {
            return Ok(());
        }
        let step = self.state.step(no)?;
        let held_by = run.reworking.filter(|by| {
            run.status == RunStatus::Running
                && *by != no
                && is_held(&self.plan, *by, step.item_of.unwrap_or(no))
        });
        // What was begun for any case is not ended for a rework: the run may yet fail, and it would be lost.
        let goes_on = self.planned(&step).policy.always && (step.item_of.is_some() || is_begun(step.status));
        self.agenda.extend(held_by.filter(|_| goes_on));
        let held_by = held_by.filter(|_| !goes_on);
        if let (Some(by), None) = (held_by, step.item_of) {
            // It will run again: whatever it did in the meantime only matters for how still it is.
            self.agenda.insert(by);
            return Ok(());
        }
        let may = match held_by {
            Some(_) => May::End,
            None => self.may(&step)?,
        };
        match step.status {
            StepStatus::Waiting => self.visit_waiting(no, &step, may),
            StepStatus::Pending | StepStatus::Running => match step.items {
                Some(items) => self.visit_spread(no, &step, items, may),
                None => self.visit_working(no, &step, may),
            },
            StepStatus::Failed if step.rework_pending => drive(self, no),
            StepStatus::Done | StepStatus::Failed | StepStatus::Skipped | StepStatus::Cancelled => Ok(()),
        }
    }

    /// What the run, and for an item its fan-out, allow a step to do.
    fn may(&mut self, step: &StepNow) -> Result<May, S::Error> {
        if let Some(parent) = step.item_of {
            let parent = self.state.step(parent)?;
            if parent.status.is_settled() || parent.items.is_some_and(|items| items.ending) {
                return Ok(May::End);
            }
        }
        let run = self.state.run().status;
        Ok(match run.starts(self.planned(step).policy.always) {
            true => May::Start,
            false if run == RunStatus::Cancelling => May::End,
            false => May::GoOn,
        })
    }

    pub(super) fn planned(&self, step: &StepNow) -> &PlanStep {
        self.plan.step(step.node)
    }

    fn visit_waiting(&mut self, no: StepNo, step: &StepNow, may: May) -> Result<(), S::Error> {
        if may != May::Start {
            self.leave_line(no)?;
            return self.settle(no, StepMove::Cancelled);
        }
        if !self.has_turn(step)? {
            return Ok(());
        }
        if step.needs.broken > 0 && !self.planned(step).policy.always {
            self.leave_line(no)?;
            return self.settle(no, StepMove::Skipped { by_when: false });
        }
        if step.needs.open > u32::from(mutant!(NeedsOffByOne)) {
            return Ok(());
        }
        self.leave_line(no)?;
        if !self.state.wanted(no)? {
            return self.settle(no, StepMove::Skipped { by_when: true });
        }
        self.state.move_step(no, StepMove::Ready)?;
        self.start_work(no)
    }

    /// Whether an item that was sent back may begin: its fan-out has, and has room for it. A new one is made
    /// only when there is room.
    fn has_turn(&mut self, step: &StepNow) -> Result<bool, S::Error> {
        let Some(parent) = step.item_of.filter(|_| waits_again(step)) else { return Ok(true) };
        let parent = self.state.step(parent)?;
        let room = parent.items.unwrap_or_default().room(self.items_at_once(&parent));
        Ok(parent.status != StepStatus::Waiting && room > 0)
    }

    /// An item that was sent back waits no longer.
    pub(super) fn leave_line(&mut self, no: StepNo) -> Result<(), S::Error> {
        let step = self.state.step(no)?;
        let Some(parent) = step.item_of.filter(|_| waits_again(&step)) else { return Ok(()) };
        let items = self.state.step(parent)?.items.unwrap_or_default();
        self.state.set_items(parent, Items { again: items.again.saturating_sub(1), ..items })
    }

    /// How many items of a fan-out may be live at once.
    fn items_at_once(&self, parent: &StepNow) -> u32 {
        let spread = self.planned(parent).spread.unwrap_or_default();
        if spread.open {
            return u32::MAX;
        }
        spread.max_parallel.unwrap_or(LIVE_ITEMS).clamp(1, LIVE_ITEMS)
    }

    /// Creates the step's work, and looks at it: it may have failed or ended at once.
    fn start_work(&mut self, no: StepNo) -> Result<(), S::Error> {
        self.state.start_work(no)?;
        let step = self.state.step(no)?;
        if step.work != Work::Unreceived {
            self.agenda.insert(no);
        }
        Ok(())
    }

    fn visit_working(&mut self, no: StepNo, step: &StepNow, may: May) -> Result<(), S::Error> {
        match step.work {
            // Its writer died between the two: the work of a step that may still start is made good.
            Work::None if may == May::Start => self.start_work(no),
            Work::None => self.settle(no, StepMove::Cancelled),
            Work::Unreceived if may == May::Start => Ok(()),
            Work::Unreceived => self.end_now(no),
            Work::Open => {
                if step.status == StepStatus::Pending {
                    self.state.move_step(no, StepMove::Started)?;
                }
                if may == May::Start { Ok(()) } else { self.end_now(no) }
            }
            Work::Live { ending } => {
                if step.status == StepStatus::Pending {
                    self.state.move_step(no, StepMove::Started)?;
                }
                if may == May::End && !ending && !mutant!(CancelLeavesWork) {
                    self.state.end_work(no)?;
                    // Another run that nobody works on ends at once.
                    if matches!(self.state.step(no)?.work, Work::Ended(_)) {
                        self.agenda.insert(no);
                    }
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
                    _ if may == May::Start && self.has_tries(step, end) => {
                        self.state.move_step(no, StepMove::Retried { lost: end == WorkEnd::Lost })?;
                        self.start_work(no)
                    }
                    _ => self.fail(no, step),
                }
            }
        }
    }

    /// Ends work that nobody is at, and looks again.
    pub(super) fn end_now(&mut self, no: StepNo) -> Result<(), S::Error> {
        self.state.end_work(no)?;
        self.agenda.insert(no);
        Ok(())
    }

    /// A fan-out: makes further items as far as they may be live, and settles once they are over.
    fn visit_spread(
        &mut self,
        no: StepNo,
        step: &StepNow,
        mut items: Items,
        may: May,
    ) -> Result<(), S::Error> {
        if step.status == StepStatus::Pending {
            self.state.move_step(no, StepMove::Started)?;
        }
        let bound = self.items_at_once(step);
        if may == May::Start && !items.ending {
            // A board's tasks are looked at when they are sent back and when a need of theirs settles: all of them
            // only when the board goes on.
            if items.again > 0 && (!is_open(self.planned(step)) || step.status == StepStatus::Pending) {
                self.agenda.extend(self.state.waiting_items(no, items.room(bound))?);
            }
            let was = items.created;
            while items.created < items.total
                && items.created - items.settled < bound
                && items.created - was < ITEMS_AT_ONCE
            {
                let item = self.state.add_item(no)?;
                self.agenda.insert(item);
                items.created += 1;
                self.state.set_items(no, items)?;
            }
        }
        let grows = is_open(self.planned(step));
        if !items.are_over(may == May::Start) || (grows && may == May::Start && self.state.run().open) {
            return Ok(());
        }
        let end = match items.end() {
            WorkEnd::Cancelled if grows && may != May::End => WorkEnd::Succeeded,
            end => end,
        };
        match end {
            WorkEnd::Succeeded => self.settle(no, StepMove::Succeeded),
            WorkEnd::Cancelled => self.settle(no, StepMove::Cancelled),
            _ => self.fail(no, step),
        }
    }

    fn has_tries(&self, step: &StepNow, end: WorkEnd) -> bool {
        let policy = &self.planned(step).policy;
        match end {
            WorkEnd::Lost => {
                (!policy.at_most_once || mutant!(LostIsTriedAgain)) && step.losses + 1 < policy.losses
            }
            WorkEnd::Failed { retriable } => {
                retriable && (step.tries + 1 < policy.attempts || mutant!(TriesUnbounded))
            }
            WorkEnd::Succeeded | WorkEnd::Cancelled | WorkEnd::Unschedulable => false,
        }
    }

    fn fail(&mut self, no: StepNo, step: &StepNow) -> Result<(), S::Error> {
        let rework = match self.planned(step).policy.on_fail {
            // An item's failure is its fan-out's to judge.
            _ if step.item_of.is_some() => false,
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
    pub(super) fn settle(&mut self, no: StepNo, to: StepMove) -> Result<(), S::Error> {
        self.state.move_step(no, to)?;
        // A fan-out that was sent back with its list, and does not come to its turn: nor do its items.
        if self.state.step(no)?.items.is_some_and(|items| items.again > 0) {
            self.agenda.extend(self.state.items(no, true)?);
        }
        self.tell(no)
    }

    /// Tells those that need the step, and the run, how it now stands; of an item, its fan-out.
    pub(super) fn tell(&mut self, no: StepNo) -> Result<(), S::Error> {
        let step = self.state.step(no)?;
        if let Some(parent) = step.item_of {
            if is_open(self.planned(&step)) {
                tell_followers(self, no, &step)?;
            }
            return self.tell_parent(parent, step.status);
        }
        let stands = standing(&step, self.planned(&step).policy.on_fail);
        let broken = u32::from(stands == Standing::Broken && !mutant!(BrokenNeedsForgotten));
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

    fn tell_parent(&mut self, parent: StepNo, became: StepStatus) -> Result<(), S::Error> {
        let step = self.state.step(parent)?;
        let mut items = step.items.unwrap_or_default();
        if !mutant!(ItemNotCounted) {
            count_item(&mut items, became);
        }
        let fail_fast = self.planned(&step).spread.unwrap_or_default().fail_fast;
        if became == StepStatus::Failed && fail_fast && !items.ending && !mutant!(FailFastGoesOn) {
            items.ending = true;
            self.agenda.extend(self.state.items(parent, true)?);
        }
        self.state.set_items(parent, items)?;
        self.agenda.insert(parent);
        Ok(())
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
        if run.tally.unsettled > u32::from(mutant!(RunEndsEarly)) {
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
