//! Work that no worker executes: questions, times, signals, and child runs.

use std::sync::Arc;

use serde_json::json;
use sprag_lifecycle::{
    Actor, ExecutionId, GateEvent, GateStatus, Plan, RunId, RunState, RunStatus, Work, WorkEnd, WorkKind,
};

use crate::answers::{Answer, Question};
use crate::blocked::run_is_blocked;
use crate::error::{Error, Result};
use crate::evaluator::{Prepared, SpecError};
use crate::ops::{self, NewRun};
use crate::rows::{GateKind, GateReport, GateRow, Id, Row, RunRow, StepRow, TimerRow};
use crate::run_state::HeldRun;

/// The reason in the row of a child run that was cancelled because it took too long.
pub(crate) const TIMED_OUT: &str = "timeout";

impl HeldRun<'_, '_> {
    /// Returns the state of a gate or a child run.
    pub(crate) fn outside_work(&mut self, step: &StepRow) -> Result<Work> {
        let Some(work) = step.work else { return Ok(Work::None) };
        match self.kind(step) {
            WorkKind::Gate | WorkKind::Wait | WorkKind::End => {
                Ok(self.session.get::<GateRow>(work)?.as_ref().map_or(Work::None, work_of_gate))
            }
            WorkKind::Child => {
                let Some(child) = self.session.get::<RunRow>(RunId::from_i64(work))? else {
                    return Ok(Work::None);
                };
                match child.status() {
                    RunStatus::Failed if run_is_blocked(self.session, child.id)? => {
                        Ok(Work::Ended(WorkEnd::Failed { retriable: false }))
                    }
                    _ => Ok(work_of_child(&child)),
                }
            }
            WorkKind::Execution | WorkKind::Task => Ok(Work::None),
        }
    }

    /// Opens the gate or creates the child run that is the step's work.
    pub(crate) fn start_outside(&mut self, step: &StepRow) -> Result<()> {
        if let Some(child) = self.kept_child(step)? {
            let pin = self.row()?.pin;
            return match ops::resume_child(self.session, child, pin) {
                Err(Error::Refused { why, .. } | Error::Invalid { why, .. }) => {
                    self.fail_to_start(step, &why)
                }
                done => {
                    self.bound_child(step);
                    done.map(drop)
                }
            };
        }
        let prepared = match self.ask(step, Question::Prepare)? {
            Ok(Answer::Prepared(prepared)) => Ok(prepared),
            Ok(_) => Err(SpecError::new("this is no work that waits outside")),
            Err(why) => Err(why),
        };
        match prepared {
            Err(why) => self.fail_to_start(step, &why.to_string()),
            Ok(Prepared::Gate { ask, choices, default, fields, routes, answerers, timeout_ms }) => {
                let mut question = json!({ "ask": ask, "choices": choices });
                if let Some(default) = default {
                    question["default"] = default.into();
                }
                for (key, value) in [("fields", fields), ("routes", routes)] {
                    if !value.is_null() {
                        question[key] = value;
                    }
                }
                let rule = serde_json::to_value(&answerers).unwrap_or_default();
                for (key, value) in rule.as_object().into_iter().flatten() {
                    question[key] = value.clone();
                }
                let question = question.to_string();
                self.open_gate(step, GateKind::Question, &question, timeout_ms.map(|ms| ms as i64), 0)
            }
            Ok(Prepared::Pause { ms }) => self.open_gate(step, GateKind::Time, "", Some(ms as i64), 0),
            Ok(Prepared::Until { wall_ms }) => {
                let left_ms = (wall_ms - self.session.now().wall_ms).max(0);
                self.open_gate(step, GateKind::Time, "", Some(left_ms), wall_ms)
            }
            Ok(Prepared::Signal { name, timeout_ms }) => {
                self.open_gate(step, GateKind::Signal, &name, timeout_ms.map(|ms| ms as i64), 0)
            }
            Ok(Prepared::Child { plan, inputs }) => self.start_child(step, plan, inputs),
            Ok(Prepared::End { completed: false, message }) => {
                self.fail_to_start(step, message.as_deref().unwrap_or("the run ends here as failed"))
            }
            Ok(Prepared::End { completed: true, message }) => {
                // A signal that has arrived already: the message is its payload.
                let payload = json!({ "message": message }).to_string();
                self.open_gate(step, GateKind::Signal, "", None, 0)?;
                match self.step_row(step.no)?.work {
                    Some(gate) => ops::note_answer(self.session, gate, &payload.into()).map(drop),
                    None => Ok(()),
                }
            }
        }
    }

    /// Withdraws the question, or cancels the child run.
    pub(crate) fn end_outside(&mut self, step: &StepRow) -> Result<()> {
        let Some(work) = step.work else { return Ok(()) };
        self.session.clear_timer(self.attempt(step));
        match self.kind(step) {
            WorkKind::Child => ops::cancel_run(self.session, RunId::from_i64(work)).map(drop),
            _ => {
                let given = GateReport { now_ms: self.session.now().steady_ms };
                let event = GateEvent::Cancelled;
                self.session.apply::<GateRow>(work, event, Actor::Advance, &given, |_, _| {}).map(drop)
            }
        }
    }

    /// Returns the child run of the attempt before a resume, which continues from where it stopped.
    fn kept_child(&mut self, step: &StepRow) -> Result<Option<RunId>> {
        let Some(work) = step.work.filter(|_| self.kind(step) == WorkKind::Child) else {
            return Ok(None);
        };
        let child = self.session.get::<RunRow>(RunId::from_i64(work))?;
        Ok(child.filter(|child| child.status().is_terminal()).map(|child| child.id))
    }

    fn kind(&self, step: &StepRow) -> WorkKind {
        self.plan().step(step.node()).work
    }

    fn attempt(&self, step: &StepRow) -> ExecutionId {
        ExecutionId { run: self.id, step: step.no, attempt: step.attempt }
    }

    fn open_gate(
        &mut self,
        step: &StepRow,
        kind: GateKind,
        question: &str,
        timeout_ms: Option<i64>,
        until_ms: i64,
    ) -> Result<()> {
        let id = (self.session.random() >> 2) as Id + 1;
        let now = self.session.now();
        let timeout_at_ms = timeout_ms.map_or(0, |ms| now.steady_ms.saturating_add(ms).max(1));
        self.session.create(
            GateRow {
                id,
                status: GateStatus::Open,
                version: 1,
                run: self.id,
                step: step.no,
                attempt: step.attempt,
                kind,
                question: question.into(),
                until_ms,
                opened_ms: now.wall_ms,
                answer: None,
                timeout_at_ms,
            },
            "gate.opened",
            Actor::Advance,
        );
        self.session.note::<StepRow>((self.id, step.no), |row| row.work = Some(id))?;
        if kind == GateKind::Signal
            && let Some(payload) = self.session.db().take_signal(self.id, question)?
        {
            return ops::note_answer(self.session, id, &payload).map(drop);
        }
        if timeout_at_ms > 0 {
            self.session.set_timer(TimerRow { due_ms: timeout_at_ms, execution: self.attempt(step) });
        }
        Ok(())
    }

    /// Returns the context of a child run. It works in its parent's environment and with its services, unless it has its
    /// own.
    fn child_context(&self, parent: &RunRow) -> Arc<str> {
        let plan = self.plan();
        if plan.environment.is_none() && plan.services().is_empty() {
            return Arc::clone(&parent.context);
        }
        let mut context: serde_json::Value =
            serde_json::from_str(&parent.context).unwrap_or_else(|_| json!({}));
        if plan.environment.is_some() {
            context["environment_of"] = parent.id.to_string().into();
        }
        if !plan.services().is_empty() {
            context[ops::SERVICES_OF] = parent.id.to_string().into();
        }
        context.to_string().into()
    }

    /// Sets the timer that cancels a child run which takes too long.
    fn bound_child(&mut self, step: &StepRow) {
        if let Some(timeout_ms) = self.plan().step(step.node()).policy.timeout_ms {
            let due_ms = self.session.now().steady_ms.saturating_add(timeout_ms as i64);
            self.session.set_timer(TimerRow { due_ms, execution: self.attempt(step) });
        }
    }

    /// Draws an id that no run has. Many children of a fan-out are created in one millisecond, for which there are
    /// few ids.
    fn draw_child_id(&mut self) -> Result<RunId> {
        /// The most draws. Even with nine in ten ids taken, so many draws fail less than once in a thousand times.
        const DRAWS: u32 = 64;
        let wall_ms = self.session.now().wall_ms;
        for _ in 0..DRAWS {
            let id = RunId::new(wall_ms, self.session.random());
            if self.session.get::<RunRow>(id)?.is_none() {
                return Ok(id);
            }
        }
        Err(Error::Conflict { entity: "run", id: "of this millisecond".into() })
    }

    fn start_child(&mut self, step: &StepRow, plan: Arc<Plan>, inputs: Arc<str>) -> Result<()> {
        let parent = self.row()?;
        let own_plan = self.plan();
        let planned = own_plan.step(step.node());
        let child = NewRun {
            id: self.draw_child_id()?,
            plan,
            pin: parent.pin,
            worker: None,
            priority: parent.priority.saturating_add(planned.priority),
            idempotency_key: None,
            inputs,
            context: self.child_context(&parent),
            parent: Some((self.id, step.no)),
            open: false,
        };
        let hash = ops::plan_hash(&child.plan);
        match ops::create_run(self.session, &child, hash) {
            Ok(ops::Created::New(run)) => {
                self.session.note::<StepRow>((self.id, step.no), |row| row.work = Some(run.to_i64()))?;
                self.bound_child(step);
                Ok(())
            }
            Ok(_) => Err(Error::Conflict { entity: "run", id: child.id.to_string() }),
            // Only a refusal or a mistake in the pipeline is a failure of the step; a bug undoes the whole operation.
            Err(Error::Refused { why, .. } | Error::Invalid { why, .. }) => self.fail_to_start(step, &why),
            Err(error) => Err(error),
        }
    }
}

/// Returns the state of a step's work from its gate.
fn work_of_gate(row: &GateRow) -> Work {
    match (row.status(), row.kind) {
        (GateStatus::Open, _) => Work::Open,
        (GateStatus::Cancelled, _) => Work::Ended(WorkEnd::Cancelled),
        (GateStatus::Expired, GateKind::Time) | (GateStatus::Answered, GateKind::Signal | GateKind::Time) => {
            Work::Ended(WorkEnd::Succeeded)
        }
        (GateStatus::Answered | GateStatus::Expired, GateKind::Question) if row.is_approved() => {
            Work::Ended(WorkEnd::Succeeded)
        }
        (GateStatus::Answered | GateStatus::Expired, _) => Work::Ended(WorkEnd::Failed { retriable: false }),
    }
}

/// Returns the state of a step's work from its child run.
fn work_of_child(row: &RunRow) -> Work {
    match row.status() {
        RunStatus::Queued | RunStatus::Running | RunStatus::Failing => Work::Live { ending: false },
        RunStatus::Cancelling => Work::Live { ending: true },
        RunStatus::Completed => Work::Ended(WorkEnd::Succeeded),
        RunStatus::Failed => Work::Ended(WorkEnd::Failed { retriable: true }),
        RunStatus::Cancelled if row.reason.as_deref() == Some(TIMED_OUT) => {
            Work::Ended(WorkEnd::Failed { retriable: true })
        }
        RunStatus::Cancelled => Work::Ended(WorkEnd::Cancelled),
    }
}
