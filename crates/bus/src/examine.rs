//! The broker checks of `sprag doctor`.

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::{Context, ContextBuilder, ErrorCode};
use async_nats::{Client, ConnectErrorKind, Event, HeaderMap, RequestErrorKind};
use serde_json::Value;
use tokio::sync::watch;

use crate::address::Address;
use crate::bus::{Error, REPLY_TIMEOUT};
use crate::subjects::Subjects;

/// The oldest supported version of the server.
const MIN_VERSION: (i64, i64) = (2, 9);

/// One of Sprag's streams on the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamReport {
    /// The stream's name on the broker.
    pub name: String,
    /// The stream's state; absent if the stream does not exist yet.
    pub state: Option<StreamState>,
}

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// The configured number of replicas.
    pub replicas: usize,
    /// The number of stored messages.
    pub messages: u64,
    /// The size of the stored messages.
    pub bytes: u64,
    /// The number of consumers.
    pub consumers: usize,
}

/// The reason why a reachable broker cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// The server is older than the oldest supported version.
    TooOld,
    /// JetStream is disabled, for the server or for this account.
    JetStreamOff(String),
    /// The user lacks a permission.
    Denied(String),
    /// The broker did not answer, or answered with an unexpected error.
    NoAnswer(String),
}

/// The result of [`examine`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerReport {
    /// The version that the server reports.
    pub version: String,
    /// Sprag's streams, or the reason why the broker cannot be used.
    pub streams: Result<Vec<StreamReport>, Unusable>,
}

/// Connects to a broker and checks it, without changing anything.
pub async fn examine(address: &Address) -> Result<BrokerReport, Error> {
    let error = |why: String| Error::new("connecting to the broker", why);
    let (sender, refused) = watch::channel(None);
    let options = address
        .options()
        .name("sprag doctor")
        .connection_timeout(REPLY_TIMEOUT)
        .request_timeout(Some(REPLY_TIMEOUT));
    let options = options.event_callback(move |event| {
        if let Event::ServerError(error) = event {
            sender.send_replace(Some(server_message(&error)));
        }
        std::future::ready(())
    });
    let connected = tokio::time::timeout(REPLY_TIMEOUT * 2, options.connect(address.servers())).await;
    let client =
        connected.map_err(|_| error(format!("no answer within {} s", REPLY_TIMEOUT.as_secs() * 2)))?;
    let client = client.map_err(|failure| match failure.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            error("authorization violation; see the user and the password in the address".into())
        }
        _ => error(failure.to_string()),
    })?;
    let version = client.server_info().version;
    if !client.is_server_compatible(MIN_VERSION.0, MIN_VERSION.1, 0) {
        return Ok(BrokerReport { version, streams: Err(Unusable::TooOld) });
    }
    let context = ContextBuilder::new().timeout(REPLY_TIMEOUT).build(client.clone());
    let probe = Probe { client, context, subjects: Subjects::new(address.prefix()), refused };
    Ok(BrokerReport { version, streams: probe.streams().await })
}

/// Returns the server's message without the client's prefix.
pub(crate) fn server_message(error: &async_nats::ServerError) -> String {
    let message = error.to_string();
    message.strip_prefix("nats: ").unwrap_or(&message).to_owned()
}

struct Probe {
    client: Client,
    context: Context,
    subjects: Subjects,
    /// The latest error that the server reported. The server never answers a request that it refuses.
    refused: watch::Receiver<Option<String>>,
}

impl Probe {
    async fn streams(&self) -> Result<Vec<StreamReport>, Unusable> {
        self.has_jetstream().await?;
        self.may_publish().await?;
        let mut streams = Vec::new();
        for name in [self.subjects.work_stream(), self.subjects.events_stream()] {
            let state = match self.unless_refused(self.context.get_stream(&name)).await? {
                Ok(stream) => {
                    let info = stream.cached_info();
                    Some(StreamState {
                        replicas: info.config.num_replicas,
                        messages: info.state.messages,
                        bytes: info.state.bytes,
                        consumers: info.state.consumer_count,
                    })
                }
                Err(error) if is_missing(&error.kind()) => None,
                Err(error) => return Err(Unusable::NoAnswer(format!("looking at {name}: {error}"))),
            };
            streams.push(StreamReport { name, state });
        }
        Ok(streams)
    }

    /// Checks for JetStream. Parses the answer as plain JSON, because older servers omit fields that the
    /// client's type needs.
    async fn has_jetstream(&self) -> Result<(), Unusable> {
        use async_nats::jetstream::context::RequestErrorKind::NoResponders;
        let asked = self.context.request::<_, _, Value>("INFO", &());
        let answer = self.unless_refused(asked).await?.map_err(|error| match error.kind() {
            NoResponders => Unusable::JetStreamOff("no server answers JetStream requests".to_owned()),
            _ => Unusable::NoAnswer(error.to_string()),
        })?;
        match answer["error"]["description"].as_str() {
            None => Ok(()),
            Some(why) => Err(Unusable::JetStreamOff(why.to_owned())),
        }
    }

    /// Checks the permission to publish, with a message that names a missing stream so that no stream stores
    /// it.
    async fn may_publish(&self) -> Result<(), Unusable> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Stream", "none");
        let subject = self.subjects.work("doctor");
        let answer =
            self.unless_refused(self.client.request_with_headers(subject, headers, "".into())).await?;
        match answer.map_err(|error| error.kind()) {
            // Either the stream rejected it, or no stream exists yet: the user may publish.
            Ok(_) | Err(RequestErrorKind::NoResponders) => Ok(()),
            Err(other) => Err(Unusable::NoAnswer(format!("publishing: {other}"))),
        }
    }

    async fn unless_refused<T>(&self, asked: impl Future<Output = T>) -> Result<T, Unusable> {
        let mut refused = self.refused.clone();
        let refusal = async move {
            match refused.wait_for(Option::is_some).await.map(|why| why.clone()) {
                Ok(Some(why)) => why,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            answer = asked => Ok(answer),
            why = refusal => Err(Unusable::Denied(why)),
        }
    }
}

fn is_missing(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}
