//! The data of boards besides their run and its steps: names, needs between tasks, notes. It contains no statuses.

use std::sync::Arc;

use sprag_lifecycle::{RunId, StepNo, StepStatus, TaskNeed};

use crate::error::Result;
use crate::ops::{self, Added, Created, NewBoard, NewTask, TaskMoved};
use crate::roles::Person;
use crate::session::Session;

/// A board: an open run to which tasks are added while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardRow {
    /// The board's run.
    pub run: RunId,
    /// The board's name, for people. No two open boards have the same name.
    pub name: Arc<str>,
    /// The goal of the board, in the leader's words.
    pub goal: Arc<str>,
    /// The leader's plan to reach the goal.
    pub plan: Arc<str>,
    /// The queue of tasks that name none.
    pub queue: Arc<str>,
    /// Whether the board takes new tasks.
    pub open: bool,
    /// The time of creation (wall clock).
    pub created_ms: i64,
}

/// A note on a board, written for the others who work on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteRow {
    /// The note's number, in the order of commits.
    pub id: i64,
    /// The board.
    pub run: RunId,
    /// The name of the author.
    pub author: Arc<str>,
    /// The subject in one word; empty if the author gave none.
    pub tag: Arc<str>,
    /// The text of the note.
    pub text: Arc<str>,
    /// The time at which it was written (wall clock).
    pub at_ms: i64,
}

/// The tables of boards.
pub trait Boards {
    /// Adds a board.
    fn put_board(&mut self, board: &BoardRow) -> Result<()>;
    /// Returns the board of a run.
    fn board(&mut self, run: RunId) -> Result<Option<BoardRow>>;
    /// Returns the board of this name: the open one, else the newest.
    fn board_called(&mut self, name: &str) -> Result<Option<BoardRow>>;
    /// Returns boards from the newest on, at most `limit`; only those that take tasks, unless `all`.
    fn boards(&mut self, all: bool, limit: usize) -> Result<Vec<BoardRow>>;
    /// Replaces a board's row.
    fn change_board(&mut self, board: &BoardRow) -> Result<()>;

    /// Returns the number of a board's tasks in each status, in the order of the words.
    fn task_counts(&mut self, run: RunId) -> Result<Vec<(StepStatus, u32)>>;

    /// Stores the key of a task.
    fn put_task_key(&mut self, run: RunId, key: &str, no: StepNo) -> Result<()>;
    /// Returns the task with this key.
    fn task_by_key(&mut self, run: RunId, key: &str) -> Result<Option<StepNo>>;
    /// Records that task `no` needs another.
    fn put_task_need(&mut self, run: RunId, no: StepNo, need: TaskNeed) -> Result<()>;
    /// Returns the tasks that a task needs, in order.
    fn task_needs(&mut self, run: RunId, no: StepNo) -> Result<Vec<TaskNeed>>;
    /// Returns the tasks that need a task, in order.
    fn task_followers(&mut self, run: RunId, need: StepNo) -> Result<Vec<TaskNeed>>;

    /// Returns the key that signs the tokens of claimed tasks. It is drawn once, and only this store has it.
    fn token_key(&mut self) -> Result<Arc<str>>;

    /// Adds a note, and returns the number that the database gave it.
    fn put_note(&mut self, note: &NoteRow) -> Result<i64>;
    /// Returns the notes of a board after number `after`, of one tag or all, in order.
    fn notes(&mut self, run: RunId, tag: Option<&str>, after: i64, limit: usize) -> Result<Vec<NoteRow>>;
    /// Returns the number of notes of a run with this tag.
    fn note_count(&mut self, run: RunId, tag: &str) -> Result<i64>;
}

impl Person<'_> {
    /// Creates a board.
    pub async fn create_board(self, new: NewBoard) -> Result<Created> {
        let hash = ops::plan_hash(&new.run.plan);
        self.0.write_as_person(Vec::new(), move |session| ops::create_board(session, &new, hash)).await
    }

    /// Adds tasks to an open board, all or none.
    pub async fn add_tasks(self, board: RunId, tasks: Vec<NewTask>) -> Result<Vec<Added>> {
        self.0.write_as_person(vec![board], move |session| ops::add_tasks(session, board, &tasks)).await
    }

    /// Cancels a task.
    pub async fn cancel_task(self, board: RunId, no: StepNo) -> Result<TaskMoved> {
        self.0.write_as_person(vec![board], move |session| ops::cancel_task(session, board, no)).await
    }

    /// Retries a task.
    pub async fn retry_task(self, board: RunId, no: StepNo) -> Result<TaskMoved> {
        self.0.write_as_person(vec![board], move |session| ops::retry_task(session, board, no)).await
    }

    /// Closes a board: it takes no more tasks.
    pub async fn close_board(self, board: RunId, cancel_waiting: bool) -> Result<()> {
        self.0
            .write_as_person(vec![board], move |session| ops::close_board(session, board, cancel_waiting))
            .await
    }

    /// Changes a board's goal or plan.
    pub async fn set_board_plan(
        self,
        board: RunId,
        goal: Option<Arc<str>>,
        plan: Option<Arc<str>>,
    ) -> Result<()> {
        self.0
            .write_as_person(vec![board], move |session| {
                ops::set_board_plan(session, board, goal.as_ref(), plan.as_ref())
            })
            .await
    }

    /// Adds a comment on a run's changes.
    pub async fn add_review_comment(self, run: RunId, author: Arc<str>, text: Arc<str>) -> Result<i64> {
        let add = move |session: &mut Session<'_>| ops::add_review_comment(session, run, &author, &text);
        self.0.write_as_person(Vec::new(), add).await
    }

    /// Adds a note to a board.
    pub async fn add_note(
        self,
        board: RunId,
        author: Arc<str>,
        tag: Arc<str>,
        text: Arc<str>,
    ) -> Result<i64> {
        let add = move |session: &mut Session<'_>| ops::add_note(session, board, &author, &tag, &text);
        self.0.write_as_person(Vec::new(), add).await
    }
}
