//! A held run as the walk sees it.

use std::sync::Arc;

use sprag_lifecycle::{
    Actor, ExecutionEvent, ExecutionId, ExecutionStatus, Items, Needs, NextRound, OnFail, Plan, RunEvent,
    RunNow, RunState, StepEvent, StepMove, StepNo, StepNow, StepStatus, Tally, TaskNeed, Work, WorkKind,
    mutant,
};

use super::{HeldRun, decided, report_run};
use crate::answers::Question;
use crate::blocked::step_is_blocked;
use crate::error::{Error, Result};
use crate::names;
use crate::ops;
use crate::rows::{ExecutionRow, Row, RunRow, StepRow};
use crate::wake::Topic;

impl RunState for HeldRun<'_, '_> {
    type Error = Error;

    fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan)
    }

    fn run(&self) -> RunNow {
        let row = self.session.peek_run(self.id).expect("the run's row is held");
        RunNow { status: row.status(), open: row.open, tally: row.tally, reworking: row.reworking }
    }

    fn step(&mut self, no: StepNo) -> Result<StepNow> {
        let row = self.step_row(no)?;
        let work = match row.status() {
            StepStatus::Pending | StepStatus::Running => self.work(&row)?,
            _ => Work::None,
        };
        Ok(StepNow {
            node: row.node(),
            item_of: row.item_of,
            items: row.items.map(|list| list.items),
            status: row.status(),
            attempt: row.attempt,
            first_attempt: self.first_attempt(&row)?,
            tries: row.tries,
            losses: row.losses,
            reworks: row.reworks,
            repeats: row.repeats,
            needs: row.needs,
            skipped_by_when: row.skipped_by_when,
            rework_pending: row.rework_pending,
            work,
        })
    }

    fn unsettled(&mut self) -> Result<Vec<StepNo>> {
        let mut all: std::collections::BTreeSet<StepNo> =
            self.session.db().unsettled(self.id)?.into_iter().collect();
        let id = self.id;
        for step in self.session.seen::<StepRow>().filter(|step| step.run == id) {
            if step.status().is_settled() && !step.rework_pending {
                all.remove(&step.no);
            } else {
                all.insert(step.no);
            }
        }
        Ok(all.into_iter().collect())
    }

    fn at_work(&mut self) -> Result<u32> {
        let plan = Arc::clone(&self.plan);
        let mut taken = 0;
        for no in self.unsettled()? {
            let step = self.step_row(no)?;
            let has_begun = matches!(step.status(), StepStatus::Pending | StepStatus::Running);
            taken += u32::from(has_begun && plan.step(step.node()).takes_place(step.item_of.is_some()));
        }
        Ok(taken)
    }

    fn when_holds(&mut self, no: StepNo) -> Result<bool> {
        let step = self.step_row(no)?;
        if !self.has_condition(&step) {
            return Ok(true);
        }
        // A condition without an answer does not skip the step: the step starts, and fails with the same message.
        Ok(self.condition_holds(&step)?.unwrap_or(true))
    }

    fn next_round(&mut self, no: StepNo) -> Result<NextRound> {
        let step = self.step_row(no)?;
        Ok(match self.wants_round(&step)? {
            Ok(true) => NextRound::Wanted,
            Ok(false) => NextRound::None,
            Err(_) => NextRound::Unknown,
        })
    }

    fn items(&mut self, of: StepNo, unsettled: bool) -> Result<Vec<StepNo>> {
        let rows = self.session.item_rows(self.id, of)?;
        Ok(rows.iter().filter(|row| !unsettled || !row.status().is_settled()).map(|row| row.no).collect())
    }

    fn waiting_items(&mut self, of: StepNo, limit: u32) -> Result<Vec<StepNo>> {
        self.session.waiting_items(self.id, of, limit as usize)
    }

    fn tasks_needing(&mut self, item: StepNo) -> Result<Vec<TaskNeed>> {
        self.session.db().task_followers(self.id, item)
    }

    fn needs_of_task(&mut self, item: StepNo) -> Result<Vec<TaskNeed>> {
        self.session.db().task_needs(self.id, item)
    }

    fn move_step(&mut self, no: StepNo, to: StepMove) -> Result<()> {
        let step = self.step_row(no)?;
        let facts = self.step_facts(no, &step, to)?;
        let feedback = match to {
            StepMove::Reworked { by } if matches!(self.plan.step(by).policy.on_fail, OnFail::Rework { step, .. } if step == no) =>
            {
                let by = self.step_row(by)?;
                names::failure(self.session, &self.plan, &by)?
            }
            StepMove::Retried { lost: false } => names::failure(self.session, &self.plan, &step)?,
            StepMove::Reopened if step.status() == StepStatus::Failed => {
                names::failure(self.session, &self.plan, &step)?
            }
            _ => None,
        };
        let planned = self.plan.step(step.node());
        let (keeps_child, is_executed) =
            (planned.work == WorkKind::Child, planned.work == WorkKind::Execution);
        let most_rounds = planned.repeat.map_or(0, |repeat| repeat.max);
        let ended_round = self.round_work(&step);
        if is_executed
            && let Some(gate) = step.work
            && !matches!(to, StepMove::Ready | StepMove::Started)
            && (to != StepMove::Retried { lost: true } || mutant!(QuestionDiesWithWorker))
        {
            // The question of an agent ends with its attempt, unless the worker was lost: the next attempt continues.
            ops::cancel_gate(self.session, gate, Actor::Advance)?;
        }
        if keeps_child && step.status() == StepStatus::Running {
            // The timeout of the child run ends with the attempt.
            self.session.clear_timer(ExecutionId { run: self.id, step: no, attempt: step.attempt });
        }
        let outcome = self.session.apply::<StepRow>(
            (self.id, no),
            to.event(),
            Actor::Advance,
            &facts,
            |row, now| match to {
                StepMove::Ready => {}
                StepMove::Started => row.started_ms = Some(now.wall_ms),
                StepMove::Succeeded | StepMove::Cancelled => {
                    row.skipped_by_when = false;
                    row.ended_ms = Some(now.wall_ms);
                }
                StepMove::Skipped { by_when } => {
                    row.skipped_by_when = by_when;
                    row.ended_ms = Some(now.wall_ms);
                }
                StepMove::Retried { lost } => {
                    row.attempt += 1;
                    row.started_ms = None;
                    row.work = row.work.filter(|_| lost && is_executed);
                    row.feedback = feedback.or(row.feedback.take());
                    if lost {
                        row.losses += 1;
                    } else {
                        row.tries += 1;
                        row.losses = 0;
                    }
                }
                StepMove::Repeated => {
                    row.repeats += 1;
                    row.last_round = Some(ended_round);
                    row.attempt += 1;
                    row.started_ms = None;
                    row.work = None;
                    row.tries = 0;
                    row.losses = 0;
                }
                StepMove::Failed { rework } => {
                    row.skipped_by_when = false;
                    row.rework_pending = rework;
                    row.reworks += u32::from(rework);
                    row.ended_ms = Some(now.wall_ms);
                }
                StepMove::Reworked { .. } | StepMove::Reset { .. } | StepMove::Reopened => {
                    let keep = matches!(to, StepMove::Reset { keep: true });
                    row.attempt += 1;
                    // The child run of a round that has ended does not continue.
                    let has_ended = row.last_round == Some(ended_round);
                    row.work = row.work.filter(|_| keep && keeps_child && !has_ended);
                    row.items = row.items.filter(|_| keep);
                    // A resume continues with the round that did not end; used-up rounds are counted from the start.
                    row.last_round = row.last_round.filter(|_| keep);
                    if !keep || row.repeats >= most_rounds || mutant!(RoundsForgotten) {
                        row.repeats = 0;
                    }
                    row.tries = 0;
                    row.losses = 0;
                    row.skipped_by_when = false;
                    row.rework_pending = false;
                    row.started_ms = None;
                    row.ended_ms = None;
                    if to.event() == StepEvent::Reworked {
                        row.round += 1;
                        row.feedback = feedback.or(row.feedback.take());
                    } else if to == StepMove::Reopened {
                        row.feedback = feedback.or(row.feedback.take());
                    } else {
                        row.reworks = 0;
                    }
                }
            },
        )?;
        decided(outcome.is_applied(), || {
            format!("{} of step {no} of run {}: {outcome:?}", to.event(), self.id)
        })
    }

    fn set_needs(&mut self, no: StepNo, needs: Needs) -> Result<()> {
        self.session.note::<StepRow>((self.id, no), |row| row.needs = needs)
    }

    fn start_work(&mut self, no: StepNo) -> Result<()> {
        let step = self.step_row(no)?;
        let plan = Arc::clone(&self.plan);
        let planned = plan.step(step.node());
        // A condition without an answer: the step fails with the reason.
        if self.has_condition(&step)
            && let Err(why) = self.condition_holds(&step)?
        {
            return self.fail_to_start(&step, &why.to_string());
        }
        if planned.spread.is_some() && step.item_of.is_none() {
            return self.list_items(&step);
        }
        match planned.work {
            WorkKind::Execution | WorkKind::Task => {
                let id = self.create_execution(&step)?;
                self.schedule(id).map(drop)
            }
            WorkKind::Gate | WorkKind::Wait | WorkKind::Child | WorkKind::End => self.start_outside(&step),
        }
    }

    fn note_round(&mut self, no: StepNo) -> Result<()> {
        let step = self.step_row(no)?;
        let ended = self.round_work(&step);
        self.session.note::<StepRow>((self.id, no), |row| {
            row.repeats += 1;
            row.last_round = Some(ended);
        })
    }

    fn refuse_round(&mut self, no: StepNo) -> Result<()> {
        let step = self.step_row(no)?;
        // The same question as before this attempt was created, with the same names.
        let why = match self.ask(&step, Question::Repeat)? {
            Ok(_) => format!("its `repeat` asks for more than {} rounds", step.repeats),
            Err(why) => why.to_string(),
        };
        self.fail_to_start(&step, &why)
    }

    fn add_item(&mut self, of: StepNo) -> Result<StepNo> {
        let no = self.row()?.steps;
        let mut row = StepRow::new(self.id, no, Needs::default());
        row.item_of = Some(of);
        let parent = self.step_row(of)?;
        row.item = parent.items.map(|list| list.items.created);
        row.attempt = parent.items.map_or(1, |list| list.first_attempt);
        // The feedback to the fan-out is for each of its items.
        row.feedback = parent.feedback;
        self.session.create(row, "step.added", Actor::Advance);
        self.session.note::<RunRow>(self.id, |row| row.steps += 1)?;
        Ok(no)
    }

    fn set_items(&mut self, of: StepNo, items: Items) -> Result<()> {
        self.session.note::<StepRow>((self.id, of), |row| {
            if let Some(list) = &mut row.items {
                list.items = items;
            }
        })
    }

    fn stop_work(&mut self, no: StepNo) -> Result<()> {
        let step = self.step_row(no)?;
        if let Some(list) = step.items {
            return self.set_items(no, Items { ending: true, ..list.items });
        }
        let Some(row) = self.execution(&step)? else { return self.end_outside(&step) };
        match row.status() {
            // Requested once: only the request wakes the owner. If every later write to the row woke it too, its own
            // renewals would, and it would renew without a pause until the work has ended.
            ExecutionStatus::Running if !row.cancel_requested => {
                self.session.note::<ExecutionRow>(row.id, |row| row.cancel_requested = true)?;
                if let Some(owner) = row.owner {
                    self.session.announce(Topic::Worker(owner));
                }
            }
            ExecutionStatus::Requested | ExecutionStatus::Scheduling | ExecutionStatus::Scheduled => {
                if row.status() == ExecutionStatus::Scheduled {
                    self.revoke(row.id)?;
                }
                self.session.clear_timer(row.id);
                self.executor_event(row.id, ExecutionEvent::Cancelled)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn move_run(&mut self, event: RunEvent) -> Result<()> {
        let run = self.row()?;
        let outcome = report_run(self.session, &run, event, Actor::Advance)?;
        decided(outcome.is_applied(), || format!("{event} of run {}: {outcome:?}", self.id))
    }

    fn set_tally(&mut self, tally: Tally) -> Result<()> {
        self.session.note::<RunRow>(self.id, |row| row.tally = tally)
    }

    fn set_reworking(&mut self, by: Option<StepNo>) -> Result<()> {
        self.session.note::<RunRow>(self.id, |row| row.reworking = by)
    }

    fn drop_rework(&mut self, no: StepNo) -> Result<()> {
        self.session.note::<StepRow>((self.id, no), |row| row.rework_pending = false)
    }

    fn is_blocked(&mut self, no: StepNo) -> Result<bool> {
        let step = self.step_row(no)?;
        step_is_blocked(self.session, &self.plan, &step)
    }
}
