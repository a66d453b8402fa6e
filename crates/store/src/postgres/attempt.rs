//! One transaction for several jobs, and the outcome of each job after the commit.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sprag_lifecycle::{RunId, StepNo};

use super::Shared;
use super::cells::Cell;
use super::fault::Fault;
use super::listen::{NOTIFY, message};
use super::open;
use super::prefetch::Prefetch;
use super::state::Lock;
use super::tx::Tx;
use super::wire::{Ask, Wire};
use super::writer::Work;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::session::{Flushed, Session};

/// The outcome of one job.
pub(super) enum Fate {
    /// The job ran, with this result.
    Done(Result<Flushed>),
    /// Another transaction holds this lock. Nothing of the job was written.
    Busy(Lock),
}

/// A committed transaction.
pub(super) struct Done {
    pub(super) fates: Vec<Fate>,
    /// Steps to look at when their run is free.
    pub(super) later: BTreeSet<(RunId, StepNo)>,
}

/// The reason why nothing was written, or why the outcome of the commit is unknown.
pub(super) enum Failure {
    /// The transaction was undone.
    Fault(Fault),
    /// A job failed that can only be undone together with the others.
    Together,
    /// The answer to the commit was lost.
    Lost { xid: Option<i64>, done: Box<Done>, reason: String },
    /// The answer to the commit was lost, and the writer cannot find out whether the commit was made.
    Unknown(String),
}

/// Waits for `locks`, runs all jobs that wait for no other lock, and commits.
pub(super) fn attempt(
    wire: &Wire,
    shared: &Shared,
    locks: &BTreeSet<Lock>,
    works: &mut [Work],
) -> std::result::Result<Done, Failure> {
    let about = Prefetch::by(works.iter().map(|work| work.job.about()));
    let began = Tx::write(wire, shared, locks.iter(), &about);
    let mut tx = began.map_err(|fault| undo(wire, Failure::Fault(fault)))?;
    let alone = works.len() == 1;
    let put_back = tx.state.clock_put_back;
    let mut fates = Vec::with_capacity(works.len());
    for work in works.iter_mut() {
        match run_in(&mut tx, &mut *work.job, alone) {
            Ok(fate) => fates.push(fate),
            Err(failure) => {
                drop(tx);
                return Err(undo(wire, failure));
            }
        }
    }
    let committed = commit(tx, fates);
    if let Some((was_ms, ahead_ms)) = put_back {
        raise_clock(wire, was_ms, ahead_ms);
    }
    committed
}

/// Records for all processes that the server's clock was put back. Runs by itself after the transaction, so that no
/// transaction waits for this row while it holds another. If it fails, the next transaction sees the same.
fn raise_clock(wire: &Wire, was_ms: i64, ahead_ms: i64) {
    let sql = "UPDATE store_state SET ahead_ms = $2 WHERE ahead_ms = $1";
    tracing::warn!(by_ms = ahead_ms - was_ms, "PostgreSQL's clock was set back: the store's time continues");
    if let Err(fault) = wire.ask(&[Ask::new(sql, [Cell::from(was_ms), Cell::from(ahead_ms)])]) {
        tracing::warn!(%fault, "could not save the clock's offset: other processes detect it themselves");
    }
}

fn run_in(tx: &mut Tx<'_>, job: &mut dyn Job, alone: bool) -> std::result::Result<Fate, Failure> {
    if let Some(run) = job.about().runs.iter().find(|run| tx.state.contended.contains(run)) {
        return Ok(Fate::Busy(Lock::Run(run.to_i64())));
    }
    if let Some(told) = job.about().told {
        tx.glimpse(told.run);
    }
    let done = run_job(tx, job);
    if let Some(fault) = tx.fault.take() {
        return Err(Failure::Fault(fault));
    }
    // The job's result is ignored if it met a row that another transaction holds.
    let fate = match (tx.state.busy.take(), done) {
        (Some(lock), _) => Fate::Busy(lock),
        (None, Ok(flushed)) => {
            tx.state.keep();
            return Ok(Fate::Done(Ok(flushed)));
        }
        (None, Err(error)) => Fate::Done(Err(error)),
    };
    if tx.state.job_was_sent {
        if !alone {
            return Err(Failure::Together);
        }
        // Nothing else is in this transaction, so undoing it undoes the job.
        tx.state.undo_all = true;
    }
    tx.state.drop_job();
    Ok(fate)
}

fn run_job(tx: &mut Tx<'_>, job: &mut dyn Job) -> Result<Flushed> {
    catch_unwind(AssertUnwindSafe(|| {
        let mut session = Session::new(tx)?;
        job.run(&mut session)?;
        session.flush()
    }))
    .unwrap_or_else(|_| Err(Error::bug("the operation panicked; it was undone")))
}

/// Rolls back a transaction that failed.
fn undo(wire: &Wire, failure: Failure) -> Failure {
    match wire.script("ROLLBACK") {
        Ok(()) => failure,
        // The rollback failed because the connection is lost.
        Err(fault) => match failure {
            Failure::Together => Failure::Fault(fault),
            failure => failure,
        },
    }
}

/// Sends all remaining statements together with the commit. If one statement fails, the whole transaction does.
fn commit(mut tx: Tx<'_>, fates: Vec<Fate>) -> std::result::Result<Done, Failure> {
    let wire = tx.wire;
    let later = std::mem::take(&mut tx.state.later);
    if tx.state.undo_all || !tx.state.wants_commit() {
        // The reads are valid, and there is nothing to write.
        wire.script("ROLLBACK").map_err(Failure::Fault)?;
        return Ok(Done { fates, later });
    }
    let topics: BTreeSet<_> = fates
        .iter()
        .filter_map(|fate| if let Fate::Done(Ok(flushed)) = fate { Some(&flushed.topics) } else { None })
        .flatten()
        .cloned()
        .collect();
    if tx.state.xid.is_none() {
        // A transaction that writes no journal entry has not asked for its id yet.
        tx.state.xid =
            Some(open::number(wire, "SELECT pg_current_xact_id()::text::bigint").map_err(Failure::Fault)?);
    }
    let told = message(&topics);
    let mut asks = tx.state.asks();
    asks.extend(tx.state.journal_asks(&tx.shared.sentences, tx.now.steady_ms));
    if !topics.is_empty() {
        asks.push(Ask::new(NOTIFY, [told.as_str().into()]));
    }
    asks.push(Ask::plain("COMMIT"));
    let committed = wire.ask(&asks);
    drop(asks);
    match committed {
        Ok(_) => {
            tx.state.sent();
            tx.state.journal_sent(&tx.shared.sentences);
            tx.shared.sentences.learn(std::mem::take(&mut tx.state.new_sentences));
            for (hash, plan) in &tx.state.plans {
                tx.shared.keep_plan(tx.state.plans_removed, *hash, plan);
            }
            Ok(Done { fates, later })
        }
        Err(fault) if fault.is_lost() => {
            let reason = format!("the connection was lost while it was committed: {fault}");
            Err(Failure::Lost { xid: tx.state.xid, done: Box::new(Done { fates, later }), reason })
        }
        Err(fault) => Err(undo(wire, Failure::Fault(fault))),
    }
}
