//! PostgreSQL: any number of machines, each process with one writing connection and a few that read.
//!
//! ```text
//!   callers ──jobs (bounded)──▶ writer thread:
//!        BEGIN, hold the jobs' runs, read them           one round trip, then another
//!        run all jobs in memory                          none, unless a job wants more
//!        every table's changes, the journal, COMMIT      one round trip, one wait for the disk
//!   readers ──▶ connections of their own, each look one snapshot
//!   another process's commit ──NOTIFY──▶ listener ──▶ whoever waits here
//! ```
//!
//! Nothing in a batch waits for another process: a job that meets a row which somebody else holds is run again after
//! the others, in a transaction that begins by waiting for that row. So waits are made with nothing held, in one order.

mod attempt;
mod boards;
mod cells;
mod claims;
mod clock;
mod entities;
mod fault;
mod health;
mod listen;
mod open;
mod place;
mod queries;
mod retention;
mod rows;
mod sentences;
mod service;
mod state;
mod tls;
mod tx;
mod wanted;
mod wire;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sprag_lifecycle::Plan;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::language::Language;
use crate::seams::{Clock, Entropy, Now};
use crate::service::Observer;
use crate::wake::Hub;
use clock::DatabaseClock;
use place::Place;
use sentences::Sentences;
use tx::Tx;
use wire::Wire;

/// No statement of ours takes longer.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Nobody holds a row for longer, unless it is stuck.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// A writer that was stopped in the middle of a transaction loses it after this: others wait for what it holds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many look at once; more wait for their turn.
const READERS: usize = 8;
/// How many plans are remembered: many runs share a few.
const PLANS_KEPT: usize = 256;

/// What all connections of a process share.
struct Shared {
    place: Place,
    clock: DatabaseClock,
    entropy: Arc<dyn Entropy>,
    sentences: Sentences,
    plans: Mutex<BTreeMap<i64, Arc<Plan>>>,
    hub: Arc<Hub>,
    language: OnceLock<Arc<dyn Language>>,
    observer: OnceLock<Arc<dyn Observer>>,
    /// The server's process that serves the writer: what it notifies of has been told here already.
    writer: AtomicI32,
}

impl Shared {
    fn plans(&self) -> MutexGuard<'_, BTreeMap<i64, Arc<Plan>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, hash: i64) -> Option<Arc<Plan>> {
        self.plans().get(&hash).cloned()
    }

    fn keep_plan(&self, hash: i64, plan: &Arc<Plan>) {
        let mut plans = self.plans();
        if plans.len() >= PLANS_KEPT {
            plans.clear();
        }
        plans.insert(hash, Arc::clone(plan));
    }
}

/// The connections that look.
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
    /// Drives the connections that look and listen.
    runtime: Option<tokio::runtime::Runtime>,
    path: PathBuf,
}

impl Postgres {
    /// Opens the database that this URL names, and makes its tables if they are not there. `clock` stands in for the
    /// database's own: for tests.
    pub(crate) fn open(url: &str, clock: Option<Arc<dyn Clock>>, entropy: Arc<dyn Entropy>) -> Result<Self> {
        let place = Place::parse(url)?;
        let path = place.path();
        let shared = Arc::new(Shared {
            place,
            clock: DatabaseClock::new(clock),
            entropy,
            sentences: Sentences::default(),
            plans: Mutex::default(),
            hub: Hub::local(),
            language: OnceLock::new(),
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
        // It connects on its own thread: whoever opens a store may be part of a runtime.
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

    /// Has the specs of steps read by `language`; the first one to be named stays.
    pub(crate) fn speak(&self, language: Arc<dyn Language>) {
        let _ = self.shared.language.set(language);
    }

    /// Has somebody told of what the writer does; the first one to be named stays.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.shared.observer.set(observer);
    }

    /// Gives the writer a job; waits while its queue is full.
    pub(crate) async fn submit(&self, job: Box<dyn Job>) -> Result<()> {
        self.jobs.send(job).await.map_err(|_| Error::Closed)
    }

    /// Looks at one consistent state of the database, beside the writer.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        let told = |fault: fault::Fault| fault.told(&self.shared.place, "reading");
        let mut wire = self.reader()?;
        let begun = match Tx::read(&wire, &self.shared) {
            Err(fault) if fault.is_lost() => {
                // An idle connection may have died long ago.
                wire = open::connect_elsewhere(&self.shared.place, self.runtime())
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

    /// A connection to look with; waits for its turn.
    fn reader(&self) -> Result<Wire> {
        let mut readers = self.readers();
        while readers.out >= READERS {
            let waited = self.reader_is_back.wait_timeout(readers, STATEMENT_TIMEOUT);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            readers = back;
            if timeout.timed_out() {
                let waited_ms = STATEMENT_TIMEOUT.as_millis() as u64;
                return Err(Error::Locked { path: self.path.clone(), waited_ms });
            }
        }
        readers.out += 1;
        while let Some(wire) = readers.idle.pop() {
            if !wire.is_closed() {
                return Ok(wire);
            }
        }
        drop(readers);
        open::connect_elsewhere(&self.shared.place, self.runtime())
            .map_err(|fault| fault.told(&self.shared.place, "opening"))
            .inspect_err(|_| self.reader_left())
    }

    fn reader_left(&self) {
        self.readers().out -= 1;
        self.reader_is_back.notify_one();
    }

    /// Says in what state the database is, or what is wrong with it.
    pub(crate) fn health(&self) -> Result<String> {
        let wire = self.reader()?;
        let told = health::health(&wire).map_err(|fault| fault.told(&self.shared.place, "checking"));
        self.reader_left();
        told
    }

    pub(crate) fn now(&self) -> Now {
        self.shared.clock.now()
    }

    pub(crate) fn random(&self) -> u64 {
        self.shared.entropy.next_u64()
    }

    /// Its URL without the password.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.shared.hub
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Closing the queue lets the writer finish what was accepted, then end.
        let (closed, _) = tokio::sync::mpsc::channel(1);
        drop(std::mem::replace(&mut self.jobs, closed));
        let handle = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle {
            let _ = handle.join();
        }
        // Whoever drops the store may be part of a runtime, where none may be waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
