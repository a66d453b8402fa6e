//! A lock that threads and processes share, with a deadline and the holder's name.
//!
//! ```text
//!   threads ──▶ queue of this process (first come, first served) ──▶ flock on a file ──▶ Held
//!               one deadline over both; the file tells who has it and since when
//! ```
//!
//! The kernel releases the file's lock when the holder dies. A repository's lock covers registration only:
//! no long git command runs under it.

use std::{
    collections::HashMap,
    fmt,
    fs::{File, OpenOptions, TryLockError},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sprag_process::{Liveness, ProcessId, is_alive};

use crate::{
    clock,
    error::Kind,
    git::Cancel,
    line::{Line, NotServed, Ticket},
    metrics::{COUNTERS, count},
    owner::is_at,
};

/// How long is waited unless somebody says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// Between two looks at a lock that another process holds.
const FIRST_LOOK_MS: u64 = 1;
const LAST_LOOK_MS: u64 = 20;

/// Who holds a lock, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The run for which it is held.
    pub run: String,
    /// The process that holds it.
    pub process: ProcessId,
    /// Since when, on the wall clock.
    pub since_unix_ms: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held_ms = clock::unix_ms().saturating_sub(self.since_unix_ms);
        write!(f, "run {} (pid {}, for {held_ms} ms)", self.run, self.process.pid)
    }
}

/// One lock: a file, and a queue of this process before it.
#[derive(Debug, Clone)]
pub struct SharedLock {
    path: PathBuf,
    what: String,
    line: Arc<Line>,
}

/// The lock is held as long as this value lives.
#[derive(Debug)]
pub struct Held<'a> {
    lock: &'a SharedLock,
    file: File,
    ticket: Ticket,
    since_us: u64,
}

/// One wait for a lock.
struct Wait<'c> {
    began_us: u64,
    give_up_at_us: u64,
    cancel: Option<&'c Cancel>,
}

/// The lines of this process, by the lock's file. A lock that was used is used again: none is ever dropped.
static LINES: Mutex<Option<HashMap<PathBuf, Arc<Line>>>> = Mutex::new(None);

impl SharedLock {
    /// The lock at this path, which must be in canonical form: it is the lock's identity.
    pub(crate) fn at(path: PathBuf, what: String) -> Self {
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.get_or_insert_default().entry(path.clone()).or_default().clone();
        SharedLock { path, what, line }
    }

    /// Waits for the lock until the deadline.
    pub fn hold(&self, run: &str, deadline: Duration) -> Result<Held<'_>, Kind> {
        self.hold_unless(run, deadline, None)
    }

    /// Waits for the lock until the deadline, or until nobody wants it any more.
    pub(crate) fn hold_unless(
        &self,
        run: &str,
        deadline: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<Held<'_>, Kind> {
        let began_us = clock::now_us();
        let wait =
            Wait { began_us, give_up_at_us: began_us.saturating_add(deadline.as_micros() as u64), cancel };
        let ticket = self.stand_in_line(&wait)?;
        match self.lock_file(&wait) {
            Ok(mut file) => {
                let since_us = clock::now_us();
                COUNTERS.lock_wait.record(since_us - began_us);
                sign(&mut file, run);
                Ok(Held { lock: self, file, ticket, since_us })
            }
            Err(kind) => {
                self.line.leave(ticket);
                Err(kind)
            }
        }
    }

    /// Who holds it, without taking it. None also when the holder has not yet written its name.
    pub fn holder(&self) -> Option<Holder> {
        let text = std::fs::read(&self.path).ok()?;
        let holder: Holder = serde_json::from_slice(&text).ok()?;
        (is_alive(&holder.process) != Liveness::Dead).then_some(holder)
    }

    /// What it locks, in words.
    pub fn what(&self) -> &str {
        &self.what
    }

    fn stand_in_line(&self, wait: &Wait<'_>) -> Result<Ticket, Kind> {
        let longest_us = if wait.cancel.is_some() { LAST_LOOK_MS * 1000 } else { u64::MAX };
        let go_on = || self.left_us(wait).map(|left_us| Duration::from_micros(left_us.min(longest_us)));
        self.line.enter(go_on).map_err(|not_served| match not_served {
            NotServed::Already => Kind::LockReentered { what: self.what.clone() },
            NotServed::GaveUp(kind) => kind,
        })
    }

    fn lock_file(&self, wait: &Wait<'_>) -> Result<File, Kind> {
        let open = || {
            let opened =
                OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&self.path);
            opened.map_err(Kind::io("open the lock", &self.path))
        };
        let mut file = open()?;
        let mut look_ms = FIRST_LOOK_MS;
        loop {
            match file.try_lock() {
                Ok(()) if is_at(&file, &self.path) => return Ok(file),
                // Somebody deleted the file: what we locked, nobody else looks at.
                Ok(()) => file = open()?,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => {
                    return Err(Kind::Io { doing: "lock", path: self.path.clone(), source });
                }
            }
            let left_us = self.left_us(wait)?;
            clock::pause_ms(look_ms.min(left_us.div_ceil(1000)));
            look_ms = (look_ms * 2).min(LAST_LOOK_MS);
        }
    }

    /// How much of a wait is left; why it is over, if it is.
    fn left_us(&self, wait: &Wait<'_>) -> Result<u64, Kind> {
        if wait.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Kind::Cancelled);
        }
        match wait.give_up_at_us.saturating_sub(clock::now_us()) {
            0 => Err(self.timeout(wait.began_us)),
            left_us => Ok(left_us),
        }
    }

    fn timeout(&self, began_us: u64) -> Kind {
        count(&COUNTERS.lock_timeouts);
        let waited_ms = (clock::now_us() - began_us) / 1000;
        Kind::LockTimeout { what: self.what.clone(), holder: self.holder().map(Box::new), waited_ms }
    }

    #[cfg(test)]
    fn path(&self) -> &Path {
        &self.path
    }
}

/// This process; it stays the same one.
pub(crate) fn me() -> Option<ProcessId> {
    static ME: OnceLock<Option<ProcessId>> = OnceLock::new();
    ME.get_or_init(|| sprag_process::current().ok()).clone()
}

/// Only for people: a disk that is full must not keep anybody from cleaning up.
fn sign(file: &mut File, run: &str) {
    let Some(process) = me() else { return };
    let holder = Holder { run: run.to_owned(), process, since_unix_ms: clock::unix_ms() };
    if let Ok(text) = serde_json::to_vec(&holder) {
        let _ = file.set_len(0).and_then(|()| file.write_all_at(&text, 0)).and_then(|()| file.flush());
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        COUNTERS.lock_hold.record(clock::now_us() - self.since_us);
        let _ = self.file.set_len(0);
        // Before the next in line tries: closing the file would release it too, but only later.
        let _ = self.file.unlock();
        self.lock.line.leave(self.ticket);
    }
}

/// Makes the folder of a lock, or of several.
pub(crate) fn make_folder(path: &Path) -> Result<(), Kind> {
    std::fs::create_dir_all(path).map_err(Kind::io("make the folder", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(folder: &Path) -> SharedLock {
        SharedLock::at(folder.join("lock"), "the test".to_owned())
    }

    #[test]
    fn it_is_held_by_one_and_tells_by_whom() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = lock(folder.path());
        assert_eq!(lock.holder(), None);
        let held = lock.hold("r1", DEFAULT_DEADLINE).expect("free");
        assert_eq!(lock.holder().expect("held").run, "r1");
        let again = lock.hold("r2", Duration::ZERO);
        assert!(matches!(again, Err(Kind::LockReentered { .. })), "{again:?}");
        drop(held);
        assert_eq!(lock.holder(), None);
        drop(lock.hold("r2", Duration::ZERO).expect("free again"));
    }

    #[test]
    fn who_waits_is_served_in_order_and_a_deleted_file_is_no_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = lock(folder.path());
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let held = lock.hold("first", DEFAULT_DEADLINE).expect("free");
            for number in 0..8 {
                let (lock, order) = (&lock, &order);
                scope.spawn(move || {
                    let _held = lock.hold("next", DEFAULT_DEADLINE).expect("in time");
                    order.lock().expect("unpoisoned").push(number);
                });
                while lock.line.len() < number + 2 {
                    clock::pause_ms(1);
                }
            }
            std::fs::remove_file(lock.path()).expect("ours");
            drop(held);
        });
        assert_eq!(order.into_inner().expect("unpoisoned"), (0..8).collect::<Vec<_>>());
    }
}
