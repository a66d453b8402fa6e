//! What a supervisor is told: the order, and the commands that follow it on the same pipe.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

/// Time between TERM and KILL unless the order says otherwise.
pub const DEFAULT_GRACE_MS: u64 = 10_000;

/// The longest time between TERM and KILL when the lease is lost or the worker is dead: nobody waits for
/// a clean end then, and the next attempt waits for any.
pub const LEASE_GRACE_MS: u64 = 2_000;

/// Size at which a log is cut unless the order says otherwise.
pub const DEFAULT_LOG_LIMIT_BYTES: u64 = 64 << 20;

/// The environment variable that [`crate::spawn`] sets to a value of its own for each tree, so that
/// the tree's processes are found even after their supervisor was killed.
pub const TREE_MARKER: &str = "SPRAG_PROCESS_TREE";

/// One command to run, and the bounds it runs in.
#[derive(Clone, Serialize, Deserialize)]
pub struct Order {
    /// Shown by `ps` as the supervisor's argument; for people only.
    pub label: String,
    /// The program and its arguments; no shell is involved.
    pub argv: Vec<String>,
    /// Variables to set for the command.
    pub env: BTreeMap<String, String>,
    /// Whether the command sees only `env`, and nothing of the supervisor's own environment.
    pub clear_env: bool,
    /// Working folder; the supervisor's own if none is given.
    pub dir: Option<PathBuf>,
    /// Time between TERM and KILL.
    pub grace_ms: u64,
    /// Time after which the supervisor ends the tree.
    pub timeout_ms: Option<u64>,
    /// Time within which the worker must renew, from the moment of [`crate::spawn`]. The tree is gone
    /// [`LEASE_GRACE_MS`] later: give the supervisor so much less than the store gave the worker.
    pub lease_ms: Option<u64>,
    /// The log file; it is appended to.
    pub log: PathBuf,
    /// Bytes this command may add to the log.
    pub log_limit_bytes: u64,
    /// Texts that appear as `***` in the log.
    pub secrets: Vec<String>,
    /// The file whose lock all processes of the tree hold.
    pub owner_lock: Option<PathBuf>,
    /// Where to keep what the command wrote to stdout, as it is.
    pub capture_stdout: Option<Capture>,
}

/// A file for the command's stdout: unmasked, without times, cut at a size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Capture {
    /// The file; it is truncated first.
    pub path: PathBuf,
    /// Bytes to keep; what follows is dropped.
    pub max_bytes: u64,
}

impl Order {
    /// An order to run `argv` and write `log`, with the default bounds.
    pub fn new<I>(argv: I, log: impl Into<PathBuf>) -> Self
    where
        I: IntoIterator<Item: Into<String>>,
    {
        Order {
            label: String::new(),
            argv: argv.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            clear_env: false,
            dir: None,
            grace_ms: DEFAULT_GRACE_MS,
            timeout_ms: None,
            lease_ms: None,
            log: log.into(),
            log_limit_bytes: DEFAULT_LOG_LIMIT_BYTES,
            secrets: Vec::new(),
            owner_lock: None,
            capture_stdout: None,
        }
    }
}

/// Leaves out what may be secret: the environment and the secrets themselves.
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

/// The first line on the supervisor's stdin.
///
/// The lease is sent as a moment, not as a length: a line that waited in the pipe of a stopped
/// supervisor must not give more time than the worker has.
#[derive(Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) order: Order,
    pub(crate) lease_until_ms: Option<u64>,
}

/// A later line on the supervisor's stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// The lease now ends at this moment of the machine's boot clock.
    RenewUntil(u64),
    /// End the tree: TERM, grace, KILL.
    Cancel,
    /// End the tree: KILL.
    Kill,
}

impl Command {
    /// None for a line that is no command: a newer worker may say more than this supervisor knows.
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
    fn commands_are_read_as_they_are_written() {
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
