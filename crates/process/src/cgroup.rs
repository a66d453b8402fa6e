//! The cgroup of a step's tree. The kernel keeps every process of the tree in it, whatever happens to sessions,
//! parents, environments and files, and can kill all of them at once.
//!
//! The cgroup is created below this process's own cgroup, where that is delegated to the user (version 2, with
//! `cgroup.kill`). Elsewhere the process table, markers and locks identify the processes of a tree.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{Mode, OFlags, open};

use crate::{clock, identity, limits, sys, table::Stat};

/// The prefix of the names of our cgroups.
const PREFIX: &str = "sprag-";
/// The interval between two checks whether a cgroup is empty.
const POLL_INTERVAL_MS: u64 = 5;
/// The longest wait for the kernel to release a cgroup after its last process ended.
const REMOVAL_DEADLINE: Duration = Duration::from_millis(500);
/// The depth to which cgroups that a step created are removed.
const MAX_DEPTH: u32 = 16;

/// The cgroup of one tree.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates the cgroup of this process's tree, named after this process. Returns `None` if no cgroup is
    /// delegated to us.
    pub(crate) fn create() -> Option<Cgroup> {
        let cgroup = Cgroup { path: Cgroup::path_of(std::process::id() as i32)? };
        fs::create_dir(&cgroup.path).ok()?;
        if cgroup.file("cgroup.kill").exists() {
            return Some(cgroup);
        }
        let _ = fs::remove_dir(&cgroup.path);
        None
    }

    /// Returns the path of the cgroup that a supervisor creates. The supervisor is this process or one of its
    /// children.
    pub(crate) fn path_of(supervisor: i32) -> Option<PathBuf> {
        let start = Stat::of(supervisor).ok().flatten()?.start_time;
        let namespace = identity::pid_namespace().ok()?;
        Some(own_folder()?.join(format!("{PREFIX}{namespace}-{supervisor}-{start}")))
    }

    /// Returns the cgroup at a recorded path; `None` if it is gone or not one of ours.
    pub(crate) fn at(path: &Path) -> Option<Cgroup> {
        let ours = path.file_name()?.to_str()?.starts_with(PREFIX);
        let cgroup = Cgroup { path: path.to_owned() };
        // Only a cgroup has this file.
        (ours && path.is_absolute() && cgroup.file("cgroup.kill").exists()).then_some(cgroup)
    }

    /// Returns the cgroup's folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the folder, in which [`crate::sys::fork_into`] starts a process.
    pub(crate) fn folder(&self) -> io::Result<OwnedFd> {
        Ok(open(&self.path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Opens the file to which a process writes `0` to enter. The kernel then waits until no processor forks, which takes
    /// ten milliseconds and more.
    pub(crate) fn procs_file(&self) -> io::Result<OwnedFd> {
        Ok(OpenOptions::new().write(true).open(self.file("cgroup.procs"))?.into())
    }

    /// Returns whether any process is in it or in a cgroup below it.
    pub(crate) fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.file("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }

    /// Kills all its processes, waits until it is empty, and removes it. Returns whether it is empty.
    pub(crate) fn kill(self, deadline: Duration) -> bool {
        let deadline_ms = clock::now_ms().saturating_add(deadline.as_millis() as u64);
        while self.is_populated() {
            let killed = OpenOptions::new().write(true).open(self.file("cgroup.kill"));
            if killed.and_then(|mut file: File| file.write_all(b"1")).is_err() {
                // Another process found it empty and removed it.
                return !self.is_populated();
            }
            if clock::now_ms() >= deadline_ms {
                return !self.is_populated();
            }
            sys::pause(POLL_INTERVAL_MS);
        }
        self.remove();
        true
    }

    /// Removes the empty cgroup. The kernel may need a moment to notice that it is empty.
    pub(crate) fn remove(self) {
        let deadline_ms = clock::now_ms().saturating_add(REMOVAL_DEADLINE.as_millis() as u64);
        loop {
            remove_below(&self.path, MAX_DEPTH);
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                _ => return,
            }
            if clock::now_ms() >= deadline_ms {
                return;
            }
            sys::pause(1);
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Kills the trees of killed supervisors: cgroups beside ours that are named after a dead process. Returns
/// their number.
pub fn kill_abandoned_cgroups(deadline: Duration) -> usize {
    let ended = kill_abandoned_trees(deadline);
    limits::remove_abandoned();
    ended
}

/// Whether a name consists of this prefix and the identity of a process that is gone: its namespace, its id and its start.
pub(crate) fn is_of_a_gone_process(name: &OsStr, prefix: &str, namespace: u64) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(prefix)).unwrap_or_default();
    let parts: Result<Vec<u64>, _> = rest.split('-').map(str::parse).collect();
    let Ok(&[of_namespace, pid, start]) = parts.as_deref() else { return false };
    let is_gone = |stat: Option<Stat>| stat.is_none_or(|stat| stat.start_time != start || stat.is_gone());
    of_namespace == namespace && i32::try_from(pid).is_ok_and(|pid| Stat::of(pid).is_ok_and(is_gone))
}

fn kill_abandoned_trees(deadline: Duration) -> usize {
    let (Some(folder), Ok(namespace)) = (own_folder(), identity::pid_namespace()) else { return 0 };
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let abandoned = names.filter(|entry| is_of_a_gone_process(&entry.file_name(), PREFIX, namespace));
    let mut ended = 0;
    for cgroup in abandoned.filter_map(|entry| Cgroup::at(&entry.path())) {
        ended += usize::from(cgroup.is_populated());
        cgroup.kill(deadline);
    }
    ended
}

/// Returns the folder for cgroups of trees, or the reason why there are none.
pub fn cgroup_support() -> Result<PathBuf, String> {
    let folder = own_folder().ok_or("no cgroup file system of version 2 is mounted")?;
    let cgroup =
        Cgroup::create().ok_or_else(|| format!("{} is not delegated to this user", folder.display()))?;
    cgroup.remove();
    Ok(folder)
}

/// Returns the folder of this process's own cgroup.
fn own_folder() -> Option<PathBuf> {
    // "36 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw"
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then_some(())?;
        let mut fields = place.split(' ').skip(3);
        let root = fields.next()?;
        Some((root.to_owned(), fields.next()?.to_owned()))
    })?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
    // The mount may itself be a part of the hierarchy, as in a container.
    let below = Path::new(&own).strip_prefix(&mount.0).ok()?;
    Some(Path::new(&mount.1).join(below))
}

/// Removes the empty cgroups that a step created in its own.
fn remove_below(folder: &Path, depth: u32) {
    if depth == 0 {
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path(), depth - 1);
            let _ = fs::remove_dir(entry.path());
        }
    }
}
