//! One request and its answer, or in words why there is none. Whether to ask again is for the caller to say.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sprag_store::Id;
use sprag_worker::wire;

use crate::backoff::fill;
use crate::error::Error;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(20);
/// What an answer may have: work with its plans.
const MOST_ANSWER_BYTES: usize = 64 << 20;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// Reads `http://HOST[:PORT][/PREFIX]`.
    pub fn parse(text: &str) -> Result<Address, Error> {
        let wrong = |reason: &str| Error::Address { text: text.to_owned(), reason: reason.to_owned() };
        let uri: Uri = text.parse().map_err(|_| wrong("not a URL; write http://HOST:PORT"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(wrong(
                    "https is not spoken here: run a proxy on this machine that speaks TLS to the server \
                     (stunnel, ghostunnel, an ssh tunnel), and name its loopback address with http://",
                ));
            }
            _ => return Err(wrong("it must begin with http://")),
        }
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it holds a user name: a worker shows a token, with --token"));
        }
        if uri.query().is_some() {
            return Err(wrong("it holds a query"));
        }
        Ok(Address(format!("http://{authority}{}", uri.path().trim_end_matches('/'))))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Asks a server. Cloning it is cheap.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    address: Address,
    pool: Pool<HttpConnector, Full<Bytes>>,
    token: Option<HeaderValue>,
    key: HeaderValue,
    id: Id,
}

impl Client {
    /// A client with a key of its own.
    pub fn new(address: Address, token: Option<&str>) -> Result<Client, Error> {
        let token = token.map(|token| HeaderValue::from_str(&format!("Bearer {}", token.trim())));
        let mut token =
            token.transpose().map_err(|_| Error::Local("--token holds strange characters".into()))?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        let mut bits = [0u8; 16];
        fill(&mut bits);
        let key: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = wire::worker_id(&key);
        let mut key = HeaderValue::from_str(&key).map_err(|error| Error::Local(error.to_string()))?;
        key.set_sensitive(true);
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        connector.set_keepalive(Some(IDLE));
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Client(Arc::new(Inner { address, pool, token, key, id })))
    }

    /// The worker's number.
    pub fn id(&self) -> Id {
        self.0.id
    }

    /// Where the server is.
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// Says something, and reads the answer, both within `limit`.
    pub(crate) async fn post<R: DeserializeOwned>(
        &self,
        path: &str,
        told: &impl Serialize,
        limit: Duration,
    ) -> Result<R, Error> {
        let body = serde_json::to_vec(told).map_err(|error| Error::Local(error.to_string()))?;
        self.send(path, "application/json", body.into(), limit).await
    }

    /// Sends bytes.
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

    async fn exchange<R: DeserializeOwned>(
        &self,
        path: &str,
        kind: &'static str,
        body: Bytes,
    ) -> Result<R, Error> {
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
            StatusCode::OK => serde_json::from_slice(&body).map_err(|error| self.strange(&error.to_string())),
            status => Err(self.problem(status, after.map(Duration::from_secs), &body)),
        }
    }

    /// What an answer that is none of ours, or no good one, means.
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
            // Of a path that is not there at all, or of something that is gone.
            404 if told.code != "not_found" => self.strange(&reason),
            404 if reason.contains("/v1/work/") => self.strange(&reason),
            404 => Error::Refused(reason),
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

/// An error with what is behind it: the outermost alone says little.
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
        ] {
            assert_eq!(Address::parse(text).map(|address| address.to_string()).ok().as_deref(), Some(wanted));
        }
        for (text, reason) in [
            ("https://build.example", "TLS"),
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
