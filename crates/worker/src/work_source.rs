//! The source of a worker's executions, to which it also reports results: the store itself, or a server in front of
//! it.
//!
//! ```text
//!   Worker ──▶ WorkSource ──▶ Store                    (here)
//!                └────▶ a server ──▶ Store       (elsewhere, with a token and no database)
//! ```
//!
//! A source uses this machine's clock only. It counts a lease from before the store was asked, so that the lease never
//! lasts longer here than in the store.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::RunId;
use sprag_store::{
    Assignment, Claimer, Ending, Error, Id, Lease, NewWorker, Renewal, Runtime, Store, Subscription, Topic,
};
use tokio::sync::watch;

/// An execution that the worker has claimed.
#[derive(Debug, Clone)]
pub struct LeasedWork {
    /// The execution to run, with the lease on it.
    pub assignment: Assignment,
    /// The moment at which the lease lapses unless it is renewed, by this machine's boot clock.
    pub until_ms: u64,
}

/// The result of renewing one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Renewed.
    Held,
    /// Renewed, and a cancellation of the execution was requested.
    Cancel,
    /// Not renewed: the lease was taken away.
    Lost,
}

/// The result of a heartbeat.
#[derive(Debug)]
pub struct HeartbeatReply {
    /// Whether the store still regards this worker as live.
    pub known: bool,
    /// The moment until which all renewed leases are held, by this machine's boot clock.
    pub until_ms: u64,
    /// The result for each lease, in the order of the request.
    pub kept: Vec<LeaseState>,
}

/// The leases that a worker holds.
#[derive(Debug, Clone, Default)]
pub struct Holding {
    /// Leases on executions that continue.
    pub going: Vec<Lease>,
    /// Leases on executions that were told to stop.
    pub ending: Vec<Lease>,
}

/// The reason why a source could not answer.
pub trait WorkSourceError: fmt::Display + fmt::Debug + Send + Sync + 'static {
    /// Whether a retry is pointless.
    fn is_final(&self) -> bool;
}

/// See the module's documentation.
pub trait WorkSource: Clone + Send + Sync + 'static {
    /// The error of a request that failed.
    type Error: WorkSourceError;
    /// A subscription to changes.
    type Listener: Send + Sync + 'static;

    /// Returns the machine that this source runs on: the real one, unless it is simulated.
    fn runtime(&self) -> Runtime {
        Runtime::default()
    }

    /// Subscribes to changes of these topics.
    fn listen(&self, topics: Vec<Topic>) -> Self::Listener;

    /// Waits until there may be something to claim, at most for `limit`.
    fn rest(&self, listener: &Self::Listener, limit: Duration) -> impl Future<Output = ()> + Send;

    /// Waits until an execution that the worker holds may have to stop, at most for `limit`.
    fn disturbed(
        &self,
        listener: &Self::Listener,
        held: Holding,
        limit: Duration,
    ) -> impl Future<Output = ()> + Send;

    /// Returns a number that identifies the next claim.
    fn nonce(&self) -> i64;

    /// Registers a worker, new or returning.
    fn register(&self, new: NewWorker) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Claims up to `limit` executions. It may wait for some, but stops waiting when `stop` becomes true.
    fn claim(
        &self,
        claimer: Claimer,
        limit: usize,
        stop: &mut watch::Receiver<bool>,
    ) -> impl Future<Output = Result<Vec<LeasedWork>, Self::Error>> + Send;

    /// Reports that a worker is live, and renews its leases.
    fn heartbeat(
        &self,
        worker: Id,
        leases: Vec<Lease>,
        lease: Duration,
    ) -> impl Future<Output = Result<HeartbeatReply, Self::Error>> + Send;

    /// Returns the moment until which each lease is certain to stay with this worker while no process can write to
    /// the store, by this machine's boot clock. Nothing is known about a lease that is not in the answer.
    fn kept_through_stall(&self, _: &[Lease]) -> Vec<(Lease, u64)> {
        Vec::new()
    }

    /// Reports the ending of an execution, and retries until the outcome is known or the report is pointless. Returns
    /// the run's next execution if the answer contains one.
    fn finish(
        &self,
        lease: Lease,
        ending: Ending,
        next: Option<Claimer>,
    ) -> impl Future<Output = Result<Option<LeasedWork>, Self::Error>> + Send;

    /// Reports that the processes of an execution are gone and that its ending is unknown.
    fn vanished(&self, lease: Lease) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Returns an execution that was not begun to its queue.
    fn release(&self, lease: Lease) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Reserves a run for its own worker again, if it is reserved for none.
    fn reclaim(&self, run: RunId, worker: Id) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Marks the worker as draining: it claims no more executions.
    fn drain(&self, worker: Id) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Deregisters the worker.
    fn leave(&self, worker: Id) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// The number of tries of a report while the store fails, which lasts longer than a lease. The store decides by the
/// fence whether a late report counts.
const REPORT_TRIES: usize = 120;
/// The number of tries to report that an execution's processes are gone, or to return it. The reaper finds it without
/// the report too.
const VANISHED_TRIES: usize = 20;
/// The wait before a retry after the store failed.
const RETRY_WAIT: Duration = Duration::from_millis(500);

impl WorkSourceError for Error {
    fn is_final(&self) -> bool {
        matches!(self, Error::Closed | Error::Newer { .. })
    }
}

/// Whether to retry a report after this many tries. A store that is locked or full takes no lease away meanwhile, so
/// the report is retried as long as that lasts; the caller drops it when the work is given up.
fn is_worth_another_try(error: &Error, tries: usize) -> bool {
    !error.is_final() && (tries < REPORT_TRIES || error.is_unavailable())
}

/// The store, accessed directly.
impl WorkSource for Store {
    type Error = Error;
    type Listener = Subscription;

    fn runtime(&self) -> Runtime {
        Store::runtime(self).clone()
    }

    fn listen(&self, topics: Vec<Topic>) -> Subscription {
        self.subscribe(topics)
    }

    async fn rest(&self, listener: &Subscription, limit: Duration) {
        listener.wait(limit).await;
    }

    async fn disturbed(&self, listener: &Subscription, _: Holding, limit: Duration) {
        listener.wait(limit).await;
    }

    fn nonce(&self) -> i64 {
        (self.random() >> 1) as i64
    }

    async fn register(&self, new: NewWorker) -> Result<(), Error> {
        self.claims().register(new).await
    }

    async fn claim(
        &self,
        claimer: Claimer,
        limit: usize,
        _: &mut watch::Receiver<bool>,
    ) -> Result<Vec<LeasedWork>, Error> {
        let until_ms = Store::runtime(self).boot_ms() + claimer.lease_ms as u64;
        let claimed = self.claims().claim(claimer, limit).await?;
        Ok(claimed.into_iter().map(|assignment| LeasedWork { assignment, until_ms }).collect())
    }

    async fn heartbeat(
        &self,
        worker: Id,
        leases: Vec<Lease>,
        lease: Duration,
    ) -> Result<HeartbeatReply, Error> {
        let until_ms = Store::runtime(self).boot_ms() + lease.as_millis() as u64;
        let (known, renewals) = self.claims().heartbeat(worker, leases, lease.as_millis() as i64).await?;
        Ok(HeartbeatReply { known, until_ms, kept: renewals.into_iter().map(LeaseState::from).collect() })
    }

    fn kept_through_stall(&self, leases: &[Lease]) -> Vec<(Lease, u64)> {
        let now_ms = Store::runtime(self).boot_ms();
        let kept = self.claims().kept_through_stall(leases).unwrap_or_else(|error| {
            tracing::warn!(%error, "checking leases that cannot be renewed failed");
            Vec::new()
        });
        let held = leases.iter().zip(kept).filter_map(|(lease, kept_ms)| {
            let kept_ms = u64::try_from(kept_ms?).ok()?;
            Some((*lease, now_ms + kept_ms))
        });
        held.collect()
    }

    async fn finish(
        &self,
        lease: Lease,
        ending: Ending,
        next: Option<Claimer>,
    ) -> Result<Option<LeasedWork>, Error> {
        let mut tries = 0;
        loop {
            let until_ms =
                Store::runtime(self).boot_ms() + next.as_ref().map_or(0, |next| next.lease_ms as u64);
            match self.worker(lease).finish(ending.clone(), next.clone()).await {
                Ok(finished) => {
                    if !finished.outcome.is_applied() {
                        tracing::warn!(execution = %lease.execution, outcome = ?finished.outcome, "result refused");
                    }
                    return Ok(finished.next.map(|assignment| LeasedWork { assignment, until_ms }));
                }
                Err(error) if !is_worth_another_try(&error, tries) => return Err(error),
                Err(error) => {
                    // An error is logged only the first time, because the step has ended and its run only waits for
                    // the store.
                    if tries == 0 {
                        tracing::error!(execution = %lease.execution, %error, "cannot report yet: retrying");
                    } else {
                        tracing::warn!(execution = %lease.execution, %error, tries, "cannot report yet");
                    }
                    tries += 1;
                    Store::runtime(self).pause(RETRY_WAIT).await;
                }
            }
        }
    }

    async fn vanished(&self, lease: Lease) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            match Store::reaper(self).owner_died(lease).await {
                Err(error) if tries < VANISHED_TRIES && !error.is_final() => {
                    tracing::warn!(execution = %lease.execution, %error, "cannot report yet");
                    tries += 1;
                    Store::runtime(self).pause(RETRY_WAIT).await;
                }
                told => return told.map(drop),
            }
        }
    }

    async fn release(&self, lease: Lease) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            match Store::worker(self, lease).release().await {
                Err(error) if tries < VANISHED_TRIES && !error.is_final() => {
                    tracing::warn!(execution = %lease.execution, %error, "cannot return an execution yet");
                    tries += 1;
                    Store::runtime(self).pause(RETRY_WAIT).await;
                }
                told => return told.map(drop),
            }
        }
    }

    async fn reclaim(&self, run: RunId, worker: Id) -> Result<(), Error> {
        // Usually the run is still reserved for this worker, and there is nothing to write.
        let free = self.queries().run(run)?.is_some_and(|run| run.pin.is_none());
        if free { self.claims().reclaim(run, worker).await.map(drop) } else { Ok(()) }
    }

    async fn drain(&self, worker: Id) -> Result<(), Error> {
        self.claims().drain(worker).await.map(drop)
    }

    async fn leave(&self, worker: Id) -> Result<(), Error> {
        self.claims().leave(worker).await.map(drop)
    }
}

impl From<Renewal> for LeaseState {
    fn from(renewal: Renewal) -> Self {
        match renewal {
            Renewal::Held { cancel_requested: false, .. } => LeaseState::Held,
            Renewal::Held { cancel_requested: true, .. } => LeaseState::Cancel,
            Renewal::Lost => LeaseState::Lost,
        }
    }
}
