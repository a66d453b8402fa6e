//! The owner lock: while any process of an attempt lives, its file is locked.
//!
//! The lock belongs to the open file, and the step's processes inherit the open file: the kernel
//! releases it when the last of them ends, whoever was killed before.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
};

use crate::sys;

/// Shell scripts open 3 to 9 for themselves, and bash keeps 10 and 255: stay clear of them.
const LOCK_FD: i32 = 200;

/// Who asks with [`is_held`] has the lock for some microseconds: that is not a former attempt.
const TRIES: u32 = 10;
const BETWEEN_TRIES_MS: u64 = 5;

/// Whether a process of the attempt that took this lock is alive.
///
/// A lock that was never taken is not held. An answer of `false` is a fact about this moment only:
/// who wants to start takes the lock.
pub fn is_held(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // Shared, so that two who ask at the same time do not see each other.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Removes a lock's file unless a process of the attempt that took it is alive; says whether it is gone.
///
/// It is removed while the lock is held: who opens the file at the same time finds that it is not the one
/// at this path any more, and begins again.
pub fn remove_if_free(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => std::fs::remove_file(path).map(|()| true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The lock, on a descriptor that children inherit.
pub(crate) struct OwnerLock {
    _fd: OwnedFd,
}

/// Takes the lock, or says None if it is held.
pub(crate) fn acquire(path: &Path) -> io::Result<Option<OwnerLock>> {
    let open = || OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
    let mut file = open()?;
    for tries in 1.. {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // A file that was removed meanwhile is nobody's lock.
            Ok(()) if is_at(&file, path) => break,
            Ok(()) if tries < TRIES => file = open()?,
            Ok(()) => return Ok(None),
            Err(Errno::WOULDBLOCK) if tries < TRIES => sys::pause(BETWEEN_TRIES_MS),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    // If the limit of open files is below our number, the one we have will do.
    let fd = fcntl_dupfd_cloexec(&file, LOCK_FD).unwrap_or_else(|_| file.into());
    fcntl_setfd(&fd, FdFlags::empty())?;
    Ok(Some(OwnerLock { _fd: fd }))
}

/// Whether this open file is the one at the path.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    file.metadata().ok().zip(std::fs::metadata(path).ok()).is_some_and(|(a, b)| same(a, b))
}

/// Whether process `pid` holds the lock on `file` (its device and inode) by an inherited descriptor.
///
/// Who only asks with [`is_held`] has the file open for a moment too: without the lock, and closed on exec.
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
