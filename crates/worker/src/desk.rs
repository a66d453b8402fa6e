//! Where a worker gets its work and hands in its results: the store itself, or a server in front of it.
//!
//! ```text
//!   Worker ──▶ Desk ──▶ Store                    (here)
//!                └────▶ a server ──▶ Store       (elsewhere, with a token and no database)
//! ```
//!
//! A desk speaks of this machine's clock only: until when something is held is counted from before the store was
//! asked, so that it never lasts longer here than there.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::RunId;
use sprag_store::ops::{Assignment, Claimer, Ending, Lease, NewWorker, Renewal};
use sprag_store::{Error, Id, Store, Subscription, Surroundings, Topic};
use tokio::sync::watch;

/// Work that was received.
#[derive(Debug, Clone)]
pub struct Granted {
    /// What to do, and the right to do it.
    pub assignment: Assignment,
    /// Until when it is ours unless renewed, by this machine's boot clock.
    pub until_ms: u64,
}

/// What became of a lease that was to be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// It goes on.
    Held,
    /// It goes on, and somebody wants the work to end.
    Cancel,
    /// It was taken away.
    Lost,
}

/// What came of a heartbeat.
#[derive(Debug)]
pub struct Beat {
    /// The store still counts on this worker.
    pub known: bool,
    /// Until when everything that is kept is ours, by this machine's boot clock.
    pub until_ms: u64,
    /// What became of each lease, in the order in which they were told.
    pub kept: Vec<Kept>,
}

/// What a worker holds.
#[derive(Debug, Clone, Default)]
pub struct Holding {
    /// Goes on.
    pub going: Vec<Lease>,
    /// Was told to end.
    pub ending: Vec<Lease>,
}

/// Why a desk could not be asked.
pub trait DeskError: fmt::Display + fmt::Debug + Send + Sync + 'static {
    /// Asking again is of no use.
    fn is_final(&self) -> bool;
}

/// See the module's documentation.
pub trait Desk: Clone + Send + Sync + 'static {
    /// Why it could not be asked.
    type Error: DeskError;
    /// Hears that something may have changed.
    type Ear: Send + Sync + 'static;

    /// The machine that this is on.
    fn surroundings(&self) -> Surroundings {
        Surroundings::default()
    }

    /// Hears of changes to these from now on.
    fn listen(&self, topics: Vec<Topic>) -> Self::Ear;

    /// Waits until there may be something to claim, at most this long.
    fn rest(&self, ear: &Self::Ear, limit: Duration) -> impl Future<Output = ()> + Send;

    /// Waits until something that is held may have to end, at most this long.
    fn disturbed(&self, ear: &Self::Ear, held: Holding, limit: Duration) -> impl Future<Output = ()> + Send;

    /// A number for the next claim.
    fn nonce(&self) -> i64;

    /// Presents a worker, new or come back.
    fn register(&self, new: NewWorker) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Receives up to `limit` executions. It may wait for some, but not once `stop` says so.
    fn claim(
        &self,
        claimer: Claimer,
        limit: usize,
        stop: &mut watch::Receiver<bool>,
    ) -> impl Future<Output = Result<Vec<Granted>, Self::Error>> + Send;

    /// Shows that a worker is there, and prolongs its leases.
    fn heartbeat(
        &self,
        worker: Id,
        leases: Vec<Lease>,
        lease: Duration,
    ) -> impl Future<Output = Result<Beat, Self::Error>> + Send;

    /// Reports how something ended, again and again until that is known or makes no sense any more; the next
    /// piece of work, if one came with the answer.
    fn finish(
        &self,
        lease: Lease,
        ending: Ending,
        next: Option<Claimer>,
    ) -> impl Future<Output = Result<Option<Granted>, Self::Error>> + Send;

    /// Says that the processes that did it are gone, and nobody knows how it would have ended.
    fn vanished(&self, lease: Lease) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Reserves a run to its own worker again, if it is reserved to nobody.
    fn reclaim(&self, run: RunId, worker: Id) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Takes no more work from now on.
    fn drain(&self, worker: Id) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Leaves in good order.
    fn leave(&self, worker: Id) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// How often a report is tried while the store fails. The lease bounds it anyway.
const REPORT_TRIES: usize = 20;
/// How long to wait after the store failed before trying again.
const RETRY_WAIT: Duration = Duration::from_millis(500);

impl DeskError for Error {
    fn is_final(&self) -> bool {
        matches!(self, Error::Closed)
    }
}

/// The store of this machine.
impl Desk for Store {
    type Error = Error;
    type Ear = Subscription;

    fn surroundings(&self) -> Surroundings {
        Store::surroundings(self).clone()
    }

    fn listen(&self, topics: Vec<Topic>) -> Subscription {
        self.subscribe(topics)
    }

    async fn rest(&self, ear: &Subscription, limit: Duration) {
        ear.wait(limit).await;
    }

    async fn disturbed(&self, ear: &Subscription, _: Holding, limit: Duration) {
        ear.wait(limit).await;
    }

    fn nonce(&self) -> i64 {
        (self.random() >> 1) as i64
    }

    async fn register(&self, new: NewWorker) -> Result<(), Error> {
        self.claims().register(new).await.map(drop)
    }

    async fn claim(
        &self,
        claimer: Claimer,
        limit: usize,
        _: &mut watch::Receiver<bool>,
    ) -> Result<Vec<Granted>, Error> {
        let until_ms = Store::surroundings(self).boot_ms() + claimer.lease_ms as u64;
        let claimed = self.claims().claim(claimer, limit).await?;
        Ok(claimed.into_iter().map(|assignment| Granted { assignment, until_ms }).collect())
    }

    async fn heartbeat(&self, worker: Id, leases: Vec<Lease>, lease: Duration) -> Result<Beat, Error> {
        let until_ms = Store::surroundings(self).boot_ms() + lease.as_millis() as u64;
        let (known, renewals) = self.claims().heartbeat(worker, leases, lease.as_millis() as i64).await?;
        Ok(Beat { known, until_ms, kept: renewals.into_iter().map(Kept::from).collect() })
    }

    async fn finish(
        &self,
        lease: Lease,
        ending: Ending,
        next: Option<Claimer>,
    ) -> Result<Option<Granted>, Error> {
        let mut tries = 0;
        loop {
            let until_ms =
                Store::surroundings(self).boot_ms() + next.as_ref().map_or(0, |next| next.lease_ms as u64);
            match self.worker(lease).finish(ending.clone(), next.clone()).await {
                Ok(finished) => {
                    if !finished.outcome.is_applied() {
                        tracing::warn!(execution = %lease.execution, outcome = ?finished.outcome, "result refused");
                    }
                    return Ok(finished.next.map(|assignment| Granted { assignment, until_ms }));
                }
                Err(error) if tries >= REPORT_TRIES || error.is_final() => return Err(error),
                Err(error) => {
                    tracing::warn!(execution = %lease.execution, %error, "cannot report yet");
                    tries += 1;
                    Store::surroundings(self).pause(RETRY_WAIT).await;
                }
            }
        }
    }

    async fn vanished(&self, lease: Lease) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            match Store::reaper(self).owner_died(lease).await {
                Err(error) if tries < REPORT_TRIES && !error.is_final() => {
                    tracing::warn!(execution = %lease.execution, %error, "cannot report yet");
                    tries += 1;
                    Store::surroundings(self).pause(RETRY_WAIT).await;
                }
                told => return told.map(drop),
            }
        }
    }

    async fn reclaim(&self, run: RunId, worker: Id) -> Result<(), Error> {
        self.claims().reclaim(run, worker).await.map(drop)
    }

    async fn drain(&self, worker: Id) -> Result<(), Error> {
        self.claims().drain(worker).await.map(drop)
    }

    async fn leave(&self, worker: Id) -> Result<(), Error> {
        self.claims().leave(worker).await.map(drop)
    }
}

impl From<Renewal> for Kept {
    fn from(renewal: Renewal) -> Self {
        match renewal {
            Renewal::Held { cancel_requested: false, .. } => Kept::Held,
            Renewal::Held { cancel_requested: true, .. } => Kept::Cancel,
            Renewal::Lost => Kept::Lost,
        }
    }
}
