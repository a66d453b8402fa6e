//! `sprag mcp --server URL`: an agent that speaks over stdin and stdout, and a server that speaks HTTP.
//!
//! ```text
//!   stdin ──line──▶ POST /mcp ──answer──▶ line ──▶ stdout
//! ```
//!
//! Messages pass as they are. A server that cannot be reached is told to the agent as the answer to its request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, JoinSet};

/// Requests that go on at once; further ones wait.
const AT_ONCE: usize = 32;
/// No message is longer.
const LONGEST_MESSAGE: usize = 8 << 20;
/// No request takes longer: the longest wait for a task, and some more.
const LONGEST_REQUEST: Duration = Duration::from_secs(90);

/// How long to wait for answers once the agent sends nothing more.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Why a relay cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The address makes no sense here.
    #[error("{0:?} is not an http:// address of a server")]
    Address(String),
    /// Somebody would read along.
    #[error(
        "{0:?}: https is not spoken; put a proxy that speaks it before the server, and name the proxy's http:// address"
    )]
    Https(String),
    /// Stdin or stdout failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Passes an agent's messages on to a server.
pub struct Relay {
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
    token: Option<String>,
    /// The protocol's version that both agreed on.
    version: Mutex<Option<String>>,
}

impl Relay {
    /// Passes messages on to the server at this address.
    pub fn new(server: &str, token: Option<String>) -> Result<Relay, RelayError> {
        if server.starts_with("https://") {
            return Err(RelayError::Https(server.to_owned()));
        }
        let uri: Uri = format!("{}/mcp", server.trim_end_matches('/'))
            .parse()
            .map_err(|_| RelayError::Address(server.to_owned()))?;
        if uri.scheme_str() != Some("http") || uri.authority().is_none() {
            return Err(RelayError::Address(server.to_owned()));
        }
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Relay { client, uri, token, version: Mutex::new(None) })
    }

    /// Passes messages on until stdin ends.
    pub async fn run(self) -> Result<(), RelayError> {
        let relay = Arc::new(self);
        let out = Arc::new(Mutex::new(tokio::io::stdout()));
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut input = BufReader::new(tokio::io::stdin());
        let mut going_on = JoinSet::new();
        let mut pending: BTreeMap<String, AbortHandle> = BTreeMap::new();
        loop {
            let mut line = Vec::new();
            let read = (&mut input).take(LONGEST_MESSAGE as u64 + 1).read_until(b'\n', &mut line).await?;
            if read == 0 {
                break;
            }
            if line.len() > LONGEST_MESSAGE {
                let why = format!("the message has more than {LONGEST_MESSAGE} bytes");
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why).into());
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let message: Value = serde_json::from_slice(&line).unwrap_or_default();
            if message["method"] == "notifications/cancelled" {
                // The server learns of it by the end of the request.
                if let Some(request) = pending.remove(&message["params"]["requestId"].to_string()) {
                    request.abort();
                }
                continue;
            }
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
            let (relay, out) = (Arc::clone(&relay), Arc::clone(&out));
            let request = going_on.spawn(async move {
                for answer in relay.pass_on(&line).await {
                    let mut out = out.lock().await;
                    let written = async {
                        out.write_all(answer.to_string().as_bytes()).await?;
                        out.write_all(b"\n").await?;
                        out.flush().await
                    };
                    if let Err(error) = written.await {
                        tracing::warn!(%error, "the agent does not listen any more");
                    }
                }
                drop(place);
            });
            pending.retain(|_, request| !request.is_finished());
            pending.insert(message["id"].to_string(), request);
            while going_on.try_join_next().is_some() {}
        }
        // What was asked before stdin ended is answered; nobody waits for a task any more.
        let answered = async { while going_on.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_ANSWERS, answered).await;
        Ok(())
    }

    /// Sends one message, and gives what the server answers.
    async fn pass_on(&self, line: &[u8]) -> Vec<Value> {
        let message: Value = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(error) => return vec![failure(&Value::Null, -32700, &format!("not JSON: {error}"))],
        };
        let id = message.get("id").cloned().unwrap_or(Value::Null);
        let method = message["method"].as_str().unwrap_or_default();
        match tokio::time::timeout(LONGEST_REQUEST, self.send(&message)).await {
            Ok(Ok(answers)) => {
                if method == "initialize"
                    && let Some(version) =
                        answers.iter().find_map(|a| a["result"]["protocolVersion"].as_str())
                {
                    *self.version.lock().await = Some(version.to_owned());
                }
                answers
            }
            // Nobody waits for the answer to a notification.
            _ if id.is_null() => Vec::new(),
            Ok(Err(why)) => vec![failure(&id, -32000, &why)],
            Err(_) => vec![failure(&id, -32000, "the server did not answer in time: try again")],
        }
    }

    async fn send(&self, message: &Value) -> Result<Vec<Value>, String> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in self.described(message).await {
            request = request.header(name, value);
        }
        let request =
            request.body(Full::new(Bytes::from(message.to_string()))).map_err(|error| error.to_string())?;
        let response = self.client.request(request).await.map_err(|error| {
            format!("the server at {} cannot be reached ({error}): is `sprag serve` running?", self.uri)
        })?;
        let status = response.status();
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let streams = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let body = Limited::new(response.into_body(), LONGEST_MESSAGE)
            .collect()
            .await
            .map_err(|error| format!("the answer could not be read: {error}"))?
            .to_bytes();
        if status == StatusCode::ACCEPTED || (status.is_success() && body.is_empty()) {
            return Ok(Vec::new());
        }
        let text = String::from_utf8_lossy(&body);
        if !status.is_success() {
            let problem: Value = serde_json::from_str(&text).unwrap_or_default();
            let said = problem["message"].as_str().unwrap_or(text.trim());
            return Err(format!("the server answered {status}: {said}"));
        }
        let texts: Vec<&str> = match streams {
            true => text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).collect(),
            false => vec![text.trim()],
        };
        let parsed = texts.iter().filter(|text| !text.is_empty()).map(|text| serde_json::from_str(text));
        parsed.collect::<Result<_, _>>().map_err(|error| format!("the answer is not JSON: {error}"))
    }
}

impl Relay {
    /// What the headers say of a message: by which version it is meant, what it asks for, and of what.
    async fn described(&self, message: &Value) -> Vec<(&'static str, HeaderValue)> {
        let params = &message["params"];
        let own = params["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str().map(str::to_owned);
        let version = match own {
            Some(version) => Some(version),
            None => self.version.lock().await.clone(),
        };
        let name = params["name"].as_str().or_else(|| params["uri"].as_str());
        let told = [
            ("mcp-protocol-version", version.as_deref()),
            ("mcp-method", message["method"].as_str()),
            ("mcp-name", name),
        ];
        let known = told.into_iter().filter_map(|(header, text)| Some((header, text?)));
        known.filter_map(|(header, text)| Some((header, HeaderValue::from_str(text).ok()?))).collect()
    }
}

fn failure(id: &Value, code: i64, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}
