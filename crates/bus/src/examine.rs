//! What `sprag doctor` says of a broker.

use async_nats::ConnectOptions;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::{Context, ContextBuilder, ErrorCode};
use serde_json::Value;

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

/// A broker as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// The server's version.
    pub version: String,
    /// Whether that is new enough.
    pub new_enough: bool,
    /// Whether it keeps messages; why not otherwise.
    pub jetstream: Result<(), String>,
    /// Our streams.
    pub streams: Vec<StreamFacts>,
}

/// Connects to a broker once, and looks at it. It changes nothing there.
pub async fn examine(address: &Address) -> Result<Examined, Trouble> {
    let trouble = |error: &dyn std::fmt::Display| Trouble::new("connecting to the broker", error);
    let options = ConnectOptions::new().name("sprag doctor").connection_timeout(ANSWER);
    let connected = tokio::time::timeout(ANSWER * 2, options.connect(address.servers())).await;
    let client = connected.map_err(|error| trouble(&error))?.map_err(|error| trouble(&error))?;
    let context = ContextBuilder::new().timeout(ANSWER).build(client.clone());
    let jetstream = has_jetstream(&context).await;
    let subjects = Subjects::new(address.prefix());
    let mut streams = Vec::new();
    if jetstream.is_ok() {
        for name in [subjects.work_stream(), subjects.events_stream()] {
            let there = match context.get_stream(&name).await {
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
                Err(error) => return Err(Trouble::new("looking at a stream", error)),
            };
            streams.push(StreamFacts { name, there });
        }
    }
    let version = client.server_info().version;
    let new_enough = client.is_server_compatible(OLDEST.0, OLDEST.1, 0);
    Ok(Examined { version, new_enough, jetstream, streams })
}

/// Asked plainly: the client's own type wants more than an older server tells.
async fn has_jetstream(context: &Context) -> Result<(), String> {
    let told: Result<Value, _> = context.request("INFO", &()).await;
    let told = told.map_err(|error| error.to_string())?;
    match told["error"]["description"].as_str() {
        None => Ok(()),
        Some(why) => Err(why.to_owned()),
    }
}

fn is_missing(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}
