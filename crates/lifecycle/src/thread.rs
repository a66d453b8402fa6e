//! The thread: a conversation with a coding agent, bound to an environment, over many turns.
//!
//! Every event that ends a turn closes its number. "Matching turn" means the open turn, so a late start cannot
//! revive an idle thread. Events of the agent's runtime carry the runtime's generation.

use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// The status of a thread.
    ThreadStatus {
        /// Created; its environment does not exist yet.
        Created = "created",
        /// Its environment is being created.
        Provisioning = "provisioning",
        /// Waits for a message.
        Idle = "idle",
        /// A turn is in progress.
        Active = "active",
        /// The last turn, the runtime or the environment failed.
        Error = "error",
    }
}

words! {
    /// An event of a thread.
    ThreadEvent {
        /// Its environment is being created again.
        ReprovisionStarted = "reprovision.started",
        /// A message was sent to the agent.
        TurnDispatched = "turn.dispatched",
        /// The agent started a turn.
        TurnStarted = "turn.started",
        /// The agent completed a turn.
        TurnCompleted = "turn.completed",
        /// The agent failed in a turn.
        TurnFailed = "turn.failed",
        /// The turn was interrupted.
        TurnInterrupted = "turn.interrupted",
        /// The agent's process exited by itself.
        RuntimeExited = "runtime.exited",
        /// The agent was found working after a reconnect.
        RuntimeObservedActive = "runtime.observed-active",
        /// The agent acknowledged its start.
        StartSucceeded = "start.succeeded",
        /// A command to the agent failed.
        CommandFailed = "command.failed",
        /// The environment could not be created.
        ProvisionFailed = "provision.failed",
        /// The environment is gone.
        WorkspaceLost = "workspace.lost",
        /// The agent stopped, as a person requested.
        StopCompleted = "stop.completed",
        /// The agent's session was lost together with its host.
        SessionLost = "session.lost",
    }
}

words! {
    /// A condition of a thread's events.
    ThreadPredicate {
        /// No stop was requested.
        NotStopRequested = "not stop-requested",
        /// A stop was requested.
        StopRequested = "stop requested",
        /// The thread is not archived.
        NotArchived = "not archived",
        /// The thread is not deleted.
        NotDeleted = "not deleted",
        /// The event belongs to the open turn.
        MatchingTurn = "matching turn",
        /// The event belongs to the current runtime.
        MatchingRuntime = "matching runtime",
    }
}

/// The facts that the thread's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadFacts {
    /// Whether a stop was requested.
    pub stop_requested: bool,
    /// Whether the thread is archived.
    pub archived: bool,
    /// Whether the thread is deleted.
    pub deleted: bool,
    /// Whether the turn in the report is the row's open turn.
    pub turn_matches: bool,
    /// Whether the runtime's generation in the report equals the row's.
    pub runtime_matches: bool,
}

/// The lifecycle of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread;

use Actor::{Executor, Reaper, Worker};
use ThreadEvent as E;
use ThreadPredicate as P;
use ThreadStatus::{Active, Created, Error, Idle, Provisioning};

impl Lifecycle for Thread {
    const NAME: &'static str = "thread";
    type Status = ThreadStatus;
    type Event = ThreadEvent;
    type Predicate = ThreadPredicate;
    type Facts = ThreadFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        //   event                      who          from                                to            superseded unless
        rule(E::ReprovisionStarted,     &[Executor], &[Created, Idle, Error],            Provisioning, &[P::NotArchived, P::NotDeleted]),
        rule(E::TurnDispatched,         &[Executor], &[Idle],                            Active,       &[P::NotStopRequested, P::NotArchived, P::NotDeleted]),
        rule(E::TurnStarted,            &[Worker],   &[Created, Provisioning, Idle, Error], Active,    &[P::NotStopRequested, P::MatchingTurn]),
        rule(E::TurnCompleted,          &[Worker],   &[Active, Error],                   Idle,         &[P::MatchingTurn]),
        rule(E::TurnFailed,             &[Worker],   &[Created, Provisioning, Active],   Error,        &[P::NotStopRequested, P::MatchingTurn]),
        rule(E::TurnInterrupted,        &[Worker, Reaper], &[Created, Provisioning, Active, Error], Idle, &[P::MatchingTurn]),
        rule(E::RuntimeExited,          &[Worker],   &[Created, Provisioning, Active],   Error,        &[P::NotStopRequested, P::MatchingRuntime]),
        rule(E::RuntimeObservedActive,  &[Worker],   &[Created, Provisioning, Idle, Error], Active,    &[P::NotDeleted, P::NotStopRequested, P::MatchingTurn]),
        rule(E::StartSucceeded,         &[Worker],   &[Created, Provisioning, Idle, Error], Active,    &[P::NotArchived, P::NotDeleted, P::NotStopRequested, P::MatchingTurn]),
        rule(E::CommandFailed,          &[Worker],   &[Created, Provisioning, Active],   Error,        &[P::NotDeleted, P::MatchingTurn]),
        rule(E::ProvisionFailed,        &[Worker, Reaper], &[Created, Provisioning],     Error,        &[P::MatchingTurn]),
        rule(E::WorkspaceLost,          &[Worker, Reaper], &[Created, Provisioning, Idle, Active], Error, &[P::NotArchived, P::NotDeleted]),
        rule(E::StopCompleted,          &[Worker, Reaper], &[Created, Provisioning, Active], Idle,     &[P::StopRequested]),
        rule(E::SessionLost,            &[Reaper],   &[Created, Provisioning, Active],   Error,        &[P::MatchingRuntime]),
    ];

    // A thread has no final status. Archived and deleted are facts, not statuses.
    const TERMINAL: &'static [ThreadStatus] = &[];

    fn holds(predicate: ThreadPredicate, facts: &ThreadFacts) -> bool {
        match predicate {
            P::NotStopRequested => !facts.stop_requested,
            P::StopRequested => facts.stop_requested,
            P::NotArchived => !facts.archived,
            P::NotDeleted => !facts.deleted,
            P::MatchingTurn => facts.turn_matches,
            P::MatchingRuntime => facts.runtime_matches,
        }
    }
}

impl ThreadEvent {
    /// Returns whether this event opens a new turn.
    pub fn opens_turn(self) -> bool {
        matches!(self, E::ReprovisionStarted | E::TurnDispatched)
    }

    /// Returns whether this event ends the open turn, which also clears a stop request.
    pub fn ends_turn(self) -> bool {
        matches!(
            self,
            E::TurnCompleted
                | E::TurnFailed
                | E::TurnInterrupted
                | E::RuntimeExited
                | E::CommandFailed
                | E::ProvisionFailed
                | E::WorkspaceLost
                | E::StopCompleted
                | E::SessionLost
        )
    }
}
