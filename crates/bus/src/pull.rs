//! Pulls as many handoffs as there are free slots from the consumers of the served queues.
//!
//! ```text
//!   one task per queue ──pull (n ≤ free slots, a few seconds)──▶ broker
//!          └──▶ Inbox ──take──▶ BusWorkSource claims them by compare-and-set, then acknowledges
//! ```
//!
//! Each queue's task also tracks whether the broker answers. If it does not, the worker uses the store's
//! notifications.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::jetstream::{AckKind, Message};
use futures_util::StreamExt;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::bus::{Bus, Error};
use crate::counts::{PASSED_ON, STALE, STRANGE};
use crate::health::Role;
use crate::message::Handoff;

/// The time after which the broker ends a pull that found no message.
const PULL_EXPIRY: Duration = Duration::from_secs(2);
/// The extra time for the broker's answer before the pull fails.
const GRACE: Duration = Duration::from_secs(1);
/// The delay after an error of the broker.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The delay before the broker delivers a handoff again that this worker may not claim, so that other workers
/// come first.
const RETURN_DELAY: Duration = Duration::from_millis(250);
/// After this many deliveries the message is dropped. Workers then find the execution by polling.
const MAX_DELIVERIES: i64 = 20;

/// A handoff received from the broker and not yet acknowledged.
pub(crate) struct ReceivedHandoff {
    pub(crate) handoff: Handoff,
    message: Message,
}

impl ReceivedHandoff {
    /// Acknowledges the message: the execution is claimed or no longer available.
    pub(crate) fn acknowledge(self) {
        self.answer(AckKind::Ack);
    }

    /// Acknowledges a message whose execution was no longer available, and counts it.
    pub(crate) fn acknowledge_stale(self) {
        STALE.add(1);
        self.acknowledge();
    }

    /// Returns the message to the broker, to be delivered again after [`RETURN_DELAY`].
    pub(crate) fn return_later(self) {
        PASSED_ON.add(1);
        let exhausted = self.message.info().is_ok_and(|info| info.delivered >= MAX_DELIVERIES);
        self.answer(if exhausted { AckKind::Term } else { AckKind::Nak(Some(RETURN_DELAY)) });
    }

    /// Returns the message to the broker, to be delivered again at once.
    pub(crate) fn return_now(self) {
        PASSED_ON.add(1);
        self.answer(AckKind::Nak(None));
    }

    fn answer(self, kind: AckKind) {
        answer(self.message, kind);
    }
}

/// Sends the acknowledgement in the background. If it is lost, the broker delivers the message again.
fn answer(message: Message, kind: AckKind) {
    tokio::spawn(async move {
        if let Err(error) = message.ack_with(kind).await {
            tracing::debug!(error, "acknowledging a handoff failed: the broker delivers it again");
        }
    });
}

/// The received handoffs of a worker.
pub(crate) struct Inbox {
    arrived: Mutex<VecDeque<ReceivedHandoff>>,
    /// The number of slots that no received handoff is meant for.
    free: watch::Sender<usize>,
    /// Notified when a handoff arrives, or when the broker starts or stops answering.
    changed: Notify,
    /// Whether the broker answers, for each queue's task.
    answered: Vec<AtomicBool>,
}

impl Inbox {
    fn arrived(&self) -> MutexGuard<'_, VecDeque<ReceivedHandoff>> {
        self.arrived.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes up to `slots` handoffs.
    pub(crate) fn take(&self, slots: usize) -> Vec<ReceivedHandoff> {
        let mut arrived = self.arrived();
        let count = slots.min(arrived.len());
        arrived.drain(..count).collect()
    }

    /// Sets the number of free slots, including those that received handoffs will fill.
    pub(crate) fn set_free(&self, slots: usize) {
        let arrived = self.arrived();
        self.free.send_replace(slots.saturating_sub(arrived.len()));
    }

    /// Returns all received handoffs to the broker and stops pulling.
    pub(crate) fn close(&self) {
        self.free.send_replace(0);
        let returned = std::mem::take(&mut *self.arrived());
        returned.into_iter().for_each(ReceivedHandoff::return_now);
    }

    /// Returns whether the broker answers the tasks of all queues, so that no new handoff is missed.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered.iter().all(|answered| answered.load(Ordering::Acquire))
    }

    /// Waits until a handoff arrives, or until the broker starts or stops answering.
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
                tracing::warn!(subject = %message.subject, %error, "a message on a work subject is not a handoff: dropped");
                return answer(message, AckKind::Term);
            }
        };
        let received = ReceivedHandoff { handoff, message };
        let mut arrived = self.arrived();
        let taken = self.free.send_if_modified(|free| {
            let is_free = *free > 0;
            *free = free.saturating_sub(1);
            is_free
        });
        if !taken {
            // Other handoffs filled the slots during the pull.
            return received.return_now();
        }
        arrived.push_back(received);
        drop(arrived);
        self.changed.notify_one();
    }
}

/// The pulling tasks of a worker. Dropping it stops them.
pub(crate) struct Pulling {
    pub(crate) inbox: Arc<Inbox>,
    tasks: Vec<AbortHandle>,
}

impl Pulling {
    /// Starts a task for each queue.
    pub(crate) fn start(bus: &Bus, queues: &[Arc<str>]) -> Self {
        let inbox = Arc::new(Inbox {
            arrived: Mutex::default(),
            free: watch::Sender::new(0),
            changed: Notify::new(),
            answered: queues.iter().map(|_| AtomicBool::new(false)).collect(),
        });
        let tasks = queues.iter().enumerate().map(|(index, queue)| {
            let queue = Queue {
                bus: bus.clone(),
                name: Arc::clone(queue),
                index,
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

/// The pulling task of one queue.
struct Queue {
    bus: Bus,
    name: Arc<str>,
    index: usize,
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
                    self.bus.health().reachable(Role::Pull);
                    self.inbox.set_answered(self.index, true);
                }
                Err(error) => {
                    // The stream or the consumer may be lost together with the broker's data.
                    self.consumer = None;
                    self.inbox.set_answered(self.index, false);
                    self.bus.health().unreachable(Role::Pull, &error.to_string());
                    // Retry when the connection changes, or after the delay.
                    let connected = self.bus.is_connected();
                    let _ = tokio::time::timeout(RETRY_DELAY, self.bus.connection_becomes(!connected)).await;
                }
            }
        }
    }

    /// Runs one pull. Returns when it is full, or when the broker ends it.
    async fn pull_once(&mut self, slots: usize) -> Result<(), Error> {
        if !self.bus.is_connected() {
            return Err(Error::new("pulling", format!("no connection to {}", self.bus.shown())));
        }
        let consumer = match self.consumer.take() {
            Some(consumer) => consumer,
            None => self.bus.consumer(&self.name).await?,
        };
        let pulled = consumer.batch().max_messages(slots).expires(PULL_EXPIRY).messages().await;
        let mut messages = pulled.map_err(|error| Error::new("pulling", error))?;
        // With the consumer in place, new handoffs reach this worker or another one of the queue.
        self.inbox.set_answered(self.index, true);
        let receive = async {
            loop {
                tokio::select! {
                    biased;
                    next = messages.next() => match next {
                        Some(Ok(message)) => self.inbox.put(message),
                        Some(Err(error)) => return Err(Error::new("pulling", error)),
                        None => return Ok(()),
                    },
                    () = self.bus.connection_becomes(false) => {
                        return Err(Error::new("pulling", "the connection was lost"));
                    }
                }
            }
        };
        let received = tokio::time::timeout(PULL_EXPIRY + GRACE, receive).await;
        received.unwrap_or_else(|_| Err(Error::new("pulling", "the broker does not answer")))?;
        Ok(())
    }
}
