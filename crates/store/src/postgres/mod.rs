//! PostgreSQL: any number of machines, each process with one writing connection and a few that read.
//!
//! ```text
//!   callers ──jobs (bounded)──▶ writer thread:
//!        BEGIN, hold the jobs' runs, read them           one round trip, then another
//!        run all jobs in memory                          none, unless a job wants more
//!        every table's changes, the journal, COMMIT      one round trip, one wait for the disk
//!   readers ──▶ connections of their own, each look one snapshot
//!   another process's commit ──NOTIFY──▶ listener ──▶ waiting callers of this process
//! ```
//!
//! Nothing in a batch waits for another process. If a job meets a row that another transaction holds, the writer runs
//! the job again after the others, in a transaction that begins by waiting for that row. So a transaction waits only
//! while it holds nothing else, and always in the same order.

mod address;
mod attempt;
mod boards;
mod cells;
mod claims;
mod clock;
mod fault;
mod health;
mod journal;
mod listen;
mod open;
mod prefetch;
mod queries;
mod repack;
mod retention;
mod sentences;
mod service;
mod state;
mod tls;
mod triggers;
mod tx;
mod wire;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sprag_lifecycle::{Plan, mutant};

use crate::backend::Backend;
use crate::clock::{Clock, Entropy, Now};
use crate::error::{Error, Result};
use crate::evaluator::{NoEvaluator, SpecEvaluator};
use crate::job::Job;
use crate::service::Observer;
use crate::wake::Hub;
use address::DatabaseAddress;
use clock::DatabaseClock;
use sentences::Sentences;
use tx::Tx;
use wire::Wire;

/// The longest time that a statement of Sprag may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for a row. A row that is held for longer has a stuck holder.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The time after which the server ends the transaction of a writer that stopped in the middle of it, because other
/// transactions wait for the rows that it holds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most concurrent readers; further readers wait for their turn.
const READERS: usize = 8;
/// The number of plans that the process caches. Many runs share a few plans.
const PLANS_KEPT: usize = 256;

/// The state that all connections of a process share.
struct Shared {
    address: DatabaseAddress,
    clock: DatabaseClock,
    entropy: Arc<dyn Entropy>,
    sentences: Sentences,
    plans: Mutex<BTreeMap<i64, Arc<Plan>>>,
    /// The store's count of removed plans when the cached plans were read.
    plans_removed: AtomicI64,
    hub: Arc<Hub>,
    evaluator: OnceLock<Arc<dyn SpecEvaluator>>,
    observer: OnceLock<Arc<dyn Observer>>,
    /// The server's process id of the writer's connection. Its notifications have already reached this process.
    writer: AtomicI32,
}

impl Shared {
    fn plans(&self) -> MutexGuard<'_, BTreeMap<i64, Arc<Plan>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, hash: i64) -> Option<Arc<Plan>> {
        self.plans().get(&hash).cloned()
    }

    /// Clears the cached plans if plans were removed since they were read, because another plan may have the number of
    /// one of them.
    fn plans_were_removed(&self, times: i64) {
        if self.plans_removed.fetch_max(times, Ordering::AcqRel) < times && !mutant!(PlansRemembered) {
            self.plans().clear();
        }
    }

    /// Caches a plan that was read when `plans_removed` plans had been removed.
    fn keep_plan(&self, plans_removed: i64, hash: i64, plan: &Arc<Plan>) {
        let mut plans = self.plans();
        if self.plans_removed.load(Ordering::Acquire) != plans_removed {
            return;
        }
        if plans.len() >= PLANS_KEPT {
            plans.clear();
        }
        plans.insert(hash, Arc::clone(plan));
    }
}

/// The connections for reading.
#[derive(Default)]
struct Readers {
    idle: Vec<Wire>,
    out: usize,
}

/// A PostgreSQL database as a store.
pub(crate) struct Postgres {
    shared: Arc<Shared>,
    jobs: tokio::sync::mpsc::Sender<Box<dyn Job>>,
    readers: Mutex<Readers>,
    reader_is_back: Condvar,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// The runtime that drives the reading and the listening connections.
    runtime: Option<tokio::runtime::Runtime>,
    path: PathBuf,
}

impl Postgres {
    /// Opens the database that this URL names, and creates its tables if they do not exist. Tests pass a `clock` in
    /// place of the database's own.
    pub(crate) fn open(url: &str, clock: Option<Arc<dyn Clock>>, entropy: Arc<dyn Entropy>) -> Result<Self> {
        let address = DatabaseAddress::parse(url)?;
        let path = address.path();
        let shared = Arc::new(Shared {
            address,
            clock: DatabaseClock::new(clock),
            entropy,
            sentences: Sentences::default(),
            plans: Mutex::default(),
            plans_removed: AtomicI64::new(0),
            hub: Hub::local(),
            evaluator: OnceLock::new(),
            observer: OnceLock::new(),
            writer: AtomicI32::new(0),
        });
        let fail = |error: std::io::Error| Error::Open { path: path.clone(), reason: error.to_string() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("sprag-postgres")
            .enable_all()
            .build()
            .map_err(fail)?;
        let (jobs, queue) = tokio::sync::mpsc::channel(writer::QUEUE_BOUND);
        let (opened, wait) = std::sync::mpsc::channel();
        let of_writer = Arc::clone(&shared);
        // It connects on its own thread, because the caller that opens a store may be part of a runtime.
        let thread = std::thread::Builder::new()
            .name("sprag-writer".into())
            .spawn(move || match writer::Writer::open(of_writer) {
                Ok(writer) => {
                    let _ = opened.send(Ok(()));
                    writer.run(queue);
                }
                Err(error) => drop(opened.send(Err(error))),
            })
            .map_err(fail)?;
        let store = Postgres {
            shared,
            jobs,
            readers: Mutex::default(),
            reader_is_back: Condvar::new(),
            writer: Mutex::new(Some(thread)),
            runtime: Some(runtime),
            path,
        };
        wait.recv().map_err(|_| Error::Closed)??;
        if let Some(runtime) = &store.runtime {
            runtime.spawn(listen::listen(Arc::downgrade(&store.shared)));
        }
        Ok(store)
    }

    /// Sets the evaluator of step specs. The first one that is set stays.
    pub(crate) fn set_evaluator(&self, evaluator: Arc<dyn SpecEvaluator>) {
        let _ = self.shared.evaluator.set(evaluator);
    }

    /// Returns the evaluator of step specs.
    pub(crate) fn evaluator(&self) -> Arc<dyn SpecEvaluator> {
        self.shared.evaluator.get().cloned().unwrap_or_else(|| Arc::new(NoEvaluator))
    }

    /// Sets the observer of the writer. The first observer that is set stays.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.shared.observer.set(observer);
    }

    /// Sends a job to the writer; waits while its queue is full.
    pub(crate) async fn submit(&self, job: Box<dyn Job>) -> Result<()> {
        self.jobs.send(job).await.map_err(|_| Error::Closed)
    }

    /// Reads one consistent state of the database, without blocking the writer.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        let told = |fault: fault::Fault| fault.told(&self.shared.address, "reading");
        let mut wire = self.reader()?;
        let begun = match Tx::read(&wire, &self.shared) {
            Err(fault) if fault.is_lost() => {
                // An idle connection may have died long ago.
                wire = open::connect_elsewhere(&self.shared.address, self.runtime())
                    .map_err(told)
                    .inspect_err(|_| self.reader_left())?;
                Tx::read(&wire, &self.shared)
            }
            begun => begun,
        };
        let answer = match begun {
            Ok(mut tx) => look(&mut tx),
            Err(fault) => Err(told(fault)),
        };
        let end = wire.script("ROLLBACK");
        if end.is_ok() && !wire.is_closed() {
            self.readers().idle.push(wire);
        }
        self.reader_left();
        answer
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runtime(&self) -> &tokio::runtime::Runtime {
        self.runtime.as_ref().expect("it is there until the store is dropped")
    }

    /// Returns a connection for reading; waits for a free one.
    fn reader(&self) -> Result<Wire> {
        let mut readers = self.readers();
        while readers.out >= READERS {
            let waited = self.reader_is_back.wait_timeout(readers, STATEMENT_TIMEOUT);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            readers = back;
            if timeout.timed_out() {
                let waited_ms = STATEMENT_TIMEOUT.as_millis() as u64;
                return Err(Error::Locked { path: self.path.clone(), waited_ms, holder: None });
            }
        }
        readers.out += 1;
        while let Some(wire) = readers.idle.pop() {
            if !wire.is_closed() {
                return Ok(wire);
            }
        }
        drop(readers);
        open::connect_elsewhere(&self.shared.address, self.runtime())
            .map_err(|fault| fault.told(&self.shared.address, "opening"))
            .inspect_err(|_| self.reader_left())
    }

    fn reader_left(&self) {
        self.readers().out -= 1;
        self.reader_is_back.notify_one();
    }

    /// Returns a description of the database's state, or an error that says what is wrong with it.
    pub(crate) fn health(&self) -> Result<String> {
        let wire = self.reader()?;
        let told = health::health(&wire).map_err(|fault| fault.told(&self.shared.address, "checking"));
        self.reader_left();
        told
    }

    pub(crate) fn now(&self) -> Now {
        self.shared.clock.now()
    }

    pub(crate) fn random(&self) -> u64 {
        self.shared.entropy.next_u64()
    }

    /// Returns the database's URL without the password.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.shared.hub
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The writer finishes the accepted jobs when its queue is closed, and then ends.
        let (closed, _) = tokio::sync::mpsc::channel(1);
        drop(std::mem::replace(&mut self.jobs, closed));
        let handle = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle {
            let _ = handle.join();
        }
        // The caller that drops the store may be part of a runtime, where waiting for another runtime is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
