//! Services, and the steps that use them: all of them belong to one worker, because they reach each other through the
//! ports of its machine.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{ExecutionId, ExecutionStatus, Plan, RunId, SERVICE_PRIORITY, StepNo, mutant};

use super::Claimer;
use crate::error::Result;
use crate::rows::{ExecutionRow, Id, Row, RunRow, StepRow, WorkerRow};
use crate::session::Session;

/// The key of a child run's context with the run whose services its steps use.
pub(crate) const SERVICES_OF: &str = "services_of";

/// The number of slots of a worker that is not registered.
const UNKNOWN_SLOTS: usize = 8;

/// The services that a step uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedServices {
    /// The run that has them: the step's own, or one above it.
    pub run: RunId,
    /// Their numbers in that run, without those that have settled.
    pub steps: Vec<StepNo>,
}

/// Returns the run whose services the steps of a run use, with its plan; `None` if they use none.
fn run_with_services(session: &mut Session<'_>, run: RunId) -> Result<Option<(RunId, Arc<Plan>)>> {
    let Some(row) = session.get::<RunRow>(run)? else { return Ok(None) };
    let plan = session.plan(run, row.plan)?;
    if !plan.services().is_empty() {
        return Ok(Some((run, plan)));
    }
    // Most runs use no services: their contexts need not be parsed.
    if !row.context.contains(SERVICES_OF) {
        return Ok(None);
    }
    let context: serde_json::Value = serde_json::from_str(&row.context).unwrap_or_default();
    let Some(above) = context[SERVICES_OF].as_str().and_then(|text| text.parse().ok()) else {
        return Ok(None);
    };
    let Some(row) = session.get::<RunRow>(above)? else { return Ok(None) };
    Ok(Some((above, session.plan(above, row.plan)?)))
}

/// Returns the services that a step of a run uses; `None` if it uses none or is one itself.
pub(super) fn used_services(
    session: &mut Session<'_>,
    run: RunId,
    node: StepNo,
) -> Result<Option<UsedServices>> {
    let Some((of, plan)) = run_with_services(session, run)? else { return Ok(None) };
    if of == run && plan.step(node).service {
        return Ok(None);
    }
    let mut steps = Vec::new();
    for no in plan.services() {
        let settled = session.get::<StepRow>((of, *no))?.is_none_or(|step| step.status().is_settled());
        if !settled {
            steps.push(*no);
        }
    }
    Ok(Some(UsedServices { run: of, steps }))
}

/// Whether a worker may receive an execution of a run with services. A step waits until the worker has all services that
/// it uses. A service waits until no other worker has a part of its run, and until this worker has room for its run.
pub(super) fn has_services(session: &mut Session<'_>, claimer: &Claimer, id: ExecutionId) -> Result<bool> {
    let worker = claimer.worker;
    let Some((of, plan)) = run_with_services(session, id.run)? else { return Ok(!claimer.services_only) };
    if mutant!(ServiceElsewhere) {
        return Ok(true);
    }
    let is_service = of == id.run
        && session.get::<StepRow>((id.run, id.step))?.is_some_and(|step| plan.step(step.node()).service);
    if claimer.services_only && !is_service {
        return Ok(false);
    }
    if is_service && !has_room(session, claimer, of)? {
        return Ok(false);
    }
    // Two workers that receive two services of a run at the same moment must see each other.
    if is_service && !session.db().is_held(of) {
        return Ok(false);
    }
    for no in plan.services() {
        let Some(step) = session.get::<StepRow>((of, *no))? else { continue };
        if step.status().is_settled() || (is_service && *no == id.step) {
            continue;
        }
        let execution = ExecutionId { run: of, step: *no, attempt: step.attempt };
        let owner = owner_of(session, execution)?;
        if owner.is_some_and(|owner| owner != worker) || (owner.is_none() && !is_service) {
            return Ok(false);
        }
    }
    if !is_service {
        return Ok(true);
    }
    for no in session.db().unsettled(of)? {
        let Some(step) = session.get::<StepRow>((of, no))? else { continue };
        let owner = owner_of(session, ExecutionId { run: of, step: no, attempt: step.attempt })?;
        if owner.is_some_and(|owner| owner != worker) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a worker may take the first service of a run. A worker has the services of at most as many runs as it has slots:
/// the steps that use them need its slots, and other workers may be idle. It always takes further services of a run that it
/// has a part of.
fn has_room(session: &mut Session<'_>, claimer: &Claimer, run: RunId) -> Result<bool> {
    let worker = claimer.worker;
    let mut held = session.db().held_by(worker)?;
    let has = |row: &&ExecutionRow| row.owner == Some(worker) && row.status() == ExecutionStatus::Running;
    // The database does not contain yet what this operation has received.
    held.extend(session.seen::<ExecutionRow>().filter(has).cloned());
    if held.iter().any(|row| row.id.run == run) {
        return Ok(true);
    }
    // The runs above it wait for this one, so their services must not keep its own from starting.
    let above = runs_above(session, run)?;
    let services = held.iter().filter(|row| row.priority == SERVICE_PRIORITY);
    let runs: BTreeSet<RunId> = services.map(|row| row.id.run).filter(|run| !above.contains(run)).collect();
    let slots = session.get::<WorkerRow>(worker)?.map_or(UNKNOWN_SLOTS, |row| row.slots as usize);
    Ok(!claimer.services_only && (runs.len() < slots || mutant!(ServicesUnbounded)))
}

/// Returns the parent of a run, its parent, and so on.
fn runs_above(session: &mut Session<'_>, run: RunId) -> Result<BTreeSet<RunId>> {
    let (mut above, mut at) = (BTreeSet::new(), run);
    while let Some((parent, _)) = session.get::<RunRow>(at)?.and_then(|row| row.parent) {
        if !above.insert(parent) {
            break;
        }
        at = parent;
    }
    Ok(above)
}

/// Returns the worker that has an execution now.
fn owner_of(session: &mut Session<'_>, id: ExecutionId) -> Result<Option<Id>> {
    let row = session.get::<ExecutionRow>(id)?;
    Ok(row.filter(|row| row.status() == ExecutionStatus::Running).and_then(|row| row.owner))
}
