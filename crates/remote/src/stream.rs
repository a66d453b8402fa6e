//! Server-sent events: an answer that grows, read event by event.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::error::Error;

/// The largest event. A longer one is no event of a Sprag server.
const MOST_EVENT_BYTES: usize = 16 << 20;

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEvent {
    /// The position after the event, from which a later stream can continue.
    pub id: Option<u64>,
    /// The content.
    pub data: String,
}

/// An open stream of events.
pub struct EventStream {
    server: String,
    body: Incoming,
    parser: Parser,
}

impl EventStream {
    pub(crate) fn new(server: String, body: Incoming) -> Self {
        EventStream { server, body, parser: Parser::default() }
    }

    /// Returns the events that arrive next, none of them for a sign of life; `None` at the end of the stream. A stream
    /// that is silent for `limit` is broken.
    pub async fn next(&mut self, limit: Duration) -> Result<Option<Vec<StreamEvent>>, Error> {
        let broken = |reason: String| Error::Away { server: self.server.clone(), reason, after: None };
        let frame = tokio::time::timeout(limit, self.body.frame()).await;
        match frame.map_err(|_| broken(format!("silent for {} s", limit.as_secs())))? {
            None => Ok(None),
            Some(Err(error)) => Err(broken(format!("the stream broke off: {error}"))),
            Some(Ok(frame)) => {
                let bytes = frame.into_data().unwrap_or_else(|_| Bytes::new());
                let events = self.parser.add(&bytes);
                if self.parser.line.len() + self.parser.data.len() > MOST_EVENT_BYTES {
                    return Err(broken("an event is too large".into()));
                }
                Ok(Some(events))
            }
        }
    }
}

/// The part of an event that has arrived.
#[derive(Default)]
struct Parser {
    line: Vec<u8>,
    id: Option<u64>,
    data: String,
    has_data: bool,
}

impl Parser {
    /// Adds bytes of the stream. Returns the events that are complete.
    fn add(&mut self, bytes: &[u8]) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            events.extend(self.line(String::from_utf8_lossy(&line).trim_end_matches('\r')));
        }
        events
    }

    fn line(&mut self, line: &str) -> Option<StreamEvent> {
        if line.is_empty() {
            let (id, data) = (self.id.take(), std::mem::take(&mut self.data));
            return std::mem::take(&mut self.has_data).then_some(StreamEvent { id, data });
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.id = value.parse().ok(),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            // Comments are signs of life; the kind of an event is in its data.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_arrive_in_pieces_are_read_once_and_whole() {
        let text =
            ": hello\n\nid: 7\nevent: x\ndata: {\"a\":\"é\"}\n\n:\n\nid: 8\r\ndata: one\r\ndata:two\r\n\r\n";
        for cut in 0..=text.len() {
            let mut parser = Parser::default();
            let mut events = parser.add(&text.as_bytes()[..cut]);
            events.extend(parser.add(&text.as_bytes()[cut..]));
            let wanted = [
                StreamEvent { id: Some(7), data: "{\"a\":\"é\"}".into() },
                StreamEvent { id: Some(8), data: "one\ntwo".into() },
            ];
            assert_eq!(events, wanted, "cut at {cut}");
        }
    }
}
