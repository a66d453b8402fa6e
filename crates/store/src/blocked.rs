//! Failures that only a person can remove, found through fan-outs and child runs.

use sprag_lifecycle::{ExecutionId, Plan, RunId, StepStatus, WorkKind};

use crate::error::Result;
use crate::rows::{ExecutionRow, Row, RunRow, StepRow};
use crate::session::Session;

/// Whether the work of a step failed for such a reason. For a fan-out and a child run: whether everything that failed
/// in it failed for such a reason. A retry or a rework may repair other failures.
pub(crate) fn step_is_blocked(session: &mut Session<'_>, plan: &Plan, step: &StepRow) -> Result<bool> {
    if step.items.is_some() {
        let items = session.item_rows(step.run, step.no)?;
        return all_failed_are_blocked(session, plan, &items);
    }
    let attempt = ExecutionId { run: step.run, step: step.no, attempt: step.attempt };
    if let Some(execution) = session.get::<ExecutionRow>(attempt)? {
        return Ok(execution.blocked);
    }
    match (plan.step(step.node()).work, step.work) {
        (WorkKind::Child, Some(child)) => run_is_blocked(session, RunId::from_i64(child)),
        _ => Ok(false),
    }
}

/// Whether a run failed, and all of its failed steps failed for such a reason.
pub(crate) fn run_is_blocked(session: &mut Session<'_>, run: RunId) -> Result<bool> {
    let Some(row) = session.get::<RunRow>(run)? else { return Ok(false) };
    let Some(plan) = session.db().plan(row.plan)? else { return Ok(false) };
    let mut steps = session.db().steps(run)?;
    steps.retain(|step| step.item_of.is_none());
    all_failed_are_blocked(session, &plan, &steps)
}

fn all_failed_are_blocked(session: &mut Session<'_>, plan: &Plan, steps: &[StepRow]) -> Result<bool> {
    let mut any = false;
    for step in steps.iter().filter(|step| step.status() == StepStatus::Failed) {
        if !step_is_blocked(session, plan, step)? {
            return Ok(false);
        }
        any = true;
    }
    Ok(any)
}
