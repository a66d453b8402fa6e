//! Who may be given what: a worker serves the queue, has what the step asks for, and is where the run's files are.

use std::sync::Arc;

use sprag_lifecycle::{EnvironmentStatus, ExecutionId, RunId};

use super::environment_of;
use super::environments::is_nowhere;
use crate::backend::{Backend, Table};
use crate::error::Result;
use crate::rows::{ExecutionRow, Id, Row, RunRow, StepRow, WorkerRow};
use crate::session::Session;

/// Whether a worker could be given an execution that waits, now or once it has a slot.
pub fn could_take(db: &mut dyn Backend, worker: &WorkerRow, row: &ExecutionRow) -> Result<bool> {
    let reserved = row.pin == Some(worker.id);
    if !reserved && !worker.serves(&row.queue) {
        return Ok(false);
    }
    let Some(run) = Table::<RunRow>::load(db, row.id.run)? else { return Ok(true) };
    let step = Table::<StepRow>::load(db, (row.id.run, row.id.step))?;
    if let (false, Some(step), Some(plan)) = (reserved, step, db.plan(run.plan)?)
        && !worker.has_all(&plan.step(step.node()).labels)
    {
        return Ok(false);
    }
    Ok(!is_elsewhere(&hosts_of_files(db, &run)?, worker))
}

/// Whether an execution of a queue that this worker serves is for it.
pub(super) fn is_for(session: &mut Session<'_>, worker: Id, id: ExecutionId) -> Result<bool> {
    Ok(has_labels(session, worker, id)? && !works_elsewhere(session, worker, id.run)?)
}

/// Whether the worker has the labels that the step asks for. What is reserved to it is its own, whatever it has.
pub(super) fn has_labels(session: &mut Session<'_>, worker: Id, id: ExecutionId) -> Result<bool> {
    let (Some(run), Some(step)) =
        (session.get::<RunRow>(id.run)?, session.get::<StepRow>((id.run, id.step))?)
    else {
        return Ok(true);
    };
    let plan = session.plan(id.run, run.plan)?;
    let labels = &plan.step(step.node()).labels;
    if labels.is_empty() || session.get::<ExecutionRow>(id)?.is_some_and(|row| row.pin == Some(worker)) {
        return Ok(true);
    }
    Ok(session.get::<WorkerRow>(worker)?.is_some_and(|row| row.has_all(labels)))
}

/// Whether a run has files on another host than this worker's: its further steps are for that host.
pub(super) fn works_elsewhere(session: &mut Session<'_>, worker: Id, run: RunId) -> Result<bool> {
    let Some(row) = session.get::<RunRow>(run)? else { return Ok(false) };
    let hosts = hosts_of_files(session.db(), &row)?;
    // Most runs have no files, and then nobody need look at the worker.
    if hosts.is_empty() {
        return Ok(false);
    }
    Ok(session.get::<WorkerRow>(worker)?.is_some_and(|worker| is_elsewhere(&hosts, &worker)))
}

/// The hosts that a run has files on.
pub fn hosts_of_files(db: &mut dyn Backend, run: &RunRow) -> Result<Vec<Arc<str>>> {
    let plan = db.plan(run.plan)?;
    let of = match plan.is_some_and(|plan| plan.environment.is_some()) {
        true => Some(run.id),
        false => environment_of(&run.context),
    };
    let Some(of) = of else { return Ok(Vec::new()) };
    let mut there = db.environments_of(of)?;
    there.retain(|row| row.status() != EnvironmentStatus::Destroyed && !is_nowhere(row));
    Ok(there.into_iter().map(|row| row.host).collect())
}

/// A worker that does not say where it is may be anywhere.
fn is_elsewhere(hosts: &[Arc<str>], worker: &WorkerRow) -> bool {
    !worker.host().is_empty() && hosts.iter().any(|host| **host != *worker.host())
}
