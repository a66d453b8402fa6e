//! The two small lifecycles: gates, and worker presence.

use crate::table::{Actor, Lifecycle, Rule, rule, words};
use Actor::{Advance, Executor, Person, Reaper, Worker};

words! {
    /// The status of a gate.
    GateStatus {
        /// Waits for an answer.
        Open = "open",
        /// A person answered.
        Answered = "answered",
        /// The timeout passed without an answer.
        Expired = "expired",
        /// The run no longer needs the answer.
        Cancelled = "cancelled",
    }
}

words! {
    /// An event of a gate.
    GateEvent {
        /// A person answers.
        Answered = "gate.answered",
        /// The timeout passes.
        Expired = "gate.expired",
        /// The run withdraws the question.
        Cancelled = "gate.cancelled",
    }
}

words! {
    /// A condition of a gate's events.
    GatePredicate {
        /// The timeout has passed.
        TimeoutPassed = "its timeout has passed",
    }
}

/// The facts that the gate's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateFacts {
    /// Whether the timeout has passed.
    pub timeout_passed: bool,
}

/// The lifecycle of a gate: a question to a person.
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
        rule(GateEvent::Answered,  &[Person],          &[GateStatus::Open], GateStatus::Answered,  &[]),
        rule(GateEvent::Expired,   &[Executor],        &[GateStatus::Open], GateStatus::Expired,   &[GatePredicate::TimeoutPassed]),
        rule(GateEvent::Cancelled, &[Advance, Worker], &[GateStatus::Open], GateStatus::Cancelled, &[]),
    ];

    const TERMINAL: &'static [GateStatus] =
        &[GateStatus::Answered, GateStatus::Expired, GateStatus::Cancelled];

    fn holds(_: GatePredicate, facts: &GateFacts) -> bool {
        facts.timeout_passed
    }
}

words! {
    /// The status of a worker.
    WorkerStatus {
        /// Claims work.
        Online = "online",
        /// Finishes its executions and claims no more.
        Draining = "draining",
        /// Does not run.
        Offline = "offline",
    }
}

words! {
    /// An event of a worker.
    WorkerEvent {
        /// The worker starts, or returns.
        Registered = "worker.registered",
        /// The worker was asked to finish its executions and claim no more.
        DrainRequested = "worker.drain_requested",
        /// The worker shut down in an orderly way.
        Left = "worker.left",
        /// The worker's heartbeats stopped.
        HeartbeatLapsed = "worker.heartbeat_lapsed",
        /// The worker's process is gone.
        Died = "worker.died",
    }
}

words! {
    /// A condition of a worker's events.
    WorkerPredicate {
        /// The last heartbeat is too old.
        HeartbeatOverdue = "heartbeat overdue",
        /// The process is gone.
        ProcessGone = "process gone",
    }
}

/// The facts that the worker's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerFacts {
    /// Whether the last heartbeat is too old.
    pub heartbeat_overdue: bool,
    /// Whether the process is gone.
    pub process_gone: bool,
}

/// The lifecycle of a worker: whether it is present to claim work.
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
