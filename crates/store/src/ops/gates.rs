//! Answers, times and signals: the events that end a wait for something outside.

use std::sync::Arc;

use serde_json::{Map, Value};
use sprag_lifecycle::{
    Actor, Answerers, ExecutionId, Gate, GateEvent, GateStatus, RunId, RunStatus, StepNo, advance, mutant,
};

use super::{NewRun, cancel_run, illegal};
use crate::error::{Error, Result};
use crate::outcome::Outcome;
use crate::outside::TIMED_OUT;
use crate::rows::{ExecutionRow, GateKind, GateReport, GateRow, Id, Row, RunRow, StepRow, TimerRow};
use crate::run_state::{HeldRun, WHOLE_RUN};
use crate::session::Session;

/// Answers a gate for a person, and continues its run. Refuses an author who may not answer.
pub fn answer_gate(session: &mut Session<'_>, id: Id, answer: &Arc<str>) -> Result<Outcome<Gate>> {
    require_answerer(session, id)?;
    let outcome = note_answer(session, id, answer)?;
    if outcome.is_applied() {
        look_at_step_of(session, id)?;
    }
    Ok(outcome)
}

/// Refuses the author of this operation if the gate's question is for others. The run's row, which names its starter, is
/// read in the same transaction.
fn require_answerer(session: &mut Session<'_>, id: Id) -> Result<()> {
    let Some(gate) = session.get::<GateRow>(id)?.filter(|gate| gate.kind == GateKind::Question) else {
        return Ok(());
    };
    let answerers = answerers_of(&gate.question);
    if answerers.is_everyone() {
        return Ok(());
    }
    let starter = session.get::<RunRow>(gate.run)?.and_then(|run| starter_of(&run.context));
    let by = session.author();
    if answerers.allow(by.as_deref(), starter.as_deref()) {
        return Ok(());
    }
    let by = by.as_deref().unwrap_or("the caller");
    let why = format!("{by} may not answer this question of run {}: it is for {answerers}", gate.run);
    Err(Error::Forbidden { why })
}

/// Returns the people who may answer a question, as its gate stores it. If that cannot be read, no one may answer.
pub fn answerers_of(question: &str) -> Answerers {
    // Most questions are for everyone: they need not be parsed.
    if !question.contains("\"answer_by\"") && !question.contains("\"not_by\"") {
        return Answerers::default();
    }
    serde_json::from_str(question).unwrap_or_else(|_| Answerers::no_one())
}

/// The name of the starter in the context of a run, whose pipeline has questions that the starter may not answer.
const STARTER: &str = "starter";

/// Returns the starter of a run, as its context names it.
pub fn starter_of(context: &str) -> Option<String> {
    let context: Value = serde_json::from_str(context).unwrap_or_default();
    context[STARTER].as_str().map(str::to_owned)
}

/// Returns the context of a new run with the author of this operation as its starter, if a question of the run or of its
/// child runs depends on it. A child run has the starter of its parent.
pub(crate) fn with_starter(session: &Session<'_>, new: &NewRun) -> Arc<str> {
    let asks_others = || new.plan.steps.iter().any(|step| step.spec.contains("not_by"));
    if new.parent.is_some() || !asks_others() {
        return Arc::clone(&new.context);
    }
    let mut context: Value = serde_json::from_str(&new.context).unwrap_or_else(|_| serde_json::json!({}));
    context[STARTER] = session.author().as_deref().into();
    context.to_string().into()
}

/// Records an answer; the caller then advances the step.
pub(crate) fn note_answer(session: &mut Session<'_>, id: Id, answer: &Arc<str>) -> Result<Outcome<Gate>> {
    let given = GateReport { now_ms: session.now().steady_ms };
    session.apply::<GateRow>(id, GateEvent::Answered, Actor::Person, &given, |row, _| {
        row.answer = Some(Arc::clone(answer));
    })
}

fn look_at_step_of(session: &mut Session<'_>, gate: Id) -> Result<()> {
    let Some(gate) = session.get::<GateRow>(gate)? else { return Ok(()) };
    if super::is_permission(&gate) {
        return super::continue_parked(session, &gate);
    }
    session.clear_timer(ExecutionId { run: gate.run, step: gate.step, attempt: gate.attempt });
    look_at_step(session, gate.run, gate.step)
}

/// Advances one step of a run whose work outside of the workers may have ended.
pub fn look_at_step(session: &mut Session<'_>, run: RunId, step: StepNo) -> Result<()> {
    match HeldRun::take(session, run)? {
        Some(mut held) => advance(&mut held, [step]),
        None => Ok(()),
    }
}

/// The result of sending a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// A step waited for it, and continues.
    Received(StepNo),
    /// The signal is stored for the step that will wait for it.
    Kept,
}

/// Sends a signal to a run: to the step that has waited for it longest, or to the next that will wait for it.
pub fn signal(session: &mut Session<'_>, run: RunId, name: &str, payload: &Arc<str>) -> Result<Signalled> {
    match session.get::<RunRow>(run)? {
        None => return Err(Error::NoSuchRun(run.to_string())),
        Some(row) if row.status().is_terminal() => {
            let outcome = illegal("run", row.status());
            return Err(Error::refused(outcome, format!("run {run} has ended: it waits for no signal")));
        }
        Some(_) => {}
    }
    session.note_act("signal.sent", &format!("{run} {name}"))?;
    let gates = session.db().open_gates(run)?;
    let waiting = gates.into_iter().find(|gate| gate.kind == GateKind::Signal && &*gate.question == name);
    match waiting {
        Some(gate) => {
            let _ = answer_gate(session, gate.id, payload)?;
            Ok(Signalled::Received(gate.step))
        }
        None => {
            if !mutant!(SignalLost) {
                session.db().put_signal(run, name, payload)?;
            }
            Ok(Signalled::Kept)
        }
    }
}

/// Handles an attempt's timer: the attempt is published, its wait is over, or it has taken too long.
pub fn timer_fired(session: &mut Session<'_>, id: ExecutionId) -> Result<bool> {
    session.clear_timer(id);
    if id.step == WHOLE_RUN {
        return match session.get::<RunRow>(id.run)? {
            Some(row) if row.epoch == id.attempt => end_late_run(session, &row),
            _ => Ok(false),
        };
    }
    if session.get::<ExecutionRow>(id)?.is_some() {
        return super::schedule(session, id);
    }
    let Some(step) = session.get::<StepRow>((id.run, id.step))? else { return Ok(false) };
    let Some(work) = step.work.filter(|_| step.attempt == id.attempt) else { return Ok(false) };
    if session.get::<GateRow>(work)?.is_some() {
        return expire_gate(session, work).map(|outcome| outcome.is_applied());
    }
    match session.get::<RunRow>(RunId::from_i64(work))? {
        Some(row) => end_late_run(session, &row),
        None => Ok(false),
    }
}

/// Cancels a run that has taken too long.
fn end_late_run(session: &mut Session<'_>, run: &RunRow) -> Result<bool> {
    if run.status().is_terminal() || run.status() == RunStatus::Cancelling {
        return Ok(false);
    }
    session.note::<RunRow>(run.id, |row| row.reason = Some(TIMED_OUT.into()))?;
    Ok(cancel_run(session, run.id)?.is_applied())
}

/// Expires a gate. A gate that waits for a time compares it with the wall clock, which may have been set.
fn expire_gate(session: &mut Session<'_>, id: Id) -> Result<Outcome<Gate>> {
    let now = session.now();
    let Some(gate) = session.get::<GateRow>(id)? else { return Ok(Outcome::NotFound) };
    if gate.until_ms > now.wall_ms && gate.status() == GateStatus::Open {
        let due_ms = now.steady_ms.saturating_add(gate.until_ms - now.wall_ms);
        session.note::<GateRow>(id, |row| row.timeout_at_ms = due_ms)?;
        session.set_timer(TimerRow {
            due_ms,
            execution: ExecutionId { run: gate.run, step: gate.step, attempt: gate.attempt },
        });
        return Ok(Outcome::Superseded(sprag_lifecycle::GatePredicate::TimeoutPassed));
    }
    if gate.timeout_at_ms > now.steady_ms && gate.status() == GateStatus::Open {
        // The timer fired too early, so that another one must fire at the right time.
        session.set_timer(TimerRow {
            due_ms: gate.timeout_at_ms,
            execution: ExecutionId { run: gate.run, step: gate.step, attempt: gate.attempt },
        });
    }
    let given = GateReport { now_ms: now.steady_ms };
    let default = default_answer(&gate);
    let outcome = session.apply::<GateRow>(id, GateEvent::Expired, Actor::Executor, &given, |row, _| {
        row.answer = default.or(row.answer.take());
    })?;
    if outcome.is_applied() {
        look_at_step_of(session, id)?;
    }
    Ok(outcome)
}

/// Returns the answer that a question has if there is none in time.
fn default_answer(gate: &GateRow) -> Option<Arc<str>> {
    let question: Value =
        serde_json::from_str(&gate.question).ok().filter(|_| gate.kind == GateKind::Question)?;
    let choice = question["default"].as_str()?;
    let declared = question["fields"].as_array().into_iter().flatten();
    let fields = declared.filter_map(|field| {
        Some((
            field["name"].as_str()?.to_owned(),
            field.get("default").filter(|value| !value.is_null())?.clone(),
        ))
    });
    Some(answer_with_fields(choice, Some("there was no answer in time"), true, fields.collect()))
}

/// Returns a person's answer without fields, in the form in which it is stored.
pub fn answer_text(choice: &str, comment: Option<&str>, approved: bool) -> Arc<str> {
    answer_with_fields(choice, comment, approved, Map::new())
}

/// Returns a person's answer, in the form in which it is stored. The names of `fields` are different from `choice`,
/// `approved` and `comment`.
pub fn answer_with_fields(
    choice: &str,
    comment: Option<&str>,
    approved: bool,
    fields: Map<String, Value>,
) -> Arc<str> {
    let mut answer = fields;
    answer.insert("choice".into(), choice.into());
    answer.insert("approved".into(), approved.into());
    if let Some(comment) = comment {
        answer.insert("comment".into(), comment.into());
    }
    Value::Object(answer).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i02_a_rule_that_cannot_be_read_lets_no_one_answer() {
        assert!(answerers_of(r#"{"ask":"?"}"#).is_everyone());
        let read = answerers_of(r#"{"ask":"?","answer_by":["ada"],"not_by":"starter"}"#);
        assert_eq!(read.to_string(), "ada, not the starter of the run");
        for odd in [r#"{"ask":"?","not_by":"everyone"}"#, r#"{"answer_by":"ada"}"#] {
            assert!(!answerers_of(odd).allow(Some("token:ada"), None), "{odd}");
        }
    }
}
