//! Errors of boards and tasks, with what an agent should do next.

use sprag_store::NotApplied;

use crate::error::{Error, ErrorKind, Hint};

/// Returns the error for a board that does not exist; `near` is the open board with the most similar name.
pub(super) fn no_board(name: &str, near: Option<&str>) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no board {name:?}"))
        .coded("no_board")
        .hint(Hint::ListBoards { near: near.map(str::to_owned) })
}

/// Returns the error for a task that does not exist.
pub(super) fn no_task(board: &str, task: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("board {board:?} has no task {task:?}"))
        .coded("no_task")
        .next("list the board's tasks; a task is named by its key or its number")
}

/// Returns the error for a request that makes no sense.
pub(super) fn invalid(why: impl Into<String>) -> Error {
    Error::invalid(why).next("correct it and send it again; nothing was changed")
}

/// Returns the error for a request that makes no sense in the present state.
pub(super) fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Refused, why).next("nothing was changed: check the board before you try again")
}

/// Returns the error for a text that is no token of this store.
pub(super) fn no_token(token: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{token:?} is not a token"))
        .coded("no_token")
        .next("use the token from the claim's answer, unchanged")
}

/// Returns the error for a token that is no longer valid.
///
/// The fence grows whenever a task changes hands. As long as it is still the token's fence, the report of this very
/// token has ended the task.
pub(super) fn lost(token: &str, why: NotApplied) -> Error {
    match why {
        NotApplied::Illegal { status, wrong_actor: false, .. } => Error::new(
            ErrorKind::Refused,
            format!("{token} has already been reported as {status}, and that report counts"),
        )
        .coded("reported")
        .next("the first report counts: keep the work, and claim another task"),
        why => Error::new(ErrorKind::Refused, format!("{token} is no longer yours: {why}"))
            .coded("lost")
            .next("stop working on it, report nothing more about it, and claim another task")
            .because(why),
    }
}

/// Returns the error for a task that was cancelled while its holder worked on it.
pub(super) fn cancelled() -> Error {
    Error::new(ErrorKind::Refused, "the task was cancelled: stop working on it")
        .coded("cancelled")
        .next("stop working on it and release it, then claim another task")
}
