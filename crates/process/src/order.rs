//! The input of a supervisor: the order, and the commands that follow it on the same pipe.

use std::{collections::BTreeMap, ffi::OsString, fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::sandbox::Sandbox;

/// The default of [`Order::grace_ms`].
pub const DEFAULT_GRACE_MS: u64 = 10_000;

/// The longest grace after the lease is lost or the worker is dead. The next attempt waits for the tree to be
/// gone.
pub const LEASE_GRACE_MS: u64 = 2_000;

/// The default of [`Order::log_limit_bytes`].
pub const DEFAULT_LOG_LIMIT_BYTES: u64 = 64 << 20;

/// The environment variable that [`crate::spawn`] sets to a unique value for each tree. It identifies the
/// tree's processes even after their supervisor was killed.
pub const TREE_MARKER: &str = "SPRAG_PROCESS_TREE";

/// One command to run, and its limits.
#[derive(Clone, Serialize, Deserialize)]
pub struct Order {
    /// The supervisor's argument in the output of `ps`.
    pub label: String,
    /// The program and its arguments; no shell is involved.
    pub argv: Vec<String>,
    /// The variables to set for the command.
    pub env: BTreeMap<String, String>,
    /// The environment of the supervisor, which the command inherits beside `env`; the result of
    /// [`crate::inherited`] if absent. It is not part of the message to the supervisor.
    #[serde(skip)]
    pub inherits: Option<Vec<(OsString, OsString)>>,
    /// The working folder; that of the supervisor if absent.
    pub dir: Option<PathBuf>,
    /// The time between TERM and KILL.
    pub grace_ms: u64,
    /// The timeout of the command; absent means none.
    pub timeout_ms: Option<u64>,
    /// The moment of the boot clock by which the worker must renew. The tree is gone at most [`LEASE_GRACE_MS`] later, so
    /// this must be earlier than the end of the worker's lease by that much.
    ///
    /// It is a point in time, not a duration: whatever stops the worker between its claim and the start of the command
    /// must not extend the lease. A command whose lease is over does not start.
    pub lease_until_ms: Option<u64>,
    /// The log file, which the supervisor appends to.
    pub log: PathBuf,
    /// The most bytes that this command may add to the log.
    pub log_limit_bytes: u64,
    /// The texts that appear as `***` in the log.
    pub secrets: Vec<String>,
    /// The lock file that all processes of the tree keep locked.
    pub owner_lock: Option<PathBuf>,
    /// Whether the tree runs in its own cgroup, where one is delegated to the user.
    pub cgroup: bool,
    /// The bounds of the command; absent if it sees and reaches everything that its user does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// The file for the command's unmodified stdout; absent if it is only logged.
    pub capture_stdout: Option<Capture>,
    /// The inherited descriptors that become the command's stdin and stdout; set by [`crate::spawn_duplex`] alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wire: Option<Wire>,
}

/// The ends of two pipes that the supervisor inherits and passes on to the command.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Wire {
    /// The reading end of the pipe to the command's stdin.
    pub(crate) stdin: i32,
    /// The writing end of the pipe from the command's stdout.
    pub(crate) stdout: i32,
}

/// A file for the command's stdout: unmasked, without timestamps, limited in size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Capture {
    /// The file, which is truncated first.
    pub path: PathBuf,
    /// The most bytes to keep; the rest is dropped.
    pub max_bytes: u64,
}

impl Order {
    /// Creates an order that runs `argv` and writes `log`, with the default limits.
    pub fn new<I>(argv: I, log: impl Into<PathBuf>) -> Self
    where
        I: IntoIterator<Item: Into<String>>,
    {
        Order {
            label: String::new(),
            argv: argv.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            inherits: None,
            dir: None,
            grace_ms: DEFAULT_GRACE_MS,
            timeout_ms: None,
            lease_until_ms: None,
            log: log.into(),
            log_limit_bytes: DEFAULT_LOG_LIMIT_BYTES,
            secrets: Vec::new(),
            owner_lock: None,
            cgroup: true,
            sandbox: None,
            capture_stdout: None,
            wire: None,
        }
    }
}

/// Omits the environment and the secrets.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order")
            .field("label", &self.label)
            .field("argv", &self.argv)
            .field("dir", &self.dir)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

/// A later line on the supervisor's stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Extends the lease to this time of the boot clock.
    RenewUntil(u64),
    /// Stops the tree: TERM, grace, KILL.
    Cancel,
    /// Kills the tree at once.
    Kill,
}

impl Command {
    /// Parses a line. Returns `None` for an unknown command, which a newer worker may send.
    pub(crate) fn parse(line: &str) -> Option<Command> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("renew", until) => until.parse().ok().map(Command::RenewUntil),
            ("cancel", "") => Some(Command::Cancel),
            ("kill", "") => Some(Command::Kill),
            _ => None,
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::RenewUntil(until_ms) => write!(f, "renew {until_ms}"),
            Command::Cancel => f.write_str("cancel"),
            Command::Kill => f.write_str("kill"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_a_round_trip() {
        for command in [Command::RenewUntil(0), Command::RenewUntil(u64::MAX), Command::Cancel, Command::Kill]
        {
            assert_eq!(Command::parse(&command.to_string()), Some(command));
        }
        for line in ["", "renew", "renew x", "renew -1", "cancel now", "dance"] {
            assert_eq!(Command::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn debug_output_hides_environment_and_secrets() {
        let mut order = Order::new(["true"], "log");
        order.secrets.push("hunter2".into());
        order.env.insert("TOKEN".into(), "hunter2".into());
        assert!(!format!("{order:?}").contains("hunter2"));
    }
}
