//! The errors between a worker and its supervisor.

use std::{io, path::PathBuf};

use serde::{Deserialize, Serialize};

/// An error of starting a supervisor or killing processes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The supervisor program did not start.
    #[error("could not start the supervisor {}", program.display())]
    Supervisor {
        /// The program of the supervisor.
        program: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The order cannot be sent: it has no command, or a path that is not UTF-8.
    #[error("the order for the supervisor is not valid: {message}")]
    BadOrder {
        /// The reason.
        message: String,
    },
    /// A living process of an earlier attempt holds the owner lock.
    #[error("a process of an earlier attempt still holds {}", path.display())]
    LockHeld {
        /// The lock file.
        path: PathBuf,
    },
    /// The supervisor refused the order.
    #[error("the supervisor refused to start the command: {message}")]
    Refused {
        /// The part of the order that failed.
        kind: RefusalKind,
        /// The operation, and why it failed.
        message: String,
    },
    /// A pipe to the supervisor failed.
    #[error("lost contact with the supervisor: {attempt}")]
    Pipe {
        /// The operation.
        attempt: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The process table could not be read.
    #[error("could not read the process table")]
    ProcessTable(#[source] io::Error),
    /// Processes were still alive at the deadline.
    #[error("{} processes were still alive at the deadline, first {:?}", pids.len(), pids.first())]
    OrphansRemain {
        /// Their process ids.
        pids: Vec<i32>,
    },
}

/// The part of an order that failed before the command started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// A process of an earlier attempt holds the owner lock.
    LockHeld,
    /// The lock file could not be opened.
    Lock,
    /// The log could not be opened.
    Log,
    /// The file for the captured output could not be opened.
    Capture,
    /// The order could not be read.
    Order,
    /// The supervisor could not initialise itself.
    Setup,
}
