//! The writer thread: whatever waits is written in one transaction, and answered after its commit.

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
use super::wire::{Ask, Wire};
use super::{LOCK_TIMEOUT, Shared};
use crate::error::{Error, Result};
use crate::job::{About, Job};
use crate::ops;
use crate::seams::{Clock, System};
use crate::session::{Flushed, Session};

/// How many operations may wait before callers do.
pub(super) const QUEUE_BOUND: usize = 1024;
/// How many share a commit: enough to make the disk's part small, few enough to answer soon.
const BATCH_BOUND: usize = 256;
/// How often the writer steps aside for callers whom it has just answered, and who tend to come back at once,
/// so that they share the next commit.
const LINGER_YIELDS: usize = 64;
/// How often an operation that met a conflict is tried in all.
const CONFLICT_TRIES: u32 = 8;
/// How often an operation may find one more row that somebody else holds.
const BUSY_TRIES: u32 = 64;
/// For how long the writer tries to reach the server before it gives up on those who wait.
const RECONNECT_MS: i64 = 15_000;
/// How long steps that were received under somebody else's hands wait for a look, if nothing else happens.
const LATER: Duration = Duration::from_millis(5);
/// Runs looked at afterwards, in one batch.
const LATER_BOUND: usize = 32;
/// The first to come after a crash gives the server's new life a number.
const BEGIN_LIFE: &str = "INSERT INTO life VALUES (true, hashtextextended(gen_random_uuid()::text, 0)) \
     ON CONFLICT DO NOTHING";

/// A job, what it waits for, and how often it was tried.
pub(super) struct Work {
    pub(super) job: Box<dyn Job>,
    locks: BTreeSet<Lock>,
    conflicts: u32,
    busy: u32,
    /// What it looks at, if it only looks after others: it waits for nobody.
    look: Option<(RunId, Vec<StepNo>)>,
}

impl Work {
    fn new(job: Box<dyn Job>) -> Self {
        Work { job, locks: BTreeSet::new(), conflicts: 0, busy: 0, look: None }
    }
}

/// Looks at steps of a run that were received while somebody else held it. Nobody waits for the answer: if it fails,
/// the next who decides about the run sees to it.
struct Look {
    run: RunId,
    steps: Vec<StepNo>,
    about: About,
}

impl Job for Look {
    fn run(&mut self, session: &mut Session<'_>) -> Result<()> {
        self.steps.iter().try_for_each(|step| ops::look_at_step(session, self.run, *step))
    }

    fn answer(self: Box<Self>, looked: Result<()>) {
        if let Err(error) = looked {
            tracing::debug!(run = %self.run, %error, "a look at a run was left to others");
        }
    }

    fn about(&self) -> &About {
        &self.about
    }
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    runtime: Arc<Runtime>,
    wire: Option<Wire>,
    /// Which life of the server it is connected to: another one after each crash.
    life: i64,
    later: BTreeMap<RunId, BTreeSet<StepNo>>,
    /// Nobody comes any more: what is left is waited for.
    closing: bool,
}

impl Writer {
    /// Connects and brings the schema up to date.
    pub(super) fn open(shared: Arc<Shared>) -> Result<Writer> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::Open { path: shared.place.path(), reason: error.to_string() })?;
        let mut writer = Writer {
            shared,
            runtime: Arc::new(runtime),
            wire: None,
            life: 0,
            later: BTreeMap::new(),
            closing: false,
        };
        let told = |fault: Fault| fault.told(&writer.shared.place, "opening");
        let wire = open::connect_here(&writer.shared.place, &writer.runtime).map_err(told)?;
        open::migrate(&wire, &writer.shared.place)?;
        writer.adopt(wire).map_err(|fault| fault.told(&writer.shared.place, "opening"))?;
        Ok(writer)
    }

    fn adopt(&mut self, wire: Wire) -> std::result::Result<(), Fault> {
        let pid = open::number(&wire, "SELECT pg_backend_pid()::bigint")?;
        self.shared.writer.store(i32::try_from(pid).unwrap_or(0), Ordering::Relaxed);
        // So that the time is known before anything is written.
        let ms = open::number(&wire, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")?;
        self.shared.clock.told(ms);
        wire.ask(&[Ask::plain(BEGIN_LIFE)])?;
        self.life = open::number(&wire, "SELECT number FROM life")?;
        self.wire = Some(wire);
        Ok(())
    }

    /// Works until the queue is closed and empty.
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

    /// The next job; the connection is looked after meanwhile.
    fn next(&self, queue: &mut Receiver<Box<dyn Job>>) -> Next {
        let soon = !self.later.is_empty();
        self.runtime.block_on(async {
            let next = match soon {
                true => match tokio::time::timeout(LATER, queue.recv()).await {
                    Ok(next) => next,
                    Err(_) => return Next::Nothing,
                },
                false => queue.recv().await,
            };
            next.map_or(Next::Closed, Next::Job)
        })
    }

    /// Writes all, together where nothing stands in the way.
    fn write(&mut self, batch: Vec<Box<dyn Job>>) {
        let mut first: Vec<Work> = batch.into_iter().map(Work::new).collect();
        let looks: Vec<RunId> = self.later.keys().copied().take(LATER_BOUND).collect();
        for run in looks {
            let steps: Vec<StepNo> = self.later.remove(&run).unwrap_or_default().into_iter().collect();
            let about = About { runs: vec![run], ..About::default() };
            let look = Look { run, steps: steps.clone(), about };
            first.push(Work { look: Some((run, steps)), ..Work::new(Box::new(look)) });
        }
        // Ends: a job comes back a bounded number of times.
        let mut rounds = VecDeque::from([first]);
        while let Some(round) = rounds.pop_front() {
            self.round(round, &mut rounds);
        }
    }

    /// One transaction for jobs that wait for the same.
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
                    // They have waited together: nobody waits once more for each of the others.
                    let error = fault.told(&self.shared.place, "writing");
                    return works.into_iter().for_each(|work| work.job.answer(Err(error.clone())));
                }
                Failure::Unknown(reason) | Failure::Lost { reason, .. } => {
                    self.wire = None;
                    let error = Error::Unknown { path: self.shared.place.path(), reason };
                    return works.into_iter().for_each(|work| work.job.answer(Err(error.clone())));
                }
                Failure::Fault(fault) => {
                    if fault.is_about_a_plan() {
                        self.shared.plans().clear();
                    }
                    fault.told(&self.shared.place, "writing")
                }
                Failure::Together => Error::Conflict { entity: "batch", id: "of several operations".into() },
            };
            // Alone, each meets its own fate.
            if works.len() > 1 {
                return rounds.extend(works.into_iter().map(|work| vec![work]));
            }
            return works.into_iter().for_each(|work| again(work, error.clone(), rounds));
        }
    }

    fn attempt(&mut self, works: &mut [Work]) -> std::result::Result<attempt::Done, Failure> {
        if self.wire.as_ref().is_none_or(Wire::is_closed) {
            let wire = open::connect_here(&self.shared.place, &self.runtime).map_err(Failure::Fault)?;
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
                    // A server that crashed gives numbers again that never reached its disk: another's commit may be meant.
                    Some(true) if self.life != life => Err(Failure::Unknown(reason)),
                    Some(true) => Ok(*done),
                    Some(false) => Err(Failure::Fault(Fault::Silent)),
                    None => Err(Failure::Unknown(reason)),
                }
            }
            attempted => attempted,
        }
    }

    /// Whether a transaction whose commit was not answered was committed; none if that cannot be found out.
    fn fate(&mut self, xid: i64) -> Option<bool> {
        let until_ms = System.boot_ms() + RECONNECT_MS;
        while System.boot_ms() < until_ms {
            if let Some(decided) = self.ask_fate(xid) {
                tracing::info!(xid, committed = decided, "the fate of a commit whose answer was lost");
                return Some(decided);
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        None
    }

    fn ask_fate(&mut self, xid: i64) -> Option<bool> {
        if self.wire.as_ref().is_none_or(Wire::is_closed) {
            let wire = open::connect_here(&self.shared.place, &self.runtime).ok()?;
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

    /// Answers those that are done, and lines up those that have to wait for somebody.
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
                    work.job.answer(Err(Error::Locked { path: self.shared.place.path(), waited_ms }));
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
    /// Nobody came, and something waits to be looked at.
    Nothing,
    Closed,
}

/// Has a job that met a conflict look again, alone; one that has done so often enough is told of it.
fn again(mut work: Work, error: Error, rounds: &mut VecDeque<Vec<Work>>) {
    // A row that was not free for long is no conflict that goes away by itself.
    work.conflicts += if matches!(error, Error::Locked { .. }) { CONFLICT_TRIES / 2 } else { 1 };
    let may_help = matches!(error, Error::Conflict { .. } | Error::Locked { .. });
    if may_help && work.conflicts < CONFLICT_TRIES {
        tracing::debug!(%error, "conflict: looking again");
        rounds.push_back(vec![work]);
    } else {
        work.job.answer(Err(error));
    }
}
