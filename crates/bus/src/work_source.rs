//! A worker's source of work with a broker: messages announce work, and the store grants it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use sprag_lifecycle::RunId;
use sprag_store::{Claimer, Ending, Error, Id, Lease, NewWorker, Runtime, Store, Subscription, Told, Topic};
use sprag_worker::{HeartbeatReply, Holding, LeasedWork, WorkSource};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::bus::Bus;
use crate::counts::RECEIVED;
use crate::pull::{Inbox, Pulling, ReceivedHandoff};

/// The interval in which a worker polls the store for work that no message announced.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The delay after a failed subscription.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A store with a broker that announces its work.
#[derive(Clone)]
pub struct BusWorkSource {
    store: Store,
    bus: Bus,
    pulls: bool,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The received handoffs; absent until the worker serves queues.
    inbox: Mutex<Option<Arc<Inbox>>>,
    /// The time of the next poll, in milliseconds of the boot clock.
    next_poll_ms: AtomicU64,
    /// Notified by messages for this worker alone.
    notified_directly: Notify,
}

impl BusWorkSource {
    /// Creates the work source of a worker. With `reserved_only` it pulls from no queue.
    pub fn new(store: Store, bus: Bus, reserved_only: bool) -> Self {
        BusWorkSource { store, bus, pulls: !reserved_only, shared: Arc::default() }
    }

    fn inbox(&self) -> Option<Arc<Inbox>> {
        self.shared.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn boot_ms(&self) -> u64 {
        self.store.runtime().boot_ms()
    }

    fn poll_at(&self, when_ms: u64) {
        self.shared.next_poll_ms.store(when_ms, Ordering::Release);
    }

    /// Claims the announced executions in the store. The claims share a commit.
    async fn receive(&self, claimer: &Claimer, arrived: Vec<ReceivedHandoff>) -> Vec<LeasedWork> {
        let until_ms = self.boot_ms() + claimer.lease_ms as u64;
        let claims = arrived.into_iter().map(|arrived| async {
            let lease = arrived.handoff.lease();
            match self.store.claims().receive_told(claimer.clone(), lease).await {
                Ok(Told::Received(assignment)) => {
                    RECEIVED.add(1);
                    arrived.acknowledge();
                    return Some(LeasedWork { assignment: *assignment, until_ms });
                }
                Ok(Told::Stale) => arrived.acknowledge_stale(),
                Ok(Told::NotHere) => arrived.return_later(),
                Err(error) => {
                    tracing::warn!(execution = %lease.execution, %error, "claiming an announced execution failed");
                    arrived.return_later();
                }
            }
            None
        });
        join_all(claims).await.into_iter().flatten().collect()
    }
}

/// The notifications of a worker, from the store and from the broker.
pub struct BusListener {
    topics: Vec<Topic>,
    /// The store's notifications, only while the broker does not answer: otherwise one handoff would wake every
    /// worker.
    subscribed: Mutex<Option<Arc<Subscription>>>,
    pulling: Option<Pulling>,
    listening: Option<AbortHandle>,
    messages: Arc<Notify>,
}

impl BusListener {
    /// Returns the subscription to the store, and whether this call created it.
    fn subscription(&self, store: &Store) -> (Arc<Subscription>, bool) {
        let mut subscribed = self.subscribed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_new = subscribed.is_none();
        let subscription = subscribed.get_or_insert_with(|| Arc::new(store.subscribe(self.topics.clone())));
        (Arc::clone(subscription), is_new)
    }

    fn unsubscribe(&self) {
        self.subscribed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    }
}

impl Drop for BusListener {
    fn drop(&mut self) {
        self.listening.iter().for_each(AbortHandle::abort);
    }
}

/// Returns the queues among the topics.
fn queues(topics: &[Topic]) -> Vec<Arc<str>> {
    let served = topics.iter().filter_map(|topic| match topic {
        Topic::Queue(queue) => Some(Arc::clone(queue)),
        _ => None,
    });
    served.collect()
}

/// Subscribes to the messages for one worker. Every message is a reason to poll, whatever it says.
async fn listen(bus: Bus, worker: Id, messages: Arc<Notify>, shared: Arc<Shared>, runtime: Runtime) {
    loop {
        // The client renews the subscription after each reconnect.
        if let Ok(mut incoming) = bus.client().subscribe(bus.subjects().worker(worker)).await {
            while incoming.next().await.is_some() {
                messages.notify_one();
                shared.notified_directly.notify_one();
            }
        }
        runtime.pause(RETRY_DELAY).await;
    }
}

impl WorkSource for BusWorkSource {
    type Error = Error;
    type Listener = BusListener;

    fn runtime(&self) -> Runtime {
        WorkSource::runtime(&self.store)
    }

    fn listen(&self, topics: Vec<Topic>) -> BusListener {
        let messages = Arc::new(Notify::new());
        let mut listener =
            BusListener { topics, subscribed: Mutex::default(), pulling: None, listening: None, messages };
        // Subscribe at once, whatever the state of the broker, so that no notification is missed.
        drop(listener.subscription(&self.store));
        let bus = &self.bus;
        if let [Topic::Worker(worker)] = listener.topics[..] {
            let task = listen(
                bus.clone(),
                worker,
                Arc::clone(&listener.messages),
                Arc::clone(&self.shared),
                self.store.runtime().clone(),
            );
            listener.listening = Some(tokio::spawn(task).abort_handle());
        }
        let queues = queues(&listener.topics);
        if self.pulls && !queues.is_empty() {
            let pulling = Pulling::start(bus, &queues);
            let inbox = Arc::clone(&pulling.inbox);
            *self.shared.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(inbox);
            listener.pulling = Some(pulling);
        }
        listener
    }

    async fn rest(&self, listener: &BusListener, limit: Duration) {
        let inbox = listener.pulling.as_ref().map(|pulling| &pulling.inbox);
        if let Some(inbox) = inbox.filter(|inbox| inbox.is_answered()) {
            listener.unsubscribe();
            let left = self.shared.next_poll_ms.load(Ordering::Acquire).saturating_sub(self.boot_ms());
            let limit = limit.min(Duration::from_millis(left));
            tokio::select! {
                _ = self.store.runtime().within(limit, inbox.changes()) => {}
                // Executions reserved to this worker are in no queue's stream.
                () = self.shared.notified_directly.notified() => self.poll_at(0),
            }
            if !inbox.is_answered() {
                self.poll_at(0);
            }
            return;
        }
        let (subscription, is_new) = listener.subscription(&self.store);
        if is_new {
            // The subscription is new, so work may have arrived before it: poll once more.
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
            () = self.shared.notified_directly.notified() => {}
        }
    }

    async fn disturbed(&self, listener: &BusListener, _: Holding, limit: Duration) {
        let (subscription, _) = listener.subscription(&self.store);
        tokio::select! {
            () = subscription.wait(limit) => {}
            () = listener.messages.notified() => {}
        }
    }

    fn nonce(&self) -> i64 {
        self.store.nonce()
    }

    async fn register(&self, new: NewWorker) -> Result<(), Error> {
        WorkSource::register(&self.store, new).await
    }

    async fn claim(
        &self,
        claimer: Claimer,
        limit: usize,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Vec<LeasedWork>, Error> {
        let Some(inbox) = self.inbox() else { return self.store.claim(claimer, limit, stop).await };
        // Most messages are about steps, for which this worker has no slot.
        if claimer.services_only {
            return self.store.claim(claimer, limit, stop).await;
        }
        let mut granted = self.receive(&claimer, inbox.take(limit)).await;
        let now_ms = self.boot_ms();
        let due = now_ms >= self.shared.next_poll_ms.load(Ordering::Acquire);
        if granted.len() < limit && (due || !inbox.is_answered()) {
            let missing = limit - granted.len();
            match self.store.claim(claimer, missing, stop).await {
                Ok(found) => {
                    // A full answer: poll again at once, because there may be more.
                    let next = if found.len() < missing { POLL_INTERVAL } else { Duration::ZERO };
                    self.poll_at(now_ms + next.as_millis() as u64);
                    granted.extend(found);
                }
                // The executions claimed above must be returned in any case.
                Err(error) if granted.is_empty() => return Err(error),
                Err(error) => tracing::warn!(%error, "polling the store for work failed"),
            }
        }
        inbox.set_free(limit - granted.len());
        Ok(granted)
    }

    async fn heartbeat(
        &self,
        worker: Id,
        leases: Vec<Lease>,
        lease: Duration,
    ) -> Result<HeartbeatReply, Error> {
        WorkSource::heartbeat(&self.store, worker, leases, lease).await
    }

    fn kept_through_stall(&self, leases: &[Lease]) -> Vec<(Lease, u64)> {
        WorkSource::kept_through_stall(&self.store, leases)
    }

    async fn finish(
        &self,
        lease: Lease,
        ending: Ending,
        next: Option<Claimer>,
    ) -> Result<Option<LeasedWork>, Error> {
        WorkSource::finish(&self.store, lease, ending, next).await
    }

    async fn vanished(&self, lease: Lease) -> Result<(), Error> {
        WorkSource::vanished(&self.store, lease).await
    }

    async fn release(&self, lease: Lease) -> Result<(), Error> {
        WorkSource::release(&self.store, lease).await
    }

    async fn reclaim(&self, run: RunId, worker: Id) -> Result<(), Error> {
        WorkSource::reclaim(&self.store, run, worker).await
    }

    async fn drain(&self, worker: Id) -> Result<(), Error> {
        if let Some(inbox) = self.inbox() {
            inbox.close();
        }
        WorkSource::drain(&self.store, worker).await
    }

    async fn leave(&self, worker: Id) -> Result<(), Error> {
        WorkSource::leave(&self.store, worker).await
    }
}
