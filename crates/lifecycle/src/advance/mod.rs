//! The walk over a run: derives what to do next from stored state alone.
//!
//! ```text
//!   a step's work ended ─┐                    ┌─▶ step events   (ready, succeeded, retried, …)
//!   a cancel, a resume ──┼─▶ advance(state) ──┼─▶ work to start, work to end
//!   a sweep, a restart ──┘                    └─▶ run events    (failure observed, succeeded, …)
//! ```
//!
//! It may be called any number of times, by anyone, at any moment. [`advance`] looks only at the steps
//! that changed and what hangs on them, so its cost does not grow with the run; [`heal`] recounts
//! everything and looks at every step. Both decide the same: that is tested.
//!
//! The functions are pure: all they know comes from a [`RunState`] and all they decide goes back into
//! it, within one transaction of whoever keeps the state.

mod rework;
mod tasks;
mod walk;

use std::sync::Arc;

use crate::{OnFail, Plan, RunEvent, RunStatus, StepEvent, StepNo, StepStatus};

pub use rework::{restart, resume_set};
pub use tasks::{Following, cancel_item, reopen_item, take_up};
pub use walk::{advance, heal};

/// A run as the walk sees it and changes it.
pub trait RunState {
    /// What can go wrong in reading or writing the state.
    type Error;

    /// The graph.
    fn plan(&self) -> Arc<Plan>;
    /// The run's own row.
    fn run(&self) -> RunNow;
    /// One step's row and the state of its work.
    fn step(&mut self, no: StepNo) -> Result<StepNow, Self::Error>;
    /// Every step that is not settled, in order; rework-pending ones included.
    fn unsettled(&mut self) -> Result<Vec<StepNo>, Self::Error>;
    /// Whether the step's own `when` wants it; asked once all its needs are met.
    fn wanted(&mut self, no: StepNo) -> Result<bool, Self::Error>;
    /// The items of a fan-out that this attempt at it has made, in order; only those that are not settled
    /// if `unsettled`.
    fn items(&mut self, of: StepNo, unsettled: bool) -> Result<Vec<StepNo>, Self::Error>;
    /// The first of a fan-out's items that wait for their turn, at most `limit`, in order.
    fn waiting_items(&mut self, of: StepNo, limit: u32) -> Result<Vec<StepNo>, Self::Error>;

    /// What needs this item of an open fan-out, in order.
    fn followers(&mut self, item: StepNo) -> Result<Vec<Following>, Self::Error>;
    /// What this item of an open fan-out needs, in order.
    fn followed(&mut self, item: StepNo) -> Result<Vec<Following>, Self::Error>;

    /// Reports an event on a step.
    fn move_step(&mut self, no: StepNo, to: StepMove) -> Result<(), Self::Error>;
    /// Notes how many of a step's needs are open and broken.
    fn set_needs(&mut self, no: StepNo, needs: Needs) -> Result<(), Self::Error>;
    /// Creates the step's work for its present attempt.
    fn start_work(&mut self, no: StepNo) -> Result<(), Self::Error>;
    /// Adds the next item of a fan-out as a step of the run, waiting, and says its number.
    fn add_item(&mut self, of: StepNo) -> Result<StepNo, Self::Error>;
    /// Notes how the items of a fan-out stand.
    fn set_items(&mut self, of: StepNo, items: Items) -> Result<(), Self::Error>;
    /// Ends the step's work: at once if nobody received it, else by an intent that its owner acts on.
    fn end_work(&mut self, no: StepNo) -> Result<(), Self::Error>;
    /// Reports an event on the run.
    fn move_run(&mut self, event: RunEvent) -> Result<(), Self::Error>;
    /// Notes how many steps are unsettled and broken.
    fn set_tally(&mut self, tally: Tally) -> Result<(), Self::Error>;
    /// Notes which failed step has sent back another, until that has happened.
    fn set_reworking(&mut self, by: Option<StepNo>) -> Result<(), Self::Error>;
    /// The failed step sends nothing back after all: its failure stands.
    fn drop_rework(&mut self, no: StepNo) -> Result<(), Self::Error>;
}

/// The run's row, as far as the walk cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunNow {
    /// Its status.
    pub status: RunStatus,
    /// A board that still takes tasks.
    pub open: bool,
    /// How its steps stand.
    pub tally: Tally,
    /// The failed step whose rework is being prepared.
    pub reworking: Option<StepNo>,
}

/// How a run's steps stand in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tally {
    /// Steps that are not settled.
    pub unsettled: u32,
    /// Settled steps that are broken.
    pub broken: u32,
}

/// How a step's needs stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Needs {
    /// Needs that are not settled.
    pub open: u32,
    /// Needs that are broken.
    pub broken: u32,
}

/// How the items of a fan-out stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Items {
    /// How many there are to be.
    pub total: u32,
    /// How many are steps of the run by now, in the list's order.
    pub created: u32,
    /// How many of these are settled.
    pub settled: u32,
    /// How many of these failed.
    pub failed: u32,
    /// How many of these were cancelled.
    pub cancelled: u32,
    /// How many of these were sent back and wait for their turn.
    pub again: u32,
    /// No more are to be made, and those that go on are to end.
    pub ending: bool,
}

impl Items {
    /// How many more may be live at once, if `bound` may be in all.
    pub fn room(&self, bound: u32) -> u32 {
        bound.saturating_sub(self.created - self.settled - self.again)
    }

    /// Whether nothing more will come of them; `more` says whether further ones may still be made.
    pub fn are_over(&self, more: bool) -> bool {
        self.settled == self.created && (self.created == self.total || self.ending || !more)
    }

    /// What they mean for their parent, once they are over.
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

/// A step's row, as far as the walk cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepNow {
    /// The node of the plan that it stands for; its own number unless it is an item.
    pub node: StepNo,
    /// The fan-out that it is an item of.
    pub item_of: Option<StepNo>,
    /// Its items, if it is a fan-out that has begun.
    pub items: Option<Items>,
    /// Its status.
    pub status: StepStatus,
    /// The present attempt; the first is 1.
    pub attempt: u32,
    /// Failed tries in this round.
    pub tries: u32,
    /// Workers lost in a row.
    pub losses: u32,
    /// How often it has sent another step back.
    pub reworks: u32,
    /// How its needs stand.
    pub needs: Needs,
    /// It is settled and counted as met although it did not run: its `when` was false.
    pub skipped_by_when: bool,
    /// It failed and sends another step back as soon as that one's descendants are still.
    pub rework_pending: bool,
    /// The state of its work.
    pub work: Work,
}

/// The state of a step's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// None exists for the present attempt.
    None,
    /// It exists; nobody has begun it.
    Unreceived,
    /// It goes on, and nobody is at it: a question without an answer, a time that has not come.
    Open,
    /// Somebody is at it.
    Live {
        /// Its owner was told to end it.
        ending: bool,
    },
    /// It is over.
    Ended(WorkEnd),
}

/// How a step's work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkEnd {
    /// Well.
    Succeeded,
    /// Badly, by its own doing.
    Failed {
        /// Whether another try makes sense: some exit codes say no.
        retriable: bool,
    },
    /// It could not be handed to any worker.
    Unschedulable,
    /// It was ended, or never begun.
    Cancelled,
    /// Its worker was lost.
    Lost,
}

/// What the walk decides about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepMove {
    /// Its needs are met.
    Ready,
    /// Somebody began its work.
    Started,
    /// Its work ended well.
    Succeeded,
    /// It gets another try.
    Retried {
        /// The last one was lost with its worker: it does not count as a try.
        lost: bool,
    },
    /// Its tries are used up.
    Failed {
        /// It will send another step back.
        rework: bool,
    },
    /// It will not run.
    Skipped {
        /// Its own `when` is false; otherwise a need is broken.
        by_when: bool,
    },
    /// Its work was ended, or it had none.
    Cancelled,
    /// It runs again because a later step, named here, failed.
    Reworked {
        /// The step that failed.
        by: StepNo,
    },
    /// It runs again because a person said so.
    Reset {
        /// It is a fan-out whose list stays: what is done of it is kept. So is a child run.
        keep: bool,
    },
    /// It is a task of an open board, and a person wants it tried again.
    Reopened,
}

impl StepMove {
    /// The event that the step's table knows it by.
    pub fn event(self) -> StepEvent {
        match self {
            StepMove::Ready => StepEvent::Ready,
            StepMove::Started => StepEvent::Started,
            StepMove::Succeeded => StepEvent::Succeeded,
            StepMove::Retried { .. } => StepEvent::Retried,
            StepMove::Failed { .. } => StepEvent::Failed,
            StepMove::Skipped { .. } => StepEvent::Skipped,
            StepMove::Cancelled => StepEvent::Cancelled,
            StepMove::Reworked { .. } => StepEvent::Reworked,
            StepMove::Reset { .. } => StepEvent::Reset,
            StepMove::Reopened => StepEvent::Reopened,
        }
    }
}

/// What a step means for those that need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Not settled, or about to send another step back.
    Open,
    /// Done, skipped by its own `when`, or failed where that is tolerated.
    Met,
    /// Failed otherwise, cancelled, or skipped because of a broken need.
    Broken,
}

/// What a step means for those that need it.
pub fn standing(step: &StepNow, on_fail: OnFail) -> Standing {
    match step.status {
        StepStatus::Waiting | StepStatus::Pending | StepStatus::Running => Standing::Open,
        StepStatus::Done => Standing::Met,
        StepStatus::Skipped if step.skipped_by_when => Standing::Met,
        StepStatus::Failed if step.rework_pending => Standing::Open,
        StepStatus::Failed if on_fail == OnFail::Continue => Standing::Met,
        StepStatus::Failed | StepStatus::Skipped | StepStatus::Cancelled => Standing::Broken,
    }
}
