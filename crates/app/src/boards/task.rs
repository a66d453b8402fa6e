//! A board's tasks, as their leader sees them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_lifecycle::StepNo;
use sprag_store::{BoardRow, NewTask, Row, TASKS, TaskMoved, TaskState};

use super::refusals::{invalid, no_task, refused};
use super::{Result, check_name, check_queue, check_text, rfc3339, status_word};

use crate::App;

/// The words for a task's status.
const WORDS: [&str; 7] = ["waiting", "ready", "claimed", "done", "failed", "skipped", "cancelled"];
/// The most entries in each of a task's lists: needs, files, hints, criteria.
const MOST_ENTRIES: usize = 256;

/// A request to add a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// The task's key on the board; a second task with the same key is not added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The work to do.
    pub text: String,
    /// Tasks that must be done first, by key or number, including tasks of the same batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Whether the task can start even if a task that it needs failed or was cancelled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub even_if_needs_fail: bool,
    /// Higher is claimed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The queue in which it waits [default: the board's queue].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Files that the task concerns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Hints for the claimer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// Acceptance criteria: conditions for the task to count as done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acceptance: Vec<String>,
}

/// An added task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct TaskAdded {
    /// Its number on the board.
    pub task: StepNo,
    /// Its key.
    pub key: Option<String>,
    /// Whether the task already existed, so that nothing was added.
    pub existing: bool,
}

/// A task and its state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct TaskView {
    /// Its number on the board.
    pub task: StepNo,
    /// `waiting` for others, `ready`, `claimed`, `done`, `failed`, `skipped`, `cancelled`.
    pub status: String,
    /// The request that added the task.
    #[serde(flatten)]
    pub spec: TaskSpec,
    /// The number of the current attempt.
    pub attempt: u32,
    /// The claimer that has it, or had it last.
    pub by: Option<String>,
    /// The result that its last holder reported.
    pub result: Option<Value>,
    /// Feedback for the next try.
    pub feedback: Option<String>,
    /// The time when it was started.
    pub started_at: Option<String>,
    /// The time when it was settled.
    pub ended_at: Option<String>,
}

impl TaskSpec {
    fn check(&self) -> Result<()> {
        if self.text.trim().is_empty() {
            return Err(invalid("a task's text must not be empty"));
        }
        check_text("a task's text", &self.text)?;
        if let Some(key) = &self.key {
            check_name("a task's key", key)?;
            if key.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(invalid(format!("a task's key must not be a number, and {key:?} is one")));
            }
        }
        if let Some(queue) = &self.queue {
            check_queue(queue)?;
        }
        for (what, list) in [
            ("needs", &self.needs),
            ("files", &self.files),
            ("hints", &self.hints),
            ("acceptance criteria", &self.acceptance),
        ] {
            if list.len() > MOST_ENTRIES {
                return Err(invalid(format!("a task has at most {MOST_ENTRIES} {what}")));
            }
            list.iter().try_for_each(|text| check_text(what, text))?;
        }
        Ok(())
    }

    fn new_task(&self) -> NewTask {
        NewTask {
            key: self.key.as_deref().map(Into::into),
            needs: self.needs.iter().map(|need| need.as_str().into()).collect(),
            tolerant: self.even_if_needs_fail,
            value: serde_json::to_string(self).expect("a task is plain data").into(),
        }
    }
}

/// Adds tasks: all of them, or none.
pub async fn add_tasks(app: &App, board: &BoardRow, specs: &[TaskSpec]) -> Result<Vec<TaskAdded>> {
    specs.iter().try_for_each(TaskSpec::check)?;
    let new = specs.iter().map(TaskSpec::new_task).collect();
    let added = app.store.person().add_tasks(board.run, new).await?;
    let told = |(spec, added): (&TaskSpec, sprag_store::Added)| TaskAdded {
        task: added.no,
        key: spec.key.clone(),
        existing: added.existing,
    };
    Ok(specs.iter().zip(added).map(told).collect())
}

/// Returns the number of a task that the caller names by its key or its number.
pub(super) fn find(app: &App, board: &BoardRow, task: &str) -> Result<StepNo> {
    let number = task.parse().ok().filter(|no| *no != TASKS);
    let there = app.store.queries().find_task(board.run, task, number)?;
    there.ok_or_else(|| no_task(&board.name, task))
}

/// Returns the tasks of a board after number `after`, in order; those in one of `statuses`, or all.
pub fn tasks(
    app: &App,
    board: &BoardRow,
    statuses: &[String],
    after: StepNo,
    limit: usize,
) -> Result<Vec<TaskView>> {
    if let Some(word) = statuses.iter().find(|word| !WORDS.contains(&word.as_str())) {
        let known = WORDS.join(", ");
        return Err(invalid(format!("{word:?} is not a status of a task: use {known}")));
    }
    let is_wanted = |status| statuses.is_empty() || statuses.iter().any(|word| word == status_word(status));
    let tasks = app.store.queries().tasks(board.run, after, limit, &is_wanted)?;
    Ok(tasks.into_iter().map(view).collect())
}

/// Returns one task.
pub fn task(app: &App, board: &BoardRow, task: &str) -> Result<TaskView> {
    let no = find(app, board, task)?;
    let found = app.store.queries().task(board.run, no)?;
    found.map(view).ok_or_else(|| no_task(&board.name, task))
}

fn view(task: TaskState) -> TaskView {
    let TaskState { step, value, execution, owner } = task;
    let spec = value.and_then(|value| serde_json::from_str(&value).ok()).unwrap_or_default();
    let result = execution.as_ref().and_then(|row| row.result.as_deref());
    TaskView {
        task: step.no,
        status: status_word(step.status()).to_owned(),
        spec,
        attempt: step.attempt,
        by: owner.map(|worker| worker.name.to_string()),
        result: result.and_then(|text| serde_json::from_str(text).ok()),
        feedback: step.feedback.as_deref().map(str::to_owned),
        started_at: step.started_ms.map(rfc3339),
        ended_at: step.ended_ms.map(rfc3339),
    }
}

/// Cancels a task. Its holder learns of it at its next heartbeat.
pub async fn cancel_task(app: &App, board: &BoardRow, task: &str) -> Result<TaskView> {
    let no = find(app, board, task)?;
    let moved = app.store.person().cancel_task(board.run, no).await?;
    told(app, board, task, moved, "taken back")
}

/// Retries a task that failed, was cancelled, or was skipped.
pub async fn retry_task(app: &App, board: &BoardRow, task: &str) -> Result<TaskView> {
    let no = find(app, board, task)?;
    let moved = app.store.person().retry_task(board.run, no).await?;
    told(app, board, task, moved, "tried again")
}

fn told(app: &App, board: &BoardRow, name: &str, moved: TaskMoved, what: &str) -> Result<TaskView> {
    match moved {
        TaskMoved::Moved => task(app, board, name),
        TaskMoved::Already(status) => {
            Err(refused(format!("task {name} is {}: it cannot be {what}", status_word(status))))
        }
    }
}
