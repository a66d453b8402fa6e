//! What `sprag doctor` says of a broker.

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::{Context, ContextBuilder, ErrorCode};
use async_nats::{Client, ConnectErrorKind, Event, HeaderMap, RequestErrorKind};
use serde_json::Value;
use tokio::sync::watch;

use crate::address::Address;
use crate::bus::{ANSWER, Trouble};
use crate::subjects::Subjects;

/// The oldest broker that will do.
const OLDEST: (i64, i64) = (2, 9);

/// A stream as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Its name.
    pub name: String,
    /// What it holds; none if it was not made yet.
    pub there: Option<StreamState>,
}

/// What a stream holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// How many copies there are.
    pub replicas: usize,
    /// Messages in it.
    pub messages: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Consumers of it.
    pub consumers: usize,
}

/// Why a broker that is there is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// It is older than what is needed.
    TooOld,
    /// It keeps no messages: JetStream is off, for all or for this account.
    Off(String),
    /// This user may not do what is needed.
    Refused(String),
    /// It did not answer, or not sensibly.
    Mute(String),
}

/// A broker as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// The server's version.
    pub version: String,
    /// Our streams, if it is new enough, keeps messages, and lets us use them.
    pub streams: Result<Vec<StreamFacts>, Lack>,
}

/// Connects to a broker once, and looks at it. It changes nothing there.
pub async fn examine(address: &Address) -> Result<Examined, Trouble> {
    let trouble = |why: String| Trouble::new("connecting to the broker", why);
    let (told, refused) = watch::channel(None);
    let options =
        address.options().name("sprag doctor").connection_timeout(ANSWER).request_timeout(Some(ANSWER));
    let options = options.event_callback(move |event| {
        if let Event::ServerError(error) = event {
            told.send_replace(Some(said(&error)));
        }
        std::future::ready(())
    });
    let connected = tokio::time::timeout(ANSWER * 2, options.connect(address.servers())).await;
    let client = connected.map_err(|_| trouble(format!("no answer within {} s", ANSWER.as_secs() * 2)))?;
    let client = client.map_err(|error| match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            trouble("authorization violation; see the user and the password in the address".into())
        }
        _ => trouble(error.to_string()),
    })?;
    let version = client.server_info().version;
    if !client.is_server_compatible(OLDEST.0, OLDEST.1, 0) {
        return Ok(Examined { version, streams: Err(Lack::TooOld) });
    }
    let context = ContextBuilder::new().timeout(ANSWER).build(client.clone());
    let asking = Asking { client, context, subjects: Subjects::new(address.prefix()), refused };
    Ok(Examined { version, streams: asking.streams().await })
}

/// The server's own words, which the client's begin with its name.
pub(crate) fn said(error: &async_nats::ServerError) -> String {
    let told = error.to_string();
    told.strip_prefix("nats: ").unwrap_or(&told).to_owned()
}

struct Asking {
    client: Client,
    context: Context,
    subjects: Subjects,
    /// What the server refused last. It tells so beside the question, which then is never answered.
    refused: watch::Receiver<Option<String>>,
}

impl Asking {
    async fn streams(&self) -> Result<Vec<StreamFacts>, Lack> {
        self.has_jetstream().await?;
        self.may_publish().await?;
        let mut streams = Vec::new();
        for name in [self.subjects.work_stream(), self.subjects.events_stream()] {
            let there = match self.unless_refused(self.context.get_stream(&name)).await? {
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
                Err(error) => return Err(Lack::Mute(format!("looking at {name}: {error}"))),
            };
            streams.push(StreamFacts { name, there });
        }
        Ok(streams)
    }

    /// Asked plainly: the client's own type wants more than an older server tells.
    async fn has_jetstream(&self) -> Result<(), Lack> {
        use async_nats::jetstream::context::RequestErrorKind::NoResponders;
        let asked = self.context.request::<_, _, Value>("INFO", &());
        let told = self.unless_refused(asked).await?.map_err(|error| match error.kind() {
            NoResponders => Lack::Off("nobody there answers for it".to_owned()),
            _ => Lack::Mute(error.to_string()),
        })?;
        match told["error"]["description"].as_str() {
            None => Ok(()),
            Some(why) => Err(Lack::Off(why.to_owned())),
        }
    }

    /// A hand-off that no stream keeps, because it asks for one that is not there.
    async fn may_publish(&self) -> Result<(), Lack> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Stream", "none");
        let subject = self.subjects.work("doctor");
        let told = self.unless_refused(self.client.request_with_headers(subject, headers, "".into())).await?;
        match told.map_err(|error| error.kind()) {
            // Refused by the stream, or there is none yet: either way it was let through.
            Ok(_) | Err(RequestErrorKind::NoResponders) => Ok(()),
            Err(other) => Err(Lack::Mute(format!("publishing: {other}"))),
        }
    }

    async fn unless_refused<T>(&self, asked: impl Future<Output = T>) -> Result<T, Lack> {
        let mut refused = self.refused.clone();
        let refusal = async move {
            match refused.wait_for(Option::is_some).await.map(|why| why.clone()) {
                Ok(Some(why)) => why,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            answer = asked => Ok(answer),
            why = refusal => Err(Lack::Refused(why)),
        }
    }
}

fn is_missing(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}
