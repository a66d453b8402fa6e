//! The owner lock: a file that stays locked while any process of an attempt lives.
//!
//! The lock belongs to the open file, which the step's processes inherit. The kernel releases it when the last
//! of them ends, in whatever order they are killed.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock, ftruncate},
    io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd, pwrite},
};

use crate::{
    cgroup::Cgroup,
    files::{open_regular, private_options, regular},
    sys,
};

/// The descriptor of the lock. Shell scripts use 3 to 9, and bash keeps 10 and 255.
const LOCK_FD: i32 = 200;

/// The attempts to take the lock. A caller of [`is_held`] holds it for some microseconds.
const TRIES: u32 = 10;
const BETWEEN_TRIES_MS: u64 = 5;

/// The longest wait for the kernel to kill the processes of a cgroup.
const CGROUP_DEADLINE: Duration = Duration::from_secs(10);

/// Returns whether a process of the attempt that took this lock is alive.
///
/// A lock that was never taken is not held. `false` describes this moment only; a new attempt must take the
/// lock.
pub fn is_held(path: &Path) -> io::Result<bool> {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // Shared, so that two simultaneous checks do not see each other.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Removes a lock file unless a process of its attempt is alive. Returns whether the file is gone.
///
/// The file is removed while it is locked. A process that opens it at the same time notices that the path no
/// longer leads to its file, and tries again.
pub fn remove_if_free(path: &Path) -> io::Result<bool> {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) if !kill_recorded(path) => Ok(false),
        Ok(()) => std::fs::remove_file(path).map(|()| true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The lock, on a descriptor that children inherit.
pub(crate) struct OwnerLock {
    fd: OwnedFd,
}

/// Takes the lock; `None` if it is held.
pub(crate) fn acquire(path: &Path) -> io::Result<Option<OwnerLock>> {
    let open = || {
        let opened = private_options().create(true).truncate(false).read(true).write(true).open(path);
        opened.and_then(regular)
    };
    let mut file = open()?;
    for tries in 1.. {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // A file that was removed meanwhile is no longer the lock.
            Ok(()) if is_file_at(&file, path) => break,
            Ok(()) if tries < TRIES => file = open()?,
            Ok(()) => return Ok(None),
            Err(Errno::WOULDBLOCK) if tries < TRIES => sys::pause(BETWEEN_TRIES_MS),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    // If the limit of open files is lower than the wanted number, keep the original descriptor.
    let fd = fcntl_dupfd_cloexec(&file, LOCK_FD).unwrap_or_else(|_| file.into());
    fcntl_setfd(&fd, FdFlags::empty())?;
    Ok(Some(OwnerLock { fd }))
}

impl OwnerLock {
    /// Returns the number of the descriptor that children inherit.
    pub(crate) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Records the cgroup of this attempt's tree in the file, for the recovery after both supervisor and worker
    /// were killed.
    pub(crate) fn record_cgroup(&self, cgroup: Option<&Path>) -> io::Result<()> {
        ftruncate(&self.fd, 0)?;
        if let Some(path) = cgroup {
            pwrite(&self.fd, path.as_os_str().as_bytes(), 0)?;
        }
        Ok(())
    }
}

/// Kills the tree in the cgroup that this lock file records. Returns whether nothing is left of it.
pub(crate) fn kill_recorded(path: &Path) -> bool {
    /// The longest possible path.
    const MAX_PATH_BYTES: u64 = 4096;
    let mut recorded = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAX_PATH_BYTES).read_to_end(&mut recorded));
    if read.is_err() || recorded.is_empty() {
        return true;
    }
    let Some(cgroup) = Cgroup::at(Path::new(OsStr::from_bytes(&recorded))) else { return true };
    if cgroup.is_populated() {
        tracing::warn!(cgroup = %cgroup.path().display(), "killing processes that a killed supervisor left behind");
    }
    cgroup.kill(CGROUP_DEADLINE)
}

/// Returns whether the path leads to this open file.
fn is_file_at(file: &File, path: &Path) -> bool {
    let same = |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    file.metadata().ok().zip(std::fs::metadata(path).ok()).is_some_and(|(a, b)| same(a, b))
}

/// Returns whether process `pid` holds the lock on `file` (device and inode) by an inherited descriptor.
///
/// A caller of [`is_held`] has the file open too, but without the exclusive lock and with close-on-exec.
pub(crate) fn holds(pid: i32, file: (u64, u64)) -> bool {
    let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    fds.flatten().any(|fd| {
        let same = std::fs::metadata(fd.path()).is_ok_and(|found| (found.dev(), found.ino()) == file);
        same && shows_lock(pid, &fd.file_name().to_string_lossy())
    })
}

fn shows_lock(pid: i32, fd: &str) -> bool {
    let Ok(info) = File::open(format!("/proc/{pid}/fdinfo/{fd}")) else { return false };
    let (mut inherited, mut locked) = (false, false);
    for line in BufReader::new(info).lines().map_while(Result::ok) {
        if let Some(flags) = line.strip_prefix("flags:") {
            let flags = i32::from_str_radix(flags.trim(), 8).unwrap_or(libc::O_CLOEXEC);
            inherited = flags & libc::O_CLOEXEC == 0;
        }
        locked |= line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE");
    }
    inherited && locked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_until_it_is_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("owner");
        assert!(!is_held(&path).expect("no file yet"));
        let lock = acquire(&path).expect("a file").expect("free");
        assert!(is_held(&path).expect("a file"));
        assert!(acquire(&path).expect("a file").is_none());
        let found = std::fs::metadata(&path).expect("a file");
        assert!(holds(std::process::id() as i32, (found.dev(), found.ino())));
        drop(lock);
        assert!(!holds(std::process::id() as i32, (found.dev(), found.ino())));
        assert!(!is_held(&path).expect("a file"));
    }
}
