//! The outcome of a reported event.

use sprag_lifecycle::{Lifecycle, Word};

/// The outcome of a reported event. Only `Applied` changed anything; side effects depend on it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an event may have been refused"]
pub enum Outcome<L: Lifecycle> {
    /// The event was applied.
    Applied {
        /// The status before.
        from: L::Status,
        /// The status now.
        to: L::Status,
        /// The number of the journal entry.
        seq: u64,
    },
    /// The event came too late: this predicate does not hold any more.
    Superseded(L::Predicate),
    /// The event is not allowed in this status, or not from this reporter.
    Illegal {
        /// The present status.
        status: L::Status,
        /// Whether another actor could have reported it.
        wrong_actor: bool,
    },
    /// The entity does not exist.
    NotFound,
}

/// A refused event as an error, for callers that must answer their own caller with a 4xx.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotApplied {
    /// 404.
    #[error("there is no such {entity}")]
    NotFound {
        /// The kind of entity.
        entity: &'static str,
    },
    /// 409, too late.
    #[error("too late for this {entity}: it needs \"{predicate}\", which no longer holds")]
    Superseded {
        /// The kind of entity.
        entity: &'static str,
        /// The predicate that does not hold any more.
        predicate: &'static str,
    },
    /// 409, not allowed in the present status.
    #[error("not possible: the {entity} is {status}{}", if *.wrong_actor { ", and not the caller's" } else { "" })]
    Illegal {
        /// The kind of entity.
        entity: &'static str,
        /// The present status.
        status: &'static str,
        /// Whether another actor could have done it.
        wrong_actor: bool,
    },
}

impl NotApplied {
    /// Returns the corresponding HTTP status.
    pub fn http_status(&self) -> u16 {
        match self {
            NotApplied::NotFound { .. } => 404,
            NotApplied::Superseded { .. } | NotApplied::Illegal { .. } => 409,
        }
    }
}

impl<L: Lifecycle> Outcome<L> {
    /// Whether the event was applied.
    pub fn is_applied(&self) -> bool {
        matches!(self, Outcome::Applied { .. })
    }

    /// Returns the number of the journal entry, or a typed error.
    pub fn require_applied(self) -> Result<u64, NotApplied> {
        match self {
            Outcome::Applied { seq, .. } => Ok(seq),
            Outcome::Superseded(predicate) => {
                Err(NotApplied::Superseded { entity: L::NAME, predicate: predicate.as_str() })
            }
            Outcome::Illegal { status, wrong_actor } => {
                Err(NotApplied::Illegal { entity: L::NAME, status: status.as_str(), wrong_actor })
            }
            Outcome::NotFound => Err(NotApplied::NotFound { entity: L::NAME }),
        }
    }
}
