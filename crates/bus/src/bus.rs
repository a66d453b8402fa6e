//! The connection to the broker, its streams and consumers.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy, Consumer, pull};
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ContextBuilder};
use async_nats::{Client, Event};
use tokio::sync::watch;

use crate::address::Address;
use crate::examine::said;
use crate::health::Health;
use crate::subjects::Subjects;

/// Why the broker did not do what it was asked to.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Trouble {
    what: &'static str,
    why: String,
}

impl Trouble {
    pub(crate) fn new(what: &'static str, why: impl ToString) -> Self {
        Trouble { what, why: why.to_string() }
    }
}

/// How long the broker may take to answer.
pub(crate) const ANSWER: Duration = Duration::from_secs(3);
/// A peer that says nothing for two of these is gone.
const PING: Duration = Duration::from_secs(5);
/// Between two attempts to connect: longer each time, up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A hand-off is told again after five minutes in a queue: its older message need not outlive that for long.
const WORK_KEPT: Duration = Duration::from_secs(15 * 60);
/// Whoever follows events may be away for so long.
const EVENTS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Neither stream grows without bound.
const MOST_MESSAGES: i64 = 5_000_000;
/// Within this time the broker drops what it was told before.
const DUPLICATES: Duration = Duration::from_secs(120);
/// A hand-off that nobody has acknowledged after this is told to somebody else.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// A broker. Cloning it is cheap; all clones are one connection.
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
    /// Begins to connect, and goes on trying for as long as it takes; whoever uses it meanwhile is told that it is not
    /// there.
    pub async fn connect(address: &Address) -> Result<Bus, Trouble> {
        let (told, connected) = watch::channel(false);
        let (told, health) = (Arc::new(told), Arc::<Health>::default());
        let heard = Arc::clone(&health);
        let options = address
            .options()
            .name("sprag")
            .retry_on_initial_connect()
            .connection_timeout(ANSWER)
            .request_timeout(Some(ANSWER))
            .ping_interval(PING)
            .reconnect_delay_callback(|tries| {
                let doubled = FIRST_WAIT.saturating_mul(1 << tries.saturating_sub(1).min(10));
                if tries <= 1 { Duration::ZERO } else { doubled.min(LONGEST_WAIT) }
            })
            .event_callback(move |event| {
                let (told, health) = (Arc::clone(&told), Arc::clone(&heard));
                async move {
                    match event {
                        Event::Connected => drop(told.send_replace(true)),
                        Event::Disconnected | Event::Closed => drop(told.send_replace(false)),
                        Event::ServerError(error) => health.refused(&said(&error)),
                        _ => {}
                    }
                }
            });
        let client = options.connect(address.servers()).await;
        let client = client.map_err(|error| Trouble::new("connecting to the broker", error))?;
        let context = ContextBuilder::new().timeout(ANSWER).ack_timeout(ANSWER).build(client.clone());
        let subjects = Subjects::new(address.prefix());
        let shown = address.to_string().into();
        Ok(Bus { client, context, subjects, health, connected, shown })
    }

    /// Names on this broker.
    pub fn subjects(&self) -> &Subjects {
        &self.subjects
    }

    /// Its address, for people.
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

    /// Whether there is a connection, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Waits until there is a connection, or none.
    pub(crate) async fn becomes(&self, wanted: bool) {
        let mut connected = self.connected.clone();
        // The sender lives as long as the client.
        if connected.wait_for(|now| *now == wanted).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for the first connection, as long as one may take: before that there is nothing to complain of.
    pub(crate) async fn first_connection(&self) {
        let _ = tokio::time::timeout(ANSWER, self.becomes(true)).await;
    }

    /// Makes the streams, unless they are there. One that is there is left as somebody has set it up.
    pub(crate) async fn make_streams(&self) -> Result<(), Trouble> {
        self.work_stream().await?;
        let events = stream::Config {
            name: self.subjects.events_stream(),
            subjects: self.subjects.all_events().to_vec(),
            description: Some("what happens in Sprag, in order".into()),
            retention: RetentionPolicy::Limits,
            max_age: EVENTS_KEPT,
            ..kept()
        };
        let made = self.context.get_or_create_stream(events).await;
        made.map(drop).map_err(|error| Trouble::new("making the stream of events", error))
    }

    async fn work_stream(&self) -> Result<stream::Stream, Trouble> {
        let work = stream::Config {
            name: self.subjects.work_stream(),
            subjects: vec![self.subjects.all_work()],
            description: Some("hand-offs of Sprag, each taken by one worker".into()),
            retention: RetentionPolicy::WorkQueue,
            max_age: WORK_KEPT,
            ..kept()
        };
        let made = self.context.get_or_create_stream(work).await;
        made.map_err(|error| Trouble::new("making the stream of hand-offs", error))
    }

    /// The consumer that the workers of a queue share; made unless it is there.
    pub(crate) async fn consumer(&self, queue: &str) -> Result<Consumer<pull::Config>, Trouble> {
        let name = self.subjects.consumer(queue);
        let config = pull::Config {
            durable_name: Some(name.clone()),
            filter_subject: self.subjects.work(queue),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            deliver_policy: consumer::DeliverPolicy::All,
            ..pull::Config::default()
        };
        let made = self.work_stream().await?.get_or_create_consumer(&name, config).await;
        made.map_err(|error| Trouble::new("making a queue's consumer", error))
    }
}

/// What both streams have in common.
fn kept() -> stream::Config {
    stream::Config {
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        max_messages: MOST_MESSAGES,
        duplicate_window: DUPLICATES,
        num_replicas: 1,
        ..stream::Config::default()
    }
}
