//! The operations of leaders on boards: create a board, add tasks, cancel or retry a task, close the board, and add
//! notes.
//!
//! A board is a run with one fan-out whose list grows. A task is an item of it, and workers claim, hold and finish it
//! like any other work.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::{
    RunId, RunState, RunStatus, StepNo, StepStatus, TaskNeed, admit_items, advance, cancel_item, graph,
    reopen_item,
};

use super::{Created, NewRun, create_run, illegal};
use crate::backend::Table;
use crate::boards::{BoardRow, NoteRow};
use crate::error::{Error, Result};
use crate::names::is_task;
use crate::outcome::NotApplied;
use crate::rows::{Row, RunRow, StepRow};
use crate::run_state::HeldRun;
use crate::session::Session;
use crate::wake::Topic;

/// The fan-out whose items are the board's tasks: the only step of its plan.
pub const TASKS: StepNo = 0;
/// The most tasks of a board.
pub const MOST_TASKS: u32 = 100_000;
/// The most tasks that one call adds, because other operations wait for the writer.
pub const MOST_AT_ONCE: usize = 1_000;

/// A board to create.
#[derive(Debug, Clone)]
pub struct NewBoard {
    /// The board's run, of a plan whose only step is an open fan-out.
    pub run: NewRun,
    /// The board's name, for people.
    pub name: Arc<str>,
    /// The goal of the board.
    pub goal: Arc<str>,
    /// The plan to reach the goal.
    pub plan: Arc<str>,
    /// The queue of tasks that name none.
    pub queue: Arc<str>,
}

/// A task to add.
#[derive(Debug, Clone, Default)]
pub struct NewTask {
    /// The leader's key for the task; the same key never creates a second task.
    pub key: Option<Arc<str>>,
    /// The tasks that it needs, by key or number; tasks of the same batch are allowed.
    pub needs: Vec<Arc<str>>,
    /// Whether it starts once its needs are settled, successful or not.
    pub tolerant: bool,
    /// The task's content, as JSON. `queue` and `priority` in it apply to its execution.
    pub value: Arc<str>,
}

/// A requested task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    /// The task's number on the board.
    pub no: StepNo,
    /// Whether a task with its key existed before; nothing was added.
    pub existing: bool,
}

/// The result of a request about one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskMoved {
    /// The request was carried out.
    Moved,
    /// There was nothing to do: the task has this status.
    Already(StepStatus),
}

/// Creates a board. Its name must not be that of an open one.
pub fn create_board(session: &mut Session<'_>, new: &NewBoard, plan_hash: i64) -> Result<Created> {
    if session.db().board_called(&new.name)?.is_some_and(|board| board.open) {
        let outcome = NotApplied::Superseded { entity: "board", predicate: "name is free" };
        return Err(Error::refused(
            outcome,
            format!("there is an open board called {:?}: close it first, or choose another name", new.name),
        ));
    }
    let created = create_run(session, &new.run, plan_hash)?;
    if let Created::New(run) = created {
        let created_ms = session.now().wall_ms;
        session.db().put_board(&BoardRow {
            run,
            name: Arc::clone(&new.name),
            goal: Arc::clone(&new.goal),
            plan: Arc::clone(&new.plan),
            queue: Arc::clone(&new.queue),
            open: true,
            created_ms,
        })?;
    }
    Ok(created)
}

/// Adds tasks to an open board, all or none.
pub fn add_tasks(session: &mut Session<'_>, board: RunId, tasks: &[NewTask]) -> Result<Vec<Added>> {
    let mut held = hold_open(session, board)?;
    let first = held.row()?.steps;
    if tasks.len() > MOST_AT_ONCE {
        return Err(Error::invalid(
            "tasks",
            format!("{} tasks are too many at once: at most {MOST_AT_ONCE} are allowed", tasks.len()),
        ));
    }
    let (numbers, keys) = number(&mut held, first, tasks)?;
    let added = numbers.iter().filter(|added| !added.existing).count();
    // The fan-out is step 0, so that the tasks start at 1.
    if first as usize - 1 + added > MOST_TASKS as usize {
        let outcome = NotApplied::Superseded { entity: "board", predicate: "room for more tasks" };
        let why = format!("a board takes at most {MOST_TASKS} tasks: create another");
        return Err(Error::refused(outcome, why));
    }
    let needs = resolve_needs(&mut held, first, tasks, &numbers, &keys)?;
    let parent = held.step_row(TASKS)?;
    let Some(list) = parent.items else {
        let outcome = illegal("run", held.row()?.status());
        return Err(Error::refused(outcome, format!("board {board} has not started yet")));
    };
    let mut values = Vec::new();
    let mut added = Vec::new();
    for ((task, told), needs) in tasks.iter().zip(&numbers).zip(needs) {
        if told.existing {
            continue;
        }
        let no = held.add_item(TASKS)?;
        debug_assert_eq!(no, told.no, "tasks are numbered as they come");
        let index = list.items.created + added.len() as u32;
        held.session.note::<StepRow>((board, no), |row| row.item = Some(index))?;
        if let Some(key) = &task.key {
            held.session.db().put_task_key(board, key, no)?;
        }
        for item in needs {
            held.session.db().put_task_need(board, no, TaskNeed { item, tolerant: task.tolerant })?;
        }
        values.push(Arc::clone(&task.value));
        added.push(no);
    }
    let made_by = sprag_lifecycle::ExecutionId { run: board, step: TASKS, attempt: list.made_by };
    held.session.db().put_items(made_by, list.items.created, &values)?;
    if !added.is_empty() {
        let name = Arc::clone(&held.row()?.pipeline);
        let plural = if added.len() == 1 { "" } else { "s" };
        held.session.note_act("task.added", &format!("{name}: {} task{plural}", added.len()))?;
    }
    admit_items(&mut held, TASKS, &added)?;
    Ok(numbers)
}

/// Returns the number that each of these tasks has or will have, and the numbers of those with a key, by key.
fn number<'t>(
    held: &mut HeldRun<'_, '_>,
    first: StepNo,
    tasks: &'t [NewTask],
) -> Result<(Vec<Added>, BTreeMap<&'t str, StepNo>)> {
    let mut next = first;
    let mut keys: BTreeMap<&str, StepNo> = BTreeMap::new();
    let mut numbers = Vec::with_capacity(tasks.len());
    for task in tasks {
        let known = match &task.key {
            None => None,
            Some(key) => match keys.get(&**key) {
                Some(_) => {
                    let why = format!("two tasks of the batch have the key {key:?}");
                    return Err(Error::invalid("key", why));
                }
                None => held.session.db().task_by_key(held.id, key)?,
            },
        };
        let no = known.unwrap_or(next);
        next += StepNo::from(known.is_none());
        if let Some(key) = &task.key {
            keys.insert(key, no);
        }
        numbers.push(Added { no, existing: known.is_some() });
    }
    Ok((numbers, keys))
}

/// Returns the numbers of the tasks that each of these tasks needs.
fn resolve_needs(
    held: &mut HeldRun<'_, '_>,
    first: StepNo,
    tasks: &[NewTask],
    numbers: &[Added],
    keys: &BTreeMap<&str, StepNo>,
) -> Result<Vec<Vec<StepNo>>> {
    let end = first + numbers.iter().filter(|added| !added.existing).count() as StepNo;
    let mut all = Vec::with_capacity(tasks.len());
    // Only the new tasks, by their index among them: older ones cannot need newer ones.
    let mut among_new = Vec::new();
    for (task, told) in tasks.iter().zip(numbers) {
        let mut needs = Vec::new();
        for need in &task.needs {
            let no = match keys.get(&**need) {
                Some(no) => Some(*no),
                None => match held.session.db().task_by_key(held.id, need)? {
                    Some(no) => Some(no),
                    None => need.parse::<StepNo>().ok().filter(|no| *no > TASKS && *no < end),
                },
            };
            let Some(no) = no else {
                let why = format!("there is no task {need:?} to wait for on this board");
                return Err(Error::invalid("needs", why));
            };
            needs.push(no);
        }
        needs.sort_unstable();
        needs.dedup();
        if !told.existing {
            among_new.push(needs.iter().filter_map(|no| no.checked_sub(first)).collect::<Vec<_>>());
        }
        all.push(needs);
    }
    match graph::find_cycle(&among_new) {
        None => Ok(all),
        Some(circle) => {
            let named: Vec<String> = circle.iter().map(|at| (first + at).to_string()).collect();
            let why = format!("the tasks need each other in a cycle: {}", named.join(" → "));
            Err(Error::invalid("needs", why))
        }
    }
}

/// Cancels a task: immediately if no worker holds it, else the store notifies its holder.
pub fn cancel_task(session: &mut Session<'_>, board: RunId, no: StepNo) -> Result<TaskMoved> {
    let mut held = hold_task(session, board, no)?;
    moved(&mut held, no, cancel_item, "task.cancel_requested")
}

/// Retries a task that failed, was cancelled, or was skipped because of another.
pub fn retry_task(session: &mut Session<'_>, board: RunId, no: StepNo) -> Result<TaskMoved> {
    let mut held = hold_task(session, board, no)?;
    let status = held.row()?.status();
    if status != RunStatus::Running {
        let why = format!("board {board} has ended: resume it to retry its failed tasks");
        return Err(Error::refused(illegal("run", status), why));
    }
    moved(&mut held, no, reopen_item, "task.retry_requested")
}

fn moved<'s, 'a>(
    held: &mut HeldRun<'s, 'a>,
    no: StepNo,
    act: impl FnOnce(&mut HeldRun<'s, 'a>, StepNo) -> Result<bool>,
    word: &'static str,
) -> Result<TaskMoved> {
    let was = held.step_row(no)?.status();
    if !act(held, no)? {
        return Ok(TaskMoved::Already(was));
    }
    let board = held.row()?;
    held.session.note_act(word, &format!("{} {no}", board.pipeline))?;
    Ok(TaskMoved::Moved)
}

/// Closes a board: it takes no more tasks, and ends with the last of them. With `cancel_waiting`, cancels the tasks
/// that have not started.
pub fn close_board(session: &mut Session<'_>, board: RunId, cancel_waiting: bool) -> Result<()> {
    let mut held = hold_open(session, board)?;
    held.session.note::<RunRow>(board, |row| row.open = false)?;
    mark_closed(held.session, board)?;
    let name = Arc::clone(&held.row()?.pipeline);
    held.session.note_act("board.closed", &name)?;
    if cancel_waiting {
        for no in held.items(TASKS, true)? {
            if held.step_row(no)?.status() != StepStatus::Running {
                cancel_item(&mut held, no)?;
            }
        }
    }
    advance(&mut held, [TASKS])
}

/// Marks a board as closed, because it has ended or is about to end.
pub(crate) fn mark_closed(session: &mut Session<'_>, board: RunId) -> Result<()> {
    if let Some(row) = session.db().board(board)? {
        session.db().change_board(&BoardRow { open: false, ..row })?;
    }
    Ok(())
}

/// Changes a board's goal or plan.
pub fn set_board_plan(
    session: &mut Session<'_>,
    board: RunId,
    goal: Option<&Arc<str>>,
    plan: Option<&Arc<str>>,
) -> Result<()> {
    let row = known(session, board)?;
    session.announce(Topic::Run(board));
    session.note_act("board.changed", &row.name)?;
    session.db().change_board(&BoardRow {
        goal: goal.cloned().unwrap_or(row.goal),
        plan: plan.cloned().unwrap_or(row.plan),
        ..row
    })
}

/// Adds a note to a board, and returns its number.
pub fn add_note(
    session: &mut Session<'_>,
    board: RunId,
    author: &Arc<str>,
    tag: &Arc<str>,
    text: &Arc<str>,
) -> Result<i64> {
    let name = known(session, board)?.name;
    session.note_act("note.added", &name)?;
    session.announce(Topic::Run(board));
    let at_ms = session.now().wall_ms;
    session.db().put_note(&NoteRow {
        id: 0,
        run: board,
        author: Arc::clone(author),
        tag: Arc::clone(tag),
        text: Arc::clone(text),
        at_ms,
    })
}

/// The tag of notes that are comments on a run's changes. No note of a board can have it.
pub const REVIEW_TAG: &str = "@review";

/// Adds a comment on a run's changes, and returns its number. It is stored as a note of the run.
pub fn add_review_comment(
    session: &mut Session<'_>,
    run: RunId,
    author: &Arc<str>,
    text: &Arc<str>,
) -> Result<i64> {
    add_run_note(session, run, author, &REVIEW_TAG.into(), text)
}

/// The most notes of one tag on a run that need not be a board. People read the last ones; agents may write in a loop.
pub const MOST_RUN_NOTES: i64 = 1_000;

/// Adds a note to a run that need not be a board, and returns its number.
pub fn add_run_note(
    session: &mut Session<'_>,
    run: RunId,
    author: &Arc<str>,
    tag: &Arc<str>,
    text: &Arc<str>,
) -> Result<i64> {
    let row = Table::<RunRow>::load(session.db(), run)?;
    row.ok_or_else(|| Error::NoSuchRun(run.to_string()))?;
    if session.db().note_count(run, tag)? >= MOST_RUN_NOTES {
        let kind = tag.trim_start_matches('@');
        return Err(Error::Invalid {
            field: "text",
            why: format!("run {run} has {MOST_RUN_NOTES} notes of kind {kind}, and takes no more"),
        });
    }
    let act = if **tag == *REVIEW_TAG { "comment.added" } else { "note.added" };
    session.note_act(act, &run.to_string())?;
    session.announce(Topic::Run(run));
    let at_ms = session.now().wall_ms;
    session.db().put_note(&NoteRow {
        id: 0,
        run,
        author: Arc::clone(author),
        tag: Arc::clone(tag),
        text: Arc::clone(text),
        at_ms,
    })
}

fn known(session: &mut Session<'_>, board: RunId) -> Result<BoardRow> {
    let missing = || NotApplied::NotFound { entity: "board" };
    session.db().board(board)?.ok_or_else(|| Error::refused(missing(), format!("run {board} is not a board")))
}

fn hold<'s, 'a>(session: &'s mut Session<'a>, board: RunId) -> Result<HeldRun<'s, 'a>> {
    HeldRun::take(session, board)?.ok_or_else(|| Error::NoSuchRun(board.to_string()))
}

fn hold_open<'s, 'a>(session: &'s mut Session<'a>, board: RunId) -> Result<HeldRun<'s, 'a>> {
    known(session, board)?;
    let mut held = hold(session, board)?;
    let row = held.row()?;
    if !row.open || row.status() != RunStatus::Running {
        let why = format!("board {board} is closed: it takes no more tasks");
        let outcome = if row.status() == RunStatus::Running {
            NotApplied::Superseded { entity: "board", predicate: "open" }
        } else {
            illegal("run", row.status())
        };
        return Err(Error::refused(outcome, why));
    }
    Ok(held)
}

fn hold_task<'s, 'a>(session: &'s mut Session<'a>, board: RunId, no: StepNo) -> Result<HeldRun<'s, 'a>> {
    known(session, board)?;
    let held = hold(session, board)?;
    let row = held.session.get::<StepRow>((board, no))?;
    if !row.is_some_and(|row| is_task(&held.plan(), &row)) {
        let outcome = NotApplied::NotFound { entity: "task" };
        return Err(Error::refused(outcome, format!("board {board} has no task {no}")));
    }
    Ok(held)
}
