//! What can go wrong between a worker and its server.

use std::time::Duration;

use sprag_worker::DeskError;

/// Why a server did not do what it was asked to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The address is not one of a server.
    #[error("--server {text:?}: {reason}")]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It cannot be reached, is overloaded or failing: what was asked for may have been done or not.
    #[error("{server}: {reason}")]
    Away {
        /// The server.
        server: String,
        /// What happened.
        reason: String,
        /// When to come back, if it says so.
        after: Option<Duration>,
    },
    /// It does not speak as a Sprag server does.
    #[error("{server} does not answer like a Sprag server: {reason}")]
    Strange {
        /// The server.
        server: String,
        /// What it said.
        reason: String,
    },
    /// It does not let this worker in.
    #[error("{server} does not let this worker in: {reason}")]
    Unwelcome {
        /// The server.
        server: String,
        /// What it said.
        reason: String,
    },
    /// It does not understand this worker.
    #[error(
        "{server} does not understand this worker: {reason}; use the same version of sprag on both sides"
    )]
    Misunderstood {
        /// The server.
        server: String,
        /// What it said.
        reason: String,
    },
    /// The event was refused: it is too late, or makes no sense.
    #[error("{0}")]
    Refused(String),
    /// It is more than the server takes.
    #[error("{0}")]
    TooLarge(String),
    /// The worker's own files.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// When to come back at the earliest.
    pub(crate) fn after(&self) -> Option<Duration> {
        match self {
            Error::Away { after, .. } => *after,
            _ => None,
        }
    }

    /// Whether it is unknown what became of the request, so that it is asked again.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Error::Away { .. } | Error::Strange { .. })
    }
}

impl DeskError for Error {
    fn is_final(&self) -> bool {
        match self {
            Error::Unwelcome { .. } | Error::Misunderstood { .. } | Error::Address { .. } => true,
            Error::Away { .. }
            | Error::Strange { .. }
            | Error::Refused(_)
            | Error::TooLarge(_)
            | Error::Local(_) => false,
        }
    }
}
