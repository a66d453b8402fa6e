//! Broker health: logs when the broker becomes unusable or usable again, not on every failed attempt.

use std::sync::Mutex;

/// The task that uses the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Publishes the journal.
    Relay,
    /// Pulls handoffs from the queues' consumers.
    Pull,
}

/// The state of the broker as each task last saw it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    lost: Mutex<[bool; 2]>,
    /// The broker's latest permission error. The broker repeats it on every attempt; a change is logged once.
    refused: Mutex<String>,
}

impl Health {
    /// Stores whether the broker is lost to this task. Returns true if that changes the overall state: lost to
    /// any task, or to none.
    fn set_lost(&self, role: Role, lost: bool) -> bool {
        let mut roles = self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = roles.contains(&true);
        roles[role as usize] = lost;
        before != roles.contains(&true)
    }

    /// Records that this task cannot use the broker.
    pub(crate) fn unreachable(&self, role: Role, why: &str) {
        if self.set_lost(role, true) {
            tracing::error!(why, "the broker is out of reach: runs continue without it");
        } else {
            tracing::debug!(?role, why, "the broker is still out of reach");
        }
    }

    /// Records an error that the broker reports beside the request. The broker never answers the refused
    /// request itself, so this error is the only sign of the cause.
    pub(crate) fn refused(&self, why: &str) {
        let mut last = self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *last != why {
            tracing::error!(why, "the broker refuses something: see docs/bus.md for what it must permit");
            why.clone_into(&mut last);
        }
    }

    /// Records that this task can use the broker.
    pub(crate) fn reachable(&self, role: Role) {
        if self.set_lost(role, false) {
            tracing::info!("the broker is reachable again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_and_ends_when_all_roles_reach_the_broker() {
        let health = Health::default();
        let changed: Vec<bool> = [
            (Role::Relay, false),
            (Role::Relay, true),
            (Role::Pull, true),
            (Role::Relay, true),
            (Role::Pull, false),
            (Role::Pull, true),
            (Role::Pull, false),
            (Role::Relay, false),
        ]
        .map(|(role, lost)| health.set_lost(role, lost))
        .to_vec();
        assert_eq!(changed, [false, true, false, false, false, false, false, true]);
    }
}
