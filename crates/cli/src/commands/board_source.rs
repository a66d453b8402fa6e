//! The boards and tasks of a [`Source`]: each method is one use case, in the store or at a server.

use std::time::Duration;

use serde_json::{Value, json};
use sprag_app::boards::{
    self, BoardSpec, BoardView, ClaimRequest, ClaimSpec, Claimed, Done, NoteSpec, NoteView, Nothing, Report,
    TaskAdded, TaskSpec, TaskView,
};

use super::server::escaped;
use super::source::{Source, parsed};
use crate::exit::Failure;

/// The most boards, tasks or notes that are shown at once.
pub(super) const MOST: usize = 1000;
/// The longest time that one request for a task waits at a server.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Returns the path of a board.
fn path(board: &str) -> String {
    format!("/v1/boards/{}", escaped(board))
}

/// Returns the path of a board's task.
fn task_path(board: &str, task: &str) -> String {
    format!("{}/tasks/{}", path(board), escaped(task))
}

/// Returns the path of a claimed task.
fn claim_path(token: &str, verb: &str) -> String {
    format!("/v1/tasks/{}/{verb}", escaped(token))
}

impl Source<'_> {
    pub(super) async fn create_board(&self, spec: &BoardSpec) -> Result<BoardView, Failure> {
        match self {
            Source::Store(app) => Ok(boards::create(app, spec).await?),
            Source::Server(remote) => parsed(remote.post("/v1/boards", json!(spec)).await?),
        }
    }

    pub(super) async fn boards(&self, all: bool) -> Result<Vec<BoardView>, Failure> {
        match self {
            Source::Store(app) => Ok(boards::list(app, all, MOST)?),
            Source::Server(remote) => {
                parsed(remote.list(&format!("/v1/boards?limit={MOST}&all={all}"), "boards").await?)
            }
        }
    }

    pub(super) async fn board(&self, board: &str) -> Result<BoardView, Failure> {
        match self {
            Source::Store(app) => Ok(boards::view(app, &boards::known(app, board)?)?),
            Source::Server(remote) => parsed(remote.get(&path(board)).await?),
        }
    }

    pub(super) async fn set_plan(
        &self,
        board: &str,
        goal: Option<&str>,
        plan: Option<&str>,
    ) -> Result<BoardView, Failure> {
        match self {
            Source::Store(app) => Ok(boards::set_plan(app, &boards::known(app, board)?, goal, plan).await?),
            Source::Server(remote) => {
                let body = json!({ "goal": goal, "plan": plan });
                parsed(remote.send("PUT", &format!("{}/plan", path(board)), Some(body)).await?)
            }
        }
    }

    pub(super) async fn add_note(&self, board: &str, note: &NoteSpec) -> Result<NoteView, Failure> {
        match self {
            Source::Store(app) => Ok(boards::add_note(app, &boards::known(app, board)?, note).await?),
            Source::Server(remote) => {
                parsed(remote.post(&format!("{}/notes", path(board)), json!(note)).await?)
            }
        }
    }

    pub(super) async fn notes(
        &self,
        board: &str,
        tag: Option<&str>,
        after: i64,
    ) -> Result<Vec<NoteView>, Failure> {
        match self {
            Source::Store(app) => Ok(boards::notes(app, &boards::known(app, board)?, tag, after, MOST)?),
            Source::Server(remote) => {
                let tag = tag.map(|tag| format!("&tag={}", escaped(tag))).unwrap_or_default();
                let path = format!("{}/notes?limit={MOST}&after={after}{tag}", path(board));
                parsed(remote.list(&path, "notes").await?)
            }
        }
    }

    pub(super) async fn report(&self, board: &str) -> Result<Report, Failure> {
        match self {
            Source::Store(app) => Ok(boards::report(app, &boards::known(app, board)?)?),
            Source::Server(remote) => parsed(remote.get(&format!("{}/report", path(board))).await?),
        }
    }

    pub(super) async fn close_board(&self, board: &str, cancel_waiting: bool) -> Result<BoardView, Failure> {
        match self {
            Source::Store(app) => Ok(boards::close(app, &boards::known(app, board)?, cancel_waiting).await?),
            Source::Server(remote) => {
                let body = json!({ "cancel_waiting": cancel_waiting });
                parsed(remote.post(&format!("{}/close", path(board)), body).await?)
            }
        }
    }

    pub(super) async fn add_tasks(&self, board: &str, tasks: &[TaskSpec]) -> Result<Vec<TaskAdded>, Failure> {
        match self {
            Source::Store(app) => Ok(boards::add_tasks(app, &boards::known(app, board)?, tasks).await?),
            Source::Server(remote) => {
                let body = json!({ "tasks": tasks });
                parsed(remote.post(&format!("{}/tasks", path(board)), body).await?["tasks"].take())
            }
        }
    }

    pub(super) async fn tasks(&self, board: &str, statuses: &[String]) -> Result<Vec<TaskView>, Failure> {
        match self {
            Source::Store(app) => Ok(boards::tasks(app, &boards::known(app, board)?, statuses, 0, MOST)?),
            Source::Server(remote) => {
                let status = match statuses {
                    [] => String::new(),
                    some => format!("&status={}", escaped(&some.join(","))),
                };
                parsed(remote.list(&format!("{}/tasks?limit={MOST}{status}", path(board)), "tasks").await?)
            }
        }
    }

    /// Returns the tasks of all live runs that wait or are claimed.
    pub(super) async fn open_tasks(&self, queue: Option<&str>) -> Result<Value, Failure> {
        match self {
            Source::Store(app) => Ok(json!(boards::open_tasks(app, queue, |_| Ok(true))?)),
            Source::Server(remote) => {
                let queue = queue.map(|queue| format!("?queue={}", escaped(queue))).unwrap_or_default();
                remote.list(&format!("/v1/tasks{queue}"), "tasks").await
            }
        }
    }

    pub(super) async fn task(&self, board: &str, task: &str) -> Result<TaskView, Failure> {
        match self {
            Source::Store(app) => Ok(boards::task(app, &boards::known(app, board)?, task)?),
            Source::Server(remote) => parsed(remote.get(&task_path(board, task)).await?),
        }
    }

    pub(super) async fn cancel_task(&self, board: &str, task: &str) -> Result<TaskView, Failure> {
        match self {
            Source::Store(app) => Ok(boards::cancel_task(app, &boards::known(app, board)?, task).await?),
            Source::Server(remote) => {
                parsed(remote.post(&format!("{}/cancel", task_path(board, task)), json!({})).await?)
            }
        }
    }

    pub(super) async fn retry_task(&self, board: &str, task: &str) -> Result<TaskView, Failure> {
        match self {
            Source::Store(app) => Ok(boards::retry_task(app, &boards::known(app, board)?, task).await?),
            Source::Server(remote) => {
                parsed(remote.post(&format!("{}/retry", task_path(board, task)), json!({})).await?)
            }
        }
    }

    /// Claims a task of a board or of queues. Waits for one at most as long as `wait`.
    pub(super) async fn claim(
        &self,
        spec: ClaimSpec,
        wait: Duration,
        lease: Duration,
    ) -> Result<Result<Claimed, Nothing>, Failure> {
        let remote = match self {
            Source::Store(app) => {
                let board = spec.board.as_deref().map(|board| boards::known(app, board)).transpose()?;
                let ClaimSpec { name, queues, .. } = spec;
                let wanted = ClaimRequest { name, caller: "".into(), board, queues, wait, lease, nonce: 0 };
                return Ok(boards::claim(app, &wanted).await?);
            }
            Source::Server(remote) => remote,
        };
        let mut left = wait;
        loop {
            let now = left.min(LONGEST_WAIT);
            let spec = ClaimSpec { wait_s: now.as_secs(), lease_s: Some(lease.as_secs()), ..spec.clone() };
            let mut told = remote.post("/v1/tasks/claim", json!(spec)).await?;
            left -= now;
            if !told["task"].is_null() {
                return Ok(Ok(parsed(told["task"].take())?));
            }
            if left.is_zero() {
                return Ok(Err(parsed(told["nothing"].take())?));
            }
        }
    }

    pub(super) async fn start_task(&self, token: &str, lease: Duration) -> Result<Claimed, Failure> {
        match self {
            Source::Store(app) => Ok(boards::start(app, token, lease).await?),
            Source::Server(remote) => {
                let body = json!({ "lease_s": lease.as_secs() });
                parsed(remote.post(&claim_path(token, "start"), body).await?)
            }
        }
    }

    pub(super) async fn extend_claim(&self, token: &str, lease: Duration) -> Result<(), Failure> {
        match self {
            Source::Store(app) => boards::heartbeat(app, token, lease).await.map(drop)?,
            Source::Server(remote) => {
                let body = json!({ "lease_s": lease.as_secs() });
                remote.post(&claim_path(token, "heartbeat"), body).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn report_done(&self, token: &str, done: &Done) -> Result<(), Failure> {
        match self {
            Source::Store(app) => boards::done(app, token, done).await.map(drop)?,
            Source::Server(remote) => {
                remote.post(&claim_path(token, "done"), json!(done)).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn report_failed(
        &self,
        token: &str,
        reason: &str,
        for_good: bool,
    ) -> Result<(), Failure> {
        match self {
            Source::Store(app) => boards::fail(app, token, reason, !for_good).await.map(drop)?,
            Source::Server(remote) => {
                let body = json!({ "reason": reason, "for_good": for_good });
                remote.post(&claim_path(token, "fail"), body).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn release_claim(&self, token: &str) -> Result<(), Failure> {
        match self {
            Source::Store(app) => boards::release(app, token).await.map(drop)?,
            Source::Server(remote) => {
                remote.post(&claim_path(token, "release"), json!({})).await?;
            }
        }
        Ok(())
    }
}
