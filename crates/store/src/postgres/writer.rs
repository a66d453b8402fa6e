//! The writer thread: it writes all waiting jobs in one transaction, and answers them after its commit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sprag_lifecycle::{RunId, StepNo};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::Receiver;

use super::attempt::{self, Failure, Fate};
use super::fault::Fault;
use super::open;
use super::state::Lock;
use super::tx::{STATE, begin_with};
use super::wire::{Ask, Wire};
use super::{LOCK_TIMEOUT, Shared};
use crate::clock::{Clock, System};
use crate::error::{Error, Result};
use crate::job::{Job, JobScope};
use crate::ops;
use crate::session::{Flushed, Session};

/// The number of operations that may wait in the queue before callers block.
pub(super) const QUEUE_BOUND: usize = 1024;
/// The most operations that share a commit: enough to make the disk's part small, few enough to answer soon.
const BATCH_BOUND: usize = 256;
/// The number of times that the writer yields to callers that it has just answered. They tend to send their next
/// operation at once, and then share the next commit.
const LINGER_YIELDS: usize = 64;
/// The most tries of an operation that meets conflicts, including the first.
const CONFLICT_TRIES: u32 = 8;
/// The number of times that an operation may find one more row that another transaction holds.
const BUSY_TRIES: u32 = 64;
/// The longest time that the writer tries to reach the server before it fails the waiting jobs, in milliseconds.
const RECONNECT_MS: i64 = 15_000;
/// The delay before the writer looks at steps that were received while another transaction held their run, if nothing
/// else happens.
const LATER: Duration = Duration::from_millis(5);
/// The most runs that one batch looks at afterwards.
const LATER_BOUND: usize = 32;
/// The statement that numbers the server's new life. The first process that connects after a crash inserts the number.
const BEGIN_LIFE: &str = "INSERT INTO life VALUES (true, hashtextextended(gen_random_uuid()::text, 0)) \
     ON CONFLICT DO NOTHING";

/// A job, the locks that it waits for, and the counts of its tries.
pub(super) struct Work {
    pub(super) job: Box<dyn Job>,
    locks: BTreeSet<Lock>,
    conflicts: u32,
    busy: u32,
    /// The steps that it looks at, if it is a `Look`. No caller waits for it.
    look: Option<(RunId, Vec<StepNo>)>,
}

impl Work {
    fn new(job: Box<dyn Job>) -> Self {
        Work { job, locks: BTreeSet::new(), conflicts: 0, busy: 0, look: None }
    }
}

/// A job that looks at steps of a run that were received while another transaction held it. No caller waits for the
/// answer. If it fails, the next operation that decides about the run looks at them.
struct Look {
    run: RunId,
    steps: Vec<StepNo>,
    about: JobScope,
}

impl Job for Look {
    fn run(&mut self, session: &mut Session<'_>) -> Result<()> {
        self.steps.iter().try_for_each(|step| ops::look_at_step(session, self.run, *step))
    }

    fn answer(self: Box<Self>, looked: Result<()>) {
        if let Err(error) = looked {
            tracing::debug!(run = %self.run, %error, "the walk of a run is left to another process");
        }
    }

    fn about(&self) -> &JobScope {
        &self.about
    }
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    runtime: Arc<Runtime>,
    wire: Option<Wire>,
    /// The number of the server's life that it is connected to. It changes with each crash of the server.
    life: i64,
    later: BTreeMap<RunId, BTreeSet<StepNo>>,
    /// Whether the queue is closed: no more jobs arrive, and the writer waits for the rest.
    closing: bool,
}

impl Writer {
    /// Connects and brings the schema up to date.
    pub(super) fn open(shared: Arc<Shared>) -> Result<Writer> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::Open { path: shared.address.path(), reason: error.to_string() })?;
        let mut writer = Writer {
            shared,
            runtime: Arc::new(runtime),
            wire: None,
            life: 0,
            later: BTreeMap::new(),
            closing: false,
        };
        let told = |fault: Fault| fault.told(&writer.shared.address, "opening");
        let wire = open::connect_here(&writer.shared.address, &writer.runtime).map_err(told)?;
        open::migrate(&wire, &writer.shared.address)?;
        writer.adopt(wire).map_err(|fault| fault.told(&writer.shared.address, "opening"))?;
        Ok(writer)
    }

    fn adopt(&mut self, wire: Wire) -> std::result::Result<(), Fault> {
        let pid = open::number(&wire, "SELECT pg_backend_pid()::bigint")?;
        self.shared.writer.store(i32::try_from(pid).unwrap_or(0), Ordering::Relaxed);
        // The clock needs a reading before anything is written.
        let asked_ms = System.boot_ms();
        let answers = wire.ask(&[Ask::plain(STATE)])?;
        begin_with(&self.shared, asked_ms, &answers[0])?;
        wire.ask(&[Ask::plain(BEGIN_LIFE)])?;
        self.life = open::number(&wire, "SELECT number FROM life")?;
        self.wire = Some(wire);
        Ok(())
    }

    /// Runs jobs until the queue is closed and empty.
    pub(super) fn run(mut self, mut queue: Receiver<Box<dyn Job>>) {
        let mut crowd = 0;
        loop {
            let mut batch = Vec::new();
            match self.next(&mut queue) {
                Next::Job(first) => batch.push(first),
                Next::Nothing => {}
                Next::Closed if self.later.is_empty() => return,
                Next::Closed => self.closing = true,
            }
            let mut yields = 0;
            while !batch.is_empty() && batch.len() < BATCH_BOUND && yields < LINGER_YIELDS {
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
            self.write(batch);
            crowd = together + queue.len();
        }
    }

    /// Returns the next job. Drives the connection meanwhile.
    fn next(&self, queue: &mut Receiver<Box<dyn Job>>) -> Next {
        let soon = !self.later.is_empty();
        self.runtime.block_on(async {
            let next = if soon {
                match tokio::time::timeout(LATER, queue.recv()).await {
                    Ok(next) => next,
                    Err(_) => return Next::Nothing,
                }
            } else {
                queue.recv().await
            };
            next.map_or(Next::Closed, Next::Job)
        })
    }

    /// Writes all jobs, in one transaction where possible.
    fn write(&mut self, batch: Vec<Box<dyn Job>>) {
        let mut first: Vec<Work> = batch.into_iter().map(Work::new).collect();
        let looks: Vec<RunId> = self.later.keys().copied().take(LATER_BOUND).collect();
        for run in looks {
            let steps: Vec<StepNo> = self.later.remove(&run).unwrap_or_default().into_iter().collect();
            let about = JobScope { runs: vec![run], ..JobScope::default() };
            let look = Look { run, steps: steps.clone(), about };
            first.push(Work { look: Some((run, steps)), ..Work::new(Box::new(look)) });
        }
        // The loop ends, because a job is retried a bounded number of times.
        let mut rounds = VecDeque::from([first]);
        while let Some(round) = rounds.pop_front() {
            self.round(round, &mut rounds);
        }
    }

    /// Runs one transaction for jobs that wait for the same locks.
    fn round(&mut self, mut works: Vec<Work>, rounds: &mut VecDeque<Vec<Work>>) {
        let since_ms = System.boot_ms();
        loop {
            let since = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let failure = match self.attempt(&mut works) {
                Ok(done) => {
                    self.tell_observer(since, &done.fates);
                    return self.settle(works, done, rounds);
                }
                Err(failure) => failure,
            };
            if let Some(observer) = self.shared.observer.get() {
                observer.undone();
            }
            let error = match failure {
                Failure::Fault(fault) if fault.is_lost() => {
                    tracing::warn!(%fault, "the connection to PostgreSQL was lost");
                    self.wire = None;
                    if System.boot_ms() - since_ms < RECONNECT_MS {
                        std::thread::park_timeout(Duration::from_millis(50));
                        continue;
                    }
                    // These jobs have waited together, so none of them waits again for each of the others.
                    let error = fault.told(&self.shared.address, "writing");
                    return works.into_iter().for_each(|work| work.job.answer(Err(error.clone())));
                }
                Failure::Unknown(reason) | Failure::Lost { reason, .. } => {
                    self.wire = None;
                    let error = Error::Unknown { path: self.shared.address.path(), reason };
                    return works.into_iter().for_each(|work| work.job.answer(Err(error.clone())));
                }
                Failure::Fault(fault) => {
                    if fault.is_about_a_plan() {
                        self.shared.plans().clear();
                    }
                    fault.told(&self.shared.address, "writing")
                }
                Failure::Together => Error::Conflict { entity: "batch", id: "of several operations".into() },
            };
            // Each job is retried alone, and succeeds or fails by itself.
            if works.len() > 1 {
                return rounds.extend(works.into_iter().map(|work| vec![work]));
            }
            return works.into_iter().for_each(|work| again(work, error.clone(), rounds));
        }
    }

    fn attempt(&mut self, works: &mut [Work]) -> std::result::Result<attempt::Done, Failure> {
        if self.wire.as_ref().is_none_or(Wire::is_closed) {
            let wire = open::connect_here(&self.shared.address, &self.runtime).map_err(Failure::Fault)?;
            self.adopt(wire).map_err(Failure::Fault)?;
        }
        let wire = self.wire.as_ref().expect("it was just made");
        let locks: BTreeSet<Lock> = works.iter().flat_map(|work| &work.locks).cloned().collect();
        let committing = attempt::attempt(wire, &self.shared, &locks, works);
        match committing {
            Err(Failure::Lost { xid, done, reason }) => {
                self.wire = None;
                let life = self.life;
                match xid.and_then(|xid| self.fate(xid)) {
                    // A server that crashed reuses transaction ids that never reached its disk, so the id may be
                    // another commit's.
                    Some(true) if self.life != life => Err(Failure::Unknown(reason)),
                    Some(true) => Ok(*done),
                    Some(false) => Err(Failure::Fault(Fault::Silent)),
                    None => Err(Failure::Unknown(reason)),
                }
            }
            attempted => attempted,
        }
    }

    /// Returns whether a transaction whose commit was not answered was committed; none if that cannot be found out.
    fn fate(&mut self, xid: i64) -> Option<bool> {
        let until_ms = System.boot_ms() + RECONNECT_MS;
        while System.boot_ms() < until_ms {
            if let Some(decided) = self.ask_fate(xid) {
                tracing::info!(xid, committed = decided, "looked up a commit whose answer was lost");
                return Some(decided);
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        None
    }

    fn ask_fate(&mut self, xid: i64) -> Option<bool> {
        if self.wire.as_ref().is_none_or(Wire::is_closed) {
            let wire = open::connect_here(&self.shared.address, &self.runtime).ok()?;
            self.adopt(wire).ok()?;
        }
        let sql = format!(
            "SELECT CASE pg_xact_status('{xid}'::xid8) WHEN 'committed' THEN 2 WHEN 'aborted' THEN 1 END::bigint"
        );
        match open::number(self.wire.as_ref()?, &sql).ok()? {
            2 => Some(true),
            1 => Some(false),
            _ => None,
        }
    }

    /// Answers the jobs that are done, and queues those that have to wait for a lock.
    fn settle(&mut self, works: Vec<Work>, done: attempt::Done, rounds: &mut VecDeque<Vec<Work>>) {
        let mut topics = BTreeSet::new();
        let mut waiting: BTreeMap<BTreeSet<Lock>, Vec<Work>> = BTreeMap::new();
        for (mut work, fate) in works.into_iter().zip(done.fates) {
            match fate {
                Fate::Done(Ok(flushed)) => {
                    topics.extend(flushed.topics);
                    work.job.answer(Ok(()));
                }
                Fate::Done(Err(error @ Error::Conflict { .. })) => again(work, error, rounds),
                Fate::Done(Err(error)) => work.job.answer(Err(error)),
                Fate::Busy(_) if work.look.is_some() && !self.closing => {
                    let (run, steps) = work.look.take().unwrap_or_else(|| unreachable!("it was just seen"));
                    self.later.entry(run).or_default().extend(steps);
                }
                Fate::Busy(_) if work.busy >= BUSY_TRIES => {
                    let waited_ms = LOCK_TIMEOUT.as_millis() as u64;
                    work.job.answer(Err(Error::Locked {
                        path: self.shared.address.path(),
                        waited_ms,
                        holder: None,
                    }));
                }
                Fate::Busy(lock) => {
                    work.busy += 1;
                    work.locks.insert(lock);
                    waiting.entry(work.locks.clone()).or_default().push(work);
                }
            }
        }
        rounds.extend(waiting.into_values());
        for (run, step) in done.later {
            self.later.entry(run).or_default().insert(step);
        }
        if !topics.is_empty() {
            self.shared.hub.tell(&topics);
        }
    }

    fn tell_observer(&self, since: rustix::time::Timespec, fates: &[Fate]) {
        let Some(observer) = self.shared.observer.get() else { return };
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let took_us = (now.tv_sec - since.tv_sec) * 1_000_000 + (now.tv_nsec - since.tv_nsec) as i64 / 1_000;
        let done: Vec<&Flushed> = fates
            .iter()
            .filter_map(|fate| if let Fate::Done(Ok(done)) = fate { Some(done) } else { None })
            .collect();
        observer.committed(done.len(), took_us.max(0) as u64);
        for (entity, reason) in done.iter().flat_map(|flushed| &flushed.refused) {
            observer.refused(entity, reason);
        }
    }
}

enum Next {
    Job(Box<dyn Job>),
    /// No job arrived, and steps wait to be looked at.
    Nothing,
    Closed,
}

/// Retries a job that met a conflict, alone. After too many tries, answers it with the error.
fn again(mut work: Work, error: Error, rounds: &mut VecDeque<Vec<Work>>) {
    // A row that stayed locked for long is not a conflict that goes away by itself.
    work.conflicts += if matches!(error, Error::Locked { .. }) { CONFLICT_TRIES / 2 } else { 1 };
    let may_help = matches!(error, Error::Conflict { .. } | Error::Locked { .. });
    if may_help && work.conflicts < CONFLICT_TRIES {
        tracing::debug!(%error, "conflict: retrying");
        rounds.push_back(vec![work]);
    } else {
        work.job.answer(Err(error));
    }
}
