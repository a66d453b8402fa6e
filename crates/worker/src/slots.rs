//! The worker's loop: as many pieces of work at once as it has slots, and the heartbeat beside them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sprag_store::ops::{Assignment, Claimer, Ending, Lease, NewWorker, Renewal};
use sprag_store::{Error, Result, Store, Subscription, Topic};
use tokio::sync::{Notify, watch};

use crate::Config;
use crate::control::{Control, Signal, pause};

/// How a piece of work came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It is over, and this is to be reported.
    Report(Ending),
    /// The processes that did it are gone through no fault of its own: somebody must do it again.
    Vanished,
    /// It belongs to somebody else; there is nothing to say.
    Lost,
}

/// What a runner's work returns.
pub type RunnerFuture<'a> = Pin<Box<dyn Future<Output = Ended> + Send + 'a>>;

/// Does what an assignment says. When it returns, nothing of the work goes on any more.
pub trait Runner: Send + Sync + 'static {
    /// Does it, listening to `control` all the while.
    fn run<'a>(&'a self, assignment: &'a Assignment, control: Control) -> RunnerFuture<'a>;
}

/// See the crate's documentation. Cloning it is cheap; all clones are one worker.
#[derive(Clone)]
pub struct Worker(Arc<Inner>);

struct Inner {
    store: Store,
    config: Config,
    runner: Arc<dyn Runner>,
    held: Mutex<BTreeMap<Lease, watch::Sender<Signal>>>,
    /// A slot became free.
    freed: Notify,
    /// Its process, in one text: to present itself again.
    process: Arc<str>,
    /// Takes no more work, not even what follows in a run.
    draining: AtomicBool,
    /// Gave up what it had.
    gave_up: AtomicBool,
}

/// The work's own guard ends it this much before the store's lease lapses: a tenth of the lease, and
/// never more than this, so that a short lease leaves time for its renewals.
const LONGEST_MARGIN: Duration = Duration::from_secs(3);
/// How long to wait after the store failed before trying again.
const RETRY_WAIT: Duration = Duration::from_millis(500);
/// How long a worker without work may go without looking, should every wake-up be lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);
/// How often a report is tried while the store fails. The lease bounds it anyway.
const REPORT_TRIES: usize = 20;

impl Worker {
    /// Registers a worker.
    pub async fn register(
        store: Store,
        config: Config,
        runner: Arc<dyn Runner>,
        process: &str,
    ) -> Result<Worker> {
        let inner = Inner {
            store,
            config,
            runner,
            held: Mutex::default(),
            freed: Notify::new(),
            process: process.into(),
            draining: AtomicBool::new(false),
            gave_up: AtomicBool::new(false),
        };
        inner.present().await?;
        Ok(Worker(Arc::new(inner)))
    }

    /// How many pieces of work go on.
    pub fn busy(&self) -> usize {
        self.0.held().len()
    }

    /// Ends all work at once: others may have it as soon as it is seen to be gone.
    pub fn drop_all(&self) {
        self.0.gave_up.store(true, Ordering::Release);
        for sender in self.0.held().values() {
            sender.send_replace(Signal::Lost);
        }
    }

    /// Claims and works until told to stop; then finishes what it has, and leaves.
    pub async fn run(&self, mut stop: watch::Receiver<bool>) -> Result<()> {
        let inner = &self.0;
        let topics = inner.config.queues.iter().flat_map(|queue| {
            [Topic::Queue(Arc::clone(queue), 0), Topic::Queue(Arc::clone(queue), inner.config.id)]
        });
        let wake = inner.store.subscribe(topics.collect());
        let (done, over) = watch::channel(false);
        let heartbeat = tokio::spawn(Arc::clone(inner).heartbeat(over));
        while !*stop.borrow() {
            let free = inner.config.slots.saturating_sub(self.busy());
            let got = if free > 0 { self.claim(free).await } else { 0 };
            if got == 0 {
                self.rest(&wake, &mut stop, free > 0).await;
            }
        }
        inner.draining.store(true, Ordering::Release);
        let _ = inner.store.claims().drain(inner.config.id).await;
        while self.busy() > 0 {
            inner.freed.notified().await;
        }
        let _ = done.send(true);
        let _ = heartbeat.await;
        let _ = inner.store.claims().leave(inner.config.id).await?;
        Ok(())
    }

    async fn rest(&self, wake: &Subscription, stop: &mut watch::Receiver<bool>, free: bool) {
        tokio::select! {
            () = wake.wait(LOOK_ANYWAY), if free => {}
            () = self.0.freed.notified() => {}
            _ = stop.changed() => {}
        }
    }

    /// Receives up to `limit` pieces of work and begins them; says how many.
    async fn claim(&self, limit: usize) -> usize {
        let claimed = self.0.store.claims().claim(self.0.claimer(), limit).await;
        match claimed {
            Ok(assignments) => {
                let got = assignments.len();
                for assignment in assignments {
                    self.begin(assignment);
                }
                got
            }
            Err(error) => {
                tracing::warn!(%error, "claiming");
                pause(RETRY_WAIT).await;
                0
            }
        }
    }

    fn begin(&self, assignment: Assignment) {
        let control = self.0.take(assignment.lease);
        tokio::spawn(Arc::clone(&self.0).work(assignment, control));
    }
}

impl Inner {
    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<Lease, watch::Sender<Signal>>> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Registers, or comes back after the store gave it up.
    async fn present(&self) -> Result<()> {
        let config = &self.config;
        let new = NewWorker {
            id: config.id,
            name: config.name.as_str().into(),
            process: Arc::clone(&self.process),
            // One that takes only what is reserved to it serves no queue that others could count on.
            queues: if config.only.is_some() { "".into() } else { config.queues.join(",").into() },
            slots: config.slots as u32,
            lease_ms: config.lease.as_millis() as i64,
        };
        let _ = self.store.claims().register(new).await?;
        Ok(())
    }

    /// Registers again, and takes its own run back if nobody else has.
    async fn come_back(&self) -> Result<()> {
        self.present().await?;
        if let Some(run) = self.config.only {
            self.store.claims().reclaim(run, self.config.id).await?;
        }
        Ok(())
    }

    fn claimer(&self) -> Claimer {
        Claimer {
            worker: self.config.id,
            queues: self.config.queues.clone(),
            reserved_only: self.config.only.is_some(),
            lease_ms: self.config.lease.as_millis() as i64,
            nonce: (self.store.random() >> 1) as i64,
        }
    }

    /// How long the work's own guard may wait for the next renewal.
    fn guard(&self) -> Duration {
        self.config.lease - LONGEST_MARGIN.min(self.config.lease / 10)
    }

    fn take(&self, lease: Lease) -> Control {
        let first = match self.gave_up.load(Ordering::Acquire) {
            true => Signal::Lost,
            false => Signal::Renewed { count: 0, lease: self.guard() },
        };
        let (sender, receiver) = watch::channel(first);
        self.held().insert(lease, sender);
        Control(receiver)
    }

    /// Works on an assignment, and on what follows it in its run, until nothing does.
    async fn work(self: Arc<Self>, mut assignment: Assignment, mut control: Control) {
        loop {
            let ended = self.run(&assignment, control).await;
            let next = self.report(&assignment, ended).await;
            // The slot is free only now: whatever the runner started is gone. What comes next is held before
            // that, so that a worker that drains never looks idle in between.
            let next = next.map(|next| (self.take(next.lease), next));
            self.held().remove(&assignment.lease);
            match next {
                Some(next) => (control, assignment) = next,
                None => break,
            }
        }
        self.freed.notify_one();
    }

    /// In a task of its own, so that a runner that panics loses its work and nothing else.
    async fn run(&self, assignment: &Assignment, control: Control) -> Ended {
        let (runner, assignment) = (Arc::clone(&self.runner), assignment.clone());
        let id = assignment.lease.execution;
        let work = tokio::spawn(async move { runner.run(&assignment, control).await });
        work.await.unwrap_or_else(|error| {
            tracing::error!(execution = %id, %error, "the work's task is gone");
            Ended::Vanished
        })
    }

    async fn report(&self, assignment: &Assignment, ended: Ended) -> Option<Assignment> {
        let lease = assignment.lease;
        for _ in 0..REPORT_TRIES {
            let told = match &ended {
                Ended::Lost if !self.gave_up.load(Ordering::Acquire) => return None,
                Ended::Lost | Ended::Vanished => self.store.reaper().owner_died(lease).await.map(|_| None),
                Ended::Report(ending) => {
                    let next = (!self.draining.load(Ordering::Acquire)).then(|| self.claimer());
                    self.store.worker(lease).finish(ending.clone(), next).await.map(|finished| {
                        if !finished.outcome.is_applied() {
                            tracing::warn!(execution = %lease.execution, outcome = ?finished.outcome, "result refused");
                        }
                        finished.next
                    })
                }
            };
            match told {
                Ok(next) => return next,
                Err(Error::Closed) => return None,
                Err(error) => {
                    tracing::warn!(execution = %lease.execution, %error, "cannot report yet");
                    pause(RETRY_WAIT).await;
                }
            }
        }
        tracing::error!(execution = %lease.execution, "cannot report: left to the reaper");
        None
    }

    /// Shows that the worker is there, renews what it holds, and passes on what it hears.
    async fn heartbeat(self: Arc<Self>, mut over: watch::Receiver<bool>) {
        let wake = self.store.subscribe(vec![Topic::Worker(self.config.id)]);
        let interval = self.config.lease / 3;
        let mut count = 0;
        loop {
            tokio::select! {
                () = wake.wait(interval) => {}
                _ = over.changed() => return,
            }
            count += 1;
            let leases: Vec<Lease> = self.held().keys().copied().collect();
            let lease_ms = self.config.lease.as_millis() as i64;
            match self.store.claims().heartbeat(self.config.id, leases.clone(), lease_ms).await {
                Ok((known, renewals)) => {
                    self.pass_on(&leases, &renewals, count);
                    if !known && !self.draining.load(Ordering::Acquire) {
                        tracing::info!(
                            "silent for too long: the store gave this worker up, and it comes back"
                        );
                        if let Err(error) = self.come_back().await {
                            tracing::warn!(%error, "registering again");
                        }
                    }
                }
                // Not renewed: the work's own guard ends it before the lease lapses.
                Err(error) => tracing::warn!(%error, "heartbeat"),
            }
        }
    }

    fn pass_on(&self, leases: &[Lease], renewals: &[Renewal], count: u64) {
        let guard = self.guard();
        let held = self.held();
        for (lease, renewal) in leases.iter().zip(renewals) {
            let Some(sender) = held.get(lease) else { continue };
            match renewal {
                Renewal::Held { cancel_requested: false, .. } => {
                    sender.send_replace(Signal::Renewed { count, lease: guard });
                }
                Renewal::Held { cancel_requested: true, .. } => {
                    sender.send_if_modified(|now| std::mem::replace(now, Signal::Cancel) != Signal::Cancel);
                }
                Renewal::Lost => {
                    tracing::warn!(execution = %lease.execution, "lease lost: ending the work");
                    sender.send_replace(Signal::Lost);
                }
            }
        }
    }
}
