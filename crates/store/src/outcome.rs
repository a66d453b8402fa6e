//! What became of a reported event.

use sprag_lifecycle::{Lifecycle, Word};

/// What became of a reported event. Only `Applied` changed anything; side effects hang on it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an event may have been refused"]
pub enum Outcome<L: Lifecycle> {
    /// It happened.
    Applied {
        /// What the entity was.
        from: L::Status,
        /// What it is now.
        to: L::Status,
        /// The journal entry's number.
        seq: u64,
    },
    /// It came too late: this does not hold any more.
    Superseded(L::Predicate),
    /// It means nothing in this status, or not from this reporter.
    Illegal {
        /// What the entity is.
        status: L::Status,
        /// Somebody else could have reported it.
        wrong_actor: bool,
    },
    /// There is no such entity.
    NotFound,
}

/// A refused event as an error, for callers who must answer their own caller with a 4xx.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotApplied {
    /// 404.
    #[error("there is no such {entity}")]
    NotFound {
        /// What kind of thing.
        entity: &'static str,
    },
    /// 409, too late.
    #[error("too late for this {entity}: it needs \"{predicate}\", which does not hold any more")]
    Superseded {
        /// What kind of thing.
        entity: &'static str,
        /// What does not hold any more.
        predicate: &'static str,
    },
    /// 409, makes no sense now.
    #[error("not possible: the {entity} is {status}{}", if *.wrong_actor { ", and not the caller's" } else { "" })]
    Illegal {
        /// What kind of thing.
        entity: &'static str,
        /// What it is.
        status: &'static str,
        /// Somebody else could have done it.
        wrong_actor: bool,
    },
}

impl NotApplied {
    /// The HTTP status that says the same.
    pub fn http_status(&self) -> u16 {
        match self {
            NotApplied::NotFound { .. } => 404,
            NotApplied::Superseded { .. } | NotApplied::Illegal { .. } => 409,
        }
    }
}

impl<L: Lifecycle> Outcome<L> {
    /// Whether it happened.
    pub fn is_applied(&self) -> bool {
        matches!(self, Outcome::Applied { .. })
    }

    /// The journal entry's number, or a typed error.
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
