//! What can go wrong with boards and tasks, told so that an agent knows what to do next.

use sprag_store::NotApplied;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    /// The store failed.
    #[error(transparent)]
    Store(sprag_store::Error),
    /// There is no such board.
    #[error("there is no board {0:?}")]
    NoBoard(String),
    /// There is no such task.
    #[error("board {board:?} has no task {task:?}")]
    NoTask {
        /// The board.
        board: String,
        /// What was looked for.
        task: String,
    },
    /// It makes no sense as it was written.
    #[error("{0}")]
    Invalid(String),
    /// It makes no sense now.
    #[error("{0}")]
    Refused(String),
    /// The text is no token.
    #[error("{0:?} is not a token")]
    NoToken(String),
    /// The token was taken away: the lease lapsed, the task has ended, or somebody else has it.
    #[error("{token} is no longer yours: {why}")]
    Lost {
        /// The token.
        token: String,
        /// What stands against it.
        why: NotApplied,
    },
    /// The task was taken back while its holder was at it.
    #[error("the task was cancelled: stop working on it")]
    Cancelled {
        /// The token.
        token: String,
    },
}

impl From<sprag_store::Error> for BoardError {
    fn from(error: sprag_store::Error) -> Self {
        match error {
            sprag_store::Error::Refused(why) => BoardError::Refused(why),
            other => BoardError::Store(other),
        }
    }
}

impl BoardError {
    pub(super) fn invalid(why: impl Into<String>) -> Self {
        BoardError::Invalid(why.into())
    }

    /// A word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            BoardError::Store(_) => "store",
            BoardError::NoBoard(_) => "no_board",
            BoardError::NoTask { .. } => "no_task",
            BoardError::Invalid(_) => "invalid",
            BoardError::Refused(_) => "refused",
            BoardError::NoToken(_) => "no_token",
            BoardError::Lost { .. } => "lost",
            BoardError::Cancelled { .. } => "cancelled",
        }
    }

    /// What to do about it.
    pub fn next(&self) -> &'static str {
        match self {
            BoardError::Store(_) => "try again in a moment; if it stays, look at the server's log",
            BoardError::NoBoard(_) => "list the boards, or make one",
            BoardError::NoTask { .. } => "list the board's tasks; a task is named by its key or its number",
            BoardError::Invalid(_) => "correct it and send it again; nothing was changed",
            BoardError::Refused(_) => "nothing was changed: look at the board before trying again",
            BoardError::NoToken(_) => "use the token that the claim answered with, as it is",
            BoardError::Lost { .. } => {
                "stop working on it, report nothing more about it, and claim another task"
            }
            BoardError::Cancelled { .. } => "stop working on it and release it, then claim another task",
        }
    }
}
