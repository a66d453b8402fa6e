//! The row of a thread: a conversation with a coding agent.

use sprag_lifecycle::{Thread, ThreadFacts, ThreadStatus};

use super::{Id, Position, Row, Status, WriterOnly};
use crate::ops::Lease;

/// A conversation with a coding agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ThreadRow {
    /// The thread's number.
    pub id: Id,
    pub(crate) status: ThreadStatus,
    pub(crate) version: u32,
    /// The environment in which it works.
    pub environment: Option<Id>,
    /// The execution in which its agent lives, with its fence; absent while none does.
    pub holder: Option<Lease>,
    /// Whether it was asked to stop.
    pub stop_requested: bool,
    /// Whether it is archived.
    pub archived: bool,
    /// Whether it is deleted.
    pub deleted: bool,
    /// The number of the last turn; 0 before the first one.
    pub turn: u32,
    /// Whether that turn is open: nothing has ended it yet.
    pub turn_open: bool,
    /// The generation of the agent's process; 0 before the first one.
    pub runtime: u32,
}

/// The facts that a reporter gives about a thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadReport {
    /// The execution for which the reporter speaks, with its fence; absent for a reaper.
    pub holder: Option<Lease>,
    /// The turn that the reporter saw.
    pub turn: u32,
    /// The generation of the agent's process that the reporter saw.
    pub runtime: u32,
    /// The attempt to create the environment that the reporter saw.
    pub provision_attempt: u32,
}

/// A report, and what other rows say about it.
#[derive(Debug, Clone, Copy)]
pub struct ThreadGiven {
    /// The report.
    pub report: ThreadReport,
    /// Whether the reporter's execution is running with its fence, and was not asked to stop.
    pub holder_runs: bool,
    /// Whether the report is about the present attempt to create the environment.
    pub provision_attempt_matches: bool,
}

impl Row for ThreadRow {
    row_basics!(Thread, Id, ThreadGiven);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &ThreadGiven) -> ThreadFacts {
        let ThreadReport { holder, turn, runtime, .. } = given.report;
        ThreadFacts {
            stop_requested: self.stop_requested,
            archived: self.archived,
            deleted: self.deleted,
            has_holder: self.holder.is_some(),
            holder_runs: given.holder_runs,
            holder_matches: holder.is_some() && holder == self.holder,
            turn_matches: self.turn_open && turn == self.turn,
            runtime_matches: runtime == self.runtime,
            provision_attempt_matches: given.provision_attempt_matches,
        }
    }

    fn place(&self) -> Position {
        Position { id: Some(self.id), ..Position::default() }
    }
}
