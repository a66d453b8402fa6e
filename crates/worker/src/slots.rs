//! The worker's loop: runs as many executions at once as it has slots, and sends heartbeats meanwhile.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sprag_store::{Assignment, Claimer, Ending, Lease, Runtime, Store, Topic};
use tokio::sync::{Notify, watch};

use crate::Config;
use crate::control::{Control, Signal};
use crate::work_source::{HeartbeatReply, Holding, LeaseState, LeasedWork, WorkSource, WorkSourceError};

/// The way in which an execution ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The execution ended, and this ending is to be reported.
    Report(Ending),
    /// Its processes disappeared through no fault of its own, so the step must be executed again.
    Vanished,
    /// Another worker owns it, so nothing is reported.
    Lost,
    /// It only waited, and its worker is draining: it returns to its queue, and the attempt does not count as failed.
    Returned,
}

/// The future of a runner's execution.
pub type RunnerFuture<'a> = Pin<Box<dyn Future<Output = Ended> + Send + 'a>>;

/// The code that runs an execution. When its future is ready, no part of the execution is still running.
pub trait Runner: Send + Sync + 'static {
    /// Runs the execution, and obeys `control` while it runs.
    fn run<'a>(&'a self, assignment: &'a Assignment, control: Control) -> RunnerFuture<'a>;
}

/// See the crate's documentation. Cloning it is cheap; all clones are one worker.
pub struct Worker<D: WorkSource = Store>(Arc<Inner<D>>);

impl<D: WorkSource> Clone for Worker<D> {
    fn clone(&self) -> Self {
        Worker(Arc::clone(&self.0))
    }
}

struct Inner<D: WorkSource> {
    source: D,
    config: Config,
    runner: Arc<dyn Runner>,
    held: Mutex<BTreeMap<Lease, Held>>,
    /// Notified when a slot becomes free.
    freed: Notify,
    /// The text that identifies its process, for registering again.
    process: Arc<str>,
    /// Whether it takes no more executions, not even the next one of a run. Executions listen to it too: one that only
    /// waits is returned.
    draining: watch::Sender<bool>,
    /// Whether it has given up all its executions.
    gave_up: AtomicBool,
}

/// An execution that the worker has.
struct Held {
    signal: watch::Sender<Signal>,
    /// Whether it is a service, which takes no slot: it runs as long as its run, and the steps need the slots.
    is_service: bool,
    /// Whether it is a service, or a step that uses services.
    with_services: bool,
}

/// The largest safety margin of a lease. An execution's own guard stops it this much before the store's lease lapses.
/// The margin is a tenth of the lease and never more than this, so that a short lease leaves time for its renewals.
const LONGEST_MARGIN: Duration = Duration::from_secs(3);
/// The wait before a retry after a claim failed.
const RETRY_WAIT: Duration = Duration::from_millis(500);
/// The time in which the ending of an execution that was given up may still be reported.
const LAST_REPORT: Duration = Duration::from_secs(10);
/// The wait before a retry after a lease could not be renewed.
const RENEW_AGAIN: Duration = Duration::from_millis(500);
/// The interval of checks whether leases are certain while the store does not answer. It is short enough for the
/// shortest lease.
const LOOK_MEANWHILE: Duration = Duration::from_millis(250);
/// The longest time between two claims of an idle worker, in case every notification is lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);

impl<D: WorkSource> Worker<D> {
    /// Registers a worker.
    pub async fn register(
        source: D,
        config: Config,
        runner: Arc<dyn Runner>,
        process: &str,
    ) -> Result<Worker<D>, D::Error> {
        let inner = Inner {
            source,
            config,
            runner,
            held: Mutex::default(),
            freed: Notify::new(),
            process: process.into(),
            draining: watch::Sender::new(false),
            gave_up: AtomicBool::new(false),
        };
        inner.come_back().await?;
        Ok(Worker(Arc::new(inner)))
    }

    /// Returns the number of executions that are running.
    pub fn busy(&self) -> usize {
        self.0.held().len()
    }

    /// Stops all executions at once. Other workers may claim them as soon as their processes are seen to be gone.
    pub fn drop_all(&self) {
        self.0.gave_up.store(true, Ordering::Release);
        for held in self.0.held().values() {
            held.signal.send_replace(Signal::Lost);
        }
    }

    /// Claims and runs executions until `stop` is true; then finishes the ones that it has, returns those that only wait,
    /// and deregisters.
    pub async fn run(&self, mut stop: watch::Receiver<bool>) -> Result<(), D::Error> {
        let inner = &self.0;
        let mut topics = vec![Topic::Reserved(inner.config.id)];
        // A worker of a single run takes no executions from queues.
        if inner.config.only.is_none() {
            topics.extend(inner.config.queues.iter().map(|queue| Topic::Queue(Arc::clone(queue))));
        }
        let listener = inner.source.listen(topics);
        let (done, over) = watch::channel(false);
        let heartbeat = inner.runtime().spawn(Arc::clone(inner).heartbeat(over));
        let claimed = self.claim_until(&listener, &mut stop).await;
        if claimed.is_err() {
            self.drop_all();
        }
        inner.draining.send_replace(true);
        let _ = inner.source.drain(inner.config.id).await;
        while self.busy() > 0 {
            inner.freed.notified().await;
        }
        let _ = done.send(true);
        let _ = heartbeat.await;
        claimed.and(inner.source.leave(inner.config.id).await)
    }

    /// Claims and starts executions until `stop` is true. Returns an error if no retry can succeed.
    async fn claim_until(
        &self,
        listener: &D::Listener,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), D::Error> {
        while !*stop.borrow() {
            let (taken, with_services) = self.0.taken();
            let free = self.0.config.slots.saturating_sub(taken);
            // A full worker still takes a service that ended and is started again: its steps may wait for it.
            let looks = free > 0 || with_services;
            let got = match (free, looks) {
                (0, true) => self.claim_service(stop).await?,
                (0, false) => 0,
                _ => self.claim(free, stop).await?,
            };
            if got == 0 {
                self.rest(listener, stop, looks).await;
            }
        }
        Ok(())
    }

    async fn rest(&self, listener: &D::Listener, stop: &mut watch::Receiver<bool>, looks: bool) {
        tokio::select! {
            biased;
            _ = stop.changed() => {}
            () = self.0.freed.notified() => {}
            () = self.0.source.rest(listener, LOOK_ANYWAY), if looks => {}
        }
    }

    /// Claims a service and starts it, but waits for one only until a slot becomes free. Returns how many.
    async fn claim_service(&self, stop: &mut watch::Receiver<bool>) -> Result<usize, D::Error> {
        let (hurry, mut hurried) = watch::channel(*stop.borrow());
        // Not dropped when a slot becomes free: a claim that was sent may be granted.
        let mut claiming = std::pin::pin!(self.claim(0, &mut hurried));
        tokio::select! {
            biased;
            got = &mut claiming => return got,
            _ = stop.changed() => {}
            () = self.0.freed.notified() => {}
        }
        hurry.send_replace(true);
        claiming.await
    }

    /// Claims executions for `free` slots and starts them; without a free slot, only a service. Returns how many.
    async fn claim(&self, free: usize, stop: &mut watch::Receiver<bool>) -> Result<usize, D::Error> {
        let claimer = Claimer { services_only: free == 0, ..self.0.claimer() };
        match self.0.source.claim(claimer, free.max(1), stop).await {
            Ok(granted) => {
                let got = granted.len();
                tracing::debug!(free, got, "asked for work");
                granted.into_iter().for_each(|granted| self.begin(granted));
                Ok(got)
            }
            Err(error) if error.is_final() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "claiming work failed");
                self.0.runtime().pause(RETRY_WAIT).await;
                Ok(0)
            }
        }
    }

    fn begin(&self, granted: LeasedWork) {
        let control = self.0.take(&granted);
        // The task is not awaited: it notifies `freed` when it is over.
        drop(self.0.runtime().spawn(Arc::clone(&self.0).work(granted.assignment, control)));
    }
}

impl<D: WorkSource> Inner<D> {
    fn runtime(&self) -> Runtime {
        self.source.runtime()
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<Lease, Held>> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the number of slots that are taken, and whether any execution uses services or is one.
    fn taken(&self) -> (usize, bool) {
        let held = self.held();
        let taken = held.values().filter(|held| !held.is_service).count();
        (taken, held.values().any(|held| held.with_services))
    }

    /// Registers, or registers again after the store has marked this worker as lost.
    async fn present(&self) -> Result<(), D::Error> {
        self.source.register(self.config.new_worker(&self.process)).await
    }

    /// Registers, and takes its own run back if no other worker has it: the store may have found this worker silent
    /// for too long.
    async fn come_back(&self) -> Result<(), D::Error> {
        self.present().await?;
        match self.config.only {
            Some(run) => self.source.reclaim(run, self.config.id).await,
            None => Ok(()),
        }
    }

    fn claimer(&self) -> Claimer {
        Claimer {
            worker: self.config.id,
            queues: self.config.queues.clone(),
            reserved_only: self.config.only.is_some(),
            services_only: false,
            lease_ms: self.config.lease.as_millis() as i64,
            nonce: self.source.nonce(),
        }
    }

    /// Returns the signal with the moment at which the execution's own guard stops it, for a lease that ends at
    /// `until_ms`.
    fn guard(&self, until_ms: u64) -> Signal {
        let margin = LONGEST_MARGIN.min(self.config.lease / 10);
        Signal::Renewed { until_ms: until_ms.saturating_sub(margin.as_millis() as u64) }
    }

    fn take(&self, granted: &LeasedWork) -> Control {
        let first =
            if self.gave_up.load(Ordering::Acquire) { Signal::Lost } else { self.guard(granted.until_ms) };
        let (sender, receiver) = watch::channel(first);
        let is_service = granted.assignment.step().service;
        let with_services = is_service || granted.assignment.services.is_some();
        self.held().insert(granted.assignment.lease, Held { signal: sender, is_service, with_services });
        Control::new(receiver, self.draining.subscribe(), self.runtime())
    }

    /// Runs an execution, and then each one that follows it in its run, until none follows.
    async fn work(self: Arc<Self>, mut assignment: Assignment, mut control: Control) {
        loop {
            let ended = self.run(&assignment, control).await;
            let next = self.report(&assignment, ended).await;
            // The slot becomes free only now, when everything that the runner started is gone. The next execution is
            // held before that, so that a draining worker never looks idle in between.
            let next = next.map(|next| (self.take(&next), next.assignment));
            self.held().remove(&assignment.lease);
            match next {
                Some(next) => {
                    // A service frees the slot of the step before it.
                    if next.1.step().service {
                        self.freed.notify_one();
                    }
                    (control, assignment) = next;
                }
                None => break,
            }
        }
        self.freed.notify_one();
    }

    /// Runs the execution in a task of its own, so that a runner that panics loses only that execution.
    async fn run(&self, assignment: &Assignment, control: Control) -> Ended {
        let step = assignment.step().id.clone();
        let (runner, assignment) = (Arc::clone(&self.runner), assignment.clone());
        let id = assignment.lease.execution;
        tracing::info!(run = %id.run, step, attempt = id.attempt, "starts a step");
        let work = self.runtime().spawn(async move { runner.run(&assignment, control).await });
        let ended = work.await.unwrap_or_else(|_| {
            tracing::error!(execution = %id, "the task that ran a step panicked");
            Ended::Vanished
        });
        tracing::info!(run = %id.run, step, attempt = id.attempt, "has ended a step");
        ended
    }

    async fn report(&self, assignment: &Assignment, ended: Ended) -> Option<LeasedWork> {
        let lease = assignment.lease;
        tracing::debug!(execution = %lease.execution, fence = lease.fence, "reports the end of a step");
        let told = match ended {
            Ended::Lost if !self.gave_up.load(Ordering::Acquire) => return None,
            Ended::Lost | Ended::Vanished => self.source.vanished(lease).await.map(|()| None),
            Ended::Returned => {
                tracing::info!(execution = %lease.execution, "returns a step that only waited to its queue");
                self.source.release(lease).await.map(|()| None)
            }
            Ended::Report(ending) => {
                // A service has no slot that another execution could take.
                let has_slot = !assignment.step().service;
                let next = (has_slot && !*self.draining.borrow()).then(|| self.claimer());
                tokio::select! {
                    biased;
                    told = self.source.finish(lease, ending, next) => told,
                    () = self.taken_away(lease) => {
                        tracing::warn!(execution = %lease.execution, "stopped before the end of a step could be reported");
                        return None;
                    }
                }
            }
        };
        told.unwrap_or_else(|error| {
            tracing::error!(execution = %lease.execution, %error, "cannot report the end of a step: leaving it to the reaper");
            None
        })
    }

    /// Waits until an execution is given up or taken away, and then for the time that its report still has.
    async fn taken_away(&self, lease: Lease) {
        let signal = self.held().get(&lease).map(|held| held.signal.subscribe());
        match signal {
            Some(mut signal) => drop(signal.wait_for(|signal| *signal == Signal::Lost).await),
            None => std::future::pending().await,
        }
        self.runtime().pause(LAST_REPORT).await;
    }

    /// Sends heartbeats, renews the leases, and forwards the answers to the executions.
    async fn heartbeat(self: Arc<Self>, mut over: watch::Receiver<bool>) {
        let listener = self.source.listen(vec![Topic::Worker(self.config.id)]);
        let interval = self.config.lease / 3;
        let mut rest = interval;
        loop {
            tokio::select! {
                biased;
                _ = over.changed() => return,
                () = self.source.disturbed(&listener, self.holding(), rest) => {}
            }
            let leases: Vec<Lease> = self.held().keys().copied().collect();
            match self.renew(&leases).await {
                Ok(beat) => {
                    rest = interval;
                    tracing::debug!(leases = leases.len(), "sent a heartbeat and renewed the leases");
                    self.pass_on(&leases, &beat);
                    if !beat.known && !*self.draining.borrow() {
                        tracing::info!(
                            "the store marked this worker as lost after a long silence: registering again"
                        );
                        if let Err(error) = self.come_back().await {
                            tracing::warn!(%error, "registering again failed");
                        }
                    }
                }
                // Not renewed: the execution's own guard stops it before the lease lapses, unless no process can
                // write to the store.
                Err(error) => {
                    tracing::warn!(%error, "heartbeat failed");
                    self.keep_through_stall(&leases);
                    rest = interval.min(RENEW_AGAIN);
                }
            }
        }
    }

    /// Renews the leases. While there is no answer, executions that no other worker can take continue.
    async fn renew(&self, leases: &[Lease]) -> Result<HeartbeatReply, D::Error> {
        let beat = self.source.heartbeat(self.config.id, leases.to_vec(), self.config.lease);
        let mut beat = std::pin::pin!(beat);
        let runtime = self.runtime();
        loop {
            match runtime.within(LOOK_MEANWHILE, beat.as_mut()).await {
                Some(beat) => return beat,
                None => self.keep_through_stall(leases),
            }
        }
    }

    /// Postpones the guards of executions that are certain to stay with this worker while no process can write to the
    /// store.
    fn keep_through_stall(&self, leases: &[Lease]) {
        if leases.is_empty() {
            return;
        }
        let kept = self.source.kept_through_stall(leases);
        let held = self.held();
        for (lease, until_ms) in kept {
            let Some(Held { signal, .. }) = held.get(&lease) else { continue };
            let guard = self.guard(until_ms);
            signal.send_if_modified(|now| match (*now, guard) {
                (Signal::Renewed { until_ms: before_ms }, Signal::Renewed { until_ms })
                    if before_ms < until_ms =>
                {
                    *now = guard;
                    true
                }
                _ => false,
            });
        }
    }

    fn holding(&self) -> Holding {
        let mut holding = Holding::default();
        for (lease, held) in self.held().iter() {
            match *held.signal.borrow() {
                Signal::Renewed { .. } => holding.going.push(*lease),
                Signal::Cancel | Signal::Lost => holding.ending.push(*lease),
            }
        }
        holding
    }

    fn pass_on(&self, leases: &[Lease], beat: &HeartbeatReply) {
        let held = self.held();
        for (lease, kept) in leases.iter().zip(&beat.kept) {
            let Some(Held { signal: sender, .. }) = held.get(lease) else { continue };
            match kept {
                // An execution that was given up is not taken back.
                LeaseState::Held => {
                    let guard = self.guard(beat.until_ms);
                    sender.send_if_modified(|now| {
                        *now != Signal::Lost && {
                            *now = guard;
                            true
                        }
                    });
                }
                LeaseState::Cancel => {
                    sender.send_if_modified(|now| {
                        matches!(now, Signal::Renewed { .. }) && {
                            *now = Signal::Cancel;
                            true
                        }
                    });
                }
                LeaseState::Lost => {
                    tracing::warn!(execution = %lease.execution, "lease lost: stopping the step");
                    sender.send_replace(Signal::Lost);
                }
            }
        }
    }
}
