//! An operation on its way to a database's writer.

use sprag_lifecycle::{ExecutionId, RunId};

use crate::error::Result;
use crate::ops::Claimer;
use crate::session::Session;

/// What an operation is about.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// The runs that it decides about.
    pub(crate) runs: Vec<RunId>,
    /// What it wants to receive, and how much of it.
    pub(crate) claim: Option<(Claimer, usize)>,
    /// The one execution that it wants to receive, because a message told of it.
    pub(crate) told: Option<ExecutionId>,
}

/// An operation that waits to be written, and whoever waits for its answer.
pub(crate) trait Job: Send {
    /// Does the work; may be called again if the transaction was undone.
    fn run(&mut self, session: &mut Session<'_>) -> Result<()>;
    /// Answers, after the commit.
    fn answer(self: Box<Self>, committed: Result<()>);
    /// What it is about, as far as that is known: a database may fetch it for many jobs at once.
    fn about(&self) -> &About;
}
