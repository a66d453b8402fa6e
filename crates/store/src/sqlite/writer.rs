//! The writer thread: it writes all waiting jobs in one transaction, and answers them after its commit.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use sprag_lifecycle::mutant;
use tokio::sync::mpsc::Receiver;

use super::memo::Memo;
use super::stall::LastCommit;
use super::tx::SqliteTx;
use super::{SqliteClock, open, stall, translate, waited_since};
use crate::clock::{Clock, Entropy, Now, System};
use crate::error::{Error, Result};
use crate::evaluator::SpecEvaluator;
use crate::job::Job;
use crate::service::Observer;
use crate::session::{Flushed, Session};
use crate::wake::Hub;

/// The number of operations that may wait in the queue before callers block.
pub(super) const QUEUE_BOUND: usize = 1024;
/// The most operations that share a commit: enough to make the disk's part small, few enough to answer soon.
const BATCH_BOUND: usize = 256;
/// The number of times that the writer yields to callers that it has just answered. They tend to send their next
/// operation at once, and then share the next commit.
const LINGER_YIELDS: usize = 64;
/// The most tries of an operation that meets conflicts, including the first.
const CONFLICT_TRIES: usize = 8;

/// The way to undo a job that fails after it has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undo {
    /// With its whole transaction, which is then run again: costs nothing as long as nothing fails.
    Together,
    /// Alone, in a savepoint: costs a copy of every page that a job is the first to write to.
    Alone,
}

/// The reason why a transaction was undone.
enum Undone {
    /// It never began: another process held the file for too long.
    NotBegun(Error),
    /// A job failed that can only be undone together with the others.
    Together,
    /// It could not be written or committed.
    Failed(Error),
}

pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    pub(super) clock: SqliteClock,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) hub: Arc<Hub>,
    pub(super) evaluator: Arc<OnceLock<Arc<dyn SpecEvaluator>>>,
    pub(super) observer: Arc<OnceLock<Arc<dyn Observer>>>,
}

impl Writer {
    /// Runs jobs until the queue is closed and empty.
    pub(super) fn run(self, mut queue: Receiver<Box<dyn Job>>) {
        let memo = Rc::new(RefCell::new(Memo::default()));
        let mut batch = Vec::new();
        let (mut crowd, mut wrote) = (0, false);
        while let Some(first) = queue.blocking_recv() {
            batch.push(first);
            let mut yields = 0;
            while batch.len() < BATCH_BOUND && yields < LINGER_YIELDS {
                match queue.try_recv() {
                    Ok(next) => batch.push(next),
                    Err(_) if batch.len() < crowd => {
                        yields += 1;
                        std::thread::yield_now();
                    }
                    Err(_) => break,
                }
            }
            let together = batch.len();
            self.write(&memo, std::mem::take(&mut batch));
            crowd = together + queue.len();
            wrote = true;
        }
        // Statistics can wait: a process that ends does not wait for the lock.
        if wrote && self.conn.busy_timeout(Duration::ZERO).is_ok() {
            let _ = self.conn.execute_batch("PRAGMA optimize");
        }
    }

    fn write(&self, memo: &Rc<RefCell<Memo>>, mut batch: Vec<Box<dyn Job>>) {
        let since = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let written = self.transact(memo, &mut batch);
        self.tell_observer(since, &written);
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
            // These jobs have waited together, so none of them waits again for each of the others.
            Err(Undone::NotBegun(error)) => batch.into_iter().for_each(|job| job.answer(Err(error.clone()))),
            // Each job is retried alone: one that does not fit on the disk fails no other.
            Err(_) if batch.len() > 1 => batch.into_iter().for_each(|job| self.write(memo, vec![job])),
            Err(Undone::Failed(error)) => batch.into_iter().for_each(|job| job.answer(Err(error.clone()))),
            Err(Undone::Together) => batch.into_iter().for_each(|job| job.answer(Err(self.lost()))),
        }
    }

    fn tell_observer(
        &self,
        since: rustix::time::Timespec,
        written: &std::result::Result<Vec<Result<Flushed>>, Undone>,
    ) {
        let Some(observer) = self.observer.get() else { return };
        let Ok(done) = written else { return observer.undone() };
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let took_us = (now.tv_sec - since.tv_sec) * 1_000_000 + (now.tv_nsec - since.tv_nsec) as i64 / 1_000;
        observer.committed(done.len(), took_us.max(0) as u64);
        for (entity, reason) in done.iter().flatten().flat_map(|flushed| &flushed.refused) {
            observer.refused(entity, reason);
        }
    }

    fn begin(&self) -> Result<()> {
        let since_ms = System.boot_ms();
        self.conn
            .execute_batch("BEGIN IMMEDIATE")
            .map_err(|error| waited_since(since_ms)(translate(&self.path, "writing", &error)))
    }

    /// Reads what other processes may have changed since the last transaction.
    fn look_around(&self, memo: &Rc<RefCell<Memo>>) -> Result<()> {
        open::refuse_newer(&self.conn, &self.path)?;
        let state = self
            .conn
            .prepare_cached("SELECT plans_removed, committed_ms, grace_until_ms FROM store_state")
            .and_then(|mut statement| {
                statement.query_row([], |columns| {
                    let last = LastCommit { at_ms: columns.get(1)?, grace_until_ms: columns.get(2)? };
                    Ok((columns.get(0)?, last))
                })
            });
        let (plans_removed, last_commit): (i64, _) =
            state.map_err(|error| translate(&self.path, "reading", &error))?;
        stall::prolong_leases(&self.conn, &self.clock, last_commit)
            .map_err(|error| translate(&self.path, "writing", &error))?;
        let memo = &mut *memo.borrow_mut();
        memo.seq = None;
        memo.entries.clear();
        memo.last_commit = last_commit;
        if memo.plans_removed != plans_removed && !mutant!(PlansRemembered) {
            memo.plans.clear();
        }
        memo.plans_removed = plans_removed;
        Ok(())
    }

    /// Runs one transaction for all jobs. Returns the result of each job after the commit.
    fn transact(
        &self,
        memo: &Rc<RefCell<Memo>>,
        batch: &mut [Box<dyn Job>],
    ) -> std::result::Result<Vec<Result<Flushed>>, Undone> {
        match self.attempt(memo, batch, Undo::Together) {
            Err(Undone::Together) => self.attempt(memo, batch, Undo::Alone),
            done => done,
        }
    }

    fn attempt(
        &self,
        memo: &Rc<RefCell<Memo>>,
        batch: &mut [Box<dyn Job>],
        undo: Undo,
    ) -> std::result::Result<Vec<Result<Flushed>>, Undone> {
        self.begin().map_err(Undone::NotBegun)?;
        let at_first = self.conn.total_changes();
        if let Err(error) = self.look_around(memo) {
            let _ = self.conn.execute_batch("ROLLBACK");
            return Err(Undone::NotBegun(error));
        }
        let mut done = Vec::with_capacity(batch.len());
        for job in batch {
            let before = self.conn.total_changes();
            let outcome = match undo {
                Undo::Together => self.run_job(memo, job.as_mut()),
                Undo::Alone => self.run_in_savepoint(memo, job.as_mut()),
            };
            // A disk error may have undone the whole transaction, not only this job's part.
            if self.conn.is_autocommit() {
                memo.borrow_mut().forget();
                return Err(Undone::Failed(outcome.err().unwrap_or_else(|| self.lost())));
            }
            let wrote = self.conn.total_changes() != before || matches!(outcome, Err(Error::Conflict { .. }));
            if undo == Undo::Together && outcome.is_err() && wrote {
                let _ = self.conn.execute_batch("ROLLBACK");
                memo.borrow_mut().forget();
                return Err(Undone::Together);
            }
            done.push(outcome);
        }
        if let Err(error) = self.end_with_packs(memo) {
            let _ = self.conn.execute_batch("ROLLBACK");
            memo.borrow_mut().forget();
            return Err(Undone::Failed(error));
        }
        if self.conn.total_changes() != at_first
            && let Err(error) = self.note_moment(memo)
            && self.conn.is_autocommit()
        {
            memo.borrow_mut().forget();
            return Err(Undone::Failed(translate(&self.path, "writing", &error)));
        }
        if let Err(error) = self.conn.execute_batch("COMMIT")
            && !mutant!(CommitNotAsked)
        {
            let _ = self.conn.execute_batch("ROLLBACK");
            memo.borrow_mut().forget();
            return Err(Undone::Failed(self.commit_failed(&error)));
        }
        if memo.borrow().has_news {
            // The sentences that this commit added are now committed to the file. A failure here does no harm: the
            // sentences are looked up again when they are next used.
            memo.borrow_mut().has_news = self.tx(memo).learn_sentences().is_err();
        }
        Ok(done)
    }

    /// Writes the journal entries of all jobs, packed.
    fn end_with_packs(&self, memo: &Rc<RefCell<Memo>>) -> Result<()> {
        if mutant!(PackApart) && !memo.borrow().entries.is_empty() {
            let apart = self.conn.execute_batch("COMMIT; BEGIN IMMEDIATE");
            apart.map_err(|error| translate(&self.path, "writing", &error))?;
        }
        self.tx(memo).write_packs()
    }

    /// Records twice a second that there was a commit, and which steady time and which wall-clock time belong
    /// together. If that fails and the transaction continues, the next transaction does it.
    fn note_moment(&self, memo: &Rc<RefCell<Memo>>) -> rusqlite::Result<()> {
        let now_ms = self.clock.machine_ms();
        if !memo.borrow().last_commit.is_old(now_ms) {
            return Ok(());
        }
        let Now { steady_ms, wall_ms } = self.clock.now();
        let sql = "UPDATE store_state SET committed_ms = ?1, steady_ms = max(steady_ms, ?2), \
                   wall_ms = CASE WHEN steady_ms < ?2 THEN ?3 ELSE wall_ms END";
        self.conn.prepare_cached(sql)?.execute([now_ms, steady_ms, wall_ms]).map(drop)
    }

    fn lost(&self) -> Error {
        let reason = "the transaction was undone".into();
        Error::Io { action: "writing", path: self.path.clone(), reason }
    }

    fn tx<'w>(&'w self, memo: &Rc<RefCell<Memo>>) -> SqliteTx<'w> {
        SqliteTx {
            conn: &self.conn,
            memo: Rc::clone(memo),
            clock: &self.clock,
            entropy: &*self.entropy,
            path: &self.path,
            evaluator: &self.evaluator,
        }
    }

    /// Runs a job in a savepoint. A job that met a conflict is undone and retried.
    fn run_in_savepoint(&self, memo: &Rc<RefCell<Memo>>, job: &mut dyn Job) -> Result<Flushed> {
        let savepoint = |sql: &str| {
            let done = self.conn.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
            done.map(drop).map_err(|error| translate(&self.path, "writing", &error))
        };
        for tried in 1.. {
            savepoint("SAVEPOINT job")?;
            let done = self.run_job(memo, job);
            if self.conn.is_autocommit() {
                return done;
            }
            if done.is_err() && !mutant!(SavepointKept) {
                savepoint("ROLLBACK TO job")?;
                memo.borrow_mut().forget();
            }
            savepoint("RELEASE job")?;
            match done {
                Err(Error::Conflict { entity, id }) if tried < CONFLICT_TRIES => {
                    tracing::debug!(entity, id, "conflict: retrying");
                }
                done => return done,
            }
        }
        Err(self.lost())
    }

    fn run_job(&self, memo: &Rc<RefCell<Memo>>, job: &mut dyn Job) -> Result<Flushed> {
        let mut tx = self.tx(memo);
        let before = memo.borrow().entries.len();
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut session = Session::new(&mut tx)?;
            job.run(&mut session)?;
            session.flush()
        }))
        .unwrap_or_else(|_| Err(Error::bug("the operation panicked; it was undone")));
        if done.is_err() && !mutant!(SavepointKept) {
            memo.borrow_mut().entries.truncate(before);
        }
        done
    }

    /// Returns the error of a failed commit. A commit that failed for lack of space was not made. After any other
    /// failure the log may still contain it, and show it after a restart.
    fn commit_failed(&self, error: &rusqlite::Error) -> Error {
        match error.sqlite_error_code() {
            Some(ErrorCode::SystemIoFailure) => {
                Error::Unknown { path: self.path.clone(), reason: error.to_string() }
            }
            _ => translate(&self.path, "committing", error),
        }
    }
}
