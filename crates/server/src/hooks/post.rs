//! Sending one signed POST: it follows no redirects, uses only the answer's status, and has a short time limit.

use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use sha2::Sha256;
use tokio::net::TcpStream;

use sprag_app::hex;
use sprag_app::hooks::{HookTarget, resolve_hook_host};
use sprag_tls::Stream;

use crate::state::Options;

/// The time limit for one delivery, from the connection to the answer's end.
const LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of an answer that are read. Its content is ignored.
const ANSWER_BYTES: usize = 64 * 1024;

/// Returns the signature of a message: `v1=` and the HMAC-SHA256 of the time, a dot and the body.
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

/// The reason why a hook did not accept a message.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    /// The hook's URL cannot be used, or its host not resolved.
    #[error("{}", .0.message)]
    Address(sprag_app::Error),
    /// The hook's host does not take the connection.
    #[error("cannot connect to {authority}: {error}")]
    Connect { authority: String, error: std::io::Error },
    /// The hook's certificate is not trusted, or the connection could not be encrypted.
    #[error("cannot encrypt the connection to {authority}: {error}")]
    Encrypt { authority: String, error: std::io::Error },
    /// The connection ended before the message was sent.
    #[error("cannot send to {authority}: {error}")]
    Handshake { authority: String, error: hyper::Error },
    /// The URL's parts do not form a request.
    #[error(transparent)]
    Request(axum::http::Error),
    /// The connection ended before the answer came.
    #[error("no answer: {0}")]
    NoAnswer(hyper::Error),
    /// The delivery took longer than [`LIMIT`].
    #[error("no answer within {} s", LIMIT.as_secs())]
    TooLate,
    /// The hook answered with another address.
    #[error("answered {0}: redirects are not followed")]
    Redirected(StatusCode),
    /// The hook answered with an error.
    #[error("answered {0}")]
    Refused(StatusCode),
}

/// Sends a message to a hook; an error with the reason if the hook did not accept it.
pub(super) async fn post(
    target: &HookTarget,
    message: Message<'_>,
    options: &Options,
) -> Result<(), PostError> {
    match tokio::time::timeout(LIMIT, send(target, message, options)).await {
        Ok(answered) => answered,
        Err(_) => Err(PostError::TooLate),
    }
}

async fn send(target: &HookTarget, message: Message<'_>, options: &Options) -> Result<(), PostError> {
    let addresses = resolve_hook_host(&target.host, target.port, options.private_hooks);
    let addresses = addresses.await.map_err(PostError::Address)?;
    let stream = TcpStream::connect(&*addresses)
        .await
        .map_err(|error| PostError::Connect { authority: target.authority.clone(), error })?;
    let stream = if target.is_encrypted {
        let failed = |error| PostError::Encrypt { authority: target.authority.clone(), error };
        let trust = options.outgoing.trust().map_err(|error| failed(std::io::Error::other(error)))?;
        Stream::Connected(Box::new(trust.connect(&target.host, stream).await.map_err(failed)?))
    } else {
        Stream::Plain(stream)
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| PostError::Handshake { authority: target.authority.clone(), error })?;
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
        .map_err(PostError::Request)?;
    let answer = sender.send_request(request).await.map_err(PostError::NoAnswer);
    let told = match answer {
        Ok(answer) => {
            let status = answer.status();
            // Read so that the other side does not see a reset connection; its content is ignored.
            let _ = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
            match status.as_u16() {
                200..300 => Ok(()),
                300..400 => Err(PostError::Redirected(status)),
                _ => Err(PostError::Refused(status)),
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
    fn a_signature_is_a_plain_hmac() {
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac 'a secret of sixteen'
        assert_eq!(
            signature("a secret of sixteen", "1700000000", b"{}"),
            "v1=9e0f98fb6d96af0b7ebef51d30bd6c877daee8bce9b06dccbaa91614ae5b1e5b"
        );
    }
}
