//! A run's rows as the walk sees them: it reads through the session, and the writer applies its decisions.

mod places;
mod walked;

use std::sync::Arc;

use sprag_lifecycle::{
    Actor, Condition, ExecutionEvent, ExecutionId, ExecutionStatus, GateStatus, Items, OnFail, Plan, Quorum,
    RunEvent, RunId, RunStatus, SERVICE_PRIORITY, StepFacts, StepMove, StepNo, StepStatus, Work, WorkEnd,
    WorkKind, mutant, quorum,
};

use crate::answers::{Answer, OpenQuestion, Question, READ_AT_ONCE_BYTES};
use crate::error::{Error, Result};
use crate::evaluator::SpecError;
use crate::gathered::NoRoom;
use crate::names;
use crate::ops::{self, account_of};
use crate::outcome::Outcome;
use crate::rows::{
    ExecutionReport, ExecutionRow, GateRow, Id, ItemList, Row, RunReport, RunRow, StepRow, TimerRow,
};
use crate::session::Session;
use crate::wake::Topic;

/// The queue that every worker serves unless told otherwise.
pub const DEFAULT_QUEUE: &str = "default";

/// The run that an operation decides about. Holding it means holding the run's row.
pub(crate) struct HeldRun<'s, 'a> {
    pub(crate) session: &'s mut Session<'a>,
    pub(crate) id: RunId,
    plan: Arc<Plan>,
    /// Whether this operation has raised the run's epoch.
    pub(crate) epoch_raised: bool,
    /// Whether this operation hands over executions of held accounts: a deliberate fault.
    pub(crate) ignores_holds: bool,
}

impl<'s, 'a> HeldRun<'s, 'a> {
    /// Takes the run's row; `None` if there is no such run.
    pub(crate) fn take(session: &'s mut Session<'a>, id: RunId) -> Result<Option<Self>> {
        let Some(run) = session.get::<RunRow>(id)? else { return Ok(None) };
        session.db().hold(id)?;
        let plan = session.plan(id, run.plan)?;
        Ok(Some(HeldRun { session, id, plan, epoch_raised: false, ignores_holds: false }))
    }

    pub(crate) fn row(&mut self) -> Result<RunRow> {
        self.session.get::<RunRow>(self.id)?.ok_or_else(|| Error::NoSuchRun(self.id.to_string()))
    }

    pub(crate) fn step_row(&mut self, no: StepNo) -> Result<StepRow> {
        self.session.get::<StepRow>((self.id, no))?.ok_or_else(|| {
            Error::bug(format!("run {} has no step number {no}: the database is incomplete", self.id))
        })
    }

    /// Returns the present attempt's execution.
    fn execution(&mut self, step: &StepRow) -> Result<Option<ExecutionRow>> {
        let id = ExecutionId { run: self.id, step: step.no, attempt: step.attempt };
        self.session.get::<ExecutionRow>(id)
    }

    fn given(&mut self, execution: &ExecutionRow) -> Result<ExecutionReport> {
        let run = self.row()?;
        let node = self.step_row(execution.id.step)?.node();
        let always = self.plan.step(node).policy.always;
        Ok(ExecutionReport {
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
                    // Its order in the queue is that of the first publication; its time in the queue starts again.
                    // Executions for agents and people may wait without limit.
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

    /// Publishes a requested execution, if it is due and its queue has a free place.
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
        if self.waits_for_permission(id)? {
            return Ok(false);
        }
        // Checked first, so that nothing is written if the queue is full.
        let has_place = if row.priority == SERVICE_PRIORITY {
            // A service that took a place of its queue could keep the steps that use it from starting.
            self.session.db().queue(&row.queue)?.is_none_or(|settings| !settings.held)
        } else {
            has_queue_place(self.session, &row.queue)?
        };
        if !has_place || !self.takes_account(&row)? {
            return Ok(false);
        }
        Ok(self.executor_event(id, ExecutionEvent::SchedulingStarted)?
            && self.executor_event(id, ExecutionEvent::HandoffPublished)?)
    }

    /// Whether the agent of an execution waits for a person's answer, so that the execution stays parked. Without an
    /// answer in time, the execution fails.
    fn waits_for_permission(&mut self, id: ExecutionId) -> Result<bool> {
        let step = self.step_row(id.step)?;
        let planned = self.plan.step(step.node());
        let Some(gate) = step.work.filter(|_| planned.work == WorkKind::Execution) else { return Ok(false) };
        let gate = self.session.get::<GateRow>(gate)?.filter(|gate| gate.status() == GateStatus::Open);
        let Some(gate) = gate.filter(|_| !mutant!(ParkedIsHandedOver)) else { return Ok(false) };
        if ops::expire_if_due(self.session, &gate)? {
            let message = "there was no answer to the agent's question in time";
            let result = serde_json::json!({ "reason": "permission", "message": message }).to_string();
            self.session.note::<ExecutionRow>(id, |row| {
                row.result = Some(result.into());
                row.retriable = false;
                row.blocked = true;
            })?;
            self.executor_event(id, ExecutionEvent::SchedulingFailed)?;
        } else if gate.timeout_at_ms > 0 {
            self.session.set_timer(TimerRow { due_ms: gate.timeout_at_ms, execution: id });
        }
        Ok(true)
    }

    /// Gives up on an execution for which there is no worker.
    pub(crate) fn fail_unserved(&mut self, id: ExecutionId) -> Result<bool> {
        let reason = r#"{"reason":"unserved","message":"no worker serves its queue"}"#;
        self.session.note::<ExecutionRow>(id, |row| row.result = Some(reason.into()))?;
        self.executor_event(id, ExecutionEvent::SchedulingFailed)
    }

    /// Revokes an execution from the queue. Returns whether no worker was faster.
    pub(crate) fn revoke(&mut self, id: ExecutionId) -> Result<bool> {
        self.executor_event(id, ExecutionEvent::HandoffRevoked)
    }

    /// Returns the facts that the step's table tests.
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
        let joined = self.joined(step)?;
        let needs_met = match joined {
            Some(Quorum::Reached) => true,
            Some(_) => policy.always && step.needs.open == 0,
            None => {
                step.needs.open <= u32::from(mutant!(NeedsOffByOne))
                    && (policy.always || step.needs.broken == 0)
            }
        };
        let broken = joined.map_or(step.needs.broken > 0, |joined| joined == Quorum::Missed);
        Ok(StepFacts {
            needs_met,
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
            not_wanted: broken || matches!(to, StepMove::Skipped { by_when: true }),
            work_ended,
            rounds_left,
            epoch_raised: self.epoch_raised,
        })
    }
}

impl HeldRun<'_, '_> {
    /// Returns whether enough needs of a step are done, if it needs only some of them.
    fn joined(&mut self, step: &StepRow) -> Result<Option<Quorum>> {
        let plan = Arc::clone(&self.plan);
        let planned = plan.step(step.node());
        let Some(wanted) = planned.quorum.filter(|_| step.item_of.is_none()) else { return Ok(None) };
        let mut needs = Vec::with_capacity(planned.needs.len());
        for need in &planned.needs {
            let need = self.step_row(*need)?;
            needs.push((need.status(), need.rework_pending));
        }
        Ok(Some(quorum(wanted, needs)))
    }

    /// Returns the state of a started step's work.
    fn work(&mut self, step: &StepRow) -> Result<Work> {
        if let Some(list) = step.items {
            let items = list.items;
            return Ok(if items.are_finished(true) {
                Work::Ended(items.end())
            } else {
                Work::Live { ending: items.ending }
            });
        }
        if let Some(execution) = self.execution(step)? {
            return Ok(work_of(&execution));
        }
        self.outside_work(step)
    }

    /// Asks the evaluator about a step. A question that is much work ends the operation with [`Error::Unanswered`];
    /// another thread answers it before the operation runs again.
    pub(crate) fn ask(
        &mut self,
        step: &StepRow,
        question: Question,
    ) -> Result<std::result::Result<Answer, SpecError>> {
        let run = self.row()?;
        let plan = Arc::clone(&self.plan);
        let names = match names::names(self.session, &plan, &run, step)? {
            Ok(names) => names,
            Err(_) => return Ok(Err(SpecError::new(NoRoom::TOLD))),
        };
        let evaluator = self.session.evaluator();
        let planned = plan.step(step.node());
        if names.bytes + planned.spec.len() <= READ_AT_ONCE_BYTES
            && let Some(answer) = evaluator.answer_at_once(question, planned, &names.value())
        {
            return Ok(answer);
        }
        let (row, node) = ((step.run, step.no), step.node());
        self.session.answer(OpenQuestion { question, row, plan, node, names, evaluator })
    }

    /// Whether the step's `when` condition holds.
    fn condition_holds(&mut self, step: &StepRow) -> Result<std::result::Result<bool, SpecError>> {
        Ok(self.ask(step, Question::Condition)?.map(|answer| matches!(answer, Answer::Condition(true))))
    }

    /// Whether the step's `repeat` asks for another round after the present attempt.
    fn wants_round(&mut self, step: &StepRow) -> Result<std::result::Result<bool, SpecError>> {
        // The round has ended: the condition reads its outputs.
        let ended = StepRow { last_round: Some(self.round_work(step)), ..step.clone() };
        Ok(self.ask(&ended, Question::Repeat)?.map(|answer| matches!(answer, Answer::Condition(true))))
    }

    /// Returns what a step notes of a round that has ended: its child run, or its attempt.
    fn round_work(&self, step: &StepRow) -> Id {
        match self.plan.step(step.node()).work {
            WorkKind::Child => step.work.unwrap_or_default(),
            _ => Id::from(step.attempt),
        }
    }

    /// Whether this step has its own condition: a fan-out's condition applies to itself, or to each of its items.
    fn has_condition(&self, step: &StepRow) -> bool {
        match self.plan.step(step.node()).condition {
            Condition::None => false,
            Condition::Step => step.item_of.is_none(),
            Condition::Item => step.item_of.is_some(),
        }
    }

    /// Creates the list of a fan-out, unless one was kept.
    fn list_items(&mut self, step: &StepRow) -> Result<()> {
        if step.items.is_some() {
            return Ok(());
        }
        let grows = self.plan.step(step.node()).spread.is_some_and(|spread| spread.open);
        let values = if grows {
            Ok(Vec::new())
        } else {
            self.ask(step, Question::Items)?.map(|answer| match answer {
                Answer::Items(values) => values,
                Answer::Condition(_) | Answer::Prepared(_) => Vec::new(),
            })
        };
        let values = match values {
            Ok(values) => values,
            Err(why) => return self.fail_to_start(step, &why.to_string()),
        };
        let texts: Vec<Arc<str>> = values.iter().map(|value| value.to_string().into()).collect();
        let made_by = ExecutionId { run: self.id, step: step.no, attempt: step.attempt };
        self.session.db().put_items(made_by, 0, &texts)?;
        let first = self.row()?.steps;
        // A fan-out that starts for the first time has had no items.
        let first_attempt = if step.attempt > 1 && !mutant!(ItemAttemptsReset) {
            self.session.last_item_attempt(self.id, step.no)? + 1
        } else {
            1
        };
        let items = Items { total: texts.len() as u32, ..Items::default() };
        self.session.note::<StepRow>((self.id, step.no), |row| {
            row.items = Some(ItemList { made_by: step.attempt, first, first_attempt, items });
        })
    }

    /// Returns the first attempt of a step.
    fn first_attempt(&mut self, step: &StepRow) -> Result<u32> {
        let Some(parent) = step.item_of else { return Ok(1) };
        Ok(self.step_row(parent)?.items.map_or(1, |list| list.first_attempt))
    }

    /// Fails a step whose texts cannot be filled in: its work is an execution that no worker ever sees.
    pub(crate) fn fail_to_start(&mut self, step: &StepRow, why: &str) -> Result<()> {
        let id = self.create_execution(step)?;
        let result = serde_json::json!({ "reason": "template", "message": why }).to_string();
        self.session.note::<ExecutionRow>(id, |row| row.result = Some(result.into()))?;
        self.executor_event(id, ExecutionEvent::SchedulingFailed).map(drop)
    }

    /// Creates the execution of the step's present attempt.
    fn create_execution(&mut self, step: &StepRow) -> Result<ExecutionId> {
        let run = self.row()?;
        let plan = Arc::clone(&self.plan);
        let planned = plan.step(step.node());
        let now = self.session.now();
        // A lost worker is replaced immediately; a failure waits for its backoff, and a round for the delay between
        // rounds.
        let waits = step.tries > 0 && step.losses == 0 && planned.policy.backoff.delay_ms > 0;
        let delay_ms = planned.repeat.map_or(0, |repeat| repeat.delay_ms);
        let wait_ms = if waits && !mutant!(BackoffForgotten) {
            let chance = self.session.random();
            planned.policy.backoff.wait_ms(step.tries, chance) as i64
        } else if step.repeats > 0 && step.tries == 0 && step.losses == 0 {
            delay_ms as i64
        } else {
            0
        };
        let id = ExecutionId { run: self.id, step: step.no, attempt: step.attempt };
        let terms = crate::names::terms(self.session, planned, step)?;
        let account = match &planned.account {
            Some(account) => Some(account_of(self.session, &account.name, account.max_parallel)?.id),
            None => None,
        };
        let row = ExecutionRow {
            id,
            status: ExecutionStatus::Requested,
            version: 1,
            fence: 0,
            epoch: run.epoch,
            pin: run.pin.filter(|_| planned.is_for_workers()),
            queue: terms.queue,
            priority: if planned.service {
                SERVICE_PRIORITY
            } else {
                terms.priority.saturating_add(run.priority).min(SERVICE_PRIORITY - 1)
            },
            thread: None,
            account,
            account_generation: 0,
            limited_since_ms: 0,
            limited_ms: 0,
            cancel_requested: false,
            not_before_ms: if wait_ms > 0 { now.steady_ms + wait_ms } else { 0 },
            published_ms: 0,
            owner: None,
            lease_until_ms: 0,
            nonce: 0,
            retriable: true,
            blocked: false,
            result: None,
            created_ms: now.wall_ms,
            started_ms: None,
            ended_ms: None,
        };
        self.session.create(row, "execution.requested", Actor::Executor);
        Ok(id)
    }
}

/// Whether a queue has a place for one more execution, with the changes of this operation.
pub(crate) fn has_queue_place(session: &mut Session<'_>, queue: &str) -> Result<bool> {
    let Some(settings) = session.db().queue(queue)? else { return Ok(true) };
    let Some(limit) = settings.limit else { return Ok(!settings.held) };
    // The database does not contain yet what this operation has published or ended.
    let mut out = i64::from(session.db().in_flight(queue)?);
    let counts = |row: &ExecutionRow| &*row.queue == queue && row.priority != SERVICE_PRIORITY;
    for (row, was) in session.seen_and_was::<ExecutionRow>().filter(|(row, _)| counts(row)) {
        out += i64::from(is_out(row.status())) - i64::from(was.is_some_and(is_out));
    }
    Ok(!settings.held && (out < i64::from(limit) || mutant!(QueueLimitIgnored)))
}

fn is_out(status: ExecutionStatus) -> bool {
    matches!(status, ExecutionStatus::Scheduled | ExecutionStatus::Running)
}

/// Returns the state of a step's work from its execution.
fn work_of(row: &ExecutionRow) -> Work {
    match row.status() {
        ExecutionStatus::Requested | ExecutionStatus::Scheduling | ExecutionStatus::Scheduled => {
            Work::Unreceived
        }
        ExecutionStatus::Running => Work::Live { ending: row.cancel_requested },
        ExecutionStatus::Completed => Work::Ended(WorkEnd::Succeeded),
        ExecutionStatus::Failed if row.owner.is_none() => Work::Ended(WorkEnd::Unschedulable),
        ExecutionStatus::Failed | ExecutionStatus::TimedOut => {
            // An execution that was asked to stop is not retried.
            Work::Ended(WorkEnd::Failed { retriable: row.retriable && !row.cancel_requested })
        }
        ExecutionStatus::Cancelled => Work::Ended(WorkEnd::Cancelled),
        // It was asked to stop, and it has stopped.
        ExecutionStatus::Abandoned if row.cancel_requested => Work::Ended(WorkEnd::Cancelled),
        ExecutionStatus::Abandoned => Work::Ended(WorkEnd::Lost),
    }
}

/// Reports an event on a run, and makes the changes that follow from every such event.
pub(crate) fn report_run(
    session: &mut Session<'_>,
    run: &RunRow,
    event: RunEvent,
    actor: Actor,
) -> Result<Outcome<sprag_lifecycle::Run>> {
    let given = RunReport { epoch: run.epoch, queue_wait_over: event == RunEvent::QueueExpired };
    let outcome = session.apply::<RunRow>(run.id, event, actor, &given, |row, now| match event {
        RunEvent::Started => row.started_ms = Some(now.wall_ms),
        RunEvent::Resumed | RunEvent::Rewound => {
            // A run that was cancelled before it had its place starts only now.
            row.started_ms.get_or_insert(now.wall_ms);
            row.epoch += u32::from(!mutant!(EpochStays));
            row.ended_ms = None;
            row.reworking = None;
        }
        _ => {}
    })?;
    if outcome.is_applied() {
        set_run_timer(session, run.id, event)?;
    }
    if let Outcome::Applied { to, .. } = outcome
        && to.is_terminal()
    {
        let ended = session.now().wall_ms;
        session.note::<RunRow>(run.id, |row| {
            row.ended_ms = Some(ended);
            row.reworking = None;
        })?;
        let second = session.db().plan(run.plan)?.and_then(|plan| plan.second_group.clone());
        for group in run.group.iter().chain(&second) {
            if !mutant!(PlaceKept) {
                session.set_place(group, run.id, false);
            }
            for next in session.db().queued(group, 1)? {
                session.announce(Topic::Run(next));
            }
        }
        session.after_commit("run.ended", run.id, &serde_json::json!({}));
        if let Some((parent, step)) = run.parent.filter(|_| !mutant!(ChildEndNotTold)) {
            session.after_commit("child.ended", parent, &serde_json::json!({ "step": step }));
        }
    }
    Ok(outcome)
}

/// The step number in the timer of a whole run. No step has it.
pub(crate) const WHOLE_RUN: StepNo = StepNo::MAX;

/// Sets the timer that cancels a run which takes too long, or clears it when the run has ended.
fn set_run_timer(session: &mut Session<'_>, run: RunId, event: RunEvent) -> Result<()> {
    let Some(row) = session.get::<RunRow>(run)? else { return Ok(()) };
    let Some(timeout_ms) = session.plan(run, row.plan)?.timeout_ms else { return Ok(()) };
    let execution = ExecutionId { run, step: WHOLE_RUN, attempt: row.epoch };
    if row.status().is_terminal() {
        session.clear_timer(execution);
    } else if matches!(event, RunEvent::Started | RunEvent::Resumed | RunEvent::Rewound) {
        let due_ms = session.now().steady_ms.saturating_add(timeout_ms as i64);
        session.set_timer(TimerRow { due_ms, execution });
    }
    Ok(())
}

/// Returns an error unless the decision was applied. The walk derives its decisions from the same rows that the
/// tables check, so a refusal is a bug in one of the two, and nothing of the operation may then be written.
fn decided(applied: bool, what: impl FnOnce() -> String) -> Result<()> {
    if applied { Ok(()) } else { Err(Error::bug(format!("the walk and the tables disagree on {}", what()))) }
}
