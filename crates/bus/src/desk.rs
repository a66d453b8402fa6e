//! The desk of a worker that has a broker: told of work by messages, given it by the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use sprag_lifecycle::RunId;
use sprag_store::ops::{Claimer, Ending, Lease, NewWorker, Told};
use sprag_store::{Error, Id, Store, Subscription, Surroundings, Topic};
use sprag_worker::{Beat, Desk, Granted, Holding};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::bus::Bus;
use crate::counts::RECEIVED;
use crate::pull::{Arrived, Inbox, Pulling};

/// How often a worker that is told of everything looks for what it was not told of.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);
/// After the broker could not be listened to.
const WAIT: Duration = Duration::from_secs(1);

/// A store, and perhaps a broker that tells what is in it.
#[derive(Clone)]
pub struct BusDesk {
    store: Store,
    bus: Option<Bus>,
    pulls: bool,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What has arrived, once somebody serves queues.
    inbox: Mutex<Option<Arc<Inbox>>>,
    /// When to look next, by this machine's boot clock.
    look_ms: AtomicU64,
    /// Somebody told this worker that something is there for it alone.
    nudged: Notify,
}

impl BusDesk {
    /// The desk of a worker on this store. One that takes only what is reserved to it pulls nothing: the queues are
    /// others' business.
    pub fn new(store: Store, bus: Option<Bus>, reserved_only: bool) -> Self {
        BusDesk { store, bus, pulls: !reserved_only, shared: Arc::default() }
    }

    fn inbox(&self) -> Option<Arc<Inbox>> {
        self.shared.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn boot_ms(&self) -> u64 {
        self.store.surroundings().boot_ms()
    }

    fn look_at(&self, when_ms: u64) {
        self.shared.look_ms.store(when_ms, Ordering::Release);
    }

    /// Asks the store for each hand-off that a message told of; they share a commit.
    async fn receive(&self, claimer: &Claimer, arrived: Vec<Arrived>) -> Vec<Granted> {
        let until_ms = self.boot_ms() + claimer.lease_ms as u64;
        let asked = arrived.into_iter().map(|arrived| async {
            let told = arrived.handoff.lease();
            match self.store.claims().receive_told(claimer.clone(), told).await {
                Ok(Told::Received(assignment)) => {
                    RECEIVED.add(1);
                    arrived.settle();
                    return Some(Granted { assignment: *assignment, until_ms });
                }
                Ok(Told::Stale) => arrived.settle_stale(),
                Ok(Told::NotHere) => arrived.pass_on(),
                Err(error) => {
                    tracing::warn!(execution = %told.execution, %error, "receiving");
                    arrived.pass_on();
                }
            }
            None
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}

/// What a worker hears, from the store and from the broker.
pub struct Ear {
    topics: Vec<Topic>,
    /// Only while the broker does not answer: a thousand workers are not woken for one hand-off.
    heard: Mutex<Option<Arc<Subscription>>>,
    pulling: Option<Pulling>,
    listening: Option<AbortHandle>,
    told: Arc<Notify>,
}

impl Ear {
    /// What is heard from the store; and whether that begins only now.
    fn subscription(&self, store: &Store) -> (Arc<Subscription>, bool) {
        let mut heard = self.heard.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let begins = heard.is_none();
        let there = heard.get_or_insert_with(|| Arc::new(store.subscribe(self.topics.clone())));
        (Arc::clone(there), begins)
    }

    fn unsubscribe(&self) {
        self.heard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.listening.iter().for_each(AbortHandle::abort);
    }
}

/// The queues that are served for anyone.
fn queues(topics: &[Topic]) -> Vec<Arc<str>> {
    let served = topics.iter().filter_map(|topic| match topic {
        Topic::Queue(queue, 0) => Some(Arc::clone(queue)),
        _ => None,
    });
    served.collect()
}

/// Listens to what is for one worker alone; whatever it is, it is a reason to look.
async fn listen(bus: Bus, worker: Id, told: Arc<Notify>, shared: Arc<Shared>) {
    loop {
        // It outlives connections.
        if let Ok(mut messages) = bus.client().subscribe(bus.subjects().worker(worker)).await {
            while messages.next().await.is_some() {
                told.notify_one();
                shared.nudged.notify_one();
            }
        }
        let _ = tokio::time::timeout(WAIT, std::future::pending::<()>()).await;
    }
}

impl Desk for BusDesk {
    type Error = Error;
    type Ear = Ear;

    fn surroundings(&self) -> Surroundings {
        Desk::surroundings(&self.store)
    }

    fn listen(&self, topics: Vec<Topic>) -> Ear {
        let told = Arc::new(Notify::new());
        let mut ear = Ear { topics, heard: Mutex::default(), pulling: None, listening: None, told };
        // Heard from the very beginning, whatever the broker does.
        drop(ear.subscription(&self.store));
        let Some(bus) = &self.bus else { return ear };
        if let [Topic::Worker(worker)] = ear.topics[..] {
            let task = listen(bus.clone(), worker, Arc::clone(&ear.told), Arc::clone(&self.shared));
            ear.listening = Some(tokio::spawn(task).abort_handle());
        }
        let queues = queues(&ear.topics);
        if self.pulls && !queues.is_empty() {
            let pulling = Pulling::begin(bus, &queues);
            let inbox = Arc::clone(&pulling.inbox);
            *self.shared.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(inbox);
            ear.pulling = Some(pulling);
        }
        ear
    }

    async fn rest(&self, ear: &Ear, limit: Duration) {
        let inbox = ear.pulling.as_ref().map(|pulling| &pulling.inbox);
        if let Some(inbox) = inbox.filter(|inbox| inbox.is_answered()) {
            ear.unsubscribe();
            let left = self.shared.look_ms.load(Ordering::Acquire).saturating_sub(self.boot_ms());
            let limit = limit.min(Duration::from_millis(left));
            tokio::select! {
                _ = self.store.surroundings().within(limit, inbox.changes()) => {}
                // What is reserved to this worker is in no queue's stream.
                () = self.shared.nudged.notified() => self.look_at(0),
            }
            if !inbox.is_answered() {
                self.look_at(0);
            }
            return;
        }
        let (subscription, begins) = ear.subscription(&self.store);
        if begins {
            // What came meanwhile was not heard: look once more.
            return;
        }
        let changes = async {
            match inbox {
                Some(inbox) => inbox.changes().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = subscription.wait(limit) => {}
            () = changes => {}
            () = self.shared.nudged.notified() => {}
        }
    }

    async fn disturbed(&self, ear: &Ear, _: Holding, limit: Duration) {
        let (subscription, _) = ear.subscription(&self.store);
        tokio::select! {
            () = subscription.wait(limit) => {}
            () = ear.told.notified() => {}
        }
    }

    fn nonce(&self) -> i64 {
        self.store.nonce()
    }

    async fn register(&self, new: NewWorker) -> Result<(), Error> {
        Desk::register(&self.store, new).await
    }

    async fn claim(
        &self,
        claimer: Claimer,
        limit: usize,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Vec<Granted>, Error> {
        let Some(inbox) = self.inbox() else { return self.store.claim(claimer, limit, stop).await };
        let mut got = self.receive(&claimer, inbox.take(limit)).await;
        let now_ms = self.boot_ms();
        let due = now_ms >= self.shared.look_ms.load(Ordering::Acquire);
        if got.len() < limit && (due || !inbox.is_answered()) {
            let wanted = limit - got.len();
            match self.store.claim(claimer, wanted, stop).await {
                Ok(found) => {
                    // There may be more of what nobody told of.
                    let next = if found.len() < wanted { LOOK_ANYWAY } else { Duration::ZERO };
                    self.look_at(now_ms + next.as_millis() as u64);
                    got.extend(found);
                }
                // What was received stays received.
                Err(error) if got.is_empty() => return Err(error),
                Err(error) => tracing::warn!(%error, "claiming"),
            }
        }
        inbox.set_free(limit - got.len());
        Ok(got)
    }

    async fn heartbeat(&self, worker: Id, leases: Vec<Lease>, lease: Duration) -> Result<Beat, Error> {
        Desk::heartbeat(&self.store, worker, leases, lease).await
    }

    async fn finish(
        &self,
        lease: Lease,
        ending: Ending,
        next: Option<Claimer>,
    ) -> Result<Option<Granted>, Error> {
        Desk::finish(&self.store, lease, ending, next).await
    }

    async fn vanished(&self, lease: Lease) -> Result<(), Error> {
        Desk::vanished(&self.store, lease).await
    }

    async fn reclaim(&self, run: RunId, worker: Id) -> Result<(), Error> {
        Desk::reclaim(&self.store, run, worker).await
    }

    async fn drain(&self, worker: Id) -> Result<(), Error> {
        if let Some(inbox) = self.inbox() {
            inbox.close();
        }
        Desk::drain(&self.store, worker).await
    }

    async fn leave(&self, worker: Id) -> Result<(), Error> {
        Desk::leave(&self.store, worker).await
    }
}
