//! The owner lock of a worktree: held while a process of its run lives.
//!
//! The file is closed on exec, so that processes of other runs do not inherit it. Processes in the worktree get
//! it explicitly, with [`inherit`], and keep it locked after the holder was killed.

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

/// The attempts to take the lock. Each can fail because the file was removed or is being checked.
const TRIES: u32 = 10;

/// The lock of one worktree, held while the value lives.
#[derive(Debug)]
pub struct OwnerLock {
    file: File,
    path: PathBuf,
}

impl OwnerLock {
    /// Takes the lock; `None` if another process holds it.
    pub(crate) fn take(path: &Path) -> Result<Option<OwnerLock>, Kind> {
        for _ in 0..TRIES {
            if let Some(owner) = OwnerLock::try_take(path)? {
                return Ok(Some(owner));
            }
            // A check holds the lock shared for some microseconds.
            crate::clock::pause_ms(1);
        }
        Ok(None)
    }

    /// Takes the lock if it is free at this moment.
    pub(crate) fn try_take(path: &Path) -> Result<Option<OwnerLock>, Kind> {
        let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        let file = opened.map_err(Kind::io("open the owner lock", path))?;
        match file.try_lock() {
            Ok(()) if is_file_at(&file, path) => Ok(Some(OwnerLock { file, path: path.to_owned() })),
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => {
                Err(Kind::Io { doing: "lock", path: path.to_owned(), source })
            }
        }
    }

    /// Returns the path of the lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open file, to be inherited.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes a command and its children hold the lock as well. The command must be spawned while this value
    /// lives.
    pub fn inherit(&self, command: &mut Command) {
        inherit(command, self.file.as_raw_fd());
    }

    /// Releases the lock and removes its file.
    pub(crate) fn discard(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Makes the child keep a descriptor that is closed on exec here.
pub(crate) fn inherit(command: &mut Command, fd: RawFd) {
    // SAFETY: fcntl is allowed between fork and exec, and the owner keeps the descriptor open until after the
    // spawn.
    unsafe {
        command.pre_exec(move || Ok(fcntl_setfd(BorrowedFd::borrow_raw(fd), FdFlags::empty())?));
    }
}

/// Returns whether the path leads to this open file.
pub(crate) fn is_file_at(file: &File, path: &Path) -> bool {
    let here = file.metadata().map(|found| (found.dev(), found.ino()));
    let there = std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((here, there), (Ok(here), Ok(there)) if here == there)
}
