//! Shared use of a worktree: several processes may run the steps of one run in it.
//!
//! A file in the entry is locked while a process uses the worktree:
//!
//! | lock | taken by | effect |
//! |---|---|---|
//! | shared | a step, while it runs | no process restores files or removes the worktree |
//! | exclusive | a restore, or the recovery of a dead run | no step starts |

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    checkpoint::{self, Checkpoint},
    clock,
    error::{Attempt, Error, Kind},
    git::Cancel,
    mark::Mark,
    owner::is_file_at,
    repository::Repository,
    worktrees::{Worktree, Worktrees, environment_of},
};

/// The name of the lock file in the entry.
pub(crate) const VISITS: &str = "sprag-visits";
/// The interval between two attempts to take the lock.
const POLL_INTERVAL_MS: u64 = 10;

/// A worktree for a process that works in it without owning it.
#[derive(Debug, Clone)]
pub struct SharedWorktree {
    repository: Repository,
    mark: Mark,
    timeout: Duration,
}

/// The lock on a worktree in use, released on drop.
#[derive(Debug)]
pub struct UsageLock {
    _file: File,
}

impl Worktrees {
    /// Returns the worktree at this path, for a process of its run that does not own it.
    pub fn shared(&self, path: &Path) -> Result<SharedWorktree, Error> {
        let find = || {
            let mark = self.find(&path.display().to_string())?.1;
            let (repository, timeout) = (self.repository.clone(), self.settings.git_timeout);
            Ok(SharedWorktree { repository, mark, timeout })
        };
        find().attempt(|| format!("work in {}", path.display()))
    }
}

impl Worktree {
    /// Returns the worktree for processes that do not own it.
    pub fn as_shared(&self) -> SharedWorktree {
        SharedWorktree { repository: self.repository.clone(), mark: self.mark.clone(), timeout: self.timeout }
    }
}

impl SharedWorktree {
    /// Returns the folder with its files.
    pub fn path(&self) -> &Path {
        &self.mark.path
    }

    /// Returns whether it is ready for steps: it has the right files and is set up.
    pub fn is_prepared(&self) -> bool {
        Mark::read(&self.entry()).is_some_and(|mark| mark.prepared)
    }

    /// Returns the environment for processes in the worktree.
    pub fn environment(&self) -> Vec<(String, String)> {
        environment_of(&self.mark)
    }

    /// Records the current state, as [`Worktree::checkpoint`] does.
    pub fn checkpoint(&self, run: &str, step: &str, cancel: &Cancel) -> Result<Checkpoint, Error> {
        checkpoint::record(&self.repository, &self.mark, self.timeout, (run, step, None), cancel)
    }

    /// Records the state that an attempt at a step has left. It replaces the step's checkpoint, and is also found by the
    /// attempt's number (`Repository::find_attempt`).
    pub fn checkpoint_attempt(
        &self,
        run: &str,
        step: &str,
        attempt: u32,
        cancel: &Cancel,
    ) -> Result<Checkpoint, Error> {
        checkpoint::record(&self.repository, &self.mark, self.timeout, (run, step, Some(attempt)), cancel)
    }

    /// Pushes a checkpoint to a remote.
    pub fn send(&self, remote: &str, state: &Checkpoint, cancel: &Cancel) -> Result<(), Error> {
        self.repository.send(remote, std::slice::from_ref(state), self.timeout, cancel)
    }

    /// Takes the shared lock, to run a step. Waits while another process restores files.
    pub fn enter(&self, cancel: &Cancel) -> Result<UsageLock, Error> {
        let enter = || {
            let deadline_ms = clock::now_ms().saturating_add(self.timeout.as_millis() as u64);
            loop {
                let (file, path) = open(&self.entry(), &self.mark)?;
                match file.try_lock_shared() {
                    Ok(()) if is_file_at(&file, &path) => return Ok(UsageLock { _file: file }),
                    // The entry was moved to the trash: the next attempt fails because it is gone.
                    Ok(()) | Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(source)) => {
                        return Err(Kind::Io { doing: "lock", path, source });
                    }
                }
                if cancel.is_cancelled() {
                    return Err(Kind::Cancelled);
                }
                if clock::now_ms() >= deadline_ms {
                    let holder = "a process that restores its files".to_owned();
                    return Err(Kind::InUse { path: self.mark.path.clone(), holder });
                }
                clock::pause_ms(POLL_INTERVAL_MS);
            }
        };
        enter().attempt(|| format!("work in {}", self.path().display()))
    }

    /// Takes the exclusive lock; `None` if a process uses the worktree.
    pub fn try_exclusive(&self) -> Result<Option<UsageLock>, Error> {
        let alone = open(&self.entry(), &self.mark).and_then(|(file, path)| lock_exclusive(file, &path));
        alone.attempt(|| format!("lock {} exclusively", self.path().display()))
    }

    pub(crate) fn repository(&self) -> &Repository {
        &self.repository
    }

    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }

    pub(crate) fn entry(&self) -> PathBuf {
        self.repository.entries_dir().join(&self.mark.id)
    }
}

fn open(entry: &Path, mark: &Mark) -> Result<(File, PathBuf), Kind> {
    let path = entry.join(VISITS);
    let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
    match opened {
        Ok(file) => Ok((file, path)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Kind::NoSuchWorktree { name: mark.path.display().to_string() })
        }
        Err(source) => Err(Kind::Io { doing: "open the lock", path, source }),
    }
}

fn lock_exclusive(file: File, path: &Path) -> Result<Option<UsageLock>, Kind> {
    match file.try_lock() {
        Ok(()) if is_file_at(&file, path) => Ok(Some(UsageLock { _file: file })),
        Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(Kind::Io { doing: "lock", path: path.to_owned(), source }),
    }
}

/// Takes the exclusive lock of an entry; `None` if a process uses its worktree. Creates the lock file if it is
/// missing.
pub(crate) fn lock_entry(entry: &Path) -> Result<Option<UsageLock>, Kind> {
    let path = entry.join(VISITS);
    let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
    match opened {
        Ok(file) => lock_exclusive(file, &path),
        Err(source) => Err(Kind::Io { doing: "open the lock", path, source }),
    }
}
