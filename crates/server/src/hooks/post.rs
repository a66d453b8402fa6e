//! Sending one signed POST: it follows no redirects, uses only the answer's status, and has a short time limit.

use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use sprag_app::HookRow;
use sprag_app::hooks::{HookMessage, HookTarget, resolve_hook_host};
use sprag_tls::Stream;

use super::send::Means;

/// The time limit for one delivery, from the connection to the answer's end.
const LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of an answer that are read. Its content is ignored.
const ANSWER_BYTES: usize = 64 * 1024;

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

/// Sends a message to a hook. Returns the status of the answer; an error with the reason if the hook did not accept it.
pub(super) async fn post(
    hook: &HookRow,
    message: &HookMessage,
    wall_ms: i64,
    means: &Means,
) -> Result<StatusCode, PostError> {
    let target = HookTarget::parse(&hook.url).map_err(PostError::Address)?;
    match tokio::time::timeout(LIMIT, exchange(&target, hook, message, wall_ms, means)).await {
        Ok(answered) => answered,
        Err(_) => Err(PostError::TooLate),
    }
}

async fn exchange(
    target: &HookTarget,
    hook: &HookRow,
    message: &HookMessage,
    wall_ms: i64,
    means: &Means,
) -> Result<StatusCode, PostError> {
    let addresses = resolve_hook_host(&target.host, target.port, means.allow_private);
    let addresses = addresses.await.map_err(PostError::Address)?;
    let stream = TcpStream::connect(&*addresses)
        .await
        .map_err(|error| PostError::Connect { authority: target.authority.clone(), error })?;
    let stream = if target.is_encrypted {
        let failed = |error| PostError::Encrypt { authority: target.authority.clone(), error };
        let trust = means.outgoing.trust().map_err(|error| failed(std::io::Error::other(error)))?;
        Stream::Connected(Box::new(trust.connect(&target.host, stream).await.map_err(failed)?))
    } else {
        Stream::Plain(stream)
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| PostError::Handshake { authority: target.authority.clone(), error })?;
    let driving = tokio::spawn(connection);
    let mut request = Request::post(&target.path)
        .header(header::HOST, &target.authority)
        .header(header::CONTENT_TYPE, message.content_type)
        .header(header::CONNECTION, "close")
        .header(header::USER_AGENT, concat!("sprag/", env!("CARGO_PKG_VERSION")));
    for (name, value) in message.headers(hook, wall_ms / 1000) {
        request = request.header(name, value);
    }
    let body = Full::new(Bytes::from(message.body.clone()));
    let request = request.body(body).map_err(PostError::Request)?;
    let answer = sender.send_request(request).await.map_err(PostError::NoAnswer);
    let told = match answer {
        Ok(answer) => {
            let status = answer.status();
            // Read so that the other side does not see a reset connection; its content is ignored.
            let _ = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
            match status.as_u16() {
                200..300 => Ok(status),
                300..400 => Err(PostError::Redirected(status)),
                _ => Err(PostError::Refused(status)),
            }
        }
        Err(error) => Err(error),
    };
    driving.abort();
    told
}
