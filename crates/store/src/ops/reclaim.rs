//! Takes an environment from a run that no process continues, for another run that needs the environment's resources.

use sprag_lifecycle::{ExecutionStatus, RunId};

use super::environments::{begin_destroy, is_gone};
use crate::error::Result;
use crate::rows::{EnvironmentRow, ExecutionRow, Id, Row, RunRow, WorkerRow};
use crate::session::Session;

/// The deepest nesting of child runs that is checked; deeper runs count as live.
const DEEPEST: u32 = 32;

/// Starts to remove the environment of a live run that no process continues. A resume of the run and this removal
/// cannot both succeed. Returns the number of the new attempt, if the removal may start.
pub fn take_environment_of_dead_run(session: &mut Session<'_>, id: Id, worker: Id) -> Result<Option<u32>> {
    let Some(row) = session.get::<EnvironmentRow>(id)? else { return Ok(None) };
    let dead = match row.run {
        Some(run) => is_dead(session, run, 0)?,
        None => true,
    };
    if dead { begin_destroy(session, &row, worker, true) } else { Ok(None) }
}

/// Whether no process continues a run: the process that it is reserved to is gone, and it waits for nothing from
/// outside. A run that waits for an answer, for a time, for an agent or person to take a task, or just for a worker
/// is not dead. A run that has ended is.
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
        // Any worker may claim it: it continues as soon as there is one.
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

/// Whether a worker claims executions that are not reserved.
fn serves(worker: &WorkerRow) -> bool {
    !worker.queues.is_empty() && !worker.process.is_empty()
}

/// The state of an execution of a run whose process may be gone.
enum Fate {
    Over,
    /// The worker that held it, or was to receive it, is gone.
    Lost,
    /// A worker holds it, or may still receive it.
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
