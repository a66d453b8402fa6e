//! The execution: one attempt at a step, with exactly one owner at a time.
//!
//! ```text
//! EXECUTOR OWNS                        owned by the queue       WORKER OWNS
//! requested → scheduling ──publish──▶ scheduled ──receive──▶ running → completed | failed | timed_out | cancelled
//!                                                                     (reaper, for a dead worker) → abandoned
//! ```

use crate::mutant;
use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// The status of an execution.
    ExecutionStatus {
        /// Created; waits for its start time or for a free slot.
        Requested = "requested",
        /// The executor is handing it off.
        Scheduling = "scheduling",
        /// In the queue: a worker receives it, or the executor revokes it.
        Scheduled = "scheduled",
        /// A worker runs it.
        Running = "running",
        /// Succeeded.
        Completed = "completed",
        /// Failed.
        Failed = "failed",
        /// Exceeded its timeout and was stopped.
        TimedOut = "timed_out",
        /// Stopped, or never started, because a cancel was requested.
        Cancelled = "cancelled",
        /// Its worker was lost.
        Abandoned = "abandoned",
    }
}

words! {
    /// An event of an execution.
    ExecutionEvent {
        /// The executor starts to hand it off.
        SchedulingStarted = "scheduling.started",
        /// A limit leaves no slot for it now.
        SchedulingDeferred = "scheduling.deferred",
        /// It cannot be handed off at all.
        SchedulingFailed = "scheduling.failed",
        /// The executor put it into the queue.
        HandoffPublished = "handoff.published",
        /// A worker received it.
        HandoffReceived = "handoff.received",
        /// The executor took it back from the queue.
        HandoffRevoked = "handoff.revoked",
        /// The work succeeded.
        Completed = "execution.completed",
        /// The work failed.
        Failed = "execution.failed",
        /// The work exceeded its timeout.
        TimedOut = "execution.timed_out",
        /// The work was stopped, or never started.
        Cancelled = "execution.cancelled",
        /// The worker released it unfinished.
        Released = "execution.released",
        /// The worker's lease expired.
        LeaseExpired = "lease.expired",
        /// The worker's process is gone.
        OwnerDied = "owner.died",
    }
}

words! {
    /// A condition of an execution's events.
    ExecutionPredicate {
        /// No cancel was requested.
        NotCancelRequested = "not cancel-requested",
        /// The run starts work of this kind in its current status.
        RunLive = "run live",
        /// The backoff is over.
        NotBeforeItsTime = "not before its time",
        /// The fence in the report is the current one.
        MatchingFence = "matching fence",
        /// The run's epoch is the one in which the execution was created.
        MatchingEpoch = "matching epoch",
        /// The lease has expired.
        LeaseLapsed = "lease lapsed",
        /// The owner's process is gone, as shown by pid, start time, boot id and pid namespace.
        OwnerDead = "owner dead",
    }
}

/// The facts that the execution's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutionFacts {
    /// Whether a cancel was requested.
    pub cancel_requested: bool,
    /// Whether the run starts work of this kind in its current status.
    pub run_live: bool,
    /// Whether the backoff is over.
    pub due: bool,
    /// Whether the fence in the report equals the row's.
    pub fence_matches: bool,
    /// Whether the run's epoch equals the one in which the execution was created.
    pub epoch_matches: bool,
    /// Whether the lease has expired.
    pub lease_lapsed: bool,
    /// Whether the owner's process is gone.
    pub owner_dead: bool,
}

/// The lifecycle of an execution.
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
        // A dead worker cannot report, so the reaper does. A retry is a new execution.
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
    /// Returns whether no further event applies.
    pub fn is_terminal(self) -> bool {
        Execution::TERMINAL.contains(&self)
    }
}

impl ExecutionEvent {
    /// Returns whether the fence grows: whenever the execution changes its owner.
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
