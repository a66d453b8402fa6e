//! The tasks of all live runs that wait for an agent or a person, or that one has claimed.

use serde::Serialize;
use sprag_lifecycle::ExecutionStatus;
use sprag_store::Row;

use super::Result;
use crate::App;
use crate::text::rfc3339;

/// The most live runs whose tasks are listed.
const MOST_RUNS: usize = 1000;

/// A task of a board or of a pipeline's step that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OpenTaskView {
    /// The id of the run or of the board's run.
    pub run: String,
    /// The step's name.
    pub step: String,
    /// The queue in which it waits.
    pub queue: String,
    /// `waiting` for a claimer, or `claimed`.
    pub status: &'static str,
    /// The time when it became ready.
    pub created_at: String,
}

/// Returns the open tasks of one queue, or of all, in runs that `is_shown` picks by their ids.
pub fn open_tasks(
    app: &App,
    queue: Option<&str>,
    is_shown: impl Fn(&str) -> Result<bool>,
) -> Result<Vec<OpenTaskView>> {
    let mut shown = Vec::new();
    for task in app.open_tasks(queue, MOST_RUNS)? {
        let execution = task.execution;
        let run = execution.id.run.to_string();
        if !is_shown(&run)? {
            continue;
        }
        let is_claimed = execution.status() == ExecutionStatus::Running;
        shown.push(OpenTaskView {
            run,
            step: task.step,
            queue: execution.queue.to_string(),
            status: if is_claimed { "claimed" } else { "waiting" },
            created_at: rfc3339(execution.created_ms),
        });
    }
    Ok(shown)
}
