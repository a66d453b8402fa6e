//! The journal: past events by the page, and new ones as a stream.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use sprag_app::view::EntryView;
use sprag_app::{JournalPage, Names, Reach, ReachedRuns, RefusedView, RunId};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::MayRead;
use crate::extract::{Json, Query};
use crate::feed::{Batch, Hint, Told};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;
use crate::stream::{self, Source};

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(events)).routes(routes!(journal)).routes(routes!(refusals))
}

/// The number of entries that are read from the journal at once for one reader.
const PAGE: usize = 256;
/// The most entries in one page of the journal.
const MOST: usize = 1_000;

/// Which events to follow.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Only those of this run.
    run: Option<String>,
    /// Only entries of the board with this name.
    board: Option<String>,
    /// Only entries of this kind of entity, such as `step`.
    entity: Option<String>,
    /// Only this event, such as `run.succeeded`; several are separated by commas.
    event: Option<String>,
    /// Only entries after this number; only new ones if it is left out. `Last-Event-ID` has the same meaning.
    #[param(maximum = 9223372036854775807i64)]
    after: Option<u64>,
    /// Whether to send hints too: an event `refused` for each report that a table refuses, and an event `review` for each
    /// change of the comments on a run's changes. They have no number, and are not repeated after a reconnect.
    #[serde(default)]
    hints: bool,
}

/// The filter of a reader: the events that it wants.
#[derive(Debug, Clone)]
struct EventFilter {
    run: Option<RunId>,
    entity: Option<String>,
    events: Vec<String>,
}

impl EventFilter {
    fn wants(&self, told: &Told) -> bool {
        self.run.is_none_or(|run| told.run == Some(run))
            && self.entity.as_deref().is_none_or(|entity| entity == told.entity)
            && (self.events.is_empty() || self.events.iter().any(|event| event == told.event))
    }
}

/// Follow the journal, as server-sent events
///
/// Each event's `id` is its number in the journal, its `data` the entry in JSON. A client that reconnects with
/// `Last-Event-ID` (or `after`) gets every later entry, once and in order.
#[utoipa::path(
    get, path = "/v1/events", tag = "events",
    params(Which, ("Last-Event-ID" = Option<u64>, Header, description = "The id of the last event that the client received")),
    responses((status = 200, body = String, content_type = "text/event-stream"))
)]
async fn events(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    headers: HeaderMap,
    Query(which): Query<Which>,
) -> Answer<Response> {
    let run = match (&which.run, which.board) {
        (Some(_), Some(_)) => return Err(Problem::malformed("give either `run` or `board`")),
        (Some(run), None) => Some(parse_run(run)?),
        (None, Some(board)) => Some(board_run(&app, board).await?),
        (None, None) => None,
    };
    let words = which.event.iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty());
    let wanted = EventFilter { run, entity: which.entity, events: words.map(str::to_owned).collect() };
    let after = stream::position(&headers, which.after)?;
    // Subscribed before the journal is read, so that no entry is missed in between.
    let live = app.feed().subscribe();
    let after = match after {
        Some(after) => after,
        None => app.blocking(|app| Ok(app.core().last_seq()?)).await?,
    };
    let hints = which.hints.then(|| app.feed().subscribe_to_hints());
    let reached = Arc::new(Mutex::new(ReachedRuns::new(caller.reach.clone())));
    let reader =
        Reader { app: app.clone(), wanted, reach: caller.reach, reached, after, live, hints, behind: true };
    Ok(stream::respond(&app, reader))
}

pub(super) fn parse_run(text: &str) -> Answer<RunId> {
    text.parse().map_err(|error: sprag_lifecycle::RunIdError| Problem::malformed(format!("run: {error}")))
}

async fn board_run(app: &ServerState, name: String) -> Answer<RunId> {
    let wanted = name.clone();
    let run = app.blocking(move |app| Ok(app.core().board_run(&wanted)?)).await?;
    run.ok_or_else(|| Problem::not_found(format!("there is no board {name:?}")))
}

/// A reader that follows the journal.
struct Reader {
    app: ServerState,
    wanted: EventFilter,
    /// The runs that the reader may be told of.
    reach: Reach,
    reached: Arc<Mutex<ReachedRuns>>,
    /// The number up to which every entry was sent, or was not wanted.
    after: u64,
    live: Receiver<Arc<Batch>>,
    /// The hints, if the reader wants them.
    hints: Option<Receiver<Arc<Hint>>>,
    /// Whether the journal has more than this reader was sent.
    behind: bool,
}

impl Reader {
    /// Reads the next page directly from the journal.
    async fn catch_up(&mut self) -> Option<Bytes> {
        let (after, run) = (self.after, self.wanted.run);
        let page = self.app.blocking(move |app| {
            let JournalPage { entries, last_seq } = app.core().journal(after, run, PAGE)?;
            Ok((app.feed().write_out(&entries)?, last_seq))
        });
        let (told, last_seq) = match page.await {
            Ok(page) => page,
            Err(problem) => {
                // The reader reconnects, and continues where it was.
                tracing::warn!(problem.message, "an event stream stops: the journal cannot be read");
                return None;
            }
        };
        self.behind = told.len() == PAGE;
        self.after = match told.last() {
            Some(last) if self.behind => last.seq,
            _ => after.max(last_seq),
        };
        Some(self.write(&told).await)
    }

    async fn write(&mut self, told: &[Told]) -> Bytes {
        let mut out = BytesMut::new();
        for told in told {
            if self.wanted.wants(told) && self.reaches(told.run).await {
                stream::event(&mut out, told.seq, told.event, &told.json);
            }
        }
        out.freeze()
    }

    /// Whether the reader may be told of this run. It is not told of a run whose limits cannot be checked.
    async fn reaches(&mut self, run: Option<RunId>) -> bool {
        if self.reach.is_everything() {
            return true;
        }
        let reached = Arc::clone(&self.reached);
        let looked = self.app.blocking(move |app| {
            let mut reached = reached.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            Ok(reached.has(app.core(), run)?)
        });
        looked.await.unwrap_or(false)
    }

    /// Returns a hint, if this reader wants it.
    async fn hint(&mut self, hint: &Hint) -> Option<Bytes> {
        let wanted = self.wanted.run.is_none_or(|run| hint.run == Some(run));
        if !wanted || !self.reaches(hint.run).await {
            return None;
        }
        let mut out = BytesMut::new();
        stream::hint(&mut out, hint.name, &hint.json);
        Some(out.freeze())
    }

    /// Returns the new entries of a batch; none if entries before it are missing.
    async fn take(&mut self, batch: &Batch) -> Option<Bytes> {
        if batch.after > self.after {
            return None;
        }
        let seen = self.after;
        let mut out = BytesMut::new();
        for told in batch.entries.iter().filter(|told| told.seq > seen) {
            if self.wanted.wants(told) && self.reaches(told.run).await {
                stream::event(&mut out, told.seq, told.event, &told.json);
            }
        }
        self.after = seen.max(batch.upto);
        Some(out.freeze())
    }
}

/// The next thing that a reader may be told of.
enum Next {
    Batch(Result<Arc<Batch>, RecvError>),
    Hint(Option<Arc<Hint>>),
}

impl Source for Reader {
    async fn next(&mut self, limit: Duration) -> Option<Bytes> {
        loop {
            if self.behind {
                let piece = self.catch_up().await?;
                if piece.is_empty() {
                    continue;
                }
                return Some(piece);
            }
            let hints = self.hints.as_mut();
            let either = async {
                tokio::select! {
                    next = self.live.recv() => Next::Batch(next),
                    hint = next_hint(hints) => Next::Hint(hint),
                }
            };
            let Ok(next) = tokio::time::timeout(limit, either).await else { return Some(Bytes::new()) };
            let next = match next {
                Next::Batch(next) => next,
                Next::Hint(None) => continue,
                Next::Hint(Some(hint)) => match self.hint(&hint).await {
                    Some(piece) => return Some(piece),
                    None => continue,
                },
            };
            match next {
                Err(RecvError::Closed) => return None,
                // The reader was too slow for the feed: the journal has all entries.
                Err(RecvError::Lagged(_)) => self.behind = true,
                Ok(batch) => match self.take(&batch).await {
                    None => self.behind = true,
                    Some(piece) if piece.is_empty() => {}
                    Some(piece) => return Some(piece),
                },
            }
        }
    }
}

/// Waits for the next hint; for ever if the reader wants none. Returns none if hints were missed.
async fn next_hint(hints: Option<&mut Receiver<Arc<Hint>>>) -> Option<Arc<Hint>> {
    let Some(hints) = hints else { return std::future::pending().await };
    match hints.recv().await {
        Ok(hint) => Some(hint),
        Err(RecvError::Lagged(_)) => None,
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

/// Which refused events to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Newest {
    /// The most events, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Refused events.
#[derive(Debug, Serialize, ToSchema)]
struct Refusals {
    /// The events, newest first. Each run keeps its last sixteen.
    refused: Vec<RefusedView>,
}

/// List the newest reports that a table refused, of all runs
#[utoipa::path(
    get, path = "/v1/refusals", tag = "events", params(Newest), responses((status = 200, body = Refusals))
)]
async fn refusals(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(newest): Query<Newest>,
) -> Answer<Json<Refusals>> {
    let limit = newest.limit.unwrap_or(100);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::malformed(format!("limit: {limit} is not between 1 and {MOST}")));
    }
    app.blocking(move |app| {
        let mut refused = Vec::new();
        for event in app.core().refusals(limit)? {
            if app.core().reaches_shown(&caller.reach, event.run.as_deref().unwrap_or_default())? {
                refused.push(event);
            }
        }
        Ok(Json(Refusals { refused }))
    })
    .await
}

/// Which entries to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Part {
    /// Only those of this run.
    run: Option<String>,
    /// Only entries after this number.
    #[param(maximum = 9223372036854775807i64)]
    after: Option<u64>,
    /// The page size, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// A part of the journal.
#[derive(Debug, Serialize, ToSchema)]
struct Journal {
    /// The entries in the order of commits.
    entries: Vec<EntryView>,
    /// The number to continue after.
    next_after: u64,
}

/// Read the journal
#[utoipa::path(
    get, path = "/v1/journal", tag = "events", params(Part), responses((status = 200, body = Journal))
)]
async fn journal(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(part): Query<Part>,
) -> Answer<Json<Journal>> {
    let limit = part.limit.unwrap_or(200);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::malformed(format!("limit: {limit} is not between 1 and {MOST}")));
    }
    let run = part.run.as_deref().map(parse_run).transpose()?;
    let after = sprag_app::check_seq(part.after.unwrap_or(0));
    let after = after.map_err(|error| Problem::malformed(error.message))?;
    app.blocking(move |app| {
        let found = app.core().journal(after, run, limit)?.entries;
        let mut names = Names::new(app.core());
        let mut reached = ReachedRuns::new(caller.reach);
        let mut entries: Vec<EntryView> = Vec::new();
        for entry in &found {
            if reached.has(app.core(), entry.place.run)? {
                entries.push(names.view(entry)?);
            }
        }
        let next_after = found.last().map_or(after, |last| last.seq);
        Ok(Json(Journal { entries, next_after }))
    })
    .await
}
