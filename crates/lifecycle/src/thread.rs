//! The thread: a conversation with a coding agent, bound to an environment, over many turns.
//!
//! Whatever ends a turn closes its number: "matching turn" means the open one, so that a late start
//! cannot revive an idle thread. The runtime's own events carry its generation.

use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// What a thread can be.
    ThreadStatus {
        /// It exists; nothing runs for it yet.
        Created = "created",
        /// Its environment is being made.
        Provisioning = "provisioning",
        /// It waits for a message.
        Idle = "idle",
        /// A turn goes on.
        Active = "active",
        /// The last turn, its runtime or its environment failed.
        Error = "error",
    }
}

words! {
    /// What can happen to a thread.
    ThreadEvent {
        /// Its environment is being made again.
        ReprovisionStarted = "reprovision.started",
        /// A message was sent to its agent.
        TurnDispatched = "turn.dispatched",
        /// The agent took up a turn.
        TurnStarted = "turn.started",
        /// The agent finished a turn.
        TurnCompleted = "turn.completed",
        /// The agent failed in a turn.
        TurnFailed = "turn.failed",
        /// The turn was broken off.
        TurnInterrupted = "turn.interrupted",
        /// The agent's process ended by itself.
        RuntimeExited = "runtime.exited",
        /// The agent was found at work after a reconnect.
        RuntimeObservedActive = "runtime.observed-active",
        /// The agent's start was acknowledged.
        StartSucceeded = "start.succeeded",
        /// A command to the agent failed.
        CommandFailed = "command.failed",
        /// Its environment could not be made.
        ProvisionFailed = "provision.failed",
        /// Its environment is gone.
        WorkspaceLost = "workspace.lost",
        /// The stop that a person asked for is done.
        StopCompleted = "stop.completed",
        /// The agent's session is gone with its host.
        SessionLost = "session.lost",
    }
}

words! {
    /// What can make a thread's event come too late.
    ThreadPredicate {
        /// Nobody asked it to stop.
        NotStopRequested = "not stop-requested",
        /// Somebody asked it to stop.
        StopRequested = "stop requested",
        /// It is not archived.
        NotArchived = "not archived",
        /// It is not deleted.
        NotDeleted = "not deleted",
        /// The event speaks of the open turn.
        MatchingTurn = "matching turn",
        /// The event speaks of the present runtime.
        MatchingRuntime = "matching runtime",
    }
}

/// What the thread's predicates look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadFacts {
    /// Somebody asked it to stop.
    pub stop_requested: bool,
    /// It is archived.
    pub archived: bool,
    /// It is deleted.
    pub deleted: bool,
    /// The turn that the reporter saw is open and the row's.
    pub turn_matches: bool,
    /// The runtime's generation that the reporter saw equals the row's.
    pub runtime_matches: bool,
}

/// The thread's lifecycle.
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

    // A thread does not end by itself: it is archived or deleted, which are facts, not statuses.
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
    /// Whether it opens a new turn.
    pub fn opens_turn(self) -> bool {
        matches!(self, E::ReprovisionStarted | E::TurnDispatched)
    }

    /// Whether it ends the open turn, and with it the wish to stop it.
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
