//! The worker's loop: as many pieces of work at once as it has slots, and the heartbeat beside them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sprag_store::ops::{Assignment, Claimer, Ending, Lease, NewWorker};
use sprag_store::{Store, Surroundings, Topic};
use tokio::sync::{Notify, watch};

use crate::Config;
use crate::control::{Control, Signal};
use crate::desk::{Beat, Desk, DeskError, Granted, Holding, Kept};

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
pub struct Worker<D: Desk = Store>(Arc<Inner<D>>);

impl<D: Desk> Clone for Worker<D> {
    fn clone(&self) -> Self {
        Worker(Arc::clone(&self.0))
    }
}

struct Inner<D: Desk> {
    desk: D,
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
/// How long to wait after claiming failed before trying again.
const RETRY_WAIT: Duration = Duration::from_millis(500);
/// How long a worker without work may go without looking, should every wake-up be lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);

impl<D: Desk> Worker<D> {
    /// Registers a worker.
    pub async fn register(
        desk: D,
        config: Config,
        runner: Arc<dyn Runner>,
        process: &str,
    ) -> Result<Worker<D>, D::Error> {
        let inner = Inner {
            desk,
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
    pub async fn run(&self, mut stop: watch::Receiver<bool>) -> Result<(), D::Error> {
        let inner = &self.0;
        let topics = inner.config.queues.iter().flat_map(|queue| {
            [Topic::Queue(Arc::clone(queue), 0), Topic::Queue(Arc::clone(queue), inner.config.id)]
        });
        let ear = inner.desk.listen(topics.collect());
        let (done, over) = watch::channel(false);
        let heartbeat = inner.surroundings().spawn(Arc::clone(inner).heartbeat(over));
        let claimed = self.claim_until(&ear, &mut stop).await;
        if claimed.is_err() {
            self.drop_all();
        }
        inner.draining.store(true, Ordering::Release);
        let _ = inner.desk.drain(inner.config.id).await;
        while self.busy() > 0 {
            inner.freed.notified().await;
        }
        let _ = done.send(true);
        let _ = heartbeat.await;
        claimed.and(inner.desk.leave(inner.config.id).await)
    }

    /// Claims and begins until told to stop; an error if there is nothing to be had here, ever.
    async fn claim_until(&self, ear: &D::Ear, stop: &mut watch::Receiver<bool>) -> Result<(), D::Error> {
        while !*stop.borrow() {
            let free = self.0.config.slots.saturating_sub(self.busy());
            let got = if free > 0 { self.claim(free, stop).await? } else { 0 };
            if got == 0 {
                self.rest(ear, stop, free > 0).await;
            }
        }
        Ok(())
    }

    async fn rest(&self, ear: &D::Ear, stop: &mut watch::Receiver<bool>, free: bool) {
        tokio::select! {
            biased;
            _ = stop.changed() => {}
            () = self.0.freed.notified() => {}
            () = self.0.desk.rest(ear, LOOK_ANYWAY), if free => {}
        }
    }

    /// Receives up to `limit` pieces of work and begins them; says how many.
    async fn claim(&self, limit: usize, stop: &mut watch::Receiver<bool>) -> Result<usize, D::Error> {
        match self.0.desk.claim(self.0.claimer(), limit, stop).await {
            Ok(granted) => {
                let got = granted.len();
                granted.into_iter().for_each(|granted| self.begin(granted));
                Ok(got)
            }
            Err(error) if error.is_final() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "claiming");
                self.0.surroundings().pause(RETRY_WAIT).await;
                Ok(0)
            }
        }
    }

    fn begin(&self, granted: Granted) {
        let control = self.0.take(&granted);
        // Nobody waits for it: its slot is told when it is over.
        drop(self.0.surroundings().spawn(Arc::clone(&self.0).work(granted.assignment, control)));
    }
}

impl<D: Desk> Inner<D> {
    fn surroundings(&self) -> Surroundings {
        self.desk.surroundings()
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<Lease, watch::Sender<Signal>>> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Registers, or comes back after the store gave it up.
    async fn present(&self) -> Result<(), D::Error> {
        let config = &self.config;
        let new = NewWorker {
            id: config.id,
            name: config.name.as_str().into(),
            process: Arc::clone(&self.process),
            // One that takes only what is reserved to it serves no queue that others could count on.
            queues: if config.only.is_some() { "".into() } else { config.queues.join(",").into() },
            labels: config.labels.join(",").into(),
            slots: config.slots as u32,
            lease_ms: config.lease.as_millis() as i64,
        };
        self.desk.register(new).await
    }

    /// Registers again, and takes its own run back if nobody else has.
    async fn come_back(&self) -> Result<(), D::Error> {
        self.present().await?;
        match self.config.only {
            Some(run) => self.desk.reclaim(run, self.config.id).await,
            None => Ok(()),
        }
    }

    fn claimer(&self) -> Claimer {
        Claimer {
            worker: self.config.id,
            queues: self.config.queues.clone(),
            reserved_only: self.config.only.is_some(),
            lease_ms: self.config.lease.as_millis() as i64,
            nonce: self.desk.nonce(),
        }
    }

    /// When the work's own guard ends it, if it is ours until then.
    fn guard(&self, until_ms: u64) -> Signal {
        let margin = LONGEST_MARGIN.min(self.config.lease / 10);
        Signal::Renewed { until_ms: until_ms.saturating_sub(margin.as_millis() as u64) }
    }

    fn take(&self, granted: &Granted) -> Control {
        let first = match self.gave_up.load(Ordering::Acquire) {
            true => Signal::Lost,
            false => self.guard(granted.until_ms),
        };
        let (sender, receiver) = watch::channel(first);
        self.held().insert(granted.assignment.lease, sender);
        Control::new(receiver, self.surroundings())
    }

    /// Works on an assignment, and on what follows it in its run, until nothing does.
    async fn work(self: Arc<Self>, mut assignment: Assignment, mut control: Control) {
        loop {
            let ended = self.run(&assignment, control).await;
            let next = self.report(&assignment, ended).await;
            // The slot is free only now: whatever the runner started is gone. What comes next is held before
            // that, so that a worker that drains never looks idle in between.
            let next = next.map(|next| (self.take(&next), next.assignment));
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
        let work = self.surroundings().spawn(async move { runner.run(&assignment, control).await });
        work.await.unwrap_or_else(|_| {
            tracing::error!(execution = %id, "the work's task has panicked");
            Ended::Vanished
        })
    }

    async fn report(&self, assignment: &Assignment, ended: Ended) -> Option<Granted> {
        let lease = assignment.lease;
        let told = match ended {
            Ended::Lost if !self.gave_up.load(Ordering::Acquire) => return None,
            Ended::Lost | Ended::Vanished => self.desk.vanished(lease).await.map(|()| None),
            Ended::Report(ending) => {
                let next = (!self.draining.load(Ordering::Acquire)).then(|| self.claimer());
                self.desk.finish(lease, ending, next).await
            }
        };
        told.unwrap_or_else(|error| {
            tracing::error!(execution = %lease.execution, %error, "cannot report: left to the reaper");
            None
        })
    }

    /// Shows that the worker is there, renews what it holds, and passes on what it hears.
    async fn heartbeat(self: Arc<Self>, mut over: watch::Receiver<bool>) {
        let ear = self.desk.listen(vec![Topic::Worker(self.config.id)]);
        let interval = self.config.lease / 3;
        loop {
            tokio::select! {
                biased;
                _ = over.changed() => return,
                () = self.desk.disturbed(&ear, self.holding(), interval) => {}
            }
            let leases: Vec<Lease> = self.held().keys().copied().collect();
            match self.desk.heartbeat(self.config.id, leases.clone(), self.config.lease).await {
                Ok(beat) => {
                    self.pass_on(&leases, &beat);
                    if !beat.known && !self.draining.load(Ordering::Acquire) {
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

    fn holding(&self) -> Holding {
        let mut holding = Holding::default();
        for (lease, sender) in self.held().iter() {
            match *sender.borrow() {
                Signal::Renewed { .. } => holding.going.push(*lease),
                Signal::Cancel | Signal::Lost => holding.ending.push(*lease),
            }
        }
        holding
    }

    fn pass_on(&self, leases: &[Lease], beat: &Beat) {
        let held = self.held();
        for (lease, kept) in leases.iter().zip(&beat.kept) {
            let Some(sender) = held.get(lease) else { continue };
            match kept {
                // What was given up is not taken back.
                Kept::Held => {
                    let guard = self.guard(beat.until_ms);
                    sender.send_if_modified(|now| {
                        *now != Signal::Lost && {
                            *now = guard;
                            true
                        }
                    });
                }
                Kept::Cancel => {
                    sender.send_if_modified(|now| {
                        matches!(now, Signal::Renewed { .. }) && {
                            *now = Signal::Cancel;
                            true
                        }
                    });
                }
                Kept::Lost => {
                    tracing::warn!(execution = %lease.execution, "lease lost: ending the work");
                    sender.send_replace(Signal::Lost);
                }
            }
        }
    }
}
