//! The writer thread: whatever waits is written in one transaction, and answered after its commit.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode};
use tokio::sync::mpsc::Receiver;

use super::tx::{Memo, SqliteTx};
use super::{SqliteClock, translate, waited_since};
use crate::error::{Error, Result};
use crate::seams::{Clock, Entropy, System};
use crate::session::{Flushed, Session};
use crate::wake::Hub;

/// How many operations may wait before callers do.
pub(super) const QUEUE_BOUND: usize = 1024;
/// How many share a commit: enough to make the disk's part small, few enough to answer soon.
const BATCH_BOUND: usize = 256;
/// How often an operation that met a conflict is tried in all.
const CONFLICT_TRIES: usize = 8;

/// An operation that waits to be written, and whoever waits for its answer.
pub(crate) trait Job: Send {
    /// Does the work; may be called again if the transaction was undone.
    fn run(&mut self, session: &mut Session<'_>) -> Result<()>;
    /// Answers, after the commit.
    fn answer(self: Box<Self>, committed: Result<()>);
}

pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    pub(super) clock: SqliteClock,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) hub: Arc<Hub>,
}

impl Writer {
    /// Works until the queue is closed and empty.
    pub(super) fn run(self, mut queue: Receiver<Box<dyn Job>>) {
        let memo = Rc::new(RefCell::new(Memo::default()));
        let mut batch = Vec::new();
        while let Some(first) = queue.blocking_recv() {
            batch.push(first);
            while batch.len() < BATCH_BOUND
                && let Ok(next) = queue.try_recv()
            {
                batch.push(next);
            }
            self.write(&memo, std::mem::take(&mut batch));
        }
        let _ = self.conn.execute_batch("PRAGMA optimize");
    }

    fn write(&self, memo: &Rc<RefCell<Memo>>, mut batch: Vec<Box<dyn Job>>) {
        if let Err(error) = self.begin() {
            // They have waited together: nobody waits once more for each of the others.
            return batch.into_iter().for_each(|job| job.answer(Err(error.clone())));
        }
        let written = self.transact(memo, &mut batch);
        if written.is_err() {
            forget(memo);
        }
        match written {
            Ok(done) => {
                let mut topics = BTreeSet::new();
                for (job, outcome) in batch.into_iter().zip(done) {
                    job.answer(outcome.map(|flushed| topics.extend(flushed.topics)));
                }
                if !topics.is_empty() {
                    self.hub.tell(&topics);
                }
            }
            // Alone, each meets its own fate: one that the disk cannot take fails no other.
            Err(_) if batch.len() > 1 => {
                for job in batch {
                    self.write(memo, vec![job]);
                }
            }
            Err(error) => {
                for job in batch {
                    job.answer(Err(error.clone()));
                }
            }
        }
    }

    fn begin(&self) -> Result<()> {
        let since_ms = System.boot_ms();
        self.conn
            .execute_batch("BEGIN IMMEDIATE")
            .map_err(|error| waited_since(since_ms)(translate(&self.path, "writing", &error)))
    }

    /// The rest of a transaction for all; what each job came to, once it is committed.
    fn transact(&self, memo: &Rc<RefCell<Memo>>, batch: &mut [Box<dyn Job>]) -> Result<Vec<Result<Flushed>>> {
        let mut done = Vec::with_capacity(batch.len());
        for job in batch {
            let outcome = self.run_job(memo, job.as_mut());
            done.push(outcome);
            // A disk error may have undone the whole transaction, not only this job's part.
            if self.conn.is_autocommit() {
                let lost = Error::Io {
                    action: "writing",
                    path: self.path.clone(),
                    reason: "the transaction was undone".into(),
                };
                return Err(done.pop().and_then(Result::err).unwrap_or(lost));
            }
        }
        if let Err(error) = self.conn.execute_batch("COMMIT") {
            let _ = self.conn.execute_batch("ROLLBACK");
            return Err(self.commit_failed(&error));
        }
        if memo.borrow().has_news {
            // The sentences that this commit added are in the file for good now. A failure is none: they
            // are looked up again when they are next said.
            memo.borrow_mut().has_news = self.tx(memo).learn_sentences().is_err();
        }
        Ok(done)
    }

    fn tx<'w>(&'w self, memo: &Rc<RefCell<Memo>>) -> SqliteTx<'w> {
        SqliteTx {
            conn: &self.conn,
            memo: Rc::clone(memo),
            clock: &self.clock,
            entropy: &*self.entropy,
            path: &self.path,
        }
    }

    fn run_job(&self, memo: &Rc<RefCell<Memo>>, job: &mut dyn Job) -> Result<Flushed> {
        for _ in 0..CONFLICT_TRIES {
            match self.run_once(memo, job) {
                Err(Error::Conflict { entity, id }) => {
                    tracing::debug!(entity, id, "conflict: looking again");
                }
                other => return other,
            }
        }
        self.run_once(memo, job)
    }

    fn run_once(&self, memo: &Rc<RefCell<Memo>>, job: &mut dyn Job) -> Result<Flushed> {
        let sql = |done: rusqlite::Result<()>| done.map_err(|error| translate(&self.path, "writing", &error));
        let savepoint = |sql: &str| self.conn.prepare_cached(sql).and_then(|mut s| s.execute([]).map(drop));
        sql(savepoint("SAVEPOINT job"))?;
        let mut tx = self.tx(memo);
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut session = Session::new(&mut tx)?;
            job.run(&mut session)?;
            session.flush()
        }))
        .unwrap_or_else(|_| {
            Err(Error::Refused("the operation failed in an unexpected way; it was undone".into()))
        });
        if done.is_err() {
            forget(memo);
            if !self.conn.is_autocommit() {
                sql(savepoint("ROLLBACK TO job"))?;
            }
        }
        if !self.conn.is_autocommit() {
            sql(savepoint("RELEASE job"))?;
        }
        done
    }

    /// A commit that failed for want of space was not made. After any other failure the log may hold it
    /// all the same, and show it after a restart.
    fn commit_failed(&self, error: &rusqlite::Error) -> Error {
        match error.sqlite_error_code() {
            Some(ErrorCode::SystemIoFailure) => {
                Error::Unknown { path: self.path.clone(), reason: error.to_string() }
            }
            _ => translate(&self.path, "committing", error),
        }
    }
}

/// What was undone may have been remembered: a plan that was read back right after it was put.
fn forget(memo: &Rc<RefCell<Memo>>) {
    *memo.borrow_mut() = Memo::default();
}
