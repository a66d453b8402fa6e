//! The run: one execution of a pipeline. It is the aggregate: whoever decides about it holds its row.

use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// What a run can be.
    RunStatus {
        /// Waits for a place in its concurrency group.
        Queued = "queued",
        /// Its steps are being worked on.
        Running = "running",
        /// A step failed for good; what is live goes on to its end, `always` steps run.
        Failing = "failing",
        /// A person cancelled it; what is live is being ended, `always` steps run.
        Cancelling = "cancelling",
        /// Every step was met.
        Completed = "completed",
        /// A step failed, and nothing is live any more.
        Failed = "failed",
        /// It was cancelled, and nothing is live any more.
        Cancelled = "cancelled",
    }
}

words! {
    /// What can happen to a run.
    RunEvent {
        /// It got its place.
        Started = "run.started",
        /// All steps are met.
        Succeeded = "run.succeeded",
        /// It waited for a place longer than its group allows.
        QueueExpired = "queue.expired",
        /// A step failed that nothing tolerates.
        FailureObserved = "failure.observed",
        /// The failing run has nothing live left.
        FailureSettled = "failure.settled",
        /// A person wants it to end.
        CancelRequested = "cancel.requested",
        /// The cancelled run has nothing live left.
        CancelSettled = "cancel.settled",
        /// A person wants what failed to be tried again.
        Resumed = "run.resumed",
        /// A person wants it to go on from an earlier step.
        Rewound = "run.rewound",
    }
}

words! {
    /// What can make a run's event come too late.
    RunPredicate {
        /// The event belongs to the run's present epoch.
        MatchingEpoch = "matching epoch",
        /// It is not a board that still takes tasks.
        NotOpen = "not an open board",
        /// Every step is met.
        EveryStepMet = "every step met",
        /// Every step is settled: no live work, `always` steps included.
        EveryStepSettled = "every step settled",
        /// The group's bound on waiting has passed.
        QueueWaitOver = "waited longer than its group allows",
    }
}

/// What the run's predicates look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunFacts {
    /// The epoch that the reporter saw equals the row's.
    pub epoch_matches: bool,
    /// A board that still takes tasks.
    pub open: bool,
    /// Steps that are not settled.
    pub unsettled: u32,
    /// Settled steps that are broken and that nothing tolerates.
    pub broken: u32,
    /// The wait for a place has outlasted its bound.
    pub queue_wait_over: bool,
}

/// The run's lifecycle.
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
    /// Whether nothing more happens by itself.
    pub fn is_terminal(self) -> bool {
        Run::TERMINAL.contains(&self)
    }

    /// Whether new work may start under it: ordinary steps, or only those marked `always`.
    pub fn starts(self, always: bool) -> bool {
        match self {
            Running => true,
            Failing | Cancelling => always,
            Queued | Completed | Failed | Cancelled => false,
        }
    }
}
