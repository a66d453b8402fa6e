//! Resuming a run: from what failed, from a step, from where its process died, or in a fork of its own.

use std::sync::Arc;

use serde_json::{Value, json};
use sprag_lifecycle::RunId;
use sprag_process::{Liveness, ProcessId};
use sprag_store::{EnvironmentDetails, Id, Lease, Lost, NewWorker, Row, RunRow, WorkerRow};
use sprag_worktree::Repository;

use crate::App;
use crate::beginning::Beginning;
use crate::error::{Error, ErrorKind, Hint};
use crate::known::{RunWithPlan, StepPath};
use crate::local_files::LocalFiles;
use crate::runs::ForkRun;

/// Resumes a run: from the step `to`, from what failed, or from where its process died. Reserves its work to
/// `worker`, or leaves it to all workers if there is none. A step that is executed again begins with the files from
/// before it; returns what a person should know about that.
pub async fn resume_from(
    app: &App,
    known: &RunWithPlan,
    to: Option<StepPath>,
    worker: Option<NewWorker>,
) -> Result<Option<String>, Error> {
    app.free_threads(known).await?;
    let id = known.id();
    let status = known.run.status();
    let goes_back = to.is_some() || status.is_terminal();
    let (beginning, mut note) = match goes_back.then(|| Beginning::of(app, known)).transpose()? {
        Some(Ok(beginning)) => (beginning, None),
        Some(Err(elsewhere)) => (None, Some(elsewhere)),
        None => (None, None),
    };
    if let Some(beginning) = &beginning {
        note = match &to {
            Some(to) if to.run != id => beginning.before_inner(to.run, to.no)?,
            Some(to) => beginning.before_step(to.no)?,
            None => beginning.before_the_broken()?,
        };
    }
    let done = match (status.is_terminal(), to) {
        (_, Some(to)) if to.run != id => {
            app.store.person().rewind_inside(id, to.rows, worker).await?.require_applied().map(drop)
        }
        (_, Some(to)) => app.store.person().rewind_run(id, to.no, worker).await?.require_applied().map(drop),
        (true, None) => app.store.person().resume_run(id, worker).await?.require_applied().map(drop),
        (false, None) => {
            take_over(app, &known.run, worker).await?;
            Ok(())
        }
    };
    if let (Err(_), Some(beginning)) = (&done, &beginning) {
        beginning.forget()?;
    }
    done?;
    Ok(note)
}

/// Prepares a run that continues where `known` had finished the step `from`, and chooses the files that it starts
/// with.
pub fn fork(app: &App, known: &RunWithPlan, from: &str) -> Result<ForkRun, Error> {
    let step = known.step_no(from)?;
    let source = known.id();
    let mut new = app.store.person().new_run(Arc::clone(&known.plan));
    new.inputs = Arc::clone(&known.run.inputs);
    new.priority = known.run.priority;
    let mut about: Value = serde_json::from_str(&known.run.context).unwrap_or_else(|_| json!({}));
    about["forked_from"] = json!({ "run": source, "step": from });
    new.context = about.to_string().into();
    let files = match Beginning::of(app, known)? {
        Ok(Some(beginning)) => beginning.after_step(step, new.id)?,
        Ok(None) => None,
        Err(elsewhere) => {
            return Err(Error::new(
                ErrorKind::Refused,
                format!("run {source} cannot be forked from here: {elsewhere}"),
            )
            .next("fork it on the host where its worktree is"));
        }
    };
    Ok(ForkRun::new(source, step, new, files))
}

/// Reserves a live run to `worker`, or leaves it to all workers if there is none. The store refuses this if another
/// live process has taken the run since `run` was read.
pub async fn take_over(app: &App, run: &RunRow, worker: Option<NewWorker>) -> Result<(), Error> {
    let taken = match worker {
        Some(worker) => app.store.claims().take_over(run.id, run.pin, worker).await?,
        None => app.store.executor().pin_run(run.id, None).await?,
    };
    if taken {
        return Ok(());
    }
    let row = app.store.queries().run(run.id)?;
    Err(match row.filter(|row| !row.status().is_terminal()) {
        Some(row) => being_worked_on(row.id, "another process"),
        None => Error::new(ErrorKind::Refused, format!("run {} has ended meanwhile", run.id))
            .hint(Hint::LookAtRun(run.id)),
    })
}

fn being_worked_on(run: RunId, who: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("{who} is running run {run}")).hint(Hint::WatchOrCancel(run))
}

/// Takes a live run over, but only from a process that is gone, and abandons what dead workers hold of it.
pub async fn abandon_dead_owners(app: &App, run: &RunRow) -> Result<(), Error> {
    if let Some(owner) = run.pin.map(|pin| app.store.queries().worker(pin)).transpose()? {
        take_from_its_process(app, run, owner).await?;
    }
    // If the run was left to workers, those that live finish what they have.
    abandon_the_dead(app, run.id).await
}

/// Abandons what workers whose processes are gone execute of a run and of its child runs.
pub async fn abandon_the_dead(app: &App, run: RunId) -> Result<(), Error> {
    for running in app.store.queries().running_in(run)? {
        if running.owner.as_ref().is_some_and(is_dead) {
            let _ = app.store.reaper().owner_died(running.lease()).await?;
        }
    }
    Ok(())
}

/// Whether a process works on a live run, or could: its own process, or any worker if the run was left to them.
pub fn is_attended(app: &App, run: &RunRow) -> Result<bool, Error> {
    let workers = app.store.queries().workers()?;
    Ok(workers.iter().any(|worker| match run.pin {
        Some(pin) => worker.id == pin && !is_dead(worker),
        None => is_live_worker(worker),
    }))
}

/// Whether a worker executes commands. A claimer of tasks has no process that could.
pub fn is_live_worker(worker: &WorkerRow) -> bool {
    !worker.queues.is_empty() && !worker.process.is_empty() && !is_dead(worker)
}

/// Whether a worker's process was on this host and is gone.
pub(crate) fn is_dead(worker: &WorkerRow) -> bool {
    liveness(worker).1 == Liveness::Dead
}

/// Returns a worker's process, and whether it is alive as far as this host can tell.
fn liveness(worker: &WorkerRow) -> (Option<ProcessId>, Liveness) {
    let process: Option<ProcessId> = worker.process.parse().ok();
    let alive = process.as_ref().map_or(Liveness::Unknown, sprag_process::is_alive);
    (process, alive)
}

async fn take_from_its_process(app: &App, run: &RunRow, worker: Option<WorkerRow>) -> Result<(), Error> {
    let Some(worker) = worker else { return Ok(()) };
    let there = worker.status() != sprag_lifecycle::WorkerStatus::Offline;
    let (process, alive) = liveness(&worker);
    let silent = worker.heartbeat_until_ms <= app.store.now().steady_ms;
    if there && alive != Liveness::Dead && !(alive == Liveness::Unknown && silent) {
        let who = process
            .map_or_else(|| worker.name.to_string(), |id| format!("process {} on {}", id.pid, id.host));
        return Err(being_worked_on(run.id, &who));
    }
    for row in app.store.queries().held_by(worker.id)? {
        let lease = Lease { execution: row.id, fence: row.fence };
        // The process was seen dead on this host, or the worker was silent on another host for longer than its lease.
        // The store checks which.
        let _ = match alive {
            Liveness::Dead => app.store.reaper().owner_died(lease).await?,
            Liveness::Alive | Liveness::Unknown => app.store.reaper().expire(lease).await?,
        };
    }
    if there {
        let lost = if alive == Liveness::Dead { Lost::ProcessGone } else { Lost::LeaseLapsed };
        let _ = app.store.reaper().worker_lost(worker.id, lost).await?;
    }
    Ok(())
}

/// Returns the environment of a run as a whole, if it has one.
pub fn run_environment(app: &App, run: RunId) -> Result<Option<(Id, EnvironmentDetails)>, Error> {
    let rows = app.store.queries().environments_of(run)?;
    match rows.iter().find(|row| row.scope.is_none()) {
        Some(row) => Ok(Some((row.id, EnvironmentDetails::of(row)?))),
        None => Ok(None),
    }
}

/// Returns the repository of a run's worktree, if it has one on this host.
pub fn repository_of(app: &App, run: RunId) -> Result<Option<Repository>, Error> {
    let rows = app.store.queries().environments_of(run)?;
    let files = rows.iter().find(|row| row.scope.is_none()).and_then(LocalFiles::of);
    let Some(path) = files.and_then(|files| files.repository) else { return Ok(None) };
    Ok(Some(Repository::discover(&path)?))
}

/// Returns the host that a run's worktree is on, if that is another host.
pub fn host_elsewhere(app: &App, run: RunId) -> Result<Option<String>, Error> {
    let rows = app.store.queries().environments_of(run)?;
    let elsewhere = rows.iter().find(|row| !row.host.is_empty() && LocalFiles::of(row).is_none());
    Ok(elsewhere.map(|row| row.host.to_string()))
}
