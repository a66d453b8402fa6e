//! The run: one execution of a pipeline. It is the aggregate root: every decision about it locks its row.

use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// The status of a run.
    RunStatus {
        /// Waits for a slot in its concurrency group.
        Queued = "queued",
        /// Its steps run.
        Running = "running",
        /// A step failed for good. Live work runs to its end, and `always` steps run.
        Failing = "failing",
        /// A person cancelled it. Live work is being stopped, and `always` steps run.
        Cancelling = "cancelling",
        /// Every step was met.
        Completed = "completed",
        /// A step failed, and no work is live.
        Failed = "failed",
        /// It was cancelled, and no work is live.
        Cancelled = "cancelled",
    }
}

words! {
    /// An event of a run.
    RunEvent {
        /// The run got its slot.
        Started = "run.started",
        /// All steps are met.
        Succeeded = "run.succeeded",
        /// The run waited for a slot longer than its group allows.
        QueueExpired = "queue.expired",
        /// A step failed without `on_fail: continue`.
        FailureObserved = "failure.observed",
        /// The failing run has no live work left.
        FailureSettled = "failure.settled",
        /// A person cancels the run.
        CancelRequested = "cancel.requested",
        /// The cancelled run has no live work left.
        CancelSettled = "cancel.settled",
        /// A person resumes the run: failed steps run again.
        Resumed = "run.resumed",
        /// A person continues the run from an earlier step.
        Rewound = "run.rewound",
    }
}

words! {
    /// A condition of a run's events.
    RunPredicate {
        /// The event belongs to the run's current epoch.
        MatchingEpoch = "matching epoch",
        /// The run is not a board that accepts tasks.
        NotOpen = "not an open board",
        /// Every step is met.
        EveryStepMet = "every step met",
        /// Every step is settled, `always` steps included, so no work is live.
        EveryStepSettled = "every step settled",
        /// The group's limit for waiting has passed.
        QueueWaitOver = "waited longer than its group allows",
    }
}

/// The facts that the run's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunFacts {
    /// Whether the epoch in the report equals the row's.
    pub epoch_matches: bool,
    /// Whether the run is a board that accepts tasks.
    pub open: bool,
    /// The number of unsettled steps.
    pub unsettled: u32,
    /// The number of broken steps whose failure is not tolerated.
    pub broken: u32,
    /// Whether the run has waited for a slot longer than its group allows.
    pub queue_wait_over: bool,
}

/// The lifecycle of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run;

use Actor::{Advance, Executor, Person};
use RunEvent as E;
use RunPredicate as P;
use RunStatus::{Cancelled, Cancelling, Completed, Failed, Failing, Queued, Running};

impl Lifecycle for Run {
    const NAME: &'static str = "run";
    type Status = RunStatus;
    type Event = RunEvent;
    type Predicate = RunPredicate;
    type Facts = RunFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        //   event               who          from                            to          superseded unless
        rule(E::Started,         &[Executor], &[Queued],                      Running,    &[]),
        rule(E::Succeeded,       &[Advance],  &[Running],                     Completed,  &[P::MatchingEpoch, P::NotOpen, P::EveryStepMet]),
        rule(E::QueueExpired,    &[Executor], &[Queued],                      Failed,     &[P::QueueWaitOver]),
        rule(E::FailureObserved, &[Advance],  &[Running],                     Failing,    &[P::MatchingEpoch]),
        rule(E::FailureSettled,  &[Advance],  &[Failing],                     Failed,     &[P::EveryStepSettled]),
        rule(E::CancelRequested, &[Person],   &[Queued],                      Cancelled,  &[]),
        rule(E::CancelRequested, &[Person],   &[Running, Failing],            Cancelling, &[]),
        rule(E::CancelSettled,   &[Advance],  &[Cancelling],                  Cancelled,  &[P::EveryStepSettled]),
        rule(E::Resumed,         &[Person],   &[Failed, Cancelled],           Running,    &[]),
        rule(E::Rewound,         &[Person],   &[Completed, Failed, Cancelled], Running,   &[]),
    ];

    const TERMINAL: &'static [RunStatus] = &[Completed, Failed, Cancelled];

    fn holds(predicate: RunPredicate, facts: &RunFacts) -> bool {
        match predicate {
            P::MatchingEpoch => facts.epoch_matches,
            P::NotOpen => !facts.open,
            P::EveryStepMet => facts.unsettled == 0 && facts.broken == 0,
            P::EveryStepSettled => facts.unsettled == 0,
            P::QueueWaitOver => facts.queue_wait_over,
        }
    }
}

impl RunStatus {
    /// Returns whether the run has ended. Only a person can continue it.
    pub fn is_terminal(self) -> bool {
        Run::TERMINAL.contains(&self)
    }

    /// Returns whether new work may start in this status: any step, or only one with `always`.
    pub fn starts(self, always: bool) -> bool {
        match self {
            Running => true,
            Failing | Cancelling => always,
            Queued | Completed | Failed | Cancelled => false,
        }
    }
}
