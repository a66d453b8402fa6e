//! Taking an environment from a run that nobody goes on with, for another that wants what it has.

use sprag_lifecycle::{ExecutionStatus, RunId};

use super::environments::{begin_destroy, is_gone};
use crate::error::Result;
use crate::rows::{EnvironmentRow, ExecutionRow, Id, Row, RunRow, WorkerRow};
use crate::session::Session;

/// How deep runs may lie in one another before it is not looked at any more.
const DEEPEST: u32 = 32;

/// Begins to remove the environment of a live run that nobody goes on with. Whoever resumes the run and whoever
/// takes its environment cannot both pass. The new attempt's number, if it may.
pub fn take_environment_of_dead_run(session: &mut Session<'_>, id: Id, worker: Id) -> Result<Option<u32>> {
    let Some(row) = session.get::<EnvironmentRow>(id)? else { return Ok(None) };
    let dead = match row.run {
        Some(run) => is_dead(session, run, 0)?,
        None => true,
    };
    if dead { begin_destroy(session, &row, worker, true) } else { Ok(None) }
}

/// Whether nobody goes on with a run: the process that it is reserved to is gone, and it waits for nothing from
/// outside. One that waits for an answer, a moment, somebody who takes a task or just a worker is not dead. What
/// is over is.
fn is_dead(session: &mut Session<'_>, run: RunId, depth: u32) -> Result<bool> {
    let Some(row) = session.get::<RunRow>(run)? else { return Ok(true) };
    if row.status().is_terminal() {
        return Ok(true);
    }
    if depth >= DEEPEST || !session.db().open_gates(run)?.is_empty() {
        return Ok(false);
    }
    let mut lost = 0;
    for execution in session.db().executions(run)? {
        match fate(session, &row, &execution)? {
            Fate::Over => {}
            Fate::Lost => lost += 1,
            Fate::Waits => return Ok(false),
        }
    }
    let unattended = match row.pin {
        Some(pin) => is_gone(session, Some(pin))?,
        // Left to workers: it goes on as soon as there is one.
        None => lost > 0 && !session.db().workers()?.iter().any(serves),
    };
    if !unattended {
        return Ok(false);
    }
    for child in session.db().children(run)? {
        if !is_dead(session, child, depth + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a worker takes what is left to anyone.
fn serves(worker: &WorkerRow) -> bool {
    !worker.queues.is_empty() && !worker.process.is_empty()
}

/// What can be said of an execution of a run whose process may be gone.
enum Fate {
    Over,
    /// Whoever had it, or was to have it, is gone.
    Lost,
    /// Somebody has it, or may come for it.
    Waits,
}

fn fate(session: &mut Session<'_>, run: &RunRow, execution: &ExecutionRow) -> Result<Fate> {
    Ok(match execution.status() {
        status if status.is_terminal() => Fate::Over,
        ExecutionStatus::Running if is_gone(session, execution.owner)? => Fate::Lost,
        ExecutionStatus::Running => Fate::Waits,
        // Reserved to the run's own process, as the run is.
        _ if run.pin.is_some() && execution.pin == run.pin => Fate::Lost,
        _ => Fate::Waits,
    })
}
