//! SQLite: one file, one writer thread per process, any number of processes.
//!
//! ```text
//!   callers ──jobs (bounded)──▶ writer thread: BEGIN IMMEDIATE, all that waits, COMMIT ──▶ answers
//!   readers ──▶ their own connections, never blocked by the writer
//! ```
//!
//! A commit is on disk before the writer answers any caller (WAL, `synchronous=FULL`). Operations that wait share a
//! commit. If one of them fails half-way, the writer runs all of them again in savepoints and undoes only the failed
//! one.

mod boards;
mod holder;
mod journal;
mod memo;
mod open;
mod queries;
mod repack;
mod retention;
mod rows;
mod service;
mod stall;
mod triggers;
mod tx;
mod writer;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

pub(crate) use open::make_private_folder;

use crate::backend::Backend;
use crate::clock::{Clock, Entropy, Now, System};
use crate::error::{Error, Result};
use crate::evaluator::{NoEvaluator, SpecEvaluator};
use crate::job::Job;
use crate::service::Observer;
use crate::wake::Hub;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "sprag.db";
/// The newest schema that this program knows.
pub const SCHEMA_VERSION: i64 = open::MIGRATIONS.len() as i64;

/// The options for opening a database file.
#[derive(Debug, Clone, Copy)]
pub struct SqliteOptions {
    /// The longest time to wait for another process's transaction.
    pub busy_timeout: Duration,
    /// Whether leases are prolonged after a time in which no process wrote. A clock that a test puts forward looks like
    /// such a time.
    pub prolong_leases: bool,
}

impl SqliteOptions {
    /// The options for a store whose clock is simulated.
    pub fn simulated() -> Self {
        SqliteOptions { prolong_leases: false, ..SqliteOptions::default() }
    }
}

impl Default for SqliteOptions {
    fn default() -> Self {
        SqliteOptions { busy_timeout: Duration::from_secs(10), prolong_leases: true }
    }
}

/// The store's clock. It never jumps while the machine runs, and is the same for all processes of the machine.
///
/// The first process after a start of the machine records which steady time belongs to which time since the start.
/// From then on only the time since the start is read. Across starts, the clock continues where it was, plus the time
/// by which the wall clock has moved. So a wall clock that was wrong for a while cannot make waits longer.
#[derive(Clone)]
pub(crate) struct SqliteClock {
    clock: Arc<dyn Clock>,
    /// The milliseconds that are added to the time since the machine's start, as this process sees it.
    offset_ms: i64,
    /// The milliseconds by which this process sees the machine's start later than other processes do, in a time
    /// namespace.
    shift_ms: i64,
    /// See [`SqliteOptions::prolong_leases`].
    prolong_leases: bool,
}

impl SqliteClock {
    /// Returns the milliseconds since the machine started, the same in all processes.
    fn machine_ms(&self) -> i64 {
        self.clock.boot_ms() - self.shift_ms
    }

    fn now(&self) -> Now {
        Now { wall_ms: self.clock.wall_ms(), steady_ms: self.clock.boot_ms() + self.offset_ms }
    }
}

/// A SQLite file as a store.
pub(crate) struct Sqlite {
    path: PathBuf,
    options: SqliteOptions,
    clock: SqliteClock,
    entropy: Arc<dyn Entropy>,
    jobs: tokio::sync::mpsc::Sender<Box<dyn Job>>,
    readers: Mutex<Vec<Connection>>,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
    pub(crate) hub: Arc<Hub>,
    evaluator: Arc<OnceLock<Arc<dyn SpecEvaluator>>>,
    observer: Arc<OnceLock<Arc<dyn Observer>>>,
}

impl Sqlite {
    /// Opens the file in `folder`, and creates both if they do not exist.
    pub(crate) fn open(
        folder: &Path,
        options: SqliteOptions,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self> {
        let path = open::prepare_folder(folder)?;
        let since_ms = System.boot_ms();
        let conn = open::connect(&path, options).map_err(waited_since(since_ms))?;
        let since_ms = System.boot_ms();
        open::migrate(&conn, &path).map_err(waited_since(since_ms))?;
        let since_ms = System.boot_ms();
        let clock = open::anchor_clock(&conn, &path, clock, options).map_err(waited_since(since_ms))?;
        let bells = folder.join("bell");
        crate::wake::probe(&bells).map_err(|error| open::cannot_make(&bells, &error))?;
        let hub = Hub::shared(&bells)
            .map_err(|error| Error::Open { path: bells.clone(), reason: error.to_string() })?;
        let evaluator = Arc::new(OnceLock::new());
        let observer = Arc::new(OnceLock::new());
        let (jobs, queue) = tokio::sync::mpsc::channel(writer::QUEUE_BOUND);
        let thread = writer::Writer {
            conn,
            path: path.clone(),
            clock: clock.clone(),
            entropy: Arc::clone(&entropy),
            hub: Arc::clone(&hub),
            evaluator: Arc::clone(&evaluator),
            observer: Arc::clone(&observer),
        };
        let handle = std::thread::Builder::new()
            .name("sprag-writer".into())
            .spawn(move || thread.run(queue))
            .map_err(|error| Error::Open { path: path.clone(), reason: error.to_string() })?;
        Ok(Sqlite {
            path,
            options,
            clock,
            entropy,
            jobs,
            readers: Mutex::default(),
            writer: Mutex::new(Some(handle)),
            hub,
            evaluator,
            observer,
        })
    }

    /// Sets the evaluator of step specs. The first one that is set stays.
    pub(crate) fn set_evaluator(&self, evaluator: Arc<dyn SpecEvaluator>) {
        let _ = self.evaluator.set(evaluator);
    }

    /// Returns the evaluator of step specs.
    pub(crate) fn evaluator(&self) -> Arc<dyn SpecEvaluator> {
        self.evaluator.get().cloned().unwrap_or_else(|| Arc::new(NoEvaluator))
    }

    /// Sets the observer of the writer. The first observer that is set stays.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    /// Sends a job to the writer; waits while its queue is full.
    pub(crate) async fn submit(&self, job: Box<dyn Job>) -> Result<()> {
        self.jobs.send(job).await.map_err(|_| Error::Closed)
    }

    /// Reads one consistent state of the file, without blocking the writer.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        let since_ms = System.boot_ms();
        let idle = self.readers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        let conn = match idle {
            Some(conn) => conn,
            None => open::connect(&self.path, self.options).map_err(waited_since(since_ms))?,
        };
        let sql = |done: rusqlite::Result<()>| done.map_err(|error| translate(&self.path, "reading", &error));
        sql(conn.execute_batch("BEGIN DEFERRED"))?;
        let answer = open::refuse_newer(&conn, &self.path).and_then(|()| {
            look(&mut tx::SqliteTx {
                conn: &conn,
                memo: Rc::new(RefCell::default()),
                clock: &self.clock,
                entropy: &*self.entropy,
                path: &self.path,
                evaluator: &self.evaluator,
            })
        });
        // A failed read may have ended the transaction already, and its error is the one to return.
        let end = sql(conn.execute_batch("COMMIT"));
        let answer = answer.map_err(waited_since(since_ms));
        if end.is_err() {
            return answer.and_then(|answer| end.map(|()| answer));
        }
        self.readers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(conn);
        answer
    }

    /// Reads the whole file. Returns a description of its state, or an error that says what is wrong with it.
    pub(crate) fn health(&self) -> Result<String> {
        let conn = open::connect(&self.path, self.options)?;
        let ask = |question: &str| -> Result<String> {
            conn.query_row(question, [], |columns| columns.get::<_, rusqlite::types::Value>(0))
                .map(|answer| match answer {
                    rusqlite::types::Value::Text(text) => text,
                    rusqlite::types::Value::Integer(number) => number.to_string(),
                    other => format!("{other:?}"),
                })
                .map_err(|error| translate(&self.path, "checking", &error))
        };
        match ask("PRAGMA quick_check(1)")?.as_str() {
            "ok" => Ok(format!(
                "SQLite {}, schema {SCHEMA_VERSION}, WAL with synchronous=FULL, {} KiB, sound",
                rusqlite::version(),
                ask("SELECT page_count * page_size / 1024 FROM pragma_page_count(), pragma_page_size()")?
            )),
            damage => Err(Error::Corrupt { path: self.path.clone(), reason: damage.to_owned() }),
        }
    }

    /// Returns the process that holds the write lock now.
    pub(crate) fn lock_holder(&self) -> Option<String> {
        holder::lock_holder(&self.path)
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(crate) fn random(&self) -> u64 {
        self.entropy.next_u64()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // The writer finishes the accepted jobs when its queue is closed, and then ends.
        let (closed, _) = tokio::sync::mpsc::channel(1);
        drop(std::mem::replace(&mut self.jobs, closed));
        let handle = self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(handle) = handle {
            let _ = handle.join();
        }
    }
}

/// Adds to a lock's error how long the caller has waited for the lock.
fn waited_since(since_ms: i64) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::Locked { path, holder, .. } => {
            let waited_ms = u64::try_from(System.boot_ms() - since_ms).unwrap_or(0);
            Error::Locked { path, waited_ms, holder }
        }
        other => other,
    }
}

/// Returns whether the file's disk is full. SQLite reports some failures for lack of space as input or output errors.
fn is_full(path: &Path) -> bool {
    const LITTLE: u64 = 64 * 1024;
    path.parent()
        .and_then(|folder| rustix::fs::statvfs(folder).ok())
        .is_some_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) < LITTLE)
}

/// Translates SQLite's error into one that a person understands.
fn translate(path: &Path, action: &'static str, error: &rusqlite::Error) -> Error {
    let path = path.to_owned();
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::Full { path },
        Some(ErrorCode::SystemIoFailure) if is_full(&path) => Error::Full { path },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt { path, reason },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            let holder = holder::lock_holder(&path);
            Error::Locked { path, waited_ms: 0, holder }
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            Error::Open { path, reason }
        }
        _ => Error::Io { action, path, reason },
    }
}
