//! The thread: a conversation with a coding agent over many turns.
//!
//! An agent's process lives only inside an execution, which is the thread's **holder**. The execution says which worker may
//! act; the thread says what was said. A turn is open while the thread is provisioning or active, and whatever ends,
//! releases or abandons the holder closes the turn in the same transaction.
//!
//! ```text
//!   created ──reprovision.started──▶ provisioning ──start.succeeded──▶ active ──turn.completed──▶ idle
//!                                        ▲                               ▲                         │
//!                                        └────reprovision.started────────┼─────────────────────────┤
//!                                                                        └─────turn.dispatched─────┘
//! ```
//!
//! "Matching turn" means the open turn, so a late report cannot revive or end a later one. Events of the agent's process
//! carry the runtime's generation.

use crate::mutant;
use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// The status of a thread.
    ThreadStatus {
        /// Created; no agent has been started for it.
        Created = "created",
        /// Its agent is being started, with the first message of the turn.
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
        /// The agent's process is about to be started.
        ReprovisionStarted = "reprovision.started",
        /// A message was taken for an agent that runs.
        TurnDispatched = "turn.dispatched",
        /// The agent acknowledged its start.
        StartSucceeded = "start.succeeded",
        /// The agent started a turn.
        TurnStarted = "turn.started",
        /// The agent was found working, and the report of its start was lost.
        RuntimeObservedActive = "runtime.observed-active",
        /// The agent completed a turn.
        TurnCompleted = "turn.completed",
        /// The agent failed in a turn.
        TurnFailed = "turn.failed",
        /// The turn was interrupted: a limit, a release, a rejected permission.
        TurnInterrupted = "turn.interrupted",
        /// The agent's process exited by itself.
        RuntimeExited = "runtime.exited",
        /// A command to the agent failed.
        CommandFailed = "command.failed",
        /// The environment could not be created.
        ProvisionFailed = "provision.failed",
        /// The environment is gone.
        WorkspaceLost = "workspace.lost",
        /// The agent stopped, as a person requested.
        StopCompleted = "stop.completed",
        /// The agent's session was lost together with its worker.
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
        /// No execution holds the thread.
        NoHolder = "no other holder",
        /// The execution of the report is running with its fence, and was not asked to stop.
        HolderRuns = "its execution runs, not cancel-requested",
        /// The reporter holds the thread.
        MatchingHolder = "matching holder",
        /// The event belongs to the open turn.
        MatchingTurn = "matching turn",
        /// The event belongs to the current runtime.
        MatchingRuntime = "matching runtime",
        /// The event belongs to the present attempt to create the environment.
        MatchingProvisionAttempt = "matching provision attempt",
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
    /// Whether an execution holds the thread.
    pub has_holder: bool,
    /// Whether the execution of the report is running with its fence, and was not asked to stop.
    pub holder_runs: bool,
    /// Whether the reporter holds the thread.
    pub holder_matches: bool,
    /// Whether the turn in the report is the row's open turn.
    pub turn_matches: bool,
    /// Whether the runtime's generation in the report equals the row's.
    pub runtime_matches: bool,
    /// Whether the report is about the present attempt to create the environment.
    pub provision_attempt_matches: bool,
}

/// The lifecycle of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread;

use Actor::{Reaper, Worker};
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
        //   event                      who                from                      to            superseded unless
        rule(E::ReprovisionStarted,     &[Worker],         &[Created, Idle, Error],  Provisioning, &[P::NotArchived, P::NotDeleted, P::NoHolder, P::HolderRuns]),
        rule(E::TurnDispatched,         &[Worker],         &[Idle],                  Active,       &[P::MatchingHolder, P::HolderRuns, P::NotStopRequested, P::NotArchived, P::NotDeleted]),
        rule(E::StartSucceeded,         &[Worker],         &[Provisioning],          Active,       &[P::MatchingHolder, P::MatchingTurn, P::NotStopRequested, P::NotDeleted]),
        rule(E::TurnStarted,            &[Worker],         &[Provisioning],          Active,       &[P::MatchingHolder, P::MatchingTurn, P::NotStopRequested, P::NotDeleted]),
        rule(E::RuntimeObservedActive,  &[Worker],         &[Provisioning],          Active,       &[P::MatchingHolder, P::MatchingTurn, P::NotStopRequested, P::NotDeleted]),
        rule(E::TurnCompleted,          &[Worker],         &[Active],                Idle,         &[P::MatchingHolder, P::MatchingTurn]),
        rule(E::TurnFailed,             &[Worker],         &[Provisioning, Active],  Error,        &[P::MatchingHolder, P::MatchingTurn, P::NotStopRequested]),
        rule(E::TurnInterrupted,        &[Worker],         &[Provisioning, Active],  Idle,         &[P::MatchingHolder, P::MatchingTurn]),
        rule(E::RuntimeExited,          &[Worker],         &[Provisioning, Active],  Error,        &[P::MatchingHolder, P::MatchingRuntime, P::NotStopRequested]),
        rule(E::CommandFailed,          &[Worker],         &[Provisioning, Active],  Error,        &[P::MatchingHolder, P::MatchingTurn]),
        rule(E::ProvisionFailed,        &[Worker, Reaper], &[Provisioning],          Error,        &[P::MatchingTurn]),
        rule(E::WorkspaceLost,          &[Worker, Reaper], &[Created, Provisioning, Idle, Active], Error, &[P::MatchingProvisionAttempt]),
        rule(E::StopCompleted,          &[Worker, Reaper], &[Provisioning, Active],  Idle,         &[P::StopRequested, P::MatchingTurn]),
        rule(E::SessionLost,            &[Reaper],         &[Provisioning, Active],  Error,        &[P::MatchingTurn]),
    ];

    // A thread has no final status. Archived and deleted are facts, not statuses.
    const TERMINAL: &'static [ThreadStatus] = &[];

    fn holds(predicate: ThreadPredicate, facts: &ThreadFacts) -> bool {
        match predicate {
            P::NotStopRequested => !facts.stop_requested || mutant!(StartOvertakesStop),
            P::StopRequested => facts.stop_requested,
            P::NotArchived => !facts.archived,
            P::NotDeleted => !facts.deleted,
            P::NoHolder => !facts.has_holder || mutant!(SecondHolder),
            P::HolderRuns => facts.holder_runs,
            P::MatchingHolder => facts.holder_matches,
            P::MatchingTurn => facts.turn_matches,
            P::MatchingRuntime => facts.runtime_matches,
            P::MatchingProvisionAttempt => facts.provision_attempt_matches,
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
