//! The environment: where a run works, a git worktree or a plain directory, on one host.

use crate::table::{Actor, Lifecycle, Rule, To, rule, words};

words! {
    /// What an environment can be.
    EnvironmentStatus {
        /// It is being made.
        Provisioning = "provisioning",
        /// It can be used.
        Ready = "ready",
        /// It is not usable: it was never finished, was half removed, or its host is gone.
        Error = "error",
        /// It is being removed.
        Destroying = "destroying",
        /// It is gone.
        Destroyed = "destroyed",
    }
}

words! {
    /// What can happen to an environment.
    EnvironmentEvent {
        /// Somebody needs it.
        ProvisionRequested = "provision.requested",
        /// It was made.
        ProvisionSucceeded = "provision.succeeded",
        /// It could not be made.
        ProvisionFailed = "provision.failed",
        /// Making it was broken off.
        ProvisionCancelled = "provision.cancelled",
        /// Its host's lease ran out.
        HostLost = "host.lost",
        /// A worker begins to remove it.
        DestroyDispatched = "destroy.dispatched",
        /// It was removed.
        DestroySucceeded = "destroy.succeeded",
        /// It could not be removed.
        DestroyFailed = "destroy.failed",
        /// Whoever was removing it is gone.
        DestroyLost = "destroy.lost",
        /// There is nothing left to remove.
        CleanupCompleted = "cleanup.completed",
    }
}

words! {
    /// What can make an environment's event come too late.
    EnvironmentPredicate {
        /// The event speaks of the present attempt to make it.
        MatchingProvisionAttempt = "matching provision attempt",
        /// The event speaks of the present attempt to remove it.
        MatchingDestroyAttempt = "matching destroy attempt",
        /// The host's lease ran out.
        HostLeaseLapsed = "the host's lease lapsed",
        /// Sprag made it, so Sprag may remove it.
        Managed = "managed",
        /// Somebody asked for it to be removed.
        CleanupRequested = "clean-up requested",
        /// The directory is on disk.
        PathPresent = "path present",
        /// The directory is gone, or its host is for good.
        PathAbsent = "path absent, or its host gone for good",
        /// No live run or thread uses it.
        NoLiveUser = "no live run or thread uses it",
        /// Whoever was removing it is gone.
        DestroyerGone = "the destroyer is gone",
    }
}

/// What the environment's predicates look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvironmentFacts {
    /// The provision attempt that the reporter saw equals the row's.
    pub provision_attempt_matches: bool,
    /// The destroy attempt that the reporter saw equals the row's.
    pub destroy_attempt_matches: bool,
    /// The host's lease ran out.
    pub host_lease_lapsed: bool,
    /// Sprag made it.
    pub managed: bool,
    /// Somebody asked for it to be removed.
    pub cleanup_requested: bool,
    /// The directory is on disk.
    pub path_present: bool,
    /// Its host is gone for good.
    pub host_gone: bool,
    /// Live runs and threads that use it.
    pub live_users: u32,
    /// Whoever was removing it is gone.
    pub destroyer_gone: bool,
}

/// The environment's lifecycle.
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
        // A worker that died while making it says nothing: the reaper does.
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
