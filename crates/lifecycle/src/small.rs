//! The three small lifecycles: a gate's question, a worker's presence, a rule's match.

use crate::table::{Actor, Lifecycle, Rule, rule, words};
use Actor::{Advance, Executor, Person, Reaper, Worker};

words! {
    /// What a gate can be.
    GateStatus {
        /// It waits for an answer.
        Open = "open",
        /// A person answered.
        Answered = "answered",
        /// Nobody answered in time.
        Expired = "expired",
        /// Its run does not need the answer any more.
        Cancelled = "cancelled",
    }
}

words! {
    /// What can happen to a gate.
    GateEvent {
        /// A person answers.
        Answered = "gate.answered",
        /// Its time is over.
        Expired = "gate.expired",
        /// Its run withdraws the question.
        Cancelled = "gate.cancelled",
    }
}

words! {
    /// What can make a gate's event come too late.
    GatePredicate {
        /// Its time is over.
        TimeoutPassed = "its timeout has passed",
    }
}

/// What the gate's predicates look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateFacts {
    /// Its time is over.
    pub timeout_passed: bool,
}

/// The gate's lifecycle: a question to a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate;

impl Lifecycle for Gate {
    const NAME: &'static str = "gate";
    type Status = GateStatus;
    type Event = GateEvent;
    type Predicate = GatePredicate;
    type Facts = GateFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        rule(GateEvent::Answered,  &[Person],   &[GateStatus::Open], GateStatus::Answered,  &[]),
        rule(GateEvent::Expired,   &[Executor], &[GateStatus::Open], GateStatus::Expired,   &[GatePredicate::TimeoutPassed]),
        rule(GateEvent::Cancelled, &[Advance],  &[GateStatus::Open], GateStatus::Cancelled, &[]),
    ];

    const TERMINAL: &'static [GateStatus] =
        &[GateStatus::Answered, GateStatus::Expired, GateStatus::Cancelled];

    fn holds(_: GatePredicate, facts: &GateFacts) -> bool {
        facts.timeout_passed
    }
}

words! {
    /// What a worker can be.
    WorkerStatus {
        /// It takes work.
        Online = "online",
        /// It finishes what it has and takes no more.
        Draining = "draining",
        /// It is gone.
        Offline = "offline",
    }
}

words! {
    /// What can happen to a worker.
    WorkerEvent {
        /// It (re)appears.
        Registered = "worker.registered",
        /// It was told to finish what it has.
        DrainRequested = "worker.drain_requested",
        /// It leaves in good order.
        Left = "worker.left",
        /// It was not heard of for too long.
        HeartbeatLapsed = "worker.heartbeat_lapsed",
        /// Its process is gone.
        Died = "worker.died",
    }
}

words! {
    /// What can make a worker's event come too late.
    WorkerPredicate {
        /// It was not heard of for too long.
        HeartbeatOverdue = "heartbeat overdue",
        /// Its process is gone.
        ProcessGone = "process gone",
    }
}

/// What the worker's predicates look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerFacts {
    /// It was not heard of for too long.
    pub heartbeat_overdue: bool,
    /// Its process is gone.
    pub process_gone: bool,
}

/// The worker's lifecycle: whether it is there to take work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerPresence;

impl Lifecycle for WorkerPresence {
    const NAME: &'static str = "worker";
    type Status = WorkerStatus;
    type Event = WorkerEvent;
    type Predicate = WorkerPredicate;
    type Facts = WorkerFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        rule(WorkerEvent::Registered,      &[Worker],         &[WorkerStatus::Offline],                       WorkerStatus::Online,   &[]),
        rule(WorkerEvent::DrainRequested,  &[Worker, Person], &[WorkerStatus::Online],                        WorkerStatus::Draining, &[]),
        rule(WorkerEvent::Left,            &[Worker],         &[WorkerStatus::Online, WorkerStatus::Draining], WorkerStatus::Offline, &[]),
        rule(WorkerEvent::HeartbeatLapsed, &[Reaper],         &[WorkerStatus::Online, WorkerStatus::Draining], WorkerStatus::Offline, &[WorkerPredicate::HeartbeatOverdue]),
        rule(WorkerEvent::Died,            &[Reaper],         &[WorkerStatus::Online, WorkerStatus::Draining], WorkerStatus::Offline, &[WorkerPredicate::ProcessGone]),
    ];

    const TERMINAL: &'static [WorkerStatus] = &[];

    fn holds(predicate: WorkerPredicate, facts: &WorkerFacts) -> bool {
        match predicate {
            WorkerPredicate::HeartbeatOverdue => facts.heartbeat_overdue,
            WorkerPredicate::ProcessGone => facts.process_gone,
        }
    }
}

words! {
    /// What an enforcement can be.
    EnforcementStatus {
        /// A rule matched an event.
        Created = "created",
        /// Its run was started.
        Requested = "requested",
        /// Its condition did not hold.
        Skipped = "skipped",
    }
}

words! {
    /// What can happen to an enforcement.
    EnforcementEvent {
        /// Its run was started.
        Requested = "enforcement.requested",
        /// Its condition did not hold.
        Skipped = "enforcement.skipped",
    }
}

words! {
    /// An enforcement's events never come too late: this set is there to be empty of meaning.
    EnforcementPredicate {
        /// Always holds.
        Always = "always",
    }
}

/// The enforcement's lifecycle: a rule matched an event, once per (rule, event).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcement;

impl Lifecycle for Enforcement {
    const NAME: &'static str = "enforcement";
    type Status = EnforcementStatus;
    type Event = EnforcementEvent;
    type Predicate = EnforcementPredicate;
    type Facts = ();

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        rule(EnforcementEvent::Requested, &[Executor], &[EnforcementStatus::Created], EnforcementStatus::Requested, &[]),
        rule(EnforcementEvent::Skipped,   &[Executor], &[EnforcementStatus::Created], EnforcementStatus::Skipped,   &[]),
    ];

    const TERMINAL: &'static [EnforcementStatus] =
        &[EnforcementStatus::Requested, EnforcementStatus::Skipped];

    fn holds(_: EnforcementPredicate, (): &()) -> bool {
        true
    }
}
