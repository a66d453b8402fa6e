//! The execution: one attempt at a step, owned by exactly one side at a time.
//!
//! ```text
//! EXECUTOR OWNS                        in the queue's hands     WORKER OWNS
//! requested → scheduling ──publish──▶ scheduled ──receive──▶ running → completed | failed | timed_out | cancelled
//!                                                                     (reaper, for a dead worker) → abandoned
//! ```

use crate::mutant;
use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// What an execution can be.
    ExecutionStatus {
        /// It exists; its time or a place may still be missing.
        Requested = "requested",
        /// An executor is handing it over.
        Scheduling = "scheduling",
        /// In the queue's hands: a worker receives it, or the executor takes it back.
        Scheduled = "scheduled",
        /// A worker has it.
        Running = "running",
        /// It ended well.
        Completed = "completed",
        /// It ended badly.
        Failed = "failed",
        /// It took too long and was ended.
        TimedOut = "timed_out",
        /// It was ended, or never begun, because somebody wanted so.
        Cancelled = "cancelled",
        /// Its worker was lost.
        Abandoned = "abandoned",
    }
}

words! {
    /// What can happen to an execution.
    ExecutionEvent {
        /// An executor begins to hand it over.
        SchedulingStarted = "scheduling.started",
        /// A limit leaves no place for it now.
        SchedulingDeferred = "scheduling.deferred",
        /// It cannot be handed over at all.
        SchedulingFailed = "scheduling.failed",
        /// It is in the queue's hands.
        HandoffPublished = "handoff.published",
        /// A worker has it.
        HandoffReceived = "handoff.received",
        /// The executor took it back from the queue.
        HandoffRevoked = "handoff.revoked",
        /// The work ended well.
        Completed = "execution.completed",
        /// The work ended badly.
        Failed = "execution.failed",
        /// The work took too long.
        TimedOut = "execution.timed_out",
        /// The work was ended, or never begun.
        Cancelled = "execution.cancelled",
        /// The worker gives it back.
        Released = "execution.released",
        /// The worker's lease ran out.
        LeaseExpired = "lease.expired",
        /// The worker's process is gone.
        OwnerDied = "owner.died",
    }
}

words! {
    /// What can make an execution's event come too late.
    ExecutionPredicate {
        /// Nobody wants it to end.
        NotCancelRequested = "not cancel-requested",
        /// Its run starts work of this kind.
        RunLive = "run live",
        /// Its backoff is over.
        NotBeforeItsTime = "not before its time",
        /// The fence is the one that the reporter was given.
        MatchingFence = "matching fence",
        /// The run's epoch is the one it was created in.
        MatchingEpoch = "matching epoch",
        /// The lease ran out.
        LeaseLapsed = "lease lapsed",
        /// The owner's process is gone, by pid, start time, boot id and pid namespace.
        OwnerDead = "owner dead",
    }
}

/// What the execution's predicates look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutionFacts {
    /// Somebody wants it to end.
    pub cancel_requested: bool,
    /// Its run starts work of this kind.
    pub run_live: bool,
    /// Its backoff is over.
    pub due: bool,
    /// The fence that the reporter was given equals the row's.
    pub fence_matches: bool,
    /// The run's epoch equals the one it was created in.
    pub epoch_matches: bool,
    /// The lease ran out.
    pub lease_lapsed: bool,
    /// The owner's process is gone.
    pub owner_dead: bool,
}

/// The execution's lifecycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Execution;

use Actor::{Executor, Reaper, Worker};
use ExecutionEvent as E;
use ExecutionPredicate as P;
use ExecutionStatus::{
    Abandoned, Cancelled, Completed, Failed, Requested, Running, Scheduled, Scheduling, TimedOut,
};

impl Lifecycle for Execution {
    const NAME: &'static str = "execution";
    type Status = ExecutionStatus;
    type Event = ExecutionEvent;
    type Predicate = ExecutionPredicate;
    type Facts = ExecutionFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        //   event                  who          from                      to          superseded unless
        rule(E::SchedulingStarted,  &[Executor], &[Requested],             Scheduling, &[P::NotCancelRequested, P::RunLive, P::NotBeforeItsTime]),
        rule(E::SchedulingDeferred, &[Executor], &[Scheduling],            Requested,  &[]),
        rule(E::SchedulingFailed,   &[Executor], &[Requested, Scheduling], Failed,     &[]),
        rule(E::HandoffPublished,   &[Executor], &[Scheduling],            Scheduled,  &[P::NotCancelRequested]),
        rule(E::HandoffReceived,    &[Worker],   &[Scheduled],             Running,    &[P::MatchingFence, P::NotCancelRequested]),
        rule(E::HandoffRevoked,     &[Executor], &[Scheduled],             Requested,  &[P::MatchingFence]),
        rule(E::Completed,          &[Worker],   &[Running],               Completed,  &[P::MatchingFence, P::MatchingEpoch]),
        rule(E::Failed,             &[Worker],   &[Running],               Failed,     &[P::MatchingFence, P::MatchingEpoch]),
        rule(E::TimedOut,           &[Worker],   &[Running],               TimedOut,   &[P::MatchingFence, P::MatchingEpoch]),
        rule(E::Cancelled,          &[Executor], &[Requested, Scheduling], Cancelled,  &[]),
        rule(E::Cancelled,          &[Worker],   &[Running],               Cancelled,  &[P::MatchingFence]),
        rule(E::Released,           &[Worker],   &[Running],               Requested,  &[P::MatchingFence]),
        // A dead worker reports nothing: the reaper speaks for it. A retry is a new execution.
        rule(E::LeaseExpired,       &[Reaper],   &[Running],               Abandoned,  &[P::LeaseLapsed, P::MatchingFence]),
        rule(E::OwnerDied,          &[Reaper],   &[Running],               Abandoned,  &[P::OwnerDead, P::MatchingFence]),
    ];

    const TERMINAL: &'static [ExecutionStatus] = &[Completed, Failed, TimedOut, Cancelled, Abandoned];

    fn holds(predicate: ExecutionPredicate, facts: &ExecutionFacts) -> bool {
        match predicate {
            P::NotCancelRequested => !facts.cancel_requested,
            P::RunLive => facts.run_live,
            P::NotBeforeItsTime => facts.due,
            P::MatchingFence => facts.fence_matches || mutant!(FenceIgnored),
            P::MatchingEpoch => facts.epoch_matches || mutant!(EpochIgnored),
            P::LeaseLapsed => facts.lease_lapsed || mutant!(LeaseNotLookedAt),
            P::OwnerDead => facts.owner_dead,
        }
    }
}

impl ExecutionStatus {
    /// Whether it has ended.
    pub fn is_terminal(self) -> bool {
        Execution::TERMINAL.contains(&self)
    }
}

impl ExecutionEvent {
    /// Whether the fence grows with it: whenever the execution changes hands or is taken away.
    pub fn raises_fence(self) -> bool {
        matches!(
            self,
            E::HandoffPublished
                | E::HandoffReceived
                | E::HandoffRevoked
                | E::Released
                | E::LeaseExpired
                | E::OwnerDied
        )
    }
}
