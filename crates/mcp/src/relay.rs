//! `sprag mcp --server URL`: connects an agent on stdin and stdout with a server that speaks HTTP.
//!
//! ```text
//!   stdin ──line──▶ POST /mcp ──answer──▶ line ──▶ stdout
//! ```
//!
//! Messages pass unchanged. If the server cannot be reached, the agent gets that as the answer to its request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use sprag_tls::Connector;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, JoinSet};

/// The largest number of concurrent requests; further ones wait.
const AT_ONCE: usize = 32;
/// The largest size of a message, in bytes.
const LONGEST_MESSAGE: usize = 8 << 20;
/// The time limit of a request: the longest wait for a task, and some more.
const LONGEST_REQUEST: Duration = Duration::from_secs(90);

/// The time to wait for answers after the agent has closed stdin.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// The reason why a relay cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The address is neither an `http://` nor an `https://` address.
    #[error("{0:?} is not an http:// or https:// address of a server")]
    Address(String),
    /// Stdin or stdout failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The reason why the server's token cannot be found, in words for the agent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokenError(pub String);

/// The reason why the server did not answer a message. The agent gets it as an answer.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
    #[error("the server at {uri} cannot be reached ({error}): is `sprag serve` running?")]
    Unreachable { uri: Uri, error: hyper_util::client::legacy::Error },
    #[error("the answer could not be read: {0}")]
    Unreadable(Box<dyn std::error::Error + Send + Sync>),
    #[error("the server answered {status}: {said}")]
    Refused { status: StatusCode, said: String },
    #[error("the answer is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
}

/// The token that a relay shows to its server.
pub enum ShownToken {
    /// A token that the user has given.
    Given(String),
    /// A function that finds the token when a message is sent, because the server may not have started yet. The agent
    /// gets its error as an answer.
    Found(Box<dyn Fn() -> Result<Option<String>, TokenError> + Send + Sync>),
}

impl ShownToken {
    fn now(&self) -> Result<Option<String>, TokenError> {
        match self {
            ShownToken::Given(token) => Ok(Some(token.clone())),
            ShownToken::Found(find) => find(),
        }
    }
}

/// A relay between an agent and a server.
pub struct Relay {
    client: Client<Connector, Full<Bytes>>,
    uri: Uri,
    token: ShownToken,
    /// The protocol version that agent and server agreed on; none before they did.
    version: Mutex<Option<String>>,
}

impl Relay {
    /// Creates a relay to the server at this address. The connector decides which authorities it trusts.
    pub fn new(server: &str, token: ShownToken, connector: Connector) -> Result<Relay, RelayError> {
        let uri: Uri = format!("{}/mcp", server.trim_end_matches('/'))
            .parse()
            .map_err(|_| RelayError::Address(server.to_owned()))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.authority().is_none() {
            return Err(RelayError::Address(server.to_owned()));
        }
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Relay { client, uri, token, version: Mutex::new(None) })
    }

    /// Passes messages on until stdin ends.
    pub async fn run(self) -> Result<(), RelayError> {
        self.run_over(tokio::io::stdin(), tokio::io::stdout()).await
    }

    /// Passes messages on until the input ends.
    pub(crate) async fn run_over(
        self,
        input: impl AsyncRead + Unpin,
        out: impl AsyncWrite + Unpin + Send + 'static,
    ) -> Result<(), RelayError> {
        let relay = Arc::new(self);
        let out = Arc::new(Mutex::new(out));
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut input = BufReader::new(input);
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
                // The server learns of the cancellation when the connection of the request closes.
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
                        tracing::warn!(%error, "the agent has closed its input");
                    }
                }
                drop(place);
            });
            pending.retain(|_, request| !request.is_finished());
            pending.insert(message["id"].to_string(), request);
            while going_on.try_join_next().is_some() {}
        }
        // Requests from before the end of stdin are answered, within a limit: the agent no longer waits for a task.
        let answered = async { while going_on.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_ANSWERS, answered).await;
        Ok(())
    }

    /// Sends one message, and returns the server's answers.
    pub(crate) async fn pass_on(&self, line: &[u8]) -> Vec<Value> {
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
            // A notification has no answer.
            _ if id.is_null() => Vec::new(),
            Ok(Err(error)) => vec![failure(&id, -32000, &error.to_string())],
            Err(_) => vec![failure(&id, -32000, "the server did not answer in time: try again")],
        }
    }

    async fn send(&self, message: &Value) -> Result<Vec<Value>, ExchangeError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream");
        if let Some(token) = self.token.now()? {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in self.described(message).await {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(message.to_string())))?;
        let sent = self.client.request(request).await;
        let response = sent.map_err(|error| ExchangeError::Unreachable { uri: self.uri.clone(), error })?;
        let status = response.status();
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let streams = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let body = Limited::new(response.into_body(), LONGEST_MESSAGE)
            .collect()
            .await
            .map_err(ExchangeError::Unreadable)?
            .to_bytes();
        if status == StatusCode::ACCEPTED || (status.is_success() && body.is_empty()) {
            return Ok(Vec::new());
        }
        let text = String::from_utf8_lossy(&body);
        if !status.is_success() {
            let problem: Value = serde_json::from_str(&text).unwrap_or_default();
            let said = problem["message"].as_str().unwrap_or(text.trim());
            return Err(ExchangeError::Refused { status, said: said.to_owned() });
        }
        let texts: Vec<&str> = if streams {
            text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).collect()
        } else {
            vec![text.trim()]
        };
        let parsed = texts.iter().filter(|text| !text.is_empty()).map(|text| serde_json::from_str(text));
        Ok(parsed.collect::<Result<_, _>>()?)
    }
}

impl Relay {
    /// Returns the headers that describe a message: its protocol version, its method, and the name of its object.
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

pub(crate) fn failure(id: &Value, code: i64, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}
