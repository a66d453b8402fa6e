//! The owner lock of a worktree: held = somebody of that run lives.
//!
//! The holder keeps it closed on exec, so that the processes of other runs do not inherit it; whoever works
//! in the worktree gets it by name, with [`inherit`], and keeps it held after the holder was killed.

use std::{
    fs::{File, OpenOptions, TryLockError},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::error::Kind;

/// A file that was removed at the moment of locking is somebody else's; more often than this it is not chance.
const TRIES: u32 = 10;

/// The lock of one worktree, held as long as this value lives.
#[derive(Debug)]
pub struct OwnerLock {
    file: File,
    path: PathBuf,
}

impl OwnerLock {
    /// Takes it, or says None if somebody has it.
    pub(crate) fn take(path: &Path) -> Result<Option<OwnerLock>, Kind> {
        for _ in 0..TRIES {
            if let Some(owner) = OwnerLock::try_take(path)? {
                return Ok(Some(owner));
            }
            // Who only asks has it shared for some microseconds.
            crate::clock::pause_ms(1);
        }
        Ok(None)
    }

    /// Takes it if it is free at this moment.
    pub(crate) fn try_take(path: &Path) -> Result<Option<OwnerLock>, Kind> {
        let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        let file = opened.map_err(Kind::io("open the owner lock", path))?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => Ok(Some(OwnerLock { file, path: path.to_owned() })),
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => {
                Err(Kind::Io { doing: "lock", path: path.to_owned(), source })
            }
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, to be inherited.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes a command, and all that it starts, hold the lock as well. Only while this value lives.
    pub fn inherit(&self, command: &mut Command) {
        inherit(command, self.file.as_raw_fd());
    }

    /// Gives it up for good: nobody will look for it again.
    pub(crate) fn discard(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Lets the child keep a descriptor that is closed on exec here.
pub(crate) fn inherit(command: &mut Command, fd: RawFd) {
    // SAFETY: fcntl is allowed between fork and exec. The descriptor is open then: its owner outlives the spawn.
    unsafe {
        command.pre_exec(move || Ok(fcntl_setfd(BorrowedFd::borrow_raw(fd), FdFlags::empty())?));
    }
}

/// Whether this open file is the one at the path.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let here = file.metadata().map(|found| (found.dev(), found.ino()));
    let there = std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((here, there), (Ok(here), Ok(there)) if here == there)
}
