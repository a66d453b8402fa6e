//! Server-sent events: a body that grows for as long as its reader takes it.
//!
//! Nothing is buffered for a reader beyond what it is being sent: the next piece is made when the last one was sent.
//! A reader that does not read is disconnected by its connection's time limit, and reconnects with `Last-Event-ID`.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use tokio::sync::watch;

use sprag_app::check_seq;

use crate::connections::told;
use crate::metrics::StreamGuard;
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

/// A source of the pieces of a stream.
pub(crate) trait Source: Send + 'static {
    /// Returns the next piece; empty if there is nothing yet, none at the end. It returns soon after `limit`.
    fn next(&mut self, limit: Duration) -> impl Future<Output = Option<Bytes>> + Send;
}

struct Open<S> {
    source: S,
    stop: watch::Receiver<bool>,
    heartbeat: Duration,
    first: bool,
    _counted: StreamGuard,
}

/// Returns an answer that continues until its source ends, the reader leaves, or the server ends.
pub(crate) fn respond<S: Source>(app: &ServerState, source: S) -> Response {
    let open = Open {
        source,
        stop: app.stopping(),
        heartbeat: app.options().heartbeat,
        first: true,
        _counted: app.metrics().stream(),
    };
    let pieces = stream::unfold(open, |mut open| async move {
        // Headers are sent with the first piece, so that a reader of a silent stream knows at once that it is
        // connected.
        if std::mem::take(&mut open.first) {
            return Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b": hello\n\n")), open));
        }
        let piece = tokio::select! {
            piece = open.source.next(open.heartbeat) => piece?,
            () = told(&mut open.stop) => return None,
        };
        let piece = if piece.is_empty() { Bytes::from_static(b":\n\n") } else { piece };
        Some((Ok(piece), open))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Writes one event.
pub(crate) fn event(out: &mut BytesMut, id: u64, name: &str, data: &[u8]) {
    out.put_slice(format!("id: {id}\nevent: {name}\ndata: ").as_bytes());
    out.put_slice(data);
    out.put_slice(b"\n\n");
}

/// Writes an event without a number: a reader that reconnects does not continue after it.
pub(crate) fn hint(out: &mut BytesMut, name: &str, data: &[u8]) {
    out.put_slice(format!("event: {name}\ndata: ").as_bytes());
    out.put_slice(data);
    out.put_slice(b"\n\n");
}

/// Returns the position that a reader continues from. The header takes precedence, because a browser sends it by
/// itself.
pub(crate) fn position(headers: &axum::http::HeaderMap, asked: Option<u64>) -> Answer<Option<u64>> {
    let Some(last) = headers.get("last-event-id") else {
        return asked.map(check_seq).transpose().map_err(|error| Problem::malformed(error.message));
    };
    let text = last.to_str().unwrap_or_default().trim();
    let number = text.parse().ok().and_then(|number| check_seq(number).ok());
    number
        .map(Some)
        .ok_or_else(|| Problem::malformed(format!("last-event-id: {text:?} is not the number of an event")))
}
