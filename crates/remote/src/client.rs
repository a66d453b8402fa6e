//! One request and its answer, or an error. The caller decides whether to retry.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sprag_store::Id;
use sprag_tls::Connector;
use sprag_worker::wire;

use crate::backoff::fill;
use crate::error::Error;
use crate::stream::EventStream;

/// The time after which an unused connection is closed.
const IDLE: Duration = Duration::from_secs(20);
/// The largest answer: executions with their plans.
const MOST_ANSWER_BYTES: usize = 64 << 20;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// Parses `http://HOST[:PORT][/PREFIX]`, or the same with `https`.
    pub fn parse(text: &str) -> Result<Address, Error> {
        let wrong = |reason: &str| Error::Address { text: text.to_owned(), reason: reason.to_owned() };
        let uri: Uri = text.parse().map_err(|_| wrong("not a URL; write http://HOST:PORT"))?;
        let scheme = match uri.scheme_str() {
            Some(scheme @ ("http" | "https")) => scheme,
            _ => return Err(wrong("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it has a user name: show a token instead, with --token"));
        }
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        Ok(Address(format!("{scheme}://{authority}{}", uri.path().trim_end_matches('/'))))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The answer to a request for a stream.
pub enum Opened {
    /// The stream.
    Stream(EventStream),
    /// The status and the body of another answer.
    Problem(u16, Vec<u8>),
}

/// A client of one server. Cloning it is cheap.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    address: Address,
    pool: Pool<Connector, Full<Bytes>>,
    token: Option<HeaderValue>,
    /// The token's hash; empty without one.
    hash: String,
    key: HeaderValue,
    id: Id,
    /// The name of the server's store; empty until the server has told it.
    store: Mutex<String>,
}

impl Client {
    /// Creates a client with a random key. The connector decides which authorities it trusts.
    pub fn new(address: Address, token: Option<&str>, connector: Connector) -> Result<Client, Error> {
        let hash = token.map(|token| wire::token_hash(token.trim())).unwrap_or_default();
        let token = token.map(|token| HeaderValue::from_str(&format!("Bearer {}", token.trim())));
        let mut token =
            token.transpose().map_err(|_| Error::Local("--token holds strange characters".into()))?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        let mut bits = [0u8; 16];
        fill(&mut bits);
        let key: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let (id, key) = (wire::worker_id(&key, &hash), header(&key)?);
        Ok(Client(Arc::new(Inner { address, pool, token, hash, key, id, store: Mutex::default() })))
    }

    /// Returns a client of the same server for a worker with another key.
    pub(crate) fn with_key(&self, key: &str) -> Result<Client, Error> {
        let inner = &self.0;
        Ok(Client(Arc::new(Inner {
            address: inner.address.clone(),
            pool: inner.pool.clone(),
            token: inner.token.clone(),
            hash: inner.hash.clone(),
            key: header(key)?,
            id: wire::worker_id(key, &inner.hash),
            store: Mutex::new(self.store()),
        })))
    }

    /// Returns the worker's key.
    pub(crate) fn key(&self) -> String {
        self.0.key.to_str().unwrap_or_default().to_owned()
    }

    /// Returns the name of the server's store; empty before the worker has registered.
    pub(crate) fn store(&self) -> String {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores the name of the server's store.
    pub(crate) fn set_store(&self, store: String) {
        *self.0.store.lock().unwrap_or_else(PoisonError::into_inner) = store;
    }

    /// Returns the worker's id.
    pub fn id(&self) -> Id {
        self.0.id
    }

    /// Returns the server's address.
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// Sends a request to the server's API. Returns the status and the body of its answer, whatever the status is.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<serde_json::Value>,
        limit: Duration,
    ) -> Result<(u16, Vec<u8>), Error> {
        self.ask_with(method, path, None, body, limit).await
    }

    /// Sends a request with an idempotency key: however often it is repeated, the server does it once.
    pub async fn ask_with(
        &self,
        method: &str,
        path: &str,
        idempotency_key: Option<&str>,
        body: Option<serde_json::Value>,
        limit: Duration,
    ) -> Result<(u16, Vec<u8>), Error> {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        headers.extend(idempotency_key.map(|key| ("idempotency-key", key.to_owned())));
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        self.request(method, path, &headers, body, limit).await
    }

    /// Sends a request with these headers and bytes. Returns the status and the body of its answer, whatever the status
    /// is.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<(u16, Vec<u8>), Error> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.0.address));
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(token) = &self.0.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let request =
            request.body(Full::new(Bytes::from(body))).map_err(|error| Error::Local(error.to_string()))?;
        let exchange = async {
            let answer = self.0.pool.request(request).await;
            let answer = answer.map_err(|error| self.away(causes(&error), None))?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), MOST_ANSWER_BYTES).collect().await;
            let body = body.map_err(|error| self.away(format!("the answer broke off: {error}"), None))?;
            Ok((status, body.to_bytes().to_vec()))
        };
        match tokio::time::timeout(limit, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(self.away(format!("no answer within {} s", limit.as_secs_f32()), None)),
        }
    }

    /// Opens a stream of events; `limit` is the time until it begins.
    pub async fn open(&self, path: &str, limit: Duration) -> Result<Opened, Error> {
        let mut request = Request::get(format!("{}{path}", self.0.address));
        if let Some(token) = &self.0.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let request =
            request.body(Full::new(Bytes::new())).map_err(|error| Error::Local(error.to_string()))?;
        let opened = async {
            let answer = self.0.pool.request(request).await;
            let answer = answer.map_err(|error| self.away(causes(&error), None))?;
            let status = answer.status().as_u16();
            if status == 200 {
                return Ok(Opened::Stream(EventStream::new(self.0.address.to_string(), answer.into_body())));
            }
            let body = Limited::new(answer.into_body(), MOST_ANSWER_BYTES).collect().await;
            let body = body.map_err(|error| self.away(format!("the answer broke off: {error}"), None))?;
            Ok(Opened::Problem(status, body.to_bytes().to_vec()))
        };
        match tokio::time::timeout(limit, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(self.away(format!("no answer within {} s", limit.as_secs_f32()), None)),
        }
    }

    /// Sends a JSON message and reads the answer, both within `limit`.
    pub(crate) async fn post<R: DeserializeOwned>(
        &self,
        path: &str,
        told: &impl Serialize,
        limit: Duration,
    ) -> Result<R, Error> {
        let body = serde_json::to_vec(told).map_err(|error| Error::Local(error.to_string()))?;
        self.send(path, "application/json", body.into(), limit).await
    }

    /// Sends bytes of the content type `kind` and reads the answer, both within `limit`.
    pub(crate) async fn send<R: DeserializeOwned>(
        &self,
        path: &str,
        kind: &'static str,
        body: Bytes,
        limit: Duration,
    ) -> Result<R, Error> {
        match tokio::time::timeout(limit, self.exchange(path, kind, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(self.away(format!("no answer within {} s", limit.as_secs_f32()), None)),
        }
    }

    /// Sends a JSON message and returns the bytes of the answer, both within `limit`.
    pub(crate) async fn read(
        &self,
        path: &str,
        told: &impl Serialize,
        limit: Duration,
    ) -> Result<Bytes, Error> {
        let body = serde_json::to_vec(told).map_err(|error| Error::Local(error.to_string()))?;
        match tokio::time::timeout(limit, self.exchange_bytes(path, "application/json", body.into())).await {
            Ok(answer) => answer,
            Err(_) => Err(self.away(format!("no answer within {} s", limit.as_secs_f32()), None)),
        }
    }

    async fn exchange<R: DeserializeOwned>(
        &self,
        path: &str,
        kind: &'static str,
        body: Bytes,
    ) -> Result<R, Error> {
        let body = self.exchange_bytes(path, kind, body).await?;
        serde_json::from_slice(&body).map_err(|error| self.strange(&error.to_string()))
    }

    async fn exchange_bytes(&self, path: &str, kind: &'static str, body: Bytes) -> Result<Bytes, Error> {
        let mut request = Request::post(format!("{}{path}", self.0.address))
            .header(CONTENT_TYPE, kind)
            .header(wire::WORKER, self.0.key.clone());
        if let Some(token) = &self.0.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let request = request.body(Full::new(body)).map_err(|error| Error::Local(error.to_string()))?;
        let response = self.0.pool.request(request).await.map_err(|error| self.away(causes(&error), None))?;
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let body = Limited::new(response.into_body(), MOST_ANSWER_BYTES).collect().await;
        let body =
            body.map_err(|error| self.away(format!("the answer broke off: {error}"), None))?.to_bytes();
        match status {
            StatusCode::OK => Ok(body),
            status => Err(self.problem(status, after.map(Duration::from_secs), &body)),
        }
    }

    /// Converts an answer with an error status, from this server or from something in between, to an error.
    fn problem(&self, status: StatusCode, after: Option<Duration>, body: &[u8]) -> Error {
        #[derive(serde::Deserialize)]
        struct Problem {
            code: String,
            message: String,
            next: Option<String>,
        }
        let told: Option<Problem> = serde_json::from_slice(body).ok();
        let server = self.0.address.to_string();
        if status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429) {
            let reason = told.map_or_else(|| status.to_string(), |told| told.message);
            return self.away(reason, after);
        }
        let Some(told) = told else { return self.strange(&format!("it answers {status}")) };
        let next = told.next.map(|next| format!(" ({next})")).unwrap_or_default();
        let reason = format!("{}{next}", told.message);
        match status.as_u16() {
            401 | 403 => Error::Unwelcome { server, reason },
            409 => Error::Refused(reason),
            413 => Error::TooLarge(reason),
            // Either the path itself does not exist on the server, or the object of the request is gone.
            404 if told.code != "not_found" => self.strange(&reason),
            404 if reason.contains("/v1/work/") => self.strange(&reason),
            404 => Error::Gone(reason),
            _ => Error::Misunderstood { server, reason },
        }
    }

    fn away(&self, reason: String, after: Option<Duration>) -> Error {
        Error::Away { server: self.0.address.to_string(), reason, after }
    }

    fn strange(&self, reason: &str) -> Error {
        Error::Strange { server: self.0.address.to_string(), reason: reason.to_owned() }
    }
}

fn header(key: &str) -> Result<HeaderValue, Error> {
    let mut key = HeaderValue::from_str(key).map_err(|error| Error::Local(error.to_string()))?;
    key.set_sensitive(true);
    Ok(key)
}

/// Returns an error with its causes, because the outermost error alone says little.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_or_refused_with_the_reason() {
        for (text, wanted) in [
            ("http://127.0.0.1:7717", "http://127.0.0.1:7717"),
            ("http://build.example/", "http://build.example"),
            ("http://[::1]:1/sprag/", "http://[::1]:1/sprag"),
            ("https://build.example", "https://build.example"),
        ] {
            assert_eq!(Address::parse(text).map(|address| address.to_string()).ok().as_deref(), Some(wanted));
        }
        for (text, reason) in [
            ("build.example:7717", "http://"),
            ("ftp://x", "http://"),
            ("", "http://"),
            ("http://me:secret@x", "--token"),
            ("http://x/?a=b", "query"),
        ] {
            let told = Address::parse(text).expect_err(text).to_string();
            assert!(told.contains(reason), "{text}: {told}");
        }
    }
}
