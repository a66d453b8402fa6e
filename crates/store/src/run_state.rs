//! A run's rows as the walk sees them: reads go through the session, decisions through the writer.

mod walked;

use std::sync::Arc;

use sprag_lifecycle::{
    Actor, Condition, ExecutionEvent, ExecutionId, ExecutionStatus, Items, OnFail, Plan, PlanStep, RunEvent,
    RunId, RunStatus, StepFacts, StepMove, StepNo, StepStatus, Work, WorkEnd, WorkKind, mutant,
};

use crate::error::{Error, Result};
use crate::names;
use crate::outcome::Outcome;
use crate::rows::{ExecutionGiven, ExecutionRow, ItemList, Row, RunGiven, RunRow, StepRow, TimerRow};
use crate::session::Session;

/// Steps of the queue that every worker serves unless told otherwise; a run's pin applies to it alone.
pub const DEFAULT_QUEUE: &str = "default";

/// The run that an operation decides about. Holding it is holding the run's row.
pub(crate) struct HeldRun<'s, 'a> {
    pub(crate) session: &'s mut Session<'a>,
    pub(crate) id: RunId,
    plan: Arc<Plan>,
    /// The run's epoch was raised in this operation.
    pub(crate) epoch_raised: bool,
}

impl<'s, 'a> HeldRun<'s, 'a> {
    /// Takes the run's row; none if there is no such run.
    pub(crate) fn take(session: &'s mut Session<'a>, id: RunId) -> Result<Option<Self>> {
        let Some(run) = session.get::<RunRow>(id)? else { return Ok(None) };
        session.db().hold(id)?;
        let plan = session.plan(id, run.plan)?;
        Ok(Some(HeldRun { session, id, plan, epoch_raised: false }))
    }

    pub(crate) fn row(&mut self) -> Result<RunRow> {
        self.session.get::<RunRow>(self.id)?.ok_or_else(|| Error::NoSuchRun(self.id.to_string()))
    }

    pub(crate) fn step_row(&mut self, no: StepNo) -> Result<StepRow> {
        self.session.get::<StepRow>((self.id, no))?.ok_or_else(|| {
            Error::Refused(format!("run {} has no step number {no}: the database is incomplete", self.id))
        })
    }

    /// The present attempt's execution.
    fn execution(&mut self, step: &StepRow) -> Result<Option<ExecutionRow>> {
        let id = ExecutionId { run: self.id, step: step.no, attempt: step.attempt };
        self.session.get::<ExecutionRow>(id)
    }

    fn given(&mut self, execution: &ExecutionRow) -> Result<ExecutionGiven> {
        let run = self.row()?;
        let node = self.step_row(execution.id.step)?.node();
        let always = self.plan.step(node).policy.always;
        Ok(ExecutionGiven {
            fence: execution.fence,
            run_epoch: run.epoch,
            run_live: run.status().starts(always),
            owner_dead: false,
            now_ms: self.session.now().steady_ms,
        })
    }

    pub(crate) fn executor_event(&mut self, id: ExecutionId, event: ExecutionEvent) -> Result<bool> {
        let Some(row) = self.session.get::<ExecutionRow>(id)? else { return Ok(false) };
        let given = self.given(&row)?;
        let node = self.step_row(id.step)?.node();
        let patient = self.plan.step(node).work == WorkKind::Task;
        let outcome =
            self.session.apply::<ExecutionRow>(id, event, Actor::Executor, &given, |row, now| {
                if event.raises_fence()
                    && !(mutant!(FenceStaysWhenRevoked) && event == ExecutionEvent::HandoffRevoked)
                {
                    row.fence += 1;
                }
                match event {
                    // Its place in line is that of the first time; how long it lies there counts anew. What
                    // agents and people claim lies there for as long as it takes.
                    ExecutionEvent::HandoffPublished => {
                        let since_ms = now.steady_ms.max(1);
                        row.lease_until_ms = if patient { i64::MAX } else { since_ms };
                        if row.published_ms == 0 {
                            row.published_ms = since_ms;
                        }
                    }
                    ExecutionEvent::HandoffRevoked => row.lease_until_ms = 0,
                    ExecutionEvent::Cancelled | ExecutionEvent::SchedulingFailed => {
                        row.ended_ms = Some(now.wall_ms)
                    }
                    _ => {}
                }
            })?;
        Ok(outcome.is_applied())
    }

    /// Hands a requested execution over, if its time has come and its queue has a place.
    pub(crate) fn schedule(&mut self, id: ExecutionId) -> Result<bool> {
        let Some(row) = self.session.get::<ExecutionRow>(id)? else { return Ok(false) };
        let now_ms = self.session.now().steady_ms;
        if row.status() != ExecutionStatus::Requested || row.cancel_requested {
            return Ok(false);
        }
        if row.not_before_ms > now_ms {
            if !mutant!(TimerForgotten) {
                self.session.set_timer(TimerRow { due_ms: row.not_before_ms, execution: id });
            }
            return Ok(false);
        }
        // Asked first: a full queue is no reason to write anything.
        if !self.has_place(&row.queue)? {
            return Ok(false);
        }
        Ok(self.executor_event(id, ExecutionEvent::SchedulingStarted)?
            && self.executor_event(id, ExecutionEvent::HandoffPublished)?)
    }

    /// Gives up on an execution that nobody can be found for.
    pub(crate) fn fail_unserved(&mut self, id: ExecutionId) -> Result<bool> {
        let reason = r#"{"reason":"unserved","message":"no worker serves its queue"}"#;
        self.session.note::<ExecutionRow>(id, |row| row.result = Some(reason.into()))?;
        self.executor_event(id, ExecutionEvent::SchedulingFailed)
    }

    /// Takes an execution back from the queue; says whether no worker had been faster.
    pub(crate) fn revoke(&mut self, id: ExecutionId) -> Result<bool> {
        self.executor_event(id, ExecutionEvent::HandoffRevoked)
    }

    fn has_place(&mut self, queue: &Arc<str>) -> Result<bool> {
        let Some(settings) = self.session.db().queue(queue)? else { return Ok(true) };
        let Some(limit) = settings.limit else { return Ok(!settings.held) };
        // What this very operation has handed over or ended is not in the database yet.
        let mut out = i64::from(self.session.db().in_flight(queue)?);
        for (row, was) in self.session.seen_and_was::<ExecutionRow>().filter(|(row, _)| row.queue == *queue) {
            out += i64::from(is_out(row.status())) - i64::from(was.is_some_and(is_out));
        }
        Ok(!settings.held && (out < i64::from(limit) || mutant!(QueueLimitIgnored)))
    }

    /// What the step's table looks at.
    fn step_facts(&mut self, no: StepNo, step: &StepRow, to: StepMove) -> Result<StepFacts> {
        let run = self.row()?;
        let plan = Arc::clone(&self.plan);
        let policy = &plan.step(step.node()).policy;
        let work_ended = match step.status() {
            StepStatus::Pending | StepStatus::Running => match step.items {
                Some(list) => list.items.settled == list.items.created,
                None => matches!(self.work(step)?, Work::None | Work::Ended(_)),
            },
            _ => true,
        };
        let rounds_left = match to {
            StepMove::Reworked { by } => match plan.step(by).policy.on_fail {
                OnFail::Rework { max, .. } => by == no || self.step_row(by)?.reworks <= max,
                OnFail::Fail | OnFail::Continue => false,
            },
            _ => true,
        };
        Ok(StepFacts {
            needs_met: step.needs.open <= u32::from(mutant!(NeedsOffByOne))
                && (policy.always || step.needs.broken == 0),
            run_live: run.status().starts(policy.always),
            run_running: run.status() == RunStatus::Running,
            attempt_matches: true,
            attempts_left: match to {
                StepMove::Retried { lost: true } => step.losses + 1 < policy.losses,
                StepMove::Retried { lost: false } => {
                    step.tries + 1 < policy.attempts || mutant!(TriesUnbounded)
                }
                _ => true,
            },
            not_wanted: step.needs.broken > 0 || matches!(to, StepMove::Skipped { by_when: true }),
            work_ended,
            rounds_left,
            epoch_raised: self.epoch_raised,
        })
    }
}

impl HeldRun<'_, '_> {
    /// The state of the work of a step that is at it.
    fn work(&mut self, step: &StepRow) -> Result<Work> {
        if let Some(list) = step.items {
            let items = list.items;
            return Ok(match items.are_over(true) {
                true => Work::Ended(items.end()),
                false => Work::Live { ending: items.ending },
            });
        }
        if let Some(execution) = self.execution(step)? {
            return Ok(work_of(&execution));
        }
        self.outside_work(step)
    }

    /// Asks the language about a step, with everything that its texts can name.
    pub(crate) fn ask<T>(
        &mut self,
        step: &StepRow,
        question: impl FnOnce(
            &dyn crate::language::Language,
            &PlanStep,
            &serde_json::Value,
        ) -> std::result::Result<T, String>,
    ) -> Result<std::result::Result<T, String>> {
        let run = self.row()?;
        let plan = Arc::clone(&self.plan);
        let names = names::names(self.session, &plan, &run, step)?;
        let language = self.session.language();
        Ok(question(&*language, plan.step(step.node()), &names))
    }

    /// Whether the step itself is asked about: a fan-out's condition is its own, or that of its items.
    fn has_condition(&self, step: &StepRow) -> bool {
        match self.plan.step(step.node()).condition {
            Condition::None => false,
            Condition::Step => step.item_of.is_none(),
            Condition::Item => step.item_of.is_some(),
        }
    }

    /// Makes the list of a fan-out, unless one was kept.
    fn list_items(&mut self, step: &StepRow) -> Result<()> {
        if step.items.is_some() {
            return Ok(());
        }
        let grows = self.plan.step(step.node()).spread.is_some_and(|spread| spread.open);
        let values = match grows {
            true => Ok(Vec::new()),
            false => self.ask(step, |language, planned, names| language.items(planned, names))?,
        };
        let values = match values {
            Ok(values) => values,
            Err(why) => return self.fail_to_start(step, &why),
        };
        let texts: Vec<Arc<str>> = values.iter().map(|value| value.to_string().into()).collect();
        let made_by = ExecutionId { run: self.id, step: step.no, attempt: step.attempt };
        self.session.db().put_items(made_by, 0, &texts)?;
        let first = self.row()?.steps;
        let items = Items { total: texts.len() as u32, ..Items::default() };
        self.session.note::<StepRow>((self.id, step.no), |row| {
            row.items = Some(ItemList { made_by: step.attempt, first, items });
        })
    }

    /// A step whose texts cannot be filled in: its work is an execution that no worker ever sees.
    pub(crate) fn fail_to_start(&mut self, step: &StepRow, why: &str) -> Result<()> {
        let id = self.create_execution(step)?;
        let result = serde_json::json!({ "reason": "template", "message": why }).to_string();
        self.session.note::<ExecutionRow>(id, |row| row.result = Some(result.into()))?;
        self.executor_event(id, ExecutionEvent::SchedulingFailed).map(drop)
    }

    /// Makes the execution of the step's present attempt.
    fn create_execution(&mut self, step: &StepRow) -> Result<ExecutionId> {
        let run = self.row()?;
        let plan = Arc::clone(&self.plan);
        let planned = plan.step(step.node());
        let now = self.session.now();
        // A lost worker is replaced at once; a failure waits for its backoff.
        let waits = step.tries > 0 && step.losses == 0 && planned.policy.backoff.delay_ms > 0;
        let wait_ms = if waits && !mutant!(BackoffForgotten) {
            let chance = self.session.random();
            planned.policy.backoff.wait_ms(step.tries, chance) as i64
        } else {
            0
        };
        let id = ExecutionId { run: self.id, step: step.no, attempt: step.attempt };
        let terms = crate::names::terms(self.session, planned, step)?;
        let row = ExecutionRow {
            id,
            status: ExecutionStatus::Requested,
            version: 1,
            fence: 0,
            epoch: run.epoch,
            pin: if &*terms.queue == DEFAULT_QUEUE { run.pin } else { None },
            queue: terms.queue,
            priority: terms.priority.saturating_add(run.priority),
            cancel_requested: false,
            not_before_ms: if wait_ms > 0 { now.steady_ms + wait_ms } else { 0 },
            published_ms: 0,
            owner: None,
            lease_until_ms: 0,
            nonce: 0,
            retriable: true,
            result: None,
            created_ms: now.wall_ms,
            started_ms: None,
            ended_ms: None,
        };
        self.session.create(row, "execution.requested", Actor::Executor);
        Ok(id)
    }
}

fn is_out(status: ExecutionStatus) -> bool {
    matches!(status, ExecutionStatus::Scheduled | ExecutionStatus::Running)
}

/// What an execution means for its step.
fn work_of(row: &ExecutionRow) -> Work {
    match row.status() {
        ExecutionStatus::Requested | ExecutionStatus::Scheduling | ExecutionStatus::Scheduled => {
            Work::Unreceived
        }
        ExecutionStatus::Running => Work::Live { ending: row.cancel_requested },
        ExecutionStatus::Completed => Work::Ended(WorkEnd::Succeeded),
        ExecutionStatus::Failed if row.owner.is_none() => Work::Ended(WorkEnd::Unschedulable),
        ExecutionStatus::Failed | ExecutionStatus::TimedOut => {
            // Nobody wants another try of what somebody wanted to end.
            Work::Ended(WorkEnd::Failed { retriable: row.retriable && !row.cancel_requested })
        }
        ExecutionStatus::Cancelled => Work::Ended(WorkEnd::Cancelled),
        // Somebody wanted it to end, and it has.
        ExecutionStatus::Abandoned if row.cancel_requested => Work::Ended(WorkEnd::Cancelled),
        ExecutionStatus::Abandoned => Work::Ended(WorkEnd::Lost),
    }
}

/// Reports an event on a run, with what every such event brings with it.
pub(crate) fn report_run(
    session: &mut Session<'_>,
    run: &RunRow,
    event: RunEvent,
    actor: Actor,
) -> Result<Outcome<sprag_lifecycle::Run>> {
    let given = RunGiven { epoch: run.epoch, queue_wait_over: event == RunEvent::QueueExpired };
    let outcome = session.apply::<RunRow>(run.id, event, actor, &given, |row, now| match event {
        RunEvent::Started => row.started_ms = Some(now.wall_ms),
        RunEvent::Resumed | RunEvent::Rewound => {
            // One that was cancelled before it had its place starts only now.
            row.started_ms.get_or_insert(now.wall_ms);
            row.epoch += u32::from(!mutant!(EpochStays));
            row.ended_ms = None;
            row.reworking = None;
        }
        _ => {}
    })?;
    if let Outcome::Applied { to, .. } = outcome
        && to.is_terminal()
    {
        let ended = session.now().wall_ms;
        session.note::<RunRow>(run.id, |row| {
            row.ended_ms = Some(ended);
            row.reworking = None;
        })?;
        if let Some(group) = &run.group {
            if !mutant!(PlaceKept) {
                session.set_place(group, run.id, false);
            }
            for next in session.db().queued(group, 1)? {
                session.nudge(next);
            }
        }
        session.after_commit("run.ended", run.id, &serde_json::json!({}));
        if let Some((parent, step)) = run.parent.filter(|_| !mutant!(ChildEndNotTold)) {
            session.after_commit("child.ended", parent, &serde_json::json!({ "step": step }));
        }
    }
    Ok(outcome)
}

/// The walk derives its decisions from the very rows that the tables check: a refusal is a bug in one
/// of the two, and nothing of the operation may then be written.
fn decided(applied: bool, what: impl FnOnce() -> String) -> Result<()> {
    if applied {
        Ok(())
    } else {
        Err(Error::Refused(format!("the walk and the tables disagree on {}", what())))
    }
}
