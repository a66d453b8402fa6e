//! The requests of people on single steps of a live run: skip one, and start the next try of one now.

use sprag_lifecycle::{
    ExecutionId, ExecutionStatus, RunId, RunState, RunStatus, StepNo, StepStatus, WorkKind, advance,
};

use super::illegal;
use crate::error::{Error, Result};
use crate::names::step_name;
use crate::rows::{ExecutionRow, Row, StepRow};
use crate::run_state::HeldRun;
use crate::session::Session;

/// The part of a gate's spec that says who may answer. A skip would count as an answer.
const GUARDED: &str = "\"answerers\":{";

/// Skips a step of a live run: now if its needs are met, else as soon as they are. Work in progress is stopped first.
/// Returns the step's status afterwards.
pub fn skip_step(session: &mut Session<'_>, run: RunId, no: StepNo) -> Result<StepStatus> {
    let mut held = hold_live(session, run, no)?;
    let step = held.step_row(no)?;
    let name = step_name(&held.plan(), &step);
    if step.status().is_settled() {
        let why = format!(
            "step {name} of run {run} is {}: it can be skipped only before it has ended",
            step.status()
        );
        return Err(Error::refused(illegal("step", step.status()), why));
    }
    if held.plan().step(step.node()).spread.is_some_and(|spread| spread.open) {
        let why = format!("{name} belongs to a board: cancel the task, or close the board");
        return Err(Error::refused(illegal("step", step.status()), why));
    }
    let planned = held.plan().step(step.node()).clone();
    if planned.work == WorkKind::Gate && planned.spec.contains(GUARDED) {
        let why = format!("step {name} of run {run} cannot be skipped: its question says who may answer it");
        return Err(Error::Forbidden { why });
    }
    held.session.note_act("step.skip_requested", &format!("{run}/{name}"))?;
    held.session.note::<StepRow>((run, no), |row| row.skipped_by_when = true)?;
    advance(&mut held, [no])?;
    Ok(held.step_row(no)?.status())
}

/// Starts the next try, or the next round, of a step that waits for its delay; for a fan-out, of all its items that do.
/// Returns the number of tries that start.
pub fn retry_now(session: &mut Session<'_>, run: RunId, no: StepNo) -> Result<usize> {
    let mut held = hold_live(session, run, no)?;
    let step = held.step_row(no)?;
    let name = step_name(&held.plan(), &step);
    let mut rows = vec![step.clone()];
    if step.items.is_some() {
        rows = held.session.item_rows(run, no)?;
    }
    let now_ms = held.session.now().steady_ms;
    let mut delayed = Vec::new();
    for row in rows.iter().filter(|row| row.status() == StepStatus::Pending) {
        let id = ExecutionId { run, step: row.no, attempt: row.attempt };
        let waits = held.session.get::<ExecutionRow>(id)?.is_some_and(|execution| {
            execution.status() == ExecutionStatus::Requested && execution.not_before_ms > now_ms
        });
        delayed.extend(waits.then_some(id));
    }
    if delayed.is_empty() {
        let why = format!("step {name} of run {run} is {} and waits for no further try", step.status());
        return Err(Error::refused(illegal("step", step.status()), why));
    }
    held.session.note_act("step.retry_requested", &format!("{run}/{name}"))?;
    for id in &delayed {
        held.session.note::<ExecutionRow>(*id, |row| row.not_before_ms = 0)?;
        held.session.clear_timer(*id);
        held.schedule(*id)?;
    }
    Ok(delayed.len())
}

/// Takes the row of a run that has started and not ended, for a request on one of its steps.
fn hold_live<'s, 'a>(session: &'s mut Session<'a>, run: RunId, no: StepNo) -> Result<HeldRun<'s, 'a>> {
    let Some(mut held) = HeldRun::take(session, run)? else {
        return Err(Error::NoSuchRun(run.to_string()));
    };
    let row = held.row()?;
    if row.status().is_terminal() || row.status() == RunStatus::Queued {
        let why = format!(
            "run {run} is {}: only steps of a live run can be skipped or retried at once",
            row.status()
        );
        return Err(Error::refused(illegal("run", row.status()), why));
    }
    if no >= row.steps {
        return Err(Error::invalid("step", format!("run {run} has no step number {no}")));
    }
    Ok(held)
}
