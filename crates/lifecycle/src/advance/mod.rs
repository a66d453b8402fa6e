//! The walk over a run: derives the next actions from stored state alone.
//!
//! ```text
//!   a step's work ended ─┐                    ┌─▶ step events   (ready, succeeded, retried, …)
//!   a cancel, a resume ──┼─▶ advance(state) ──┼─▶ work to start, work to stop
//!   a sweep, a restart ──┘                    └─▶ run events    (failure observed, succeeded, …)
//! ```
//!
//! Any process may call it, any number of times. [`advance`] visits only the changed steps and their
//! dependents, so its cost does not grow with the run. [`heal()`] recounts everything and visits every step.
//! Tests check that both make the same decisions.
//!
//! The functions are pure: they read a [`RunState`] and write their decisions to it, within one transaction of
//! the store.

mod heal;
mod rework;
mod services;
mod tasks;
mod walk;

use std::sync::Arc;

use crate::{Plan, Policy, RunEvent, RunStatus, StepEvent, StepNo, StepStatus};

pub use heal::heal;
pub use rework::{BackTo, restart, resume_set};
pub use tasks::{TaskNeed, admit_items, cancel_item, reopen_item};
pub use walk::advance;

/// A run, as the walk reads and writes it.
pub trait RunState {
    /// An error while reading or writing the state.
    type Error;

    /// Returns the plan.
    fn plan(&self) -> Arc<Plan>;
    /// Returns the run's row.
    fn run(&self) -> RunNow;
    /// Returns a step's row and the state of its work.
    fn step(&mut self, no: StepNo) -> Result<StepNow, Self::Error>;
    /// Returns all unsettled steps in order, including steps with a pending rework.
    fn unsettled(&mut self) -> Result<Vec<StepNo>, Self::Error>;
    /// Returns the number of pending and running steps and items that take a place of the run
    /// ([`crate::PlanStep::takes_place`]).
    fn at_work(&mut self) -> Result<u32, Self::Error>;
    /// Evaluates the step's `when`. The walk calls it once all needs are met.
    fn when_holds(&mut self, no: StepNo) -> Result<bool, Self::Error>;
    /// Evaluates the step's `repeat` after a successful attempt.
    fn next_round(&mut self, no: StepNo) -> Result<NextRound, Self::Error>;
    /// Returns the items that the current attempt of a fan-out created, in order; only the unsettled ones if
    /// `unsettled`.
    fn items(&mut self, of: StepNo, unsettled: bool) -> Result<Vec<StepNo>, Self::Error>;
    /// Returns the first `limit` waiting items of a fan-out, in order.
    fn waiting_items(&mut self, of: StepNo, limit: u32) -> Result<Vec<StepNo>, Self::Error>;

    /// Returns the tasks that need this task of a board, in order.
    fn tasks_needing(&mut self, item: StepNo) -> Result<Vec<TaskNeed>, Self::Error>;
    /// Returns the tasks that this task of a board needs, in order.
    fn needs_of_task(&mut self, item: StepNo) -> Result<Vec<TaskNeed>, Self::Error>;

    /// Reports an event of a step.
    fn move_step(&mut self, no: StepNo, to: StepMove) -> Result<(), Self::Error>;
    /// Stores the number of a step's open and broken needs.
    fn set_needs(&mut self, no: StepNo, needs: Needs) -> Result<(), Self::Error>;
    /// Creates the work of the step's current attempt.
    fn start_work(&mut self, no: StepNo) -> Result<(), Self::Error>;
    /// Records that the current round of the step's `repeat` has ended, although the run starts no other.
    fn note_round(&mut self, no: StepNo) -> Result<(), Self::Error>;
    /// Creates work for the step's current attempt that fails at once, because no further round is allowed or the
    /// condition of its `repeat` has no answer.
    fn refuse_round(&mut self, no: StepNo) -> Result<(), Self::Error>;
    /// Adds the next item of a fan-out as a waiting step of the run, and returns its number.
    fn add_item(&mut self, of: StepNo) -> Result<StepNo, Self::Error>;
    /// Stores the counts of a fan-out's items.
    fn set_items(&mut self, of: StepNo, items: Items) -> Result<(), Self::Error>;
    /// Stops the step's work: at once if no worker received it, else by a cancel request to its owner.
    fn stop_work(&mut self, no: StepNo) -> Result<(), Self::Error>;
    /// Reports an event of the run.
    fn move_run(&mut self, event: RunEvent) -> Result<(), Self::Error>;
    /// Stores the number of unsettled and broken steps.
    fn set_tally(&mut self, tally: Tally) -> Result<(), Self::Error>;
    /// Stores which failed step has a rework in progress, or that none has.
    fn set_reworking(&mut self, by: Option<StepNo>) -> Result<(), Self::Error>;
    /// Drops the pending rework of a failed step, so that its failure stands.
    fn drop_rework(&mut self, no: StepNo) -> Result<(), Self::Error>;
    /// Returns whether only a person can remove the cause of the failure, so that a rework would not help.
    fn is_blocked(&mut self, no: StepNo) -> Result<bool, Self::Error>;
}

/// The part of a run's row that the walk reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunNow {
    /// The run's status.
    pub status: RunStatus,
    /// Whether the run is a board that accepts tasks.
    pub open: bool,
    /// The counts of its steps.
    pub tally: Tally,
    /// The failed step whose rework is in progress.
    pub reworking: Option<StepNo>,
}

/// The counts of a run's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tally {
    /// The number of unsettled steps.
    pub unsettled: u32,
    /// The number of broken steps.
    pub broken: u32,
}

/// The counts of a step's needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Needs {
    /// The number of unsettled needs.
    pub open: u32,
    /// The number of broken needs.
    pub broken: u32,
}

/// The counts of a fan-out's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Items {
    /// The length of the list.
    pub total: u32,
    /// The number of items that exist as steps, in the list's order.
    pub created: u32,
    /// The number of settled items.
    pub settled: u32,
    /// The number of failed items.
    pub failed: u32,
    /// The number of cancelled items.
    pub cancelled: u32,
    /// The number of items that were reset and wait for a free slot.
    pub requeued: u32,
    /// Whether no more items are created and live ones are stopped.
    pub ending: bool,
}

impl Items {
    /// Returns how many more items may become live if `bound` is the limit.
    pub fn room(&self, bound: u32) -> u32 {
        bound.saturating_sub(self.created - self.settled - self.requeued)
    }

    /// Returns whether all items are finished; `more` tells whether further items may be created.
    pub fn are_finished(&self, more: bool) -> bool {
        self.settled == self.created && (self.created == self.total || self.ending || !more)
    }

    /// Returns the outcome of the fan-out once its items are finished.
    pub fn end(&self) -> WorkEnd {
        if self.failed > 0 {
            WorkEnd::Failed { retriable: false }
        } else if self.cancelled > 0 || self.created < self.total {
            WorkEnd::Cancelled
        } else {
            WorkEnd::Succeeded
        }
    }
}

/// The part of a step's row that the walk reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepNow {
    /// The number of its node in the plan; different from its own number only for items.
    pub node: StepNo,
    /// The fan-out of an item; absent for other steps.
    pub item_of: Option<StepNo>,
    /// The counts of its items; absent unless it is a fan-out that has started.
    pub items: Option<Items>,
    /// The step's status.
    pub status: StepStatus,
    /// The number of the current attempt, from 1.
    pub attempt: u32,
    /// The attempt that it started with: 1, or above the attempts of the items of an earlier list.
    pub first_attempt: u32,
    /// The number of failed attempts in this round.
    pub tries: u32,
    /// The number of workers lost in a row.
    pub losses: u32,
    /// The number of reworks that it has requested.
    pub reworks: u32,
    /// The number of rounds of its `repeat` that were followed by another one.
    pub repeats: u32,
    /// The counts of its needs.
    pub needs: Needs,
    /// Whether it was skipped because its `when` was false or a person skipped it: it then counts as met. In a step
    /// that is not settled: whether a person skips it.
    pub skipped_by_when: bool,
    /// Whether it failed and its rework waits until the steps to reset are idle.
    pub rework_pending: bool,
    /// The state of its work.
    pub work: Work,
}

/// The state of a step's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The current attempt has no work yet.
    None,
    /// Created; no worker has received it.
    Unreceived,
    /// In progress without a worker: an unanswered question, or a time in the future.
    Open,
    /// A worker is doing it.
    Live {
        /// Whether the owner was asked to stop it.
        ending: bool,
    },
    /// Finished.
    Ended(WorkEnd),
}

/// The consequence of a successful attempt at a step with `repeat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRound {
    /// The round was the last one: the step is done.
    None,
    /// The condition asks for another round.
    Wanted,
    /// The condition has no answer: the step fails.
    Unknown,
}

/// The outcome of a step's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkEnd {
    /// The work succeeded.
    Succeeded,
    /// The work failed.
    Failed {
        /// Whether a retry is useful; some exit codes exclude it.
        retriable: bool,
    },
    /// No worker can receive it.
    Unschedulable,
    /// It was stopped, or never started.
    Cancelled,
    /// Its worker was lost.
    Lost,
}

/// A decision of the walk about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepMove {
    /// The needs are met.
    Ready,
    /// A worker started the work.
    Started,
    /// The work succeeded.
    Succeeded,
    /// Another attempt follows.
    Retried {
        /// Whether the last attempt was lost with its worker. It then does not count as a failed attempt.
        lost: bool,
    },
    /// Another round follows a successful one.
    Repeated,
    /// The attempts are used up.
    Failed {
        /// Whether a rework follows.
        rework: bool,
    },
    /// The step will not run.
    Skipped {
        /// Whether its own `when` is false or a person skips it; otherwise a need is broken.
        by_when: bool,
    },
    /// The work was stopped, or there was none.
    Cancelled,
    /// The step runs again because a later step failed.
    Reworked {
        /// The step that failed.
        by: StepNo,
    },
    /// The step runs again because a person resumed or rewound the run.
    Reset {
        /// Whether the completed items of its fan-out, or its child run, are kept.
        keep: bool,
    },
    /// The step runs again because a person retries this task of an open board.
    Reopened,
}

impl StepMove {
    /// Returns the corresponding event of the step's table.
    pub fn event(self) -> StepEvent {
        match self {
            StepMove::Ready => StepEvent::Ready,
            StepMove::Started => StepEvent::Started,
            StepMove::Succeeded => StepEvent::Succeeded,
            StepMove::Retried { .. } => StepEvent::Retried,
            StepMove::Repeated => StepEvent::Repeated,
            StepMove::Failed { .. } => StepEvent::Failed,
            StepMove::Skipped { .. } => StepEvent::Skipped,
            StepMove::Cancelled => StepEvent::Cancelled,
            StepMove::Reworked { .. } => StepEvent::Reworked,
            StepMove::Reset { .. } => StepEvent::Reset,
            StepMove::Reopened => StepEvent::Reopened,
        }
    }
}

/// The meaning of a step for its dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Not settled, or with a pending rework.
    Open,
    /// Done, skipped by its own `when`, or failed where that is tolerated.
    Met,
    /// Otherwise failed, cancelled, or skipped because of a broken need.
    Broken,
}

/// Returns the meaning of a step for its dependents.
pub fn standing(step: &StepNow, policy: &Policy) -> Standing {
    match step.status {
        StepStatus::Waiting | StepStatus::Pending | StepStatus::Running => Standing::Open,
        StepStatus::Done => Standing::Met,
        StepStatus::Skipped if step.skipped_by_when => Standing::Met,
        StepStatus::Failed if step.rework_pending => Standing::Open,
        StepStatus::Failed if policy.tolerates_failure() => Standing::Met,
        StepStatus::Failed | StepStatus::Skipped | StepStatus::Cancelled => Standing::Broken,
    }
}

/// The state of a step that needs only some of its needs to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quorum {
    /// More of its needs may become done.
    Open,
    /// Enough of its needs are done.
    Reached,
    /// Too few of its needs can still become done.
    Missed,
}

/// Returns whether enough of these needs are done.
pub fn quorum(wanted: u32, needs: impl IntoIterator<Item = (StepStatus, bool)>) -> Quorum {
    let (mut done, mut open) = (0, 0);
    for (status, rework_pending) in needs {
        done += u32::from(status == StepStatus::Done);
        open += u32::from(!status.is_settled() || rework_pending);
    }
    if done >= wanted {
        Quorum::Reached
    } else if done + open >= wanted {
        Quorum::Open
    } else {
        Quorum::Missed
    }
}
