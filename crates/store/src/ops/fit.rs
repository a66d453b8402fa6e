//! Rules for which worker may receive which execution: it serves the queue, has the required labels, and is on the
//! host of the run's files.

use std::sync::Arc;

use sprag_lifecycle::{EnvironmentStatus, ExecutionId, RunId};

use super::environments::is_nowhere;
use super::{Claimer, environment_of};
use crate::backend::{Backend, Table};
use crate::error::Result;
use crate::rows::{ExecutionRow, Id, Row, RunRow, StepRow, WorkerRow};
use crate::session::Session;

/// Whether a worker could receive a waiting execution, now or once it has a free slot.
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

/// Whether this worker may receive an execution of a queue that it serves.
pub(super) fn is_for(session: &mut Session<'_>, claimer: &Claimer, id: ExecutionId) -> Result<bool> {
    Ok(has_labels(session, claimer.worker, id)?
        && !works_elsewhere(session, claimer.worker, id.run)?
        && super::has_services(session, claimer, id)?)
}

/// Whether the worker has the labels that the step requires. An execution that is reserved to it needs no labels.
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

/// Whether a run has files on another host than this worker's: that host must then execute its further steps.
pub(super) fn works_elsewhere(session: &mut Session<'_>, worker: Id, run: RunId) -> Result<bool> {
    let Some(row) = session.get::<RunRow>(run)? else { return Ok(false) };
    let hosts = hosts_of_files(session.db(), &row)?;
    // Most runs have no files, and then the worker's row need not be read.
    if hosts.is_empty() {
        return Ok(false);
    }
    Ok(session.get::<WorkerRow>(worker)?.is_some_and(|worker| is_elsewhere(&hosts, &worker)))
}

/// Returns the hosts on which a run has files.
pub fn hosts_of_files(db: &mut dyn Backend, run: &RunRow) -> Result<Vec<Arc<str>>> {
    let plan = db.plan(run.plan)?;
    let has_its_own = plan.is_some_and(|plan| plan.environment.is_some());
    let of = if has_its_own { Some(run.id) } else { environment_of(&run.context) };
    let Some(of) = of else { return Ok(Vec::new()) };
    let mut hosts = Vec::new();
    for row in db.environments_of(of)? {
        if row.status() != EnvironmentStatus::Destroyed && !is_nowhere(&row)? {
            hosts.push(row.host);
        }
    }
    Ok(hosts)
}

/// Whether a worker is on none of these hosts. A worker that does not report its host may be on any.
fn is_elsewhere(hosts: &[Arc<str>], worker: &WorkerRow) -> bool {
    !worker.host().is_empty() && hosts.iter().any(|host| **host != *worker.host())
}
