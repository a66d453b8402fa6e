//! What is kept of boards beside their run and its steps: names, needs between tasks, notes. No statuses.

use std::sync::Arc;

use sprag_lifecycle::{Following, RunId, StepNo, StepStatus};

use crate::error::Result;
use crate::ops::{self, Added, Created, NewBoard, NewTask, TaskMoved};
use crate::roles::Person;

/// A board: an open run whose tasks are added while it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardRow {
    /// The run that it is.
    pub run: RunId,
    /// What people call it; one open board has a name.
    pub name: Arc<str>,
    /// What is to be reached.
    pub goal: Arc<str>,
    /// How, as its leader sees it.
    pub plan: Arc<str>,
    /// Where its tasks wait unless they say otherwise.
    pub queue: Arc<str>,
    /// It takes tasks.
    pub open: bool,
    /// When it was made.
    pub created_ms: i64,
}

/// What one who works on a board leaves for the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteRow {
    /// Its number, in the order of commits.
    pub id: i64,
    /// The board.
    pub run: RunId,
    /// Who wrote it.
    pub author: Arc<str>,
    /// What it is about, in a word; empty if nobody said.
    pub tag: Arc<str>,
    /// What it says.
    pub text: Arc<str>,
    /// When (wall clock).
    pub at_ms: i64,
}

/// The tables of boards.
pub trait Boards {
    /// Adds a board.
    fn put_board(&mut self, board: &BoardRow) -> Result<()>;
    /// The board that a run is.
    fn board(&mut self, run: RunId) -> Result<Option<BoardRow>>;
    /// The board of this name: the open one, else the newest.
    fn board_called(&mut self, name: &str) -> Result<Option<BoardRow>>;
    /// Boards from the newest on, at most `limit`; only those that take tasks, unless `all`.
    fn boards(&mut self, all: bool, limit: usize) -> Result<Vec<BoardRow>>;
    /// Changes what a board says of itself.
    fn change_board(&mut self, board: &BoardRow) -> Result<()>;

    /// How many of a board's tasks have each status, in the order of the words.
    fn task_counts(&mut self, run: RunId) -> Result<Vec<(StepStatus, u32)>>;

    /// Names a task.
    fn put_task_key(&mut self, run: RunId, key: &str, no: StepNo) -> Result<()>;
    /// The task of this name.
    fn task_by_key(&mut self, run: RunId, key: &str) -> Result<Option<StepNo>>;
    /// Notes that task `no` needs another.
    fn put_task_need(&mut self, run: RunId, no: StepNo, need: Following) -> Result<()>;
    /// What a task needs, in order.
    fn task_needs(&mut self, run: RunId, no: StepNo) -> Result<Vec<Following>>;
    /// What needs a task, in order.
    fn task_followers(&mut self, run: RunId, need: StepNo) -> Result<Vec<Following>>;

    /// What the tokens of claimed tasks are signed with: drawn once, and known to this store alone.
    fn token_key(&mut self) -> Result<Arc<str>>;

    /// Adds a note; its number is given by the database.
    fn put_note(&mut self, note: &NoteRow) -> Result<i64>;
    /// The notes of a board after number `after`, of one tag or all, in order.
    fn notes(&mut self, run: RunId, tag: Option<&str>, after: i64, limit: usize) -> Result<Vec<NoteRow>>;
}

impl Person<'_> {
    /// Makes a board.
    pub async fn create_board(self, new: NewBoard) -> Result<Created> {
        let hash = ops::plan_hash(&new.run.plan);
        self.0.write(move |session| ops::create_board(session, &new, hash)).await
    }

    /// Adds tasks to an open board, all or none.
    pub async fn add_tasks(self, board: RunId, tasks: Vec<NewTask>) -> Result<Vec<Added>> {
        self.0.write_on(vec![board], move |session| ops::add_tasks(session, board, &tasks)).await
    }

    /// Takes a task back.
    pub async fn cancel_task(self, board: RunId, no: StepNo) -> Result<TaskMoved> {
        self.0.write_on(vec![board], move |session| ops::cancel_task(session, board, no)).await
    }

    /// Tries a task again.
    pub async fn retry_task(self, board: RunId, no: StepNo) -> Result<TaskMoved> {
        self.0.write_on(vec![board], move |session| ops::retry_task(session, board, no)).await
    }

    /// Takes no more tasks.
    pub async fn close_board(self, board: RunId, cancel_waiting: bool) -> Result<()> {
        self.0.write_on(vec![board], move |session| ops::close_board(session, board, cancel_waiting)).await
    }

    /// Says anew what a board is for, or how it goes about it.
    pub async fn set_board_plan(
        self,
        board: RunId,
        goal: Option<Arc<str>>,
        plan: Option<Arc<str>>,
    ) -> Result<()> {
        self.0
            .write_on(vec![board], move |session| {
                ops::set_board_plan(session, board, goal.as_ref(), plan.as_ref())
            })
            .await
    }

    /// Leaves a note on a board.
    pub async fn add_note(
        self,
        board: RunId,
        author: Arc<str>,
        tag: Arc<str>,
        text: Arc<str>,
    ) -> Result<i64> {
        self.0.write(move |session| ops::add_note(session, board, &author, &tag, &text)).await
    }
}
