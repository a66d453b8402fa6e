//! Boards: open runs whose tasks leaders add, and agents and people claim.
//!
//! ```text
//!   command line │ HTTP │ MCP ──▶ here ──▶ store: the run, its tasks, one claim protocol for all
//! ```
//!
//! The types are what all three speak, as JSON.

mod claim;
mod error;
mod report;
mod task;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{RunId, RunStatus, StepStatus};
use sprag_pipeline::board_plan;
use sprag_store::ops::{Created, NewBoard, NewRun};
use sprag_store::{BoardRow, Row, RunRow, Store, Table};

use crate::text::rfc3339;

pub use claim::{
    ClaimSpec, Claimed, Done, Held, Nothing, Wanted, agent_id, claim, claim_for_caller, done, fail,
    heartbeat, lease_of, release, start,
};
pub use error::BoardError;
pub use report::{NoteSpec, NoteView, Report, add_note, notes, report};
pub use task::{TaskAdded, TaskSpec, TaskView, add_tasks, cancel_task, retry_task, task, tasks};

type Result<T> = std::result::Result<T, BoardError>;

/// The longest text that a board, a task or a note may hold.
pub const LONGEST_TEXT: usize = 64 * 1024;
/// The longest name.
const LONGEST_NAME: usize = 64;

/// A board to be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BoardSpec {
    /// What people call it: letters, digits, `-`, `_` and `.`
    pub name: String,
    /// What is to be reached.
    #[serde(default)]
    pub goal: String,
    /// How, as its leader sees it; all may read it.
    #[serde(default)]
    pub plan: String,
    /// Where its tasks wait unless they say otherwise [default: one of its own].
    #[serde(default)]
    pub queue: Option<String>,
    /// How often a task may be tried [default: 1].
    #[serde(default)]
    pub attempts: Option<u32>,
    /// Seconds before the second try; doubled for each further one.
    #[serde(default)]
    pub retry_delay_s: Option<u64>,
}

/// A board, and how its tasks stand.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct BoardView {
    /// The run that it is.
    pub run: String,
    /// What people call it.
    pub name: String,
    /// What is to be reached.
    pub goal: String,
    /// How.
    pub plan: String,
    /// Where its tasks wait.
    pub queue: String,
    /// It takes tasks.
    pub open: bool,
    /// Its run's status.
    pub status: String,
    /// How many of its tasks are what.
    pub tasks: Counts,
    /// When it was made.
    pub created_at: String,
}

/// How many tasks are what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct Counts {
    /// Waiting for others.
    pub waiting: u32,
    /// Anybody may claim them.
    pub ready: u32,
    /// Somebody has them.
    pub claimed: u32,
    /// Done.
    pub done: u32,
    /// Failed for good.
    pub failed: u32,
    /// Not begun because of a failed one.
    pub skipped: u32,
    /// Taken back.
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

    /// All of them.
    pub fn total(&self) -> u32 {
        self.settled() + self.waiting + self.ready + self.claimed
    }

    /// Those that nothing more becomes of by itself.
    pub fn settled(&self) -> u32 {
        self.done + self.failed + self.skipped + self.cancelled
    }
}

/// What a task's status is called.
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

/// Makes a board.
pub async fn create(store: &Store, spec: &BoardSpec) -> Result<BoardView> {
    check_name("a board's name", &spec.name)?;
    if spec.name.parse::<RunId>().is_ok() {
        return Err(BoardError::invalid("a board's name must not look like a run's id"));
    }
    check_text("the goal", &spec.goal)?;
    check_text("the plan", &spec.plan)?;
    let attempts = spec.attempts.unwrap_or(1);
    if !(1..=100).contains(&attempts) {
        return Err(BoardError::invalid("attempts must be between 1 and 100"));
    }
    let delay_ms = spec.retry_delay_s.unwrap_or(0).min(30 * 24 * 3600) * 1000;
    let id = store.person().new_run_id();
    // Of this board alone: its name may be another's before its last task is done.
    let queue = match &spec.queue {
        Some(queue) => check_queue(queue)?,
        None => format!("board/{}/{id}", spec.name),
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
    match store.person().create_board(new).await? {
        Created::New(run) | Created::Existing(run) => view(store, &known(store, &run.to_string())?),
        Created::NameTaken => Err(BoardError::Refused("the run's name is taken: try again".into())),
    }
}

/// Boards from the newest on; only those that take tasks, unless `all`.
pub fn list(store: &Store, all: bool, limit: usize) -> Result<Vec<BoardView>> {
    let boards = store.read(|db| db.boards(all, limit))?;
    boards.iter().map(|board| view(store, board)).collect()
}

/// The board of this name, or the run of this id.
pub fn known(store: &Store, name: &str) -> Result<BoardRow> {
    let found = store.read(|db| match db.board_called(name)? {
        Some(board) => Ok(Some(board)),
        None => match name.parse::<RunId>() {
            Ok(run) => db.board(run),
            Err(_) => Ok(None),
        },
    })?;
    found.ok_or_else(|| BoardError::NoBoard(name.to_owned()))
}

/// A board as it stands.
pub fn view(store: &Store, board: &BoardRow) -> Result<BoardView> {
    let (run, counted) =
        store.read(|db| Ok((Table::<RunRow>::load(db, board.run)?, db.task_counts(board.run)?)))?;
    let mut counts = Counts::default();
    counted.into_iter().for_each(|(status, count)| counts.add(status, count));
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

/// Takes no more tasks; those that nobody has begun are taken back, if `cancel_waiting`.
pub async fn close(store: &Store, board: &BoardRow, cancel_waiting: bool) -> Result<BoardView> {
    store.person().close_board(board.run, cancel_waiting).await?;
    view(store, &known(store, &board.run.to_string())?)
}

/// Says anew what is to be reached, or how.
pub async fn set_plan(
    store: &Store,
    board: &BoardRow,
    goal: Option<&str>,
    plan: Option<&str>,
) -> Result<BoardView> {
    check_text("the goal", goal.unwrap_or_default())?;
    check_text("the plan", plan.unwrap_or_default())?;
    store.person().set_board_plan(board.run, goal.map(Into::into), plan.map(Into::into)).await?;
    view(store, &known(store, &board.run.to_string())?)
}

fn check_name(what: &str, name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) {
        return Err(BoardError::invalid(format!(
            "{what} is 1 to {LONGEST_NAME} letters, digits, `-`, `_` or `.`, and {name:?} is not"
        )));
    }
    Ok(())
}

fn check_queue(queue: &str) -> Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if queue == sprag_store::DEFAULT_QUEUE {
        return Err(BoardError::invalid("the queue `default` is for commands: choose another"));
    }
    if queue.is_empty() || queue.len() > 2 * LONGEST_NAME || !queue.chars().all(plain) {
        return Err(BoardError::invalid(format!(
            "a queue's name is letters, digits, `-`, `_`, `.` or `/`, and {queue:?} is not"
        )));
    }
    Ok(queue.to_owned())
}

fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() > LONGEST_TEXT {
        return Err(BoardError::invalid(format!(
            "{what} has {} bytes, and {LONGEST_TEXT} is the most",
            text.len()
        )));
    }
    Ok(())
}
