//! Boards, their tasks and their notes.

use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, RunId, StepNo, StepStatus};

use super::Queries;
use super::runs::{PlannedRun, planned_run};
use crate::backend::{Backend, Table};
use crate::boards::{BoardRow, NoteRow};
use crate::error::Result;
use crate::ops::TASKS;
use crate::rows::{ExecutionRow, Row, RunRow, StepRow, WorkerRow};

/// The state of a board.
#[derive(Debug, Clone)]
pub struct BoardState {
    /// The board's run; absent once it is forgotten.
    pub run: Option<RunRow>,
    /// The number of the board's tasks in each status.
    pub tasks: Vec<(StepStatus, u32)>,
}

/// A task of a board, with the rows of its present attempt.
#[derive(Debug, Clone)]
pub struct TaskState {
    /// The task's step.
    pub step: StepRow,
    /// The task as its author wrote it, as JSON.
    pub value: Option<Arc<str>>,
    /// The task's present attempt; absent while it waits for its needs.
    pub execution: Option<ExecutionRow>,
    /// The claimer that holds the attempt, or held it last.
    pub owner: Option<WorkerRow>,
}

impl Queries<'_> {
    /// Returns boards from the newest on, at most `limit`; only those that take tasks, unless `all`.
    pub fn boards(self, all: bool, limit: usize) -> Result<Vec<BoardRow>> {
        self.look(|db| db.boards(all, limit))
    }

    /// Returns the board of a run.
    pub fn board(self, run: RunId) -> Result<Option<BoardRow>> {
        self.look(|db| db.board(run))
    }

    /// Returns the board of this name: the open one, else the newest.
    pub fn board_called(self, name: &str) -> Result<Option<BoardRow>> {
        self.look(|db| db.board_called(name))
    }

    /// Returns the state of a board.
    pub fn board_state(self, board: RunId) -> Result<BoardState> {
        self.look(|db| {
            Ok(BoardState { run: Table::<RunRow>::load(db, board)?, tasks: db.task_counts(board)? })
        })
    }

    /// Returns the number of the task with this key, or of the task `number`, if the board has it.
    pub fn find_task(self, board: RunId, key: &str, number: Option<StepNo>) -> Result<Option<StepNo>> {
        self.look(|db| {
            let Some(no) = db.task_by_key(board, key)?.or(number) else { return Ok(None) };
            Ok(Table::<StepRow>::load(db, (board, no))?.map(|step| step.no))
        })
    }

    /// Returns one task of a board.
    pub fn task(self, board: RunId, no: StepNo) -> Result<Option<TaskState>> {
        self.look(|db| {
            let Some(step) = Table::<StepRow>::load(db, (board, no))? else { return Ok(None) };
            let parent = Table::<StepRow>::load(db, (board, TASKS))?;
            task_state(db, parent.as_ref(), step).map(Some)
        })
    }

    /// Returns the tasks of a board after number `after` that are wanted, at most `limit`, in order.
    pub fn tasks(
        self,
        board: RunId,
        after: StepNo,
        limit: usize,
        is_wanted: &dyn Fn(StepStatus) -> bool,
    ) -> Result<Vec<TaskState>> {
        self.look(|db| {
            let steps = db.steps(board)?;
            let parent = steps.first().cloned();
            let tasks = steps.into_iter().filter(|step| step.item_of == Some(TASKS) && step.no > after);
            let wanted = tasks.filter(|step| is_wanted(step.status()));
            wanted.take(limit).map(|step| task_state(db, parent.as_ref(), step)).collect()
        })
    }

    /// Returns the notes of a board after number `after`, of one tag or all, in order.
    pub fn notes(self, board: RunId, tag: Option<&str>, after: i64, limit: usize) -> Result<Vec<NoteRow>> {
        self.look(|db| db.notes(board, tag, after, limit))
    }

    /// Returns the key that signs the tokens of claimed tasks. It is drawn once, and only this store has it.
    pub fn token_key(self) -> Result<Arc<str>> {
        self.look(|db| db.token_key())
    }

    /// Returns the number of executions in these queues that are scheduled or running.
    pub fn in_flight(self, queues: &[Arc<str>]) -> Result<u32> {
        self.look(|db| {
            let mut in_flight = 0;
            for queue in queues {
                in_flight += db.in_flight(queue)?;
            }
            Ok(in_flight)
        })
    }

    /// Whether a step of one of these queues waits for its needs, in one of the `look` oldest live runs. Leaves out the
    /// tasks of boards.
    pub fn has_waiting_steps(self, queues: &[Arc<str>], look: usize) -> Result<bool> {
        let is_ours = |queue: &str| queues.iter().any(|wanted| &**wanted == queue);
        self.look(|db| {
            for run in db.live_runs(None, look)? {
                let Some(PlannedRun { plan: Some(plan), .. }) = planned_run(db, run)? else { continue };
                let mut planned = plan.steps.iter();
                let is_open =
                    |spread: Option<sprag_lifecycle::Spread>| spread.is_some_and(|spread| spread.open);
                if !planned.any(|step| is_ours(&step.queue) && !is_open(step.spread)) {
                    continue;
                }
                let waits = |step: &StepRow| {
                    is_ours(&plan.step(step.node()).queue) && step.status() == StepStatus::Waiting
                };
                if db.steps(run)?.iter().any(waits) {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}

/// Returns the state of a task; `parent` is the step whose items are the board's tasks.
fn task_state(db: &mut dyn Backend, parent: Option<&StepRow>, step: StepRow) -> Result<TaskState> {
    let made_by = parent.and_then(|parent| parent.items).map_or(1, |list| list.made_by);
    let list = ExecutionId { run: step.run, step: TASKS, attempt: made_by };
    let value = db.item(list, step.item.unwrap_or_default())?;
    let id = ExecutionId { run: step.run, step: step.no, attempt: step.attempt };
    let execution = Table::<ExecutionRow>::load(db, id)?;
    let owner = match execution.as_ref().and_then(|row| row.owner) {
        Some(owner) => Table::<WorkerRow>::load(db, owner)?,
        None => None,
    };
    Ok(TaskState { step, value, execution, owner })
}
