//! The step: a node of the pipeline in one run. Only the walk writes it.

use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// The status of a step.
    StepStatus {
        /// Waits for its needs to settle.
        Waiting = "waiting",
        /// Ready; its work exists, and no worker has started it.
        Pending = "pending",
        /// Its work is in progress.
        Running = "running",
        /// Its work succeeded.
        Done = "done",
        /// Its attempts in this round are used up.
        Failed = "failed",
        /// Not run, or stopped: its `when` was false, a need is broken, or a person skipped it. The reason is stored.
        Skipped = "skipped",
        /// Its work was stopped, or never started.
        Cancelled = "cancelled",
    }
}

words! {
    /// An event of a step.
    StepEvent {
        /// Its needs are met.
        Ready = "step.ready",
        /// A worker started its work.
        Started = "step.started",
        /// Its work succeeded.
        Succeeded = "step.succeeded",
        /// Its work failed, and it has attempts left.
        Retried = "step.retried",
        /// Its work succeeded, and another round follows.
        Repeated = "step.repeated",
        /// Its work failed for good.
        Failed = "step.failed",
        /// It will not run.
        Skipped = "step.skipped",
        /// Its work was stopped, or it had none.
        Cancelled = "step.cancelled",
        /// The failure of a later step makes it run again.
        Reworked = "step.reworked",
        /// A person resumed or rewound the run.
        Reset = "step.reset",
        /// A person retries a task of an open board.
        Reopened = "step.reopened",
    }
}

words! {
    /// A condition of a step's events.
    StepPredicate {
        /// Every need is met; for an `always` step, settled.
        NeedsMet = "every need met",
        /// The run starts work of this kind in its current status.
        RunLive = "run live for it",
        /// The event belongs to the current attempt.
        CurrentAttempt = "current attempt",
        /// The round has attempts left.
        AttemptsLeft = "attempts left in this round",
        /// Its `when` is false, a need is broken, or a person skips it.
        NotWanted = "its when is false, a need is broken, or a person skips it",
        /// It has no live work.
        WorkEnded = "its work has ended",
        /// The failing step may request another rework.
        RoundsLeft = "rounds left",
        /// The run is running.
        RunRunning = "run running",
        /// This event raises the run's epoch.
        EpochRaised = "run epoch + 1",
    }
}

/// The facts that the step's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepFacts {
    /// Whether every need is met; for an `always` step, settled.
    pub needs_met: bool,
    /// Whether the run starts work of this kind in its current status.
    pub run_live: bool,
    /// Whether the run is running.
    pub run_running: bool,
    /// Whether the attempt in the report equals the row's.
    pub attempt_matches: bool,
    /// Whether the round has attempts left.
    pub attempts_left: bool,
    /// Whether its `when` is false, a need is broken, or a person skips it.
    pub not_wanted: bool,
    /// Whether it has no live work.
    pub work_ended: bool,
    /// Whether the failing step may request another rework.
    pub rounds_left: bool,
    /// Whether the run's epoch was raised in this transaction.
    pub epoch_raised: bool,
}

/// The lifecycle of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step;

use Actor::Advance;
use StepEvent as E;
use StepPredicate as P;
use StepStatus::{Cancelled, Done, Failed, Pending, Running, Skipped, Waiting};

impl Lifecycle for Step {
    const NAME: &'static str = "step";
    type Status = StepStatus;
    type Event = StepEvent;
    type Predicate = StepPredicate;
    type Facts = StepFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        //   event         who         from                                to         superseded unless
        rule(E::Ready,     &[Advance], &[Waiting],                         Pending,   &[P::NeedsMet, P::RunLive]),
        rule(E::Started,   &[Advance], &[Pending],                         Running,   &[P::CurrentAttempt]),
        rule(E::Succeeded, &[Advance], &[Running],                         Done,      &[P::CurrentAttempt]),
        rule(E::Retried,   &[Advance], &[Running],                         Pending,   &[P::CurrentAttempt, P::AttemptsLeft, P::RunLive]),
        rule(E::Repeated,  &[Advance], &[Running],                         Pending,   &[P::CurrentAttempt, P::RunLive]),
        rule(E::Failed,    &[Advance], &[Pending, Running],                Failed,    &[P::CurrentAttempt]),
        rule(E::Skipped,   &[Advance], &[Waiting, Pending, Running],       Skipped,   &[P::NotWanted, P::WorkEnded]),
        rule(E::Cancelled, &[Advance], &[Waiting, Pending, Running],       Cancelled, &[P::WorkEnded]),
        rule(E::Reworked,  &[Advance], &[Done, Failed, Skipped, Cancelled], Waiting,  &[P::RunRunning, P::RoundsLeft, P::WorkEnded]),
        rule(E::Reset,     &[Advance], &[Done, Failed, Skipped, Cancelled], Waiting,  &[P::EpochRaised]),
        rule(E::Reopened,  &[Advance], &[Failed, Skipped, Cancelled],      Waiting,   &[P::RunRunning, P::WorkEnded]),
    ];

    const TERMINAL: &'static [StepStatus] = &[Done, Failed, Skipped, Cancelled];

    fn holds(predicate: StepPredicate, facts: &StepFacts) -> bool {
        match predicate {
            P::NeedsMet => facts.needs_met,
            P::RunLive => facts.run_live,
            P::CurrentAttempt => facts.attempt_matches,
            P::AttemptsLeft => facts.attempts_left,
            P::NotWanted => facts.not_wanted,
            P::WorkEnded => facts.work_ended,
            P::RoundsLeft => facts.rounds_left,
            P::RunRunning => facts.run_running,
            P::EpochRaised => facts.epoch_raised,
        }
    }
}

impl StepStatus {
    /// Returns whether the step is done, failed, skipped or cancelled.
    pub fn is_settled(self) -> bool {
        Step::TERMINAL.contains(&self)
    }
}
