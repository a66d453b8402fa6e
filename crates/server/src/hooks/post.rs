//! One signed POST: no redirects, no more of the answer than its status, and not for long.

use std::time::Duration;

use axum::http::{Request, Uri, header};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use sha2::Sha256;
use tokio::net::TcpStream;

use crate::access::hex;

/// How long telling a hook may take, from the connection to the answer's end.
const LIMIT: Duration = Duration::from_secs(10);
/// How much of an answer is read; nobody looks at it.
const ANSWER_BYTES: usize = 64 * 1024;

/// Where a hook is.
#[derive(Debug, Clone)]
pub(super) struct Target {
    authority: String,
    host: String,
    port: u16,
    path: String,
}

/// What a URL means; why it cannot be used otherwise.
pub(super) fn target(url: &str) -> Result<Target, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{url:?} is not a URL: {error}"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err("https is not spoken by this build: send to a proxy on this machine that does".into());
        }
        _ => return Err(format!("{url:?} does not begin with http://")),
    }
    let authority = uri.authority().ok_or("it names no host")?;
    if authority.as_str().contains('@') {
        return Err("a URL with a password in it would show it to everybody".into());
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return Err("it names no host".into());
    }
    Ok(Target {
        authority: authority.as_str().to_owned(),
        host,
        port: authority.port_u16().unwrap_or(80),
        path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
    })
}

/// `v1=` and the HMAC-SHA256 of the time, a dot and the body.
pub(super) fn signature(secret: &str, timestamp: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key of any length will do");
    mac.update(timestamp.as_bytes());
    mac.update(b".");
    mac.update(body);
    format!("v1={}", hex(&mac.finalize().into_bytes()))
}

/// A message to a hook.
pub(super) struct Message<'m> {
    pub(super) secret: &'m str,
    pub(super) event_id: u64,
    pub(super) wall_ms: i64,
    pub(super) body: Bytes,
}

/// Tells a hook; what went wrong if it did not take it.
pub(super) async fn post(target: &Target, message: Message<'_>) -> Result<(), String> {
    match tokio::time::timeout(LIMIT, send(target, message)).await {
        Ok(answered) => answered,
        Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
    }
}

async fn send(target: &Target, message: Message<'_>) -> Result<(), String> {
    let stream = TcpStream::connect((target.host.as_str(), target.port))
        .await
        .map_err(|error| format!("cannot connect to {}: {error}", target.authority))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| format!("cannot talk to {}: {error}", target.authority))?;
    let driving = tokio::spawn(connection);
    let timestamp = (message.wall_ms / 1000).to_string();
    let request = Request::post(&target.path)
        .header(header::HOST, &target.authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .header(header::USER_AGENT, concat!("sprag/", env!("CARGO_PKG_VERSION")))
        .header("sprag-event-id", message.event_id)
        .header("sprag-signature", signature(message.secret, &timestamp, &message.body))
        .header("sprag-timestamp", timestamp)
        .body(Full::new(message.body))
        .map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(|error| format!("no answer: {error}"));
    let told = match answer {
        Ok(answer) => {
            let status = answer.status();
            // Read so that the other side does not see a connection that was torn; what it says is not looked at.
            let _ = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
            match status.as_u16() {
                200..300 => Ok(()),
                300..400 => Err(format!("answered {status}: redirects are not followed")),
                _ => Err(format!("answered {status}")),
            }
        }
        Err(error) => Err(error),
    };
    driving.abort();
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_anybody_can_compute() {
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac 'a secret of sixteen'
        assert_eq!(
            signature("a secret of sixteen", "1700000000", b"{}"),
            "v1=9e0f98fb6d96af0b7ebef51d30bd6c877daee8bce9b06dccbaa91614ae5b1e5b"
        );
    }

    #[test]
    fn only_plain_http_is_taken() {
        let there = target("http://127.0.0.1:9000/a?b=c").expect("a target");
        assert_eq!((there.host.as_str(), there.port, there.path.as_str()), ("127.0.0.1", 9000, "/a?b=c"));
        assert_eq!(target("http://[::1]/").expect("a target").host, "::1");
        for wrong in ["https://a/", "ftp://a/", "/a", "a", "http://", "http://u:p@a/", "http:///a", "\0"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
