//! Working in a worktree beside whoever owns it: several processes may serve the steps of one run.
//!
//! A file in the entry is locked while somebody is in the worktree:
//!
//! | how | by whom | so that |
//! |---|---|---|
//! | shared | a step, as long as it works | nobody puts files back, or takes the worktree, under its hands |
//! | alone | who puts files back, or takes it from a dead run | no step begins meanwhile |

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
    owner::is_at,
    repository::Repository,
    worktrees::{Worktree, Worktrees, environment_of},
};

/// The file whose lock says that somebody is in the worktree.
const VISITS: &str = "sprag-visits";
/// Between two looks at a lock that somebody has alone.
const LOOK_EVERY_MS: u64 = 10;

/// A worktree as somebody sees it who works in it and may not own it.
#[derive(Debug, Clone)]
pub struct Guest {
    repository: Repository,
    mark: Mark,
    timeout: Duration,
}

/// Somebody is in the worktree as long as this value lives.
#[derive(Debug)]
pub struct Visit {
    _file: File,
}

impl Worktrees {
    /// The worktree at this path, for somebody of its run who works in it beside its owner.
    pub fn guest(&self, path: &Path) -> Result<Guest, Error> {
        let find = || {
            let mark = self.find(&path.display().to_string())?.1;
            let (repository, timeout) = (self.repository.clone(), self.settings.git_timeout);
            Ok(Guest { repository, mark, timeout })
        };
        find().attempt(|| format!("work in {}", path.display()))
    }
}

impl Worktree {
    /// The same worktree for those who work in it.
    pub fn as_guest(&self) -> Guest {
        Guest { repository: self.repository.clone(), mark: self.mark.clone(), timeout: self.timeout }
    }
}

impl Guest {
    /// Where its files are.
    pub fn path(&self) -> &Path {
        &self.mark.path
    }

    /// Whether its owner has made it ready for steps: with the right files, and set up.
    pub fn is_prepared(&self) -> bool {
        Mark::read(&self.entry()).is_some_and(|mark| mark.prepared)
    }

    /// What processes that work in it should have in their environment.
    pub fn environment(&self) -> Vec<(String, String)> {
        environment_of(&self.mark)
    }

    /// Records the present state, as [`Worktree::checkpoint`] does.
    pub fn checkpoint(&self, run: &str, step: &str, cancel: &Cancel) -> Result<Checkpoint, Error> {
        checkpoint::record(&self.repository, &self.mark, self.timeout, run, step, cancel)
    }

    /// Sends a recorded state to a remote.
    pub fn send(&self, remote: &str, state: &Checkpoint, cancel: &Cancel) -> Result<(), Error> {
        self.repository.send(remote, std::slice::from_ref(state), self.timeout, cancel)
    }

    /// Comes in, to work in it. Waits while somebody puts files back.
    pub fn come_in(&self, cancel: &Cancel) -> Result<Visit, Error> {
        let come_in = || {
            let give_up_at_ms = clock::now_ms().saturating_add(self.timeout.as_millis() as u64);
            loop {
                let (file, path) = open(&self.entry(), &self.mark)?;
                match file.try_lock_shared() {
                    Ok(()) if is_at(&file, &path) => return Ok(Visit { _file: file }),
                    // It was moved aside: the next look tells that it is gone.
                    Ok(()) | Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(source)) => {
                        return Err(Kind::Io { doing: "lock", path, source });
                    }
                }
                if cancel.is_cancelled() {
                    return Err(Kind::Cancelled);
                }
                if clock::now_ms() >= give_up_at_ms {
                    let holder = "somebody who puts files back".to_owned();
                    return Err(Kind::InUse { path: self.mark.path.clone(), holder });
                }
                clock::pause_ms(LOOK_EVERY_MS);
            }
        };
        come_in().attempt(|| format!("work in {}", self.path().display()))
    }

    /// Has it alone, unless somebody is in it.
    pub fn alone(&self) -> Result<Option<Visit>, Error> {
        let alone = open(&self.entry(), &self.mark).and_then(|(file, path)| try_alone(file, &path));
        alone.attempt(|| format!("have {} alone", self.path().display()))
    }

    fn entry(&self) -> PathBuf {
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

fn try_alone(file: File, path: &Path) -> Result<Option<Visit>, Kind> {
    match file.try_lock() {
        Ok(()) if is_at(&file, path) => Ok(Some(Visit { _file: file })),
        Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(Kind::Io { doing: "lock", path: path.to_owned(), source }),
    }
}

/// Has an entry alone; None if somebody is in its worktree. One that nobody has ever been in has no lock yet.
pub(crate) fn entry_alone(entry: &Path) -> Result<Option<Visit>, Kind> {
    let path = entry.join(VISITS);
    let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
    match opened {
        Ok(file) => try_alone(file, &path),
        Err(source) => Err(Kind::Io { doing: "open the lock", path, source }),
    }
}
