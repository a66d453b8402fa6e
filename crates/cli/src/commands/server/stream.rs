//! The news of a server that a command follows: entries of the journal, and lines of logs.
//!
//! ```text
//!   GET /v1/events ──────────── task ─┐
//!   GET …/log?follow=true ───── task ─┼─▶ Following ─▶ the command
//!   GET …/log?follow=true ───── task ─┘   (bounded)
//! ```
//!
//! A task whose stream breaks off opens it again at the position that it has reached.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use sprag_process::LogEntry;
use sprag_remote::{Client, Opened, StreamEvent};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{LIMIT, escaped, problem};
use crate::exit::Failure;

/// The longest silence of a stream. The server sends a sign of life every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// The pause before a stream is opened again, and the number of failures in a row after which the server is gone.
const PAUSE: Duration = Duration::from_millis(500);
const TRIES: u32 = 20;
/// The most news that wait for the command; the server waits while there are as many.
const WAITING: usize = 1024;

/// An attempt: the name of its step, and its number.
pub(super) type AttemptOf = (String, u32);

/// Something that the server sent.
pub(super) enum News {
    /// An entry of the journal.
    Entry(Value),
    /// A line of an attempt's log, and the offset after it.
    Line { attempt: AttemptOf, offset: u64, line: LogEntry },
    /// The log of an attempt has come to its end, or the server stops.
    LogEnded(AttemptOf),
    /// A stream cannot be read.
    Lost(Failure),
}

/// The streams that a command follows.
pub(super) struct Following {
    client: Client,
    sender: mpsc::Sender<News>,
    receiver: mpsc::Receiver<News>,
    /// The attempts whose logs are followed.
    logs: BTreeSet<AttemptOf>,
    tasks: JoinSet<()>,
}

impl Following {
    pub(super) fn new(client: &Client) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        Following { client: client.clone(), sender, receiver, logs: BTreeSet::new(), tasks: JoinSet::new() }
    }

    /// Follows the journal, of one run or of all, after an entry; without one, from now on.
    pub(super) fn journal(&mut self, run: Option<&str>, after: Option<u64>) {
        let run = run.map(|run| format!("run={}", escaped(run))).unwrap_or_default();
        let entry = |event: StreamEvent| {
            serde_json::from_str(&event.data).ok().filter(Value::is_object).map(News::Entry)
        };
        let stream = Stream {
            client: self.client.clone(),
            path: format!("/v1/events?{run}"),
            key: "after",
            at: after,
        };
        let sender = self.sender.clone();
        self.tasks.spawn(async move {
            let _ = stream.read(&sender, entry, false).await;
        });
    }

    /// Follows the log of an attempt from an offset on, unless it is followed already.
    pub(super) fn log(&mut self, run: &str, attempt: &AttemptOf, offset: u64) {
        if !self.logs.insert(attempt.clone()) {
            return;
        }
        while self.tasks.try_join_next().is_some() {}
        let (step, number) = attempt;
        let path =
            format!("/v1/runs/{}/steps/{}/log?follow=true&attempt={number}", escaped(run), escaped(step));
        let stream = Stream { client: self.client.clone(), path, key: "offset", at: Some(offset) };
        let (sender, attempt) = (self.sender.clone(), attempt.clone());
        self.tasks.spawn(async move {
            let of = attempt.clone();
            let line = move |event: StreamEvent| {
                let line: LogEntry = serde_json::from_str(&event.data).ok()?;
                Some(News::Line { attempt: of.clone(), offset: event.id?, line })
            };
            let ended = stream.read(&sender, line, true).await;
            if ended.is_some() {
                let _ = sender.send(News::LogEnded(attempt)).await;
            }
        });
    }

    /// Returns the news that have arrived, after at most `limit`. It loses none if it is dropped.
    pub(super) async fn next(&mut self, limit: Duration) -> Result<Vec<News>, Failure> {
        let Ok(Some(first)) = tokio::time::timeout(limit, self.receiver.recv()).await else {
            return Ok(Vec::new());
        };
        let mut news = vec![first];
        while let Ok(more) = self.receiver.try_recv() {
            news.push(more);
            if news.len() >= WAITING {
                break;
            }
        }
        let mut kept = Vec::with_capacity(news.len());
        for one in news {
            match one {
                News::Lost(failure) => return Err(failure),
                News::LogEnded(attempt) => {
                    self.logs.remove(&attempt);
                    kept.push(News::LogEnded(attempt));
                }
                one => kept.push(one),
            }
        }
        Ok(kept)
    }
}

/// One stream, and the position that it has reached.
struct Stream {
    client: Client,
    path: String,
    /// The name of the position in the query.
    key: &'static str,
    at: Option<u64>,
}

impl Stream {
    /// Sends what the stream brings, until nothing listens. Returns at the stream's end if it `ends`, and otherwise
    /// opens it again.
    async fn read(
        mut self,
        sender: &mpsc::Sender<News>,
        news: impl Fn(StreamEvent) -> Option<News>,
        ends: bool,
    ) -> Option<()> {
        let mut failures = 0;
        loop {
            let at = self.at.map(|at| format!("&{}={at}", self.key)).unwrap_or_default();
            let failure = match self.client.open(&format!("{}{at}", self.path), LIMIT).await {
                Ok(Opened::Stream(mut stream)) => loop {
                    match stream.next(SILENCE).await {
                        Ok(Some(events)) => {
                            failures = 0;
                            for event in events {
                                self.at = event.id.or(self.at);
                                if let Some(one) = news(event) {
                                    sender.send(one).await.ok()?;
                                }
                            }
                        }
                        Ok(None) if ends => return Some(()),
                        Ok(None) => break Failure::error("the server ended the stream"),
                        Err(error) => break Failure::error(error.to_string()),
                    }
                },
                // A step that has printed nothing has no log yet, and too many requests are a matter of time.
                Ok(Opened::Problem(404, _)) if ends => return Some(()),
                Ok(Opened::Problem(429 | 503, body)) => problem(503, &body),
                Ok(Opened::Problem(status, body)) => {
                    let _ = sender.send(News::Lost(problem(status, &body))).await;
                    return None;
                }
                Err(error) => Failure::error(error.to_string()),
            };
            failures += 1;
            if failures >= TRIES {
                let _ = sender.send(News::Lost(failure)).await;
                return None;
            }
            pause().await;
        }
    }
}

/// Waits before a stream is opened again.
#[expect(clippy::disallowed_methods, reason = "a server that is gone sends no signal when it is back")]
async fn pause() {
    tokio::time::sleep(PAUSE).await;
}
