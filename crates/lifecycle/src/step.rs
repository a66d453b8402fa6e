//! The step: the pipeline's node in one run. The walk alone writes it.

use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// What a step can be.
    StepStatus {
        /// Its needs are not settled yet.
        Waiting = "waiting",
        /// It may start; its work exists, nobody has begun it.
        Pending = "pending",
        /// Its work goes on.
        Running = "running",
        /// Its work succeeded.
        Done = "done",
        /// Its tries in this round are used up.
        Failed = "failed",
        /// It was not needed, or could not be: see the reason.
        Skipped = "skipped",
        /// It was ended.
        Cancelled = "cancelled",
    }
}

words! {
    /// What can happen to a step.
    StepEvent {
        /// Its needs are met.
        Ready = "step.ready",
        /// Somebody began its work.
        Started = "step.started",
        /// Its work ended well.
        Succeeded = "step.succeeded",
        /// Its work failed, and it has tries left.
        Retried = "step.retried",
        /// Its work failed for good.
        Failed = "step.failed",
        /// It will not be worked on.
        Skipped = "step.skipped",
        /// Its work was ended, or it had none.
        Cancelled = "step.cancelled",
        /// A later step sent it back.
        Reworked = "step.reworked",
        /// A person resumed or rewound the run.
        Reset = "step.reset",
        /// A person wants a task of an open board tried again.
        Reopened = "step.reopened",
    }
}

words! {
    /// What can make a step's event come too late.
    StepPredicate {
        /// Every need is met; for an `always` step, settled.
        NeedsMet = "every need met",
        /// The run starts work of this kind.
        RunLive = "run live for it",
        /// The event speaks of the present attempt.
        CurrentAttempt = "current attempt",
        /// The round has tries left.
        AttemptsLeft = "attempts left in this round",
        /// Its `when` is false, or a need is broken.
        NotWanted = "its when is false, or a need is broken",
        /// It has no work that goes on.
        WorkEnded = "its work has ended",
        /// The step that sends it back may do so once more.
        RoundsLeft = "rounds left",
        /// The run is running.
        RunRunning = "run running",
        /// The run's epoch was raised by this very event.
        EpochRaised = "run epoch + 1",
    }
}

/// What the step's predicates look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepFacts {
    /// Every need is met (`always`: settled).
    pub needs_met: bool,
    /// The run starts work of this kind.
    pub run_live: bool,
    /// The run is running.
    pub run_running: bool,
    /// The attempt that the reporter saw equals the row's.
    pub attempt_matches: bool,
    /// The round has tries left.
    pub attempts_left: bool,
    /// Its `when` is false, or a need is broken.
    pub not_wanted: bool,
    /// It has no work that goes on.
    pub work_ended: bool,
    /// The step that sends it back may do so once more.
    pub rounds_left: bool,
    /// The run's epoch was raised in this transaction.
    pub epoch_raised: bool,
}

/// The step's lifecycle.
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
        rule(E::Failed,    &[Advance], &[Pending, Running],                Failed,    &[P::CurrentAttempt]),
        rule(E::Skipped,   &[Advance], &[Waiting],                         Skipped,   &[P::NotWanted]),
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
    /// Whether its outcome stands: done, failed, skipped or cancelled.
    pub fn is_settled(self) -> bool {
        Step::TERMINAL.contains(&self)
    }
}
