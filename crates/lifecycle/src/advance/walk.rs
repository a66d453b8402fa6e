//! The walk: visits the steps of an agenda until no decision is left.

use crate::mutant;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::rework::{continue_rework, is_reset_by};
use super::tasks::{is_open, notify_tasks};
use super::{
    Items, Needs, NextRound, Quorum, RunState, Standing, StepMove, StepNow, Tally, Work, WorkEnd, quorum,
    standing,
};
use crate::{OnFail, Plan, PlanStep, RunEvent, RunStatus, StepNo, StepStatus, WorkKind};

/// The most items of one fan-out that are live at once, so that a long list does not fill the queues.
const MAX_LIVE_ITEMS: u32 = 1_000;
/// The most items created in one walk, so that the transaction stays short. Each item that settles makes room
/// for as many again, up to the limit of live items.
const MAX_NEW_ITEMS: u32 = 64;

/// Decides what follows from a change to these steps, and from those decisions, until nothing follows.
pub fn advance<S: RunState>(
    state: &mut S,
    changed: impl IntoIterator<Item = StepNo>,
) -> Result<(), S::Error> {
    if state.run().status.is_terminal() || state.run().status == RunStatus::Queued {
        return Ok(());
    }
    Walk { plan: state.plan(), state, agenda: changed.into_iter().collect(), at_work: None }.run()
}

/// Adds an item in this status to the counts.
pub(super) fn count_item(items: &mut Items, status: StepStatus) {
    items.settled += u32::from(status.is_settled());
    items.failed += u32::from(status == StepStatus::Failed);
    items.cancelled += u32::from(status == StepStatus::Cancelled);
}

/// Returns whether the step's work may exist and has not settled.
pub(super) fn is_started(status: StepStatus) -> bool {
    matches!(status, StepStatus::Pending | StepStatus::Running)
}

/// Returns whether the step is an item that was reset and has not started since.
pub(super) fn is_requeued(item: &StepNow) -> bool {
    item.status == StepStatus::Waiting && item.attempt > item.first_attempt
}

/// Counts the open and the broken ones.
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
    /// The number of taken places of the run, while it is known. Every change of a status forgets it.
    pub(super) at_work: Option<u32>,
}

/// The actions that the run, and the fan-out of an item, allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Allowed {
    /// Work may start.
    Start,
    /// Live work runs to its end; no work starts.
    Continue,
    /// Live work is stopped.
    Stop,
}

impl<S: RunState> Walk<'_, S> {
    /// Visits the steps of the agenda until it is empty, then settles the run if possible.
    pub(super) fn run(&mut self) -> Result<(), S::Error> {
        loop {
            while let Some(no) = self.agenda.pop_first() {
                self.visit(no)?;
            }
            if !self.end_services()? {
                return self.finish();
            }
        }
    }

    fn visit(&mut self, no: StepNo) -> Result<(), S::Error> {
        let run = self.state.run();
        if run.status.is_terminal() {
            return Ok(());
        }
        let step = self.state.step(no)?;
        let reset_by = run.reworking.filter(|by| {
            run.status == RunStatus::Running
                && *by != no
                && is_reset_by(&self.plan, *by, step.item_of.unwrap_or(no))
        });
        // A rework does not stop an `always` step: if the run fails later, its work would be lost.
        let continues =
            self.planned(&step).policy.always && (step.item_of.is_some() || is_started(step.status));
        self.agenda.extend(reset_by.filter(|_| continues));
        let reset_by = reset_by.filter(|_| !continues);
        if let (Some(by), None) = (reset_by, step.item_of) {
            // The step will be reset, so only the end of its work matters.
            self.agenda.insert(by);
            return Ok(());
        }
        let allowed = match reset_by {
            Some(_) => Allowed::Stop,
            None => self.allowed(&step)?,
        };
        match step.status {
            StepStatus::Waiting => self.visit_waiting(no, &step, allowed),
            StepStatus::Pending | StepStatus::Running => match step.items {
                Some(items) => self.visit_spread(no, &step, items, allowed),
                None => self.visit_working(no, &step, allowed),
            },
            StepStatus::Failed if step.rework_pending => continue_rework(self, no),
            StepStatus::Done | StepStatus::Failed | StepStatus::Skipped | StepStatus::Cancelled => Ok(()),
        }
    }

    /// Returns the actions that the run, and for an item its fan-out, allow.
    fn allowed(&mut self, step: &StepNow) -> Result<Allowed, S::Error> {
        if let Some(parent) = step.item_of {
            let parent = self.state.step(parent)?;
            if parent.status.is_settled() || parent.items.is_some_and(|items| items.ending) {
                return Ok(Allowed::Stop);
            }
        }
        if self.planned(step).service && self.only_services_left()? {
            return Ok(Allowed::Stop);
        }
        let run = self.state.run().status;
        let starts = run.starts(self.planned(step).policy.always);
        Ok(if starts {
            Allowed::Start
        } else if run == RunStatus::Cancelling {
            Allowed::Stop
        } else {
            Allowed::Continue
        })
    }

    pub(super) fn planned(&self, step: &StepNow) -> &PlanStep {
        self.plan.step(step.node)
    }

    fn visit_waiting(&mut self, no: StepNo, step: &StepNow, allowed: Allowed) -> Result<(), S::Error> {
        if allowed != Allowed::Start {
            self.leave_queue(no)?;
            // A service that no step can use any more is not missed.
            let unused = self.planned(step).service;
            let end = if unused { StepMove::Skipped { by_when: true } } else { StepMove::Cancelled };
            return self.settle(no, end);
        }
        if !self.may_start(step)? {
            return Ok(());
        }
        let joined = self.quorum(step)?;
        let broken = joined.map_or(step.needs.broken > 0, |joined| joined == Quorum::Missed);
        if broken && !self.planned(step).policy.always {
            self.leave_queue(no)?;
            return self.settle(no, StepMove::Skipped { by_when: false });
        }
        let early = joined == Some(Quorum::Reached) && !mutant!(QuorumWaitsForAll);
        if !early && step.needs.open > u32::from(mutant!(NeedsOffByOne)) {
            return Ok(());
        }
        if step.skipped_by_when || self.is_skipped_with(step)? {
            self.leave_queue(no)?;
            return self.settle(no, StepMove::Skipped { by_when: true });
        }
        if self.takes_place(step) && self.places()? == 0 {
            // The step that frees a place visits it again.
            return Ok(());
        }
        self.leave_queue(no)?;
        if !self.state.when_holds(no)? {
            return self.settle(no, StepMove::Skipped { by_when: true });
        }
        self.at_work = None;
        self.state.move_step(no, StepMove::Ready)?;
        self.start_work(no)
    }

    /// Returns whether the step or item takes a place of the run while it is pending or running.
    fn takes_place(&self, step: &StepNow) -> bool {
        self.planned(step).takes_place(step.item_of.is_some())
    }

    /// Returns the number of steps that may still start before the run's limit is reached.
    fn places(&mut self) -> Result<u32, S::Error> {
        let Some(limit) = self.plan.max_parallel.filter(|_| !mutant!(RunLimitIgnored)) else {
            return Ok(u32::MAX);
        };
        let taken = match self.at_work {
            Some(taken) => taken,
            None => self.state.at_work()?,
        };
        self.at_work = Some(taken);
        Ok(limit.saturating_sub(taken))
    }

    /// Visits the steps that may wait for the place that this step, which is about to end, takes.
    pub(super) fn free_place(&mut self, step: &StepNow) -> Result<(), S::Error> {
        self.at_work = None;
        if self.plan.max_parallel.is_some()
            && is_started(step.status)
            && self.takes_place(step)
            && !mutant!(FreePlaceForgotten)
        {
            // A fan-out visits its own items.
            let planned = self.plan.steps.len() as StepNo;
            self.agenda.extend(self.state.unsettled()?.into_iter().filter(|no| *no < planned));
        }
        Ok(())
    }

    /// Returns whether enough needs of a step are done, if it needs only some of them.
    fn quorum(&mut self, step: &StepNow) -> Result<Option<Quorum>, S::Error> {
        let plan = Arc::clone(&self.plan);
        let planned = plan.step(step.node);
        let Some(wanted) = planned.quorum.filter(|_| step.item_of.is_none()) else { return Ok(None) };
        let mut needs = Vec::with_capacity(planned.needs.len());
        for need in &planned.needs {
            let need = self.state.step(*need)?;
            needs.push((need.status, need.rework_pending));
        }
        Ok(Some(quorum(wanted, needs)))
    }

    /// Returns whether an earlier step was skipped that takes this one along.
    fn is_skipped_with(&mut self, step: &StepNow) -> Result<bool, S::Error> {
        let plan = Arc::clone(&self.plan);
        let planned = plan.step(step.node);
        if planned.policy.always || step.item_of.is_some() || mutant!(SkipStays) {
            return Ok(false);
        }
        for earlier in &planned.skipped_with {
            let earlier = self.state.step(*earlier)?;
            if earlier.skipped_by_when && earlier.status == StepStatus::Skipped {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Skips all steps that have not started, because the run ends here. Steps that run continue to their end.
    fn skip_waiting(&mut self) -> Result<(), S::Error> {
        if self.state.run().status != RunStatus::Running {
            // The walk stops all steps anyway.
            return Ok(());
        }
        for no in self.state.unsettled()? {
            let step = self.state.step(no)?;
            let waits = step.status == StepStatus::Waiting && step.item_of.is_none();
            if waits && !self.planned(&step).policy.always && !mutant!(EndGoesOn) {
                self.settle(no, StepMove::Skipped { by_when: true })?;
            }
        }
        Ok(())
    }

    /// Returns whether a requeued item may start: its fan-out has started and has a free slot. New items are
    /// created only for free slots.
    fn may_start(&mut self, step: &StepNow) -> Result<bool, S::Error> {
        let Some(parent) = step.item_of.filter(|_| is_requeued(step)) else { return Ok(true) };
        let parent = self.state.step(parent)?;
        let room = parent.items.unwrap_or_default().room(self.max_live_items(&parent));
        Ok(parent.status != StepStatus::Waiting && room > 0)
    }

    /// Removes a requeued item from the count of waiting ones.
    pub(super) fn leave_queue(&mut self, no: StepNo) -> Result<(), S::Error> {
        let step = self.state.step(no)?;
        let Some(parent) = step.item_of.filter(|_| is_requeued(&step)) else { return Ok(()) };
        let items = self.state.step(parent)?.items.unwrap_or_default();
        self.state.set_items(parent, Items { requeued: items.requeued.saturating_sub(1), ..items })
    }

    /// Returns the most items of a fan-out that may be live at once.
    fn max_live_items(&self, parent: &StepNow) -> u32 {
        let spread = self.planned(parent).spread.unwrap_or_default();
        if spread.open {
            return u32::MAX;
        }
        spread.max_parallel.unwrap_or(MAX_LIVE_ITEMS).clamp(1, MAX_LIVE_ITEMS)
    }

    /// Creates the step's work and revisits the step if the work has failed or ended at once.
    fn start_work(&mut self, no: StepNo) -> Result<(), S::Error> {
        self.state.start_work(no)?;
        let step = self.state.step(no)?;
        if step.work != Work::Unreceived {
            self.agenda.insert(no);
        }
        Ok(())
    }

    fn visit_working(&mut self, no: StepNo, step: &StepNow, allowed: Allowed) -> Result<(), S::Error> {
        match step.work {
            _ if step.skipped_by_when => self.skip_working(no, step),
            _ if self.planned(step).service && allowed == Allowed::Stop => self.skip_working(no, step),
            // The previous writer died before it created the work: create it now.
            Work::None if allowed == Allowed::Start => self.start_work(no),
            Work::None => self.settle(no, StepMove::Cancelled),
            Work::Unreceived if allowed == Allowed::Start => Ok(()),
            Work::Unreceived => self.stop_now(no),
            Work::Open => {
                if step.status == StepStatus::Pending {
                    self.state.move_step(no, StepMove::Started)?;
                }
                if allowed == Allowed::Start { Ok(()) } else { self.stop_now(no) }
            }
            Work::Live { ending } => {
                if step.status == StepStatus::Pending {
                    self.state.move_step(no, StepMove::Started)?;
                }
                if allowed == Allowed::Stop && !ending && !mutant!(CancelLeavesWork) {
                    self.state.stop_work(no)?;
                    // A child run without live work ends at once.
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
                    WorkEnd::Succeeded if self.planned(step).work == WorkKind::End => {
                        self.settle(no, StepMove::Succeeded)?;
                        self.skip_waiting()
                    }
                    WorkEnd::Succeeded => match self.planned(step).repeat {
                        Some(repeat) => self.end_round(no, step, repeat.max, allowed),
                        None => self.settle(no, StepMove::Succeeded),
                    },
                    _ if allowed == Allowed::Start && self.has_tries(step, end) => {
                        self.state.move_step(no, StepMove::Retried { lost: end == WorkEnd::Lost })?;
                        self.start_work(no)
                    }
                    _ => self.fail(no, step),
                }
            }
        }
    }

    /// Stops the work of a step that a person skips, or of a service that is not needed any more, and skips it once the
    /// work has ended. Work that succeeded before it could be stopped counts; a worker reports so of a service that it
    /// stopped.
    fn skip_working(&mut self, no: StepNo, step: &StepNow) -> Result<(), S::Error> {
        let has_begun = matches!(step.work, Work::Live { .. } | Work::Ended(WorkEnd::Succeeded));
        if step.status == StepStatus::Pending && has_begun {
            self.state.move_step(no, StepMove::Started)?;
        }
        match step.work {
            Work::Unreceived | Work::Open => self.stop_now(no),
            Work::Live { ending: false } => {
                self.state.stop_work(no)?;
                // A child run without live work ends at once.
                if matches!(self.state.step(no)?.work, Work::Ended(_)) {
                    self.agenda.insert(no);
                }
                Ok(())
            }
            Work::Live { ending: true } => Ok(()),
            Work::Ended(WorkEnd::Succeeded) => self.settle(no, StepMove::Succeeded),
            Work::None | Work::Ended(_) => self.settle(no, StepMove::Skipped { by_when: true }),
        }
    }

    /// Starts another round of a step with `repeat`, or settles the step. A run that stops starts no more rounds.
    fn end_round(&mut self, no: StepNo, step: &StepNow, max: u32, allowed: Allowed) -> Result<(), S::Error> {
        let next = self.state.next_round(no)?;
        if next == NextRound::None {
            return self.settle(no, StepMove::Succeeded);
        }
        if allowed != Allowed::Start {
            // The round counts: a resume continues with the next one.
            self.state.note_round(no)?;
            return self.settle(no, StepMove::Cancelled);
        }
        self.state.move_step(no, StepMove::Repeated)?;
        let most = max + u32::from(mutant!(RoundTooMany));
        if next == NextRound::Wanted && step.repeats + 1 < most {
            return self.start_work(no);
        }
        self.state.refuse_round(no)?;
        self.agenda.insert(no);
        Ok(())
    }

    /// Stops work that no worker has, and revisits the step.
    pub(super) fn stop_now(&mut self, no: StepNo) -> Result<(), S::Error> {
        self.state.stop_work(no)?;
        self.agenda.insert(no);
        Ok(())
    }

    /// Creates items of a fan-out while slots are free, and settles it once all items are finished.
    fn visit_spread(
        &mut self,
        no: StepNo,
        step: &StepNow,
        mut items: Items,
        allowed: Allowed,
    ) -> Result<(), S::Error> {
        if step.status == StepStatus::Pending {
            self.state.move_step(no, StepMove::Started)?;
        }
        let bound = self.max_live_items(step);
        if step.skipped_by_when && !items.ending {
            items.ending = true;
            self.state.set_items(no, items)?;
            self.agenda.extend(self.state.items(no, true)?);
        }
        if allowed == Allowed::Start && !items.ending {
            // A board's tasks are visited when they are reset and when a need settles. All of them are visited
            // only when the board continues.
            let is_limited = self.plan.max_parallel.is_some() && self.planned(step).takes_place(true);
            let mut places = if is_limited { self.places()? } else { u32::MAX };
            if is_limited {
                let waiting = self.state.waiting_items(no, places)?;
                places -= waiting.len() as u32;
                self.agenda.extend(waiting);
            } else if items.requeued > 0
                && (!is_open(self.planned(step)) || step.status == StepStatus::Pending)
            {
                self.agenda.extend(self.state.waiting_items(no, items.room(bound))?);
            }
            let was = items.created;
            while items.created < items.total
                && items.created - items.settled < bound
                && items.created - was < places.min(MAX_NEW_ITEMS)
            {
                let item = self.state.add_item(no)?;
                self.agenda.insert(item);
                items.created += 1;
                self.state.set_items(no, items)?;
            }
        }
        let is_board = is_open(self.planned(step));
        if !items.are_finished(allowed == Allowed::Start)
            || (is_board && allowed == Allowed::Start && self.state.run().open)
        {
            return Ok(());
        }
        let end = match items.end() {
            WorkEnd::Cancelled if is_board && allowed != Allowed::Stop => WorkEnd::Succeeded,
            end => end,
        };
        match end {
            WorkEnd::Succeeded => self.settle(no, StepMove::Succeeded),
            _ if step.skipped_by_when => self.settle(no, StepMove::Skipped { by_when: true }),
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
            // The fan-out decides about the failure of an item.
            _ if step.item_of.is_some() => false,
            OnFail::Rework { max, .. } => {
                step.reworks < max
                    && self.state.run().status == RunStatus::Running
                    && (!self.state.is_blocked(no)? || mutant!(BlockedIsReworked))
            }
            OnFail::Fail | OnFail::Continue => false,
        };
        if rework {
            self.free_place(step)?;
            self.state.move_step(no, StepMove::Failed { rework: true })?;
            self.agenda.insert(no);
            Ok(())
        } else {
            self.settle(no, StepMove::Failed { rework: false })
        }
    }

    /// Reports the event that settles the step, and updates its dependents.
    pub(super) fn settle(&mut self, no: StepNo, to: StepMove) -> Result<(), S::Error> {
        let step = self.state.step(no)?;
        self.free_place(&step)?;
        self.state.move_step(no, to)?;
        // The waiting items of a requeued fan-out settle together with it.
        if self.state.step(no)?.items.is_some_and(|items| items.requeued > 0) {
            self.agenda.extend(self.state.items(no, true)?);
        }
        self.notify_dependents(no)
    }

    /// Updates the counts of the step's dependents and of the run; for an item, those of its fan-out.
    pub(super) fn notify_dependents(&mut self, no: StepNo) -> Result<(), S::Error> {
        let step = self.state.step(no)?;
        if let Some(parent) = step.item_of {
            if is_open(self.planned(&step)) {
                notify_tasks(self, no, &step)?;
            }
            return self.notify_parent(parent, step.status);
        }
        let stands = standing(&step, &self.planned(&step).policy);
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

    fn notify_parent(&mut self, parent: StepNo, became: StepStatus) -> Result<(), S::Error> {
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

    /// Moves a running run with a broken step to failing, and revisits all unsettled steps.
    pub(super) fn observe_failure(&mut self) -> Result<(), S::Error> {
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
