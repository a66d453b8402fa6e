//! The environment: a git worktree or a plain directory on one host, in which a run works.

use crate::table::{Actor, Lifecycle, Rule, To, rule, words};

words! {
    /// The status of an environment.
    EnvironmentStatus {
        /// A worker is creating it.
        Provisioning = "provisioning",
        /// Can be used.
        Ready = "ready",
        /// Cannot be used: creation or removal failed, or the host is gone.
        Error = "error",
        /// A worker is removing it.
        Destroying = "destroying",
        /// Removed.
        Destroyed = "destroyed",
    }
}

words! {
    /// An event of an environment.
    EnvironmentEvent {
        /// A run or thread needs it.
        ProvisionRequested = "provision.requested",
        /// The worker created it.
        ProvisionSucceeded = "provision.succeeded",
        /// The worker could not create it.
        ProvisionFailed = "provision.failed",
        /// Creation was cancelled.
        ProvisionCancelled = "provision.cancelled",
        /// The host's lease expired.
        HostLost = "host.lost",
        /// A worker starts to remove it.
        DestroyDispatched = "destroy.dispatched",
        /// The worker removed it.
        DestroySucceeded = "destroy.succeeded",
        /// The worker could not remove it.
        DestroyFailed = "destroy.failed",
        /// The worker that was removing it is gone.
        DestroyLost = "destroy.lost",
        /// Nothing is left to remove.
        CleanupCompleted = "cleanup.completed",
    }
}

words! {
    /// A condition of an environment's events.
    EnvironmentPredicate {
        /// The event belongs to the current attempt to create it.
        MatchingProvisionAttempt = "matching provision attempt",
        /// The event belongs to the current attempt to remove it.
        MatchingDestroyAttempt = "matching destroy attempt",
        /// The host's lease has expired.
        HostLeaseLapsed = "the host's lease lapsed",
        /// Sprag created it, so Sprag may remove it.
        Managed = "managed",
        /// Removal was requested.
        CleanupRequested = "clean-up requested",
        /// The directory exists.
        PathPresent = "path present",
        /// The directory does not exist, or its host is permanently gone.
        PathAbsent = "path absent, or its host gone for good",
        /// No live run or thread uses it.
        NoLiveUser = "no live run or thread uses it",
        /// The worker that was removing it is gone.
        DestroyerGone = "the destroyer is gone",
    }
}

/// The facts that the environment's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvironmentFacts {
    /// Whether the provision attempt in the report equals the row's.
    pub provision_attempt_matches: bool,
    /// Whether the destroy attempt in the report equals the row's.
    pub destroy_attempt_matches: bool,
    /// Whether the host's lease has expired.
    pub host_lease_lapsed: bool,
    /// Whether Sprag created it.
    pub managed: bool,
    /// Whether removal was requested.
    pub cleanup_requested: bool,
    /// Whether the directory exists.
    pub path_present: bool,
    /// Whether the host is permanently gone.
    pub host_gone: bool,
    /// The number of live runs and threads that use it.
    pub live_users: u32,
    /// Whether the worker that was removing it is gone.
    pub destroyer_gone: bool,
}

/// The lifecycle of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment;

use Actor::{Executor, Reaper, Worker};
use EnvironmentEvent as E;
use EnvironmentPredicate as P;
use EnvironmentStatus::{Destroyed, Destroying, Error, Provisioning, Ready};

impl Lifecycle for Environment {
    const NAME: &'static str = "environment";
    type Status = EnvironmentStatus;
    type Event = EnvironmentEvent;
    type Predicate = EnvironmentPredicate;
    type Facts = EnvironmentFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        //   event                   who          from                              to            superseded unless
        rule(E::ProvisionRequested,  &[Executor], &[Ready, Error, Destroyed],       Provisioning, &[]),
        rule(E::ProvisionSucceeded,  &[Worker],   &[Provisioning],                  Ready,        &[P::MatchingProvisionAttempt]),
        // A worker that died during creation cannot report, so the reaper does.
        rule(E::ProvisionFailed,     &[Worker, Reaper], &[Provisioning],            Error,        &[P::MatchingProvisionAttempt]),
        rule(E::ProvisionCancelled,  &[Worker],   &[Provisioning],                  Error,        &[P::MatchingProvisionAttempt]),
        rule(E::HostLost,            &[Reaper],   &[Provisioning, Ready, Destroying], Error,      &[P::HostLeaseLapsed]),
        rule(E::DestroyDispatched,   &[Worker],   &[Ready, Error],                  Destroying,   &[P::NoLiveUser, P::Managed, P::CleanupRequested, P::PathPresent]),
        rule(E::DestroySucceeded,    &[Worker],   &[Destroying],                    Destroyed,    &[P::MatchingDestroyAttempt]),
        rule(E::DestroyFailed,       &[Worker],   &[Destroying],                    Error,        &[P::MatchingDestroyAttempt]),
        Rule {
            event: E::DestroyLost,
            who: &[Reaper],
            from: &[Destroying],
            to: To::ByPath { present: Error, absent: Destroyed },
            unless_superseded: &[P::CleanupRequested, P::DestroyerGone],
        },
        rule(E::CleanupCompleted,    &[Worker, Reaper], &[Ready, Error],            Destroyed,    &[P::Managed, P::CleanupRequested, P::PathAbsent]),
    ];

    const TERMINAL: &'static [EnvironmentStatus] = &[Destroyed];

    fn holds(predicate: EnvironmentPredicate, facts: &EnvironmentFacts) -> bool {
        match predicate {
            P::MatchingProvisionAttempt => facts.provision_attempt_matches,
            P::MatchingDestroyAttempt => facts.destroy_attempt_matches,
            P::HostLeaseLapsed => facts.host_lease_lapsed,
            P::Managed => facts.managed,
            P::CleanupRequested => facts.cleanup_requested,
            P::PathPresent => facts.path_present,
            P::PathAbsent => !facts.path_present || facts.host_gone,
            P::NoLiveUser => facts.live_users == 0,
            P::DestroyerGone => facts.destroyer_gone,
        }
    }

    fn path_present(facts: &EnvironmentFacts) -> bool {
        facts.path_present
    }
}
