//! Boards: open runs whose tasks leaders add, and agents and people claim.
//!
//! ```text
//!   command line │ HTTP │ MCP ──▶ here ──▶ store: the run, its tasks, one claim protocol for all
//! ```
//!
//! The types are what all three interfaces speak, as JSON.

mod claim;
mod open;
mod refusals;
mod report;
mod task;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{RunId, RunStatus, StepStatus};
use sprag_pipeline::board_plan;
use sprag_store::{BoardRow, BoardState, Created, NewBoard, NewRun, Row};

use crate::App;
use crate::error::Error;
use crate::text::{nearest, rfc3339};
use refusals::{invalid, no_board, refused};

pub use claim::{
    ClaimRequest, ClaimSpec, Claimed, Done, Held, Nothing, agent_id, agent_name, check_agent_name, claim,
    done, fail, heartbeat, lease_of, register_agent, release, start,
};
pub(crate) use claim::{holder, release_held};
pub use open::{OpenTaskView, open_tasks};
pub(crate) use report::told;
pub use report::{NoteSpec, NoteView, Report, add_note, notes, report};
pub use task::{TaskAdded, TaskSpec, TaskView, add_tasks, cancel_task, retry_task, task, tasks};

type Result<T> = std::result::Result<T, Error>;

/// The longest text that a board, a task or a note may hold, in bytes.
pub const LONGEST_TEXT: usize = 64 * 1024;
/// The start of the name of a board's own queue.
pub(crate) const OWN_QUEUE: &str = "board/";
/// The longest name.
const LONGEST_NAME: usize = 64;
/// The most open boards whose names are compared with one that does not exist.
const MOST_SEARCHED: usize = 1000;

/// A request to create a board.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BoardSpec {
    /// The board's name: letters, digits, `-`, `_` and `.`
    pub name: String,
    /// The goal of the board.
    #[serde(default)]
    pub goal: String,
    /// The leader's plan to reach the goal; all agents can read it.
    #[serde(default)]
    pub plan: String,
    /// The queue of its tasks, unless a task names another [default: a queue of its own].
    #[serde(default)]
    pub queue: Option<String>,
    /// The number of tries for a task [default: 1].
    #[serde(default)]
    pub attempts: Option<u32>,
    /// The delay before the second try, in seconds; doubled for each further try.
    #[serde(default)]
    pub retry_delay_s: Option<u64>,
}

/// A board with the counts of its tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct BoardView {
    /// The id of the board's run.
    pub run: String,
    /// The board's name.
    pub name: String,
    /// The goal of the board.
    pub goal: String,
    /// The plan.
    pub plan: String,
    /// The queue of its tasks.
    pub queue: String,
    /// Whether tasks can be added.
    pub open: bool,
    /// The status of the board's run.
    pub status: String,
    /// The number of tasks in each status.
    pub tasks: Counts,
    /// The time of its creation.
    pub created_at: String,
}

/// The number of tasks in each status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct Counts {
    /// Tasks that wait for other tasks.
    pub waiting: u32,
    /// Tasks that can be claimed.
    pub ready: u32,
    /// Claimed tasks.
    pub claimed: u32,
    /// Finished tasks.
    pub done: u32,
    /// Tasks that failed and are not tried again.
    pub failed: u32,
    /// Tasks that were skipped because a needed task failed.
    pub skipped: u32,
    /// Cancelled tasks.
    pub cancelled: u32,
}

impl Counts {
    fn add(&mut self, status: StepStatus, count: u32) {
        *match status {
            StepStatus::Waiting => &mut self.waiting,
            StepStatus::Pending => &mut self.ready,
            StepStatus::Running => &mut self.claimed,
            StepStatus::Done => &mut self.done,
            StepStatus::Failed => &mut self.failed,
            StepStatus::Skipped => &mut self.skipped,
            StepStatus::Cancelled => &mut self.cancelled,
        } += count;
    }

    /// Returns the number of all tasks.
    pub fn total(&self) -> u32 {
        self.settled() + self.waiting + self.ready + self.claimed
    }

    /// Returns the number of tasks whose status no longer changes by itself.
    pub fn settled(&self) -> u32 {
        self.done + self.failed + self.skipped + self.cancelled
    }
}

/// Returns the word for a task's status.
pub(crate) fn status_word(status: StepStatus) -> &'static str {
    match status {
        StepStatus::Waiting => "waiting",
        StepStatus::Pending => "ready",
        StepStatus::Running => "claimed",
        StepStatus::Done => "done",
        StepStatus::Failed => "failed",
        StepStatus::Skipped => "skipped",
        StepStatus::Cancelled => "cancelled",
    }
}

/// Creates a board.
pub async fn create(app: &App, spec: &BoardSpec) -> Result<BoardView> {
    check_name("a board's name", &spec.name)?;
    if spec.name.parse::<RunId>().is_ok() {
        return Err(invalid("a board's name must not look like a run's id"));
    }
    check_text("the goal", &spec.goal)?;
    check_text("the plan", &spec.plan)?;
    let attempts = spec.attempts.unwrap_or(1);
    if !(1..=100).contains(&attempts) {
        return Err(invalid("attempts must be between 1 and 100"));
    }
    let delay_ms = spec.retry_delay_s.unwrap_or(0).min(30 * 24 * 3600) * 1000;
    let id = app.store.person().new_run_id();
    // A queue of this board alone: another board may get the same name before this one's last task is done.
    let queue = match &spec.queue {
        Some(queue) => check_queue(queue)?,
        None => format!("{OWN_QUEUE}{}/{id}", spec.name),
    };
    let mut run = NewRun::new(id, Arc::new(board_plan(&spec.name, &queue, attempts, delay_ms)));
    run.open = true;
    let new = NewBoard {
        run,
        name: spec.name.as_str().into(),
        goal: spec.goal.as_str().into(),
        plan: spec.plan.as_str().into(),
        queue: queue.as_str().into(),
    };
    match app.store.person().create_board(new).await? {
        Created::New(run) | Created::Existing(run) => view(app, &known(app, &run.to_string())?),
        Created::NameTaken => Err(refused("the run's name is taken: try again")),
    }
}

/// Returns boards, newest first; only those that still take tasks, unless `all`.
pub fn list(app: &App, all: bool, limit: usize) -> Result<Vec<BoardView>> {
    let boards = app.store.queries().boards(all, limit)?;
    boards.iter().map(|board| view(app, board)).collect()
}

/// Returns the board with this name, or the one whose run has this id.
pub fn known(app: &App, name: &str) -> Result<BoardRow> {
    if let Some(board) = app.store.queries().board_called(name)? {
        return Ok(board);
    }
    let of_run = match name.parse::<RunId>() {
        Ok(run) => app.store.queries().board(run)?,
        Err(_) => None,
    };
    if let Some(board) = of_run {
        return Ok(board);
    }
    let open = app.store.queries().boards(false, MOST_SEARCHED)?;
    Err(no_board(name, nearest(name, open.iter().map(|board| &*board.name))))
}

/// Returns a board as it is now.
pub fn view(app: &App, board: &BoardRow) -> Result<BoardView> {
    let BoardState { run, tasks } = app.store.queries().board_state(board.run)?;
    let mut counts = Counts::default();
    tasks.into_iter().for_each(|(status, count)| counts.add(status, count));
    Ok(BoardView {
        run: board.run.to_string(),
        name: board.name.to_string(),
        goal: board.goal.to_string(),
        plan: board.plan.to_string(),
        queue: board.queue.to_string(),
        open: board.open,
        status: run.map_or(RunStatus::Failed, |run| run.status()).to_string(),
        tasks: counts,
        created_at: rfc3339(board.created_ms),
    })
}

/// Closes a board, so that it takes no more tasks. With `cancel_waiting`, also cancels the tasks that no claimer has
/// begun.
pub async fn close(app: &App, board: &BoardRow, cancel_waiting: bool) -> Result<BoardView> {
    app.store.person().close_board(board.run, cancel_waiting).await?;
    view(app, &known(app, &board.run.to_string())?)
}

/// Changes a board's goal or its plan.
pub async fn set_plan(
    app: &App,
    board: &BoardRow,
    goal: Option<&str>,
    plan: Option<&str>,
) -> Result<BoardView> {
    check_text("the goal", goal.unwrap_or_default())?;
    check_text("the plan", plan.unwrap_or_default())?;
    app.store.person().set_board_plan(board.run, goal.map(Into::into), plan.map(Into::into)).await?;
    view(app, &known(app, &board.run.to_string())?)
}

fn check_name(what: &str, name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) {
        return Err(invalid(format!(
            "{what} must be 1 to {LONGEST_NAME} letters, digits, `-`, `_` or `.`, and {name:?} is not"
        )));
    }
    Ok(())
}

fn check_queue(queue: &str) -> Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if queue == sprag_store::DEFAULT_QUEUE {
        return Err(invalid("the queue `default` is for commands: choose another"));
    }
    if queue.is_empty() || queue.len() > 2 * LONGEST_NAME || !queue.chars().all(plain) {
        return Err(invalid(format!(
            "a queue's name must be letters, digits, `-`, `_`, `.` or `/`, and {queue:?} is not"
        )));
    }
    Ok(queue.to_owned())
}

pub(crate) fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() > LONGEST_TEXT {
        return Err(invalid(format!("{what} has {} bytes; at most {LONGEST_TEXT} are allowed", text.len())));
    }
    Ok(())
}
