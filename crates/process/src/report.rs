//! What a supervisor tells its worker: one JSON object per line.

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

/// The command was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Process id of the command; its session and process group have the same number.
    pub pid: i32,
    /// When it started, in clock ticks since the machine did; with the pid it names one process.
    pub start_time: u64,
}

/// No process of the tree is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Why the tree ended.
    pub reason: Reason,
    /// The command's exit code, if it exited.
    pub exit_code: Option<i32>,
    /// The signal that ended the command, if one did.
    pub signal: Option<i32>,
    /// Processes that were still alive when the command exited by itself, and were ended.
    pub leftovers: u32,
    /// What the tree used.
    pub usage: Usage,
    /// Bytes of output that are not in the log because it reached its limit.
    pub log_dropped_bytes: u64,
    /// Why output is missing from the log, if writing it failed.
    pub log_error: Option<String>,
    /// Bytes of output that are not in the captured file because it reached its limit.
    pub capture_dropped_bytes: u64,
    /// Why output is missing from the captured file, if writing it failed.
    pub capture_error: Option<String>,
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
        }
    }

    /// Whether the command ran to its own end and exited with 0.
    pub fn success(&self) -> bool {
        self.reason == Reason::Exited && self.exit_code == Some(0)
    }
}

/// Why a tree ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The command ended by itself, or by a signal that did not come from the supervisor.
    Exited,
    /// The step's timeout passed.
    Timeout,
    /// The worker said `cancel` or `kill`.
    Cancelled,
    /// The worker did not renew its lease in time.
    LeaseLost,
    /// The worker closed its pipe, most likely by dying.
    ParentGone,
    /// The supervisor was told to end, by TERM, INT or HUP.
    Signalled,
    /// The supervisor was killed; the worker ended what was left of the tree.
    SupervisorLost,
    /// The command did not start.
    CouldNotStart {
        /// What was missing.
        kind: NotStarted,
        /// What was attempted and why it failed.
        message: String,
    },
}

/// What a command lacked to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotStarted {
    /// There is no such program.
    NotFound,
    /// It is there, and cannot be executed.
    NotExecutable,
    /// The working folder is not there, or is not a folder.
    NoDir,
    /// The system refused for another reason.
    Other,
}

/// What a tree used, as far as its processes were waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in the programs.
    pub user_ms: u64,
    /// CPU time in the kernel.
    pub sys_ms: u64,
    /// Largest resident size of any one process.
    pub max_rss_kb: u64,
    /// From the start until the tree was empty.
    pub wall_ms: u64,
}
