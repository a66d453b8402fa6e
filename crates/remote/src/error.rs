//! The errors between a worker and its server.

use std::time::Duration;

use sprag_worker::WorkSourceError;

/// The failure of a request to a server.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The address is not one of a server.
    #[error("--server {text:?}: {reason}")]
    Address {
        /// The text that the user gave.
        text: String,
        /// The reason why it is no address.
        reason: String,
    },
    /// The server cannot be reached, is overloaded or fails: the request may have been executed or not.
    #[error("{server}: {reason}")]
    Away {
        /// The server.
        server: String,
        /// The cause, as text.
        reason: String,
        /// The wait that the server asks for before a retry, if it asks for one.
        after: Option<Duration>,
    },
    /// The answer is not that of a Sprag server.
    #[error("{server} does not answer like a Sprag server: {reason}")]
    Strange {
        /// The server.
        server: String,
        /// The unexpected answer.
        reason: String,
    },
    /// The server does not accept this worker's token.
    #[error("{server} does not let this worker in: {reason}")]
    Unwelcome {
        /// The server.
        server: String,
        /// The server's message.
        reason: String,
    },
    /// The server does not understand this worker's request.
    #[error(
        "{server} does not understand this worker: {reason}; use the same version of sprag on both sides"
    )]
    Misunderstood {
        /// The server.
        server: String,
        /// The server's message.
        reason: String,
    },
    /// The server refused the event: it is too late, or illegal.
    #[error("{0}")]
    Refused(String),
    /// The object of the request is gone, because its run was forgotten.
    #[error("{0}")]
    Gone(String),
    /// The request is larger than the server accepts.
    #[error("{0}")]
    TooLarge(String),
    /// A failure on the worker's own machine, for example of its files.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// Returns the shortest wait before a retry that the server asked for, if any.
    pub(crate) fn after(&self) -> Option<Duration> {
        match self {
            Error::Away { after, .. } => *after,
            _ => None,
        }
    }

    /// Whether the outcome of the request is unknown, so that it is retried.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Error::Away { .. } | Error::Strange { .. })
    }
}

impl WorkSourceError for Error {
    fn is_final(&self) -> bool {
        match self {
            Error::Unwelcome { .. } | Error::Misunderstood { .. } | Error::Address { .. } => true,
            Error::Away { .. }
            | Error::Strange { .. }
            | Error::Refused(_)
            | Error::Gone(_)
            | Error::TooLarge(_)
            | Error::Local(_) => false,
        }
    }
}
