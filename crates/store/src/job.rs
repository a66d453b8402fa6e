//! An operation that is passed to a database's writer.

use sprag_lifecycle::{ExecutionId, RunId};

use crate::error::Result;
use crate::ops::Claimer;
use crate::session::Session;

/// The rows that an operation concerns.
#[derive(Debug, Default)]
pub(crate) struct JobScope {
    /// The runs that it decides about.
    pub(crate) runs: Vec<RunId>,
    /// The claimer and the most executions that it wants to receive.
    pub(crate) claim: Option<(Claimer, usize)>,
    /// The one execution that it wants to receive, because a message announced it.
    pub(crate) told: Option<ExecutionId>,
}

/// An operation that waits to be written, and the caller that waits for its answer.
pub(crate) trait Job: Send {
    /// Runs the operation. May be called again if the transaction was rolled back.
    fn run(&mut self, session: &mut Session<'_>) -> Result<()>;
    /// Sends the answer to the caller, after the commit.
    fn answer(self: Box<Self>, committed: Result<()>);
    /// Returns the rows that it concerns, as far as they are known. A database may fetch them for many jobs at once.
    fn about(&self) -> &JobScope;
}
