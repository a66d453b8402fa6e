//! Whether the broker is of use, told to people when that changes and not each time it is noticed.

use std::sync::Mutex;

/// Who needs the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Telling others.
    Relay,
    /// Being told.
    Pull,
}

/// What each part thinks of the broker.
#[derive(Debug, Default)]
pub(crate) struct Health {
    lost: Mutex<[bool; 2]>,
    /// What the broker refused last: it says so each time it is asked.
    refused: Mutex<String>,
}

impl Health {
    /// It is of no use to this part; true if nobody had noticed before.
    fn note(&self, part: Part, lost: bool) -> bool {
        let mut parts = self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = parts.contains(&true);
        parts[part as usize] = lost;
        before != parts.contains(&true)
    }

    /// The broker is of no use to this part.
    pub(crate) fn lost(&self, part: Part, why: &str) {
        if self.note(part, true) {
            tracing::error!(why, "the broker is out of reach: runs go on without it");
        } else {
            tracing::debug!(?part, why, "the broker is still out of reach");
        }
    }

    /// The broker says that we may not do something. What was asked is then never answered, so this is the reason.
    pub(crate) fn refused(&self, why: &str) {
        let mut last = self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *last != why {
            tracing::error!(why, "the broker refuses something: see docs/bus.md for what it must permit");
            why.clone_into(&mut last);
        }
    }

    /// The broker is of use to this part.
    pub(crate) fn found(&self, part: Part) {
        if self.note(part, false) {
            tracing::info!("the broker is there again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_broker_is_told_once_and_found_when_all_have_it() {
        let health = Health::default();
        let told: Vec<bool> = [
            (Part::Relay, false),
            (Part::Relay, true),
            (Part::Pull, true),
            (Part::Relay, true),
            (Part::Pull, false),
            (Part::Pull, true),
            (Part::Pull, false),
            (Part::Relay, false),
        ]
        .map(|(part, lost)| health.note(part, lost))
        .to_vec();
        assert_eq!(told, [false, true, false, false, false, false, false, true]);
    }
}
