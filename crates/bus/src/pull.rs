//! Pulling: as many hand-offs as there are free slots, from the consumers of the queues that are served.
//!
//! ```text
//!   one task per queue ──pull (n ≤ free slots, a few seconds)──▶ broker
//!          └──▶ Inbox ──take──▶ whoever receives them by compare-and-set, then acknowledges
//! ```
//!
//! A queue's task also knows whether the broker answers it: where it does not, the worker listens to the store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::jetstream::{AckKind, Message};
use futures_util::StreamExt;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::bus::{Bus, Trouble};
use crate::counts::{PASSED_ON, STALE, STRANGE};
use crate::health::Part;
use crate::message::Handoff;

/// How long a pull lies at the broker before it answers that there was nothing.
const PATIENCE: Duration = Duration::from_secs(2);
/// How much later than that the answer may come before the broker counts as mute.
const GRACE: Duration = Duration::from_secs(1);
/// After the broker refused something.
const WAIT: Duration = Duration::from_millis(500);
/// A worker that may not have it gives it back for so long: those who may then have the time to take it.
const NOT_HERE: Duration = Duration::from_millis(250);
/// One that nobody took after so many deliveries is left to those who look by themselves.
const MOST_DELIVERIES: i64 = 20;

/// A hand-off that a message told of.
pub(crate) struct Arrived {
    pub(crate) handoff: Handoff,
    message: Message,
}

impl Arrived {
    /// It is received, or over: nobody need be told again.
    pub(crate) fn settle(self) {
        self.answer(AckKind::Ack);
    }

    /// It was over before it came.
    pub(crate) fn settle_stale(self) {
        STALE.add(1);
        self.settle();
    }

    /// Somebody else may have it, after a while.
    pub(crate) fn pass_on(self) {
        PASSED_ON.add(1);
        let often = self.message.info().is_ok_and(|info| info.delivered >= MOST_DELIVERIES);
        self.answer(if often { AckKind::Term } else { AckKind::Nak(Some(NOT_HERE)) });
    }

    /// Somebody else may have it at once.
    pub(crate) fn give_back(self) {
        PASSED_ON.add(1);
        self.answer(AckKind::Nak(None));
    }

    fn answer(self, kind: AckKind) {
        answer(self.message, kind);
    }
}

/// Nobody waits for it: an answer that is lost only has the message told again.
fn answer(message: Message, kind: AckKind) {
    tokio::spawn(async move {
        if let Err(error) = message.ack_with(kind).await {
            tracing::debug!(error, "acknowledging");
        }
    });
}

/// What has arrived for a worker.
pub(crate) struct Inbox {
    arrived: Mutex<VecDeque<Arrived>>,
    /// Slots that nothing has arrived for.
    free: watch::Sender<usize>,
    /// Something arrived, or the broker began or ceased to answer.
    changed: Notify,
    /// Whether each queue's task is answered.
    answered: Vec<AtomicBool>,
}

impl Inbox {
    fn arrived(&self) -> MutexGuard<'_, VecDeque<Arrived>> {
        self.arrived.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes up to as many as there are free slots.
    pub(crate) fn take(&self, slots: usize) -> Vec<Arrived> {
        let mut arrived = self.arrived();
        let count = slots.min(arrived.len());
        arrived.drain(..count).collect()
    }

    /// So many slots are free, those included that something waits for here.
    pub(crate) fn set_free(&self, slots: usize) {
        let arrived = self.arrived();
        self.free.send_replace(slots.saturating_sub(arrived.len()));
    }

    /// Nothing is wanted any more: what is here goes back.
    pub(crate) fn close(&self) {
        self.free.send_replace(0);
        let left = std::mem::take(&mut *self.arrived());
        left.into_iter().for_each(Arrived::give_back);
    }

    /// Whether the broker tells of everything that is handed over.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered.iter().all(|answered| answered.load(Ordering::Acquire))
    }

    /// Waits until something arrives or the broker begins or ceases to answer.
    pub(crate) async fn changes(&self) {
        self.changed.notified().await;
    }

    fn set_answered(&self, queue: usize, now: bool) {
        if self.answered[queue].swap(now, Ordering::AcqRel) != now {
            self.changed.notify_one();
        }
    }

    fn put(&self, message: Message) {
        let handoff: Handoff = match serde_json::from_slice(&message.payload) {
            Ok(handoff) => handoff,
            Err(error) => {
                STRANGE.add(1);
                tracing::warn!(subject = %message.subject, %error, "a message that is no hand-off");
                return answer(message, AckKind::Term);
            }
        };
        let told = Arrived { handoff, message };
        let mut arrived = self.arrived();
        let taken = self.free.send_if_modified(|free| {
            let any = *free > 0;
            *free = free.saturating_sub(1);
            any
        });
        match taken {
            true => arrived.push_back(told),
            // The slots were filled while the pull lay at the broker.
            false => return told.give_back(),
        }
        drop(arrived);
        self.changed.notify_one();
    }
}

/// Pulls until it is dropped.
pub(crate) struct Pulling {
    pub(crate) inbox: Arc<Inbox>,
    tasks: Vec<AbortHandle>,
}

impl Pulling {
    /// Pulls from these queues.
    pub(crate) fn begin(bus: &Bus, queues: &[Arc<str>]) -> Self {
        let inbox = Arc::new(Inbox {
            arrived: Mutex::default(),
            free: watch::Sender::new(0),
            changed: Notify::new(),
            answered: queues.iter().map(|_| AtomicBool::new(false)).collect(),
        });
        let tasks = queues.iter().enumerate().map(|(nth, queue)| {
            let queue = Queue {
                bus: bus.clone(),
                name: Arc::clone(queue),
                nth,
                inbox: Arc::clone(&inbox),
                consumer: None,
            };
            tokio::spawn(queue.pull()).abort_handle()
        });
        Pulling { tasks: tasks.collect(), inbox }
    }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.inbox.close();
    }
}

/// One queue's task.
struct Queue {
    bus: Bus,
    name: Arc<str>,
    nth: usize,
    inbox: Arc<Inbox>,
    consumer: Option<Consumer<pull::Config>>,
}

impl Queue {
    async fn pull(mut self) {
        let mut free = self.inbox.free.subscribe();
        self.bus.first_connection().await;
        loop {
            let slots = match free.wait_for(|free| *free > 0).await {
                Ok(free) => *free,
                Err(_) => return,
            };
            match self.pull_once(slots).await {
                Ok(()) => {
                    self.bus.health().found(Part::Pull);
                    self.inbox.set_answered(self.nth, true);
                }
                Err(trouble) => {
                    // The stream or the consumer may be gone with the broker's data.
                    self.consumer = None;
                    self.inbox.set_answered(self.nth, false);
                    self.bus.health().lost(Part::Pull, &trouble.to_string());
                    match self.bus.is_connected() {
                        true => drop(tokio::time::timeout(WAIT, std::future::pending::<()>()).await),
                        false => drop(tokio::time::timeout(WAIT, self.bus.becomes(true)).await),
                    }
                }
            }
        }
    }

    /// One pull: returns when it is filled, or the broker has said that there is nothing.
    async fn pull_once(&mut self, slots: usize) -> Result<(), Trouble> {
        if !self.bus.is_connected() {
            return Err(Trouble::new("pulling", format!("no connection to {}", self.bus.shown())));
        }
        let consumer = match self.consumer.take() {
            Some(consumer) => consumer,
            None => self.bus.consumer(&self.name).await?,
        };
        let pulled = consumer.batch().max_messages(slots).expires(PATIENCE).messages().await;
        let mut pulled = pulled.map_err(|error| Trouble::new("pulling", error))?;
        // There is a consumer, so that whatever is published from now on arrives here or with others of the queue.
        self.inbox.set_answered(self.nth, true);
        let too_late = tokio::time::timeout(PATIENCE + GRACE, std::future::pending::<()>());
        let mut too_late = std::pin::pin!(too_late);
        loop {
            tokio::select! {
                biased;
                next = pulled.next() => match next {
                    Some(Ok(message)) => self.inbox.put(message),
                    Some(Err(error)) => return Err(Trouble::new("pulling", error)),
                    None => break,
                },
                () = self.bus.becomes(false) => return Err(Trouble::new("pulling", "the connection was lost")),
                _ = &mut too_late => return Err(Trouble::new("pulling", "the broker is mute")),
            }
        }
        self.consumer = Some(consumer);
        Ok(())
    }
}
