//! A lock between threads and processes, with a deadline and the name of its holder.
//!
//! ```text
//!   threads ──▶ queue of this process (first come, first served) ──▶ flock on a file ──▶ LockGuard
//!               one deadline for both; the file names the holder and the time
//! ```
//!
//! The kernel releases the file's lock when the holder dies. A repository's lock covers registration only: no
//! long git command runs under it.

use std::{
    collections::HashMap,
    fmt,
    fs::{File, OpenOptions, TryLockError},
    io::Write,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sprag_process::{Liveness, ProcessId, is_alive};

use crate::{
    clock,
    error::Kind,
    fair_queue::{FairQueue, Ticket, WaitError},
    git::Cancel,
    metrics::{COUNTERS, count},
    owner::is_file_at,
};

/// The default wait for a lock.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// The bounds of the interval between two attempts to take a lock that another process holds.
const MIN_POLL_MS: u64 = 1;
const MAX_POLL_MS: u64 = 20;

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// The run for which the lock is held.
    pub run: String,
    /// The process that holds the lock.
    pub process: ProcessId,
    /// The time of acquisition, in milliseconds of the wall clock.
    pub since_unix_ms: u64,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held_ms = clock::unix_ms().saturating_sub(self.since_unix_ms);
        write!(f, "run {} (pid {}, for {held_ms} ms)", self.run, self.process.pid)
    }
}

/// One lock: a file, and a queue of this process in front of it.
#[derive(Debug, Clone)]
pub struct SharedLock {
    path: PathBuf,
    what: String,
    queue: Arc<FairQueue>,
}

/// The held lock, released on drop.
#[derive(Debug)]
pub struct LockGuard<'a> {
    lock: &'a SharedLock,
    file: File,
    ticket: Ticket,
    since_us: u64,
}

/// One wait for a lock.
struct Wait<'c> {
    started_us: u64,
    deadline_us: u64,
    cancel: Option<&'c Cancel>,
    /// Ends the wait with an error of its own.
    give_up: Option<&'c Cancel>,
}

impl Wait<'_> {
    fn until(deadline: Duration) -> Self {
        let started_us = clock::now_us();
        let deadline_us = started_us.saturating_add(deadline.as_micros() as u64);
        Wait { started_us, deadline_us, cancel: None, give_up: None }
    }
}

/// The queues of this process, by the lock's file. They are never removed, because a lock that was used is used
/// again.
static QUEUES: Mutex<Option<HashMap<PathBuf, Arc<FairQueue>>>> = Mutex::new(None);

/// Returns the holder of the lock at this path, without taking the lock or creating its file.
pub(crate) fn holder_at(path: &Path) -> Option<LockHolder> {
    let text = crate::read::bytes(path).ok()?;
    let holder: LockHolder = serde_json::from_slice(&text).ok()?;
    (is_alive(&holder.process) != Liveness::Dead).then_some(holder)
}

impl SharedLock {
    /// Creates the lock at this path, which must be canonical because it identifies the lock.
    pub(crate) fn at(path: PathBuf, what: String) -> Self {
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.get_or_insert_default().entry(path.clone()).or_default().clone();
        SharedLock { path, what, queue }
    }

    /// Waits for the lock until the deadline.
    pub fn acquire(&self, run: &str, deadline: Duration) -> Result<LockGuard<'_>, Kind> {
        self.acquire_unless_cancelled(run, deadline, None)
    }

    /// Waits for the lock until the deadline or a cancellation.
    pub(crate) fn acquire_unless_cancelled(
        &self,
        run: &str,
        deadline: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<LockGuard<'_>, Kind> {
        self.acquire_by(run, &Wait { cancel, ..Wait::until(deadline) })
    }

    /// Waits for the lock until the deadline, a cancellation, or until `give_up` ends the wait with
    /// [`Kind::GaveUpTurn`]. A lock that is free is taken in any case.
    pub(crate) fn acquire_in_turn(
        &self,
        run: &str,
        deadline: Duration,
        cancel: &Cancel,
        give_up: &Cancel,
    ) -> Result<LockGuard<'_>, Kind> {
        self.acquire_by(run, &Wait { cancel: Some(cancel), give_up: Some(give_up), ..Wait::until(deadline) })
    }

    fn acquire_by(&self, run: &str, wait: &Wait<'_>) -> Result<LockGuard<'_>, Kind> {
        let ticket = self.enter_queue(wait)?;
        match self.lock_file(wait) {
            Ok(mut file) => {
                let since_us = clock::now_us();
                COUNTERS.lock_wait.record(since_us - wait.started_us);
                write_holder(&mut file, run);
                Ok(LockGuard { lock: self, file, ticket, since_us })
            }
            Err(kind) => {
                self.queue.leave(ticket);
                Err(kind)
            }
        }
    }

    /// Returns the holder without taking the lock; `None` also if the holder has not yet written its name.
    pub fn holder(&self) -> Option<LockHolder> {
        holder_at(&self.path)
    }

    /// Returns a description of what it locks.
    pub fn what(&self) -> &str {
        &self.what
    }

    fn enter_queue(&self, wait: &Wait<'_>) -> Result<Ticket, Kind> {
        let longest_us = if wait.cancel.is_some() { MAX_POLL_MS * 1000 } else { u64::MAX };
        let check = || self.left_us(wait).map(|left_us| Duration::from_micros(left_us.min(longest_us)));
        self.queue.enter(check).map_err(|error| match error {
            WaitError::Reentered => Kind::LockReentered { what: self.what.clone() },
            WaitError::GaveUp(kind) => kind,
        })
    }

    fn lock_file(&self, wait: &Wait<'_>) -> Result<File, Kind> {
        let open = || {
            let opened =
                OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&self.path);
            opened.map_err(Kind::io("open the lock", &self.path))
        };
        let mut file = open()?;
        let mut poll_ms = MIN_POLL_MS;
        loop {
            match file.try_lock() {
                Ok(()) if is_file_at(&file, &self.path) => return Ok(file),
                // Another process deleted the file, so this lock has no effect.
                Ok(()) => file = open()?,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => {
                    return Err(Kind::Io { doing: "lock", path: self.path.clone(), source });
                }
            }
            let left_us = self.left_us(wait)?;
            clock::pause_ms(poll_ms.min(left_us.div_ceil(1000)));
            poll_ms = (poll_ms * 2).min(MAX_POLL_MS);
        }
    }

    /// Returns the remaining time of a wait, or why it is over.
    fn left_us(&self, wait: &Wait<'_>) -> Result<u64, Kind> {
        if wait.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Kind::Cancelled);
        }
        if wait.give_up.is_some_and(Cancel::is_cancelled) {
            return Err(Kind::GaveUpTurn);
        }
        match wait.deadline_us.saturating_sub(clock::now_us()) {
            0 => Err(self.timeout(wait.started_us)),
            left_us => Ok(left_us),
        }
    }

    fn timeout(&self, started_us: u64) -> Kind {
        count(&COUNTERS.lock_timeouts);
        let waited_ms = (clock::now_us() - started_us) / 1000;
        Kind::LockTimeout { what: self.what.clone(), holder: self.holder().map(Box::new), waited_ms }
    }

    #[cfg(test)]
    fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the id of this process, determined once.
pub(crate) fn current_process() -> Option<ProcessId> {
    static ME: OnceLock<Option<ProcessId>> = OnceLock::new();
    ME.get_or_init(|| sprag_process::current().ok()).clone()
}

/// Writes the holder's name, for people only. Errors are ignored, because a full disk must not prevent a
/// clean-up.
fn write_holder(file: &mut File, run: &str) {
    let Some(process) = current_process() else { return };
    let holder = LockHolder { run: run.to_owned(), process, since_unix_ms: clock::unix_ms() };
    if let Ok(text) = serde_json::to_vec(&holder) {
        let _ = file.set_len(0).and_then(|()| file.write_all_at(&text, 0)).and_then(|()| file.flush());
    }
}

impl AsFd for LockGuard<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        COUNTERS.lock_hold.record(clock::now_us() - self.since_us);
        let _ = self.file.set_len(0);
        // Unlock before the next thread tries. Closing the file would unlock it too, but only later.
        let _ = self.file.unlock();
        self.lock.queue.leave(self.ticket);
    }
}

/// Creates a folder and its missing parents.
pub(crate) fn create_folder(path: &Path) -> Result<(), Kind> {
    std::fs::create_dir_all(path).map_err(Kind::io("create the folder", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(folder: &Path) -> SharedLock {
        SharedLock::at(folder.join("lock"), "the test".to_owned())
    }

    #[test]
    fn a_lock_has_one_holder_and_names_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = lock(folder.path());
        assert_eq!(lock.holder(), None);
        let held = lock.acquire("r1", DEFAULT_DEADLINE).expect("free");
        assert_eq!(lock.holder().expect("held").run, "r1");
        let again = lock.acquire("r2", Duration::ZERO);
        assert!(matches!(again, Err(Kind::LockReentered { .. })), "{again:?}");
        drop(held);
        assert_eq!(lock.holder(), None);
        drop(lock.acquire("r2", Duration::ZERO).expect("free again"));
    }

    #[test]
    fn waiters_are_served_in_order_and_a_deleted_file_is_no_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = lock(folder.path());
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let held = lock.acquire("first", DEFAULT_DEADLINE).expect("free");
            for number in 0..8 {
                let (lock, order) = (&lock, &order);
                scope.spawn(move || {
                    let _held = lock.acquire("next", DEFAULT_DEADLINE).expect("in time");
                    order.lock().expect("unpoisoned").push(number);
                });
                while lock.queue.len() < number + 2 {
                    clock::pause_ms(1);
                }
            }
            std::fs::remove_file(lock.path()).expect("ours");
            drop(held);
        });
        assert_eq!(order.into_inner().expect("unpoisoned"), (0..8).collect::<Vec<_>>());
    }
}
