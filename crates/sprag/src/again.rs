//! Going on with a run: from what failed, from a step, from where its process died, or in a run of its own.

use std::sync::Arc;

use serde_json::{Value, json};
use sprag_lifecycle::{ExecutionStatus, RunId, RunStatus, StepNo, StepStatus};
use sprag_process::{Liveness, ProcessId};
use sprag_store::ops::{Lease, Lost, NewRun};
use sprag_store::{Id, Row, RunRow, Store, Table, WorkerRow};
use sprag_worker::before;
use sprag_worktree::Repository;

use crate::complaint::{Complaint, Kind};
use crate::environments::Details;
use crate::known::Known;

/// Goes on with a run: from the step `to`, from what failed, or from where its process died. Its work is
/// reserved to `pin`, or to nobody. A step that is done again begins with the files from before it.
pub async fn again(
    store: &Store,
    known: &Known,
    to: Option<StepNo>,
    pin: Option<Id>,
) -> Result<(), Complaint> {
    let id = known.id();
    let status = known.run.status();
    match to {
        Some(to) => begin_before(store, id, &known.plan.step(to).id)?,
        None if status == RunStatus::Failed => begin_before_the_failed(store, known)?,
        None => {}
    }
    let done = match (status.is_terminal(), to) {
        (_, Some(to)) => store.person().rewind_run(id, to, pin).await?.require_applied().map(drop),
        (true, None) => store.person().resume_run(id, pin).await?.require_applied().map(drop),
        (false, None) => store.executor().pin_run(id, pin).await.map(|_| Ok(()))?,
    };
    if done.is_err() {
        forget_start(store, id)?;
    }
    Ok(done?)
}

/// A new run that begins where `known` had finished the step `from`; the files of its beginning are chosen.
pub fn fork(store: &Store, known: &Known, from: &str) -> Result<(StepNo, NewRun), Complaint> {
    let step = known.step_no(from)?;
    let source = known.id();
    let mut new = store.person().new_run(Arc::clone(&known.plan));
    new.inputs = Arc::clone(&known.run.inputs);
    new.priority = known.run.priority;
    let mut about: Value = serde_json::from_str(&known.run.context).unwrap_or_else(|_| json!({}));
    about["forked_from"] = json!({ "run": source, "step": from });
    new.context = about.to_string().into();
    choose(store, source, new.id, from)?;
    Ok((step, new))
}

/// Where exactly one step failed, its next attempt begins with the files from before it.
fn begin_before_the_failed(store: &Store, known: &Known) -> Result<(), Complaint> {
    let steps = store.read(|db| db.steps(known.id()))?;
    let failed: Vec<&str> = steps
        .iter()
        .filter(|step| step.status() == StepStatus::Failed && step.item_of.is_none())
        .filter(|step| step.items.is_none())
        .map(|step| known.plan.step(step.no).id.as_str())
        .collect();
    match failed.as_slice() {
        [one] => begin_before(store, known.id(), one),
        _ => Ok(()),
    }
}

/// A live run is taken over only from a process that is gone; what the dead had of it is abandoned.
pub async fn take_from_the_dead(store: &Store, run: &RunRow) -> Result<(), Complaint> {
    if let Some(owner) = run.pin.map(|pin| store.read(|db| Table::<WorkerRow>::load(db, pin))).transpose()? {
        take_from_its_process(store, run, owner).await?;
    }
    // A run that was left to workers: those that live finish what they have.
    for row in store.read(|db| db.executions(run.id))? {
        let Some(owner) = row.owner.filter(|_| row.status() == ExecutionStatus::Running) else { continue };
        let worker = store.read(|db| Table::<WorkerRow>::load(db, owner))?;
        if worker.is_some_and(|worker| liveness(&worker).1 == Liveness::Dead) {
            let _ = store.reaper().owner_died(Lease { execution: row.id, fence: row.fence }).await?;
        }
    }
    Ok(())
}

/// Whether somebody works on a live run, or could: its own process, or any worker if it was left to them.
pub fn is_attended(store: &Store, run: &RunRow) -> Result<bool, Complaint> {
    let workers = store.read(|db| db.workers())?;
    Ok(workers.iter().any(|worker| match run.pin {
        Some(pin) => worker.id == pin && liveness(worker).1 != Liveness::Dead,
        None => works(worker),
    }))
}

/// Whether a worker takes commands: whoever only claims tasks has no process that could.
pub fn works(worker: &WorkerRow) -> bool {
    !worker.queues.is_empty() && !worker.process.is_empty() && liveness(worker).1 != Liveness::Dead
}

/// A worker's process, and what can be said of it from here.
fn liveness(worker: &WorkerRow) -> (Option<ProcessId>, Liveness) {
    let process: Option<ProcessId> = worker.process.parse().ok();
    let alive = process.as_ref().map_or(Liveness::Unknown, sprag_process::is_alive);
    (process, alive)
}

async fn take_from_its_process(
    store: &Store,
    run: &RunRow,
    worker: Option<WorkerRow>,
) -> Result<(), Complaint> {
    let Some(worker) = worker else { return Ok(()) };
    let there = worker.status() != sprag_lifecycle::WorkerStatus::Offline;
    let (process, alive) = liveness(&worker);
    let silent = worker.heartbeat_until_ms <= store.now().steady_ms;
    if there && alive != Liveness::Dead && !(alive == Liveness::Unknown && silent) {
        let who = process
            .map_or_else(|| worker.name.to_string(), |id| format!("process {} on {}", id.pid, id.host));
        return Err(Complaint::new(Kind::Refused, format!("run {} is being worked on by {who}", run.id))
            .next(format!("watch it with `sprag logs -f {0}`, or end it with `sprag cancel {0}`", run.id)));
    }
    for row in store.read(|db| db.held_by(worker.id))? {
        let lease = Lease { execution: row.id, fence: row.fence };
        // Seen dead on this host, or silent for longer than its lease elsewhere: the store checks which.
        let _ = match alive {
            Liveness::Dead => store.reaper().owner_died(lease).await?,
            Liveness::Alive | Liveness::Unknown => store.reaper().expire(lease).await?,
        };
    }
    if there {
        let lost = if alive == Liveness::Dead { Lost::ProcessGone } else { Lost::LeaseLapsed };
        let _ = store.reaper().worker_lost(worker.id, lost).await?;
    }
    Ok(())
}

/// The environment of a run as a whole, if it has one.
pub fn whole(store: &Store, run: RunId) -> Result<Option<(Id, Details)>, Complaint> {
    let rows = store.read(|db| db.environments_of(run))?;
    Ok(rows.iter().find(|row| row.scope.is_none()).map(|row| (row.id, Details::of(row))))
}

/// The repository of a run's worktree, if it has one.
pub fn repository_of(store: &Store, run: RunId) -> Result<Option<Repository>, Complaint> {
    let Some((_, details)) = whole(store, run)? else { return Ok(None) };
    let Some(path) = details.repository else { return Ok(None) };
    Repository::discover(&path).map(Some).map_err(|error| Complaint::failed(error.to_string()))
}

/// Has a run that goes back to a step begin with the files as they were before it.
fn begin_before(store: &Store, run: RunId, step: &str) -> Result<(), Complaint> {
    choose(store, run, run, &before(step))
}

/// Forgets where a run was to begin.
fn forget_start(store: &Store, run: RunId) -> Result<(), Complaint> {
    let Some(repository) = repository_of(store, run)? else { return Ok(()) };
    repository.forget_start(&run.to_string()).map_err(|error| Complaint::failed(error.to_string()))
}

fn choose(store: &Store, source: RunId, run: RunId, name: &str) -> Result<(), Complaint> {
    let Some(repository) = repository_of(store, source)? else { return Ok(()) };
    // One that was never recorded: the step had not run in the worktree.
    let Ok(state) = repository.find_checkpoint(&source.to_string(), name) else { return Ok(()) };
    repository.choose_start(&run.to_string(), &state).map_err(|error| Complaint::failed(error.to_string()))
}
