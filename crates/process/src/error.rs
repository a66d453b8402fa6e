//! What can go wrong between a worker and its supervisor.

use std::{io, path::PathBuf};

use serde::{Deserialize, Serialize};

/// Why a command could not be put under supervision, or its processes not be ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The supervisor program itself did not start.
    #[error("could not start the supervisor {}", program.display())]
    Supervisor {
        /// The program that was to be the supervisor.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The order is not fit to be sent: no command, or a path that is not UTF-8.
    #[error("the order for the supervisor is not valid: {message}")]
    BadOrder {
        /// What is wrong with it.
        message: String,
    },
    /// A process of a former attempt is still alive and holds the owner lock.
    #[error("a process of a former attempt still holds {}", path.display())]
    LockHeld {
        /// The owner lock.
        path: PathBuf,
    },
    /// The supervisor would not take the order.
    #[error("the supervisor refused to start the command: {message}")]
    Refused {
        /// Which part of the order it could not fulfil.
        kind: RefusalKind,
        /// What was attempted and why it failed.
        message: String,
    },
    /// The pipes to the supervisor failed.
    #[error("could not talk to the supervisor: {attempt}")]
    Pipe {
        /// What was attempted.
        attempt: &'static str,
        /// What the system said.
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

/// The part of an order that a supervisor could not fulfil before starting the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The owner lock is held by a former attempt.
    LockHeld,
    /// The owner lock's file could not be opened.
    Lock,
    /// The log could not be opened.
    Log,
    /// The file for the captured output could not be opened.
    Capture,
    /// The order could not be read.
    Order,
    /// The supervisor could not set itself up.
    Setup,
}
