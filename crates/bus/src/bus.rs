//! The connection to the broker, its streams and consumers.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy, Consumer, pull};
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ContextBuilder};
use async_nats::{Client, Event};
use tokio::sync::watch;

use crate::address::Address;
use crate::examine::server_message;
use crate::health::Health;
use crate::subjects::Subjects;

/// A failed request to the broker: the operation and the cause.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Error {
    what: &'static str,
    why: String,
}

impl Error {
    pub(crate) fn new(what: &'static str, why: impl ToString) -> Self {
        Error { what, why: why.to_string() }
    }
}

/// The longest wait for an answer of the broker.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// The interval of pings. A server that misses two of them counts as gone.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The bounds of the delay between two attempts to connect, which doubles each time.
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(50);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);

/// The age limit of handoffs. The store publishes a handoff again after five minutes, so older messages are
/// obsolete.
const WORK_MAX_AGE: Duration = Duration::from_secs(15 * 60);
/// The age limit of events: a subscriber may be offline for a day without missing one.
const EVENTS_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// The size limit of each stream.
const MAX_MESSAGES: i64 = 5_000_000;
/// The period in which the broker drops messages with an id it has already seen.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// The time a worker has to acknowledge a handoff before the broker delivers it to another worker.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// A connection to the broker. Clones share the connection.
#[derive(Clone)]
pub struct Bus {
    client: Client,
    context: Context,
    subjects: Subjects,
    health: Arc<Health>,
    connected: watch::Receiver<bool>,
    shown: Arc<str>,
}

impl Bus {
    /// Starts to connect and retries in the background until it succeeds. Requests fail until there is a
    /// connection.
    pub async fn connect(address: &Address) -> Result<Bus, Error> {
        let (sender, connected) = watch::channel(false);
        let (sender, health) = (Arc::new(sender), Arc::<Health>::default());
        let for_events = Arc::clone(&health);
        let options = address
            .options()
            .name("sprag")
            .retry_on_initial_connect()
            .connection_timeout(REPLY_TIMEOUT)
            .request_timeout(Some(REPLY_TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .reconnect_delay_callback(|tries| {
                let doubled = MIN_RECONNECT_DELAY.saturating_mul(1 << tries.saturating_sub(1).min(10));
                if tries <= 1 { Duration::ZERO } else { doubled.min(MAX_RECONNECT_DELAY) }
            })
            .event_callback(move |event| {
                let (sender, health) = (Arc::clone(&sender), Arc::clone(&for_events));
                async move {
                    match event {
                        Event::Connected => drop(sender.send_replace(true)),
                        Event::Disconnected | Event::Closed => drop(sender.send_replace(false)),
                        Event::ServerError(error) => health.refused(&server_message(&error)),
                        _ => {}
                    }
                }
            });
        let client = options.connect(address.servers()).await;
        let client = client.map_err(|error| Error::new("connecting to the broker", error))?;
        let context =
            ContextBuilder::new().timeout(REPLY_TIMEOUT).ack_timeout(REPLY_TIMEOUT).build(client.clone());
        let subjects = Subjects::new(address.prefix());
        let shown = address.to_string().into();
        Ok(Bus { client, context, subjects, health, connected, shown })
    }

    /// Returns the names of streams and subjects on this broker.
    pub fn subjects(&self) -> &Subjects {
        &self.subjects
    }

    /// Returns the address without its credentials, for messages.
    pub(crate) fn shown(&self) -> &Arc<str> {
        &self.shown
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Returns whether the connection was up at the client's last event.
    pub(crate) fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Waits until the connection is up, or down.
    pub(crate) async fn connection_becomes(&self, wanted: bool) {
        let mut connected = self.connected.clone();
        // The sender lives as long as the client, so this waits forever only after the client is dropped.
        if connected.wait_for(|now| *now == wanted).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for the first connection, at most [`REPLY_TIMEOUT`], so that a slow start is not logged as an
    /// outage.
    pub(crate) async fn first_connection(&self) {
        let _ = tokio::time::timeout(REPLY_TIMEOUT, self.connection_becomes(true)).await;
    }

    /// Creates the streams if they are missing. Keeps the configuration of existing ones, which an operator may
    /// have changed.
    pub(crate) async fn ensure_streams(&self) -> Result<(), Error> {
        self.work_stream().await?;
        let events = stream::Config {
            name: self.subjects.events_stream(),
            subjects: self.subjects.all_events().to_vec(),
            description: Some("what happens in Sprag, in order".into()),
            retention: RetentionPolicy::Limits,
            max_age: EVENTS_MAX_AGE,
            ..stream_defaults()
        };
        let created = self.context.get_or_create_stream(events).await;
        created.map(drop).map_err(|error| Error::new("creating the stream of events", error))
    }

    async fn work_stream(&self) -> Result<stream::Stream, Error> {
        let work = stream::Config {
            name: self.subjects.work_stream(),
            subjects: vec![self.subjects.all_work()],
            description: Some("hand-offs of Sprag, each taken by one worker".into()),
            retention: RetentionPolicy::WorkQueue,
            max_age: WORK_MAX_AGE,
            ..stream_defaults()
        };
        let created = self.context.get_or_create_stream(work).await;
        created.map_err(|error| Error::new("creating the stream of handoffs", error))
    }

    /// Returns the consumer that all workers of a queue share, and creates it if it is missing.
    pub(crate) async fn consumer(&self, queue: &str) -> Result<Consumer<pull::Config>, Error> {
        let name = self.subjects.consumer(queue);
        let config = pull::Config {
            durable_name: Some(name.clone()),
            filter_subject: self.subjects.work(queue),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            deliver_policy: consumer::DeliverPolicy::All,
            ..pull::Config::default()
        };
        let created = self.work_stream().await?.get_or_create_consumer(&name, config).await;
        created.map_err(|error| Error::new("creating the consumer of a queue", error))
    }
}

/// Returns the settings that both streams share.
fn stream_defaults() -> stream::Config {
    stream::Config {
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        max_messages: MAX_MESSAGES,
        duplicate_window: DUPLICATE_WINDOW,
        num_replicas: 1,
        ..stream::Config::default()
    }
}
