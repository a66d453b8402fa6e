//! The sandbox of a command: the files that it sees, its network, and its limits.
//!
//! ```text
//!   supervisor ──▶ bwrap (outside: waits) ──▶ bwrap (process 1 of the namespace) ──▶ command ──▶ …
//!       │            holds the owner lock       holds the owner lock                   holds no lock
//!       └─ stops the command; the kernel kills the whole namespace when process 1 ends
//! ```
//!
//! bubblewrap starts the command in its own user, process, IPC and mount namespaces, without capabilities. It sees only
//! the files that [`Sandbox::mounts`] lists. A process that leaves its session, its parent and its environment is still
//! in the namespace, so it ends with it.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{LazyLock, OnceLock},
    time::Duration,
};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use crate::{clock, limits::Limits, socket_filter, sys};

/// The program that creates the namespaces.
const PROGRAM: &str = "bwrap";
/// The remedy if the program is missing.
pub const PACKAGE: &str =
    "install the package `bubblewrap` (Debian, Ubuntu, Fedora and Arch have it under this name)";
/// The longest wait for the test whether sandboxes work here.
const PROBE_MS: u64 = 10_000;
/// The interval between two looks at the test.
const PROBE_INTERVAL_MS: u64 = 2;

/// The folders with the programs and settings of the machine. A sandbox sees them read-only.
const SYSTEM: [&str; 11] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu"];
/// The depth to which `/etc` is searched for files that not every user may read.
const SECRETS_DEPTH: u32 = 3;
/// The most files of `/etc` that are hidden one by one.
const MAX_HIDDEN: usize = 64;

/// The bounds of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sandbox {
    /// Whether the command runs in namespaces of its own. Otherwise only the limits apply.
    pub isolated: bool,
    /// The files that the command sees beside those of the machine, in the order of mounting: a later one covers an
    /// earlier one.
    pub mounts: Vec<Mount>,
    /// The network that the command reaches.
    pub network: Network,
    /// The limits of all processes of the command together.
    pub limits: Limits,
    /// Whether the command starts even if a limit cannot be enforced.
    pub best_effort: bool,
}

/// A file or folder of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mount {
    /// A path of the machine that can only be read.
    ReadOnly(PathBuf),
    /// A path of the machine that can be written.
    Writable(PathBuf),
    /// A path of the machine that can be written, at another path of the sandbox.
    WritableAt {
        /// The path of the machine.
        from: PathBuf,
        /// The path in the sandbox.
        to: PathBuf,
    },
    /// A path of the machine that can only be read, at another path of the sandbox.
    ReadOnlyAt {
        /// The path of the machine.
        from: PathBuf,
        /// The path in the sandbox.
        to: PathBuf,
    },
    /// An empty folder in memory, which ends with the sandbox.
    Empty(PathBuf),
    /// A file that cannot be opened.
    Unreadable(PathBuf),
}

/// The network that a sandbox reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// None: only sockets between its own processes.
    #[default]
    None,
    /// Its own loopback addresses, where nothing of the machine listens.
    Loopback,
    /// The network of the machine.
    All,
}

/// Checks that sandboxes work here, by starting one. Returns the reason and the remedy if they do not. A success is
/// remembered.
pub fn sandbox_support() -> Result<(), String> {
    static WORKS: OnceLock<()> = OnceLock::new();
    if WORKS.get().is_some() {
        return Ok(());
    }
    probe()?;
    let _ = WORKS.set(());
    Ok(())
}

fn probe() -> Result<(), String> {
    let sandbox = Sandbox { isolated: true, network: Network::Loopback, ..Sandbox::default() };
    let mut command = Command::new(PROGRAM);
    command.args(arguments(&sandbox, None, None, None)).args(["--", "true"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("`{PROGRAM}` is not installed: {PACKAGE}"),
        _ => format!("`{PROGRAM}` could not be started: {error}"),
    })?;
    let deadline_ms = clock::now_ms() + PROBE_MS;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if clock::now_ms() < deadline_ms => sys::pause(PROBE_INTERVAL_MS),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("`{PROGRAM}` did not end within {} s", PROBE_MS / 1000));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // Process 1 of the namespace is gone, so the pipe is closed.
        let _ = io::Read::read_to_string(&mut stderr, &mut said);
    }
    let said = said.lines().next().unwrap_or("it gave no reason").trim_start_matches("bwrap: ").to_owned();
    let remedy = "this kernel or container must allow user namespaces \
                  (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor)";
    Err(format!("`{PROGRAM}` {status}: {said}; {remedy}", status = ended_with(status.code())))
}

fn ended_with(code: Option<i32>) -> String {
    code.map_or_else(|| "was killed".to_owned(), |code| format!("ended with exit code {code}"))
}

/// Returns the program and the arguments that run `argv` in a sandbox. `filter` is the descriptor of the filter for
/// system calls, `lock` that of the owner lock.
pub(crate) fn command_line(
    sandbox: &Sandbox,
    argv: &[String],
    dir: Option<&Path>,
    filter: Option<i32>,
    lock: Option<i32>,
) -> (String, Vec<String>) {
    let mut words = arguments(sandbox, dir, filter, lock);
    words.push("--".to_owned());
    words.extend(sandbox.limits.by_rlimit());
    words.extend(argv.iter().cloned());
    (PROGRAM.to_owned(), words)
}

/// Creates the file with the filter for system calls, on a descriptor that the child inherits.
pub(crate) fn filter_file(network: Network) -> io::Result<Option<std::os::fd::OwnedFd>> {
    let families: &[i32] = match network {
        Network::None => &[libc::AF_UNIX, libc::AF_NETLINK],
        Network::Loopback => &[libc::AF_UNIX, libc::AF_NETLINK, libc::AF_INET, libc::AF_INET6],
        Network::All => &[],
    };
    socket_filter::file(families)
}

fn arguments(sandbox: &Sandbox, dir: Option<&Path>, filter: Option<i32>, lock: Option<i32>) -> Vec<String> {
    let mut words: Vec<String> =
        ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-cgroup-try", "--die-with-parent"]
            .map(str::to_owned)
            .into();
    let mut add = |given: &[&str]| words.extend(given.iter().map(|&word| word.to_owned()));
    if sandbox.network != Network::All {
        add(&["--unshare-net"]);
    }
    add(&["--cap-drop", "ALL"]);
    for folder in SYSTEM {
        add(&["--ro-bind-try", folder, folder]);
    }
    add(&["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/var/tmp"]);
    add(&["--symlink", "../run", "/var/run"]);
    if sandbox.network == Network::All
        && let Ok(resolver) = fs::canonicalize("/etc/resolv.conf")
        && resolver.starts_with("/run")
    {
        let path = resolver.to_string_lossy();
        add(&["--ro-bind-try", &path, &path]);
    }
    for mount in &sandbox.mounts {
        match mount {
            Mount::ReadOnly(path) => add(&["--ro-bind", &path.to_string_lossy(), &path.to_string_lossy()]),
            Mount::Writable(path) => add(&["--bind", &path.to_string_lossy(), &path.to_string_lossy()]),
            Mount::WritableAt { from, to } => {
                add(&["--bind", &from.to_string_lossy(), &to.to_string_lossy()])
            }
            Mount::ReadOnlyAt { from, to } => {
                add(&["--ro-bind", &from.to_string_lossy(), &to.to_string_lossy()])
            }
            Mount::Empty(path) => add(&["--tmpfs", &path.to_string_lossy()]),
            // A device on such a mount cannot be opened.
            Mount::Unreadable(path) => add(&["--ro-bind", "/dev/null", &path.to_string_lossy()]),
        }
    }
    if let Some(dir) = dir {
        add(&["--chdir", &dir.to_string_lossy()]);
    }
    if let Some(fd) = filter {
        add(&["--seccomp", &fd.to_string()]);
    }
    if let Some(fd) = lock {
        add(&["--sync-fd", &fd.to_string()]);
    }
    words
}

/// Returns mounts that hide the files below `/etc` which this user may read and others may not: keys and passwords of the
/// machine. A user without privileges has none. They belong before all other mounts. The search is done once.
pub fn machine_secrets() -> &'static [Mount] {
    static HIDDEN: LazyLock<Vec<Mount>> = LazyLock::new(|| {
        let mut found = Vec::new();
        hide_below(Path::new("/etc"), SECRETS_DEPTH, &mut found);
        found.truncate(MAX_HIDDEN);
        found
    });
    &HIDDEN
}

fn hide_below(folder: &Path, depth: u32, found: &mut Vec<Mount>) {
    let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let Ok(facts) = fs::symlink_metadata(entry.path()) else { continue };
        let is_folder = facts.is_dir();
        if !is_folder && !facts.is_file() {
            continue;
        }
        let wanted = if is_folder { 0o005 } else { 0o004 };
        let is_for_all = facts.permissions().mode() & wanted == wanted;
        if !is_for_all && access(entry.path(), Access::READ_OK).is_ok() && facts.size() > 0 {
            found.push(if is_folder { Mount::Empty(entry.path()) } else { Mount::Unreadable(entry.path()) });
        } else if is_folder && is_for_all && depth > 1 {
            hide_below(&entry.path(), depth - 1, found);
        }
    }
}

/// The longest wait for the limits of an ended sandbox to be removed.
pub(crate) const REMOVAL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_decides_about_the_namespace_and_later_mounts_come_last() {
        let sandbox = |network| Sandbox {
            isolated: true,
            mounts: vec![Mount::Empty("/home".into()), Mount::Writable("/home/u/w".into())],
            network,
            ..Sandbox::default()
        };
        let (program, words) = command_line(
            &sandbox(Network::None),
            &["true".into()],
            Some(Path::new("/home/u/w")),
            Some(7),
            Some(200),
        );
        let line = words.join(" ");
        assert_eq!(program, "bwrap");
        for part in ["--unshare-net", "--cap-drop ALL", "--seccomp 7", "--sync-fd 200", "--chdir /home/u/w"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let at = |part: &str| line.find(part).unwrap_or_else(|| panic!("{part}: {line}"));
        assert!(at("--tmpfs /home") < at("--bind /home/u/w"), "{line}");
        assert!(line.ends_with("-- true"), "{line}");
        let (_, words) = command_line(&sandbox(Network::All), &["true".into()], None, None, None);
        assert!(!words.contains(&"--unshare-net".to_owned()));
    }
}
