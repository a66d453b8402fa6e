//! The reports of a supervisor to its worker: one JSON object per line.

use serde::{Deserialize, Serialize};

use crate::RefusalKind;

/// A line on the supervisor's stdout.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Report {
    Started(Started),
    Ended(Ended),
    Refused { kind: RefusalKind, message: String },
}

/// The command has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The process id of the command; its session and process group have the same number.
    pub pid: i32,
    /// The start time, in clock ticks since the machine started. Together with the pid it identifies the
    /// process.
    pub start_time: u64,
}

/// The tree has ended: no process is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The reason why the tree ended.
    pub reason: Reason,
    /// The command's exit code; absent if a signal ended it or it did not start.
    pub exit_code: Option<i32>,
    /// The signal that ended the command; absent if it exited.
    pub signal: Option<i32>,
    /// The number of processes that outlived the command and were killed.
    pub leftovers: u32,
    /// The resources that the tree used.
    pub usage: Usage,
    /// The number of bytes that are missing in the log because of its limit.
    pub log_dropped_bytes: u64,
    /// The error because of which output is missing in the log.
    pub log_error: Option<String>,
    /// The number of bytes that are missing in the captured file because of its limit.
    pub capture_dropped_bytes: u64,
    /// The error because of which output is missing in the captured file.
    pub capture_error: Option<String>,
    /// The limits of its sandbox that were reached or are not enforced here, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Ended {
    pub(crate) fn because(reason: Reason) -> Self {
        Ended {
            reason,
            exit_code: None,
            signal: None,
            leftovers: 0,
            usage: Usage::default(),
            log_dropped_bytes: 0,
            log_error: None,
            capture_dropped_bytes: 0,
            capture_error: None,
            warnings: Vec::new(),
        }
    }

    /// Returns whether the command exited by itself with code 0.
    pub fn success(&self) -> bool {
        self.reason == Reason::Exited && self.exit_code == Some(0)
    }
}

/// The reason why a tree ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The command exited by itself, or a signal that the supervisor did not send ended it.
    Exited,
    /// The step's timeout passed.
    Timeout,
    /// The worker sent `cancel` or `kill`.
    Cancelled,
    /// The worker did not renew its lease in time.
    LeaseLost,
    /// The worker closed its pipe, most likely because it died.
    ParentGone,
    /// The supervisor received TERM, INT or HUP.
    Signalled,
    /// The supervisor was killed, and the worker killed the rest of the tree.
    SupervisorLost,
    /// The tree used more memory than its limit, and was killed.
    MemoryLimit,
    /// The command did not start.
    CouldNotStart {
        /// The kind of failure.
        kind: NotStarted,
        /// The operation, and why it failed.
        message: String,
    },
}

/// The reason why a command did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotStarted {
    /// The program does not exist.
    NotFound,
    /// The program exists but cannot be executed.
    NotExecutable,
    /// The working folder does not exist or is not a folder.
    NoDir,
    /// Its sandbox cannot be enforced on this machine.
    Sandbox,
    /// The system refused for another reason.
    Other,
}

/// The resources that the reaped processes of a tree used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The CPU time in user mode, in milliseconds.
    pub user_ms: u64,
    /// The CPU time in the kernel, in milliseconds.
    pub sys_ms: u64,
    /// The largest resident size of any one process, in KiB.
    pub max_rss_kb: u64,
    /// The time from the start until the tree was empty, in milliseconds.
    pub wall_ms: u64,
}
