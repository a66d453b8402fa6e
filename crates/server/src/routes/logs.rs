//! The logs of steps: a part of one, or a stream as it grows.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use sprag_app::{
    LogHits, LogLines, LogPart, LogPlace, Row, RunId, RunWithPlan, Subscription, Topic, find_attempt,
    log_place, read_lines, search_lines, why_no_log,
};
use sprag_lifecycle::ExecutionId;
use sprag_process::LogReader;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::steps::find;
use crate::access::MayRead;
use crate::extract::{Json, Query, RunPath, StepPath};
use crate::files::{self, Part};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;
use crate::stream::{self, Source};

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(log)).routes(routes!(lines)).routes(routes!(search))
}

/// The interval at which a growing log is read.
const LOOK: Duration = Duration::from_millis(200);
/// The header that says how many bytes of a log have not arrived.
const MISSING: &str = "x-sprag-log-missing";
/// The most lines, and the most bytes of them, that are sent at once.
const LINES: usize = 500;
const BYTES: usize = 256 << 10;

/// Which part of a log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// The attempt; the last one if it is left out.
    attempt: Option<u32>,
    /// The offset of the first byte.
    offset: Option<u64>,
    /// The largest number of bytes.
    limit: Option<u64>,
    /// Whether to continue as server-sent events until the attempt has ended: each line is an event, its `id` the
    /// offset after it.
    #[serde(default)]
    follow: bool,
}

/// Read the log of a step
///
/// Each line is a time, `out`, `err` or `note`, and the text. `Range`, or `offset` with `limit`, selects a part. The
/// header `x-sprag-log-missing` is the number of bytes that a worker's host has not sent yet; the run names that host.
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{step}/log", tag = "logs",
    params(Which, ("run" = String, Path, description = "The run's id"),
           ("step" = String, Path, description = "The step's id; an item of a fan-out is `step[2]`"),
           ("Range" = Option<String>, Header, description = "`bytes=FIRST-LAST`"),
           ("Last-Event-ID" = Option<u64>, Header, description = "The offset to continue from")),
    responses(
        (status = 200, content((String = "text/plain"), (String = "text/event-stream"))),
        (status = 206, body = String, content_type = "text/plain", description = "The requested part"),
        (status = 404, description = "Problem: there is no such step, or it has printed nothing yet"),
        (status = 416, description = "Problem: the log has no such part"),
    )
)]
async fn log(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
    headers: HeaderMap,
    Query(which): Query<Which>,
) -> Answer<Response> {
    let attempt = which.attempt;
    let (execution, path, place, why) = app
        .blocking(move |app| {
            let (known, step) = RunWithPlan::load(app.core(), run)?.enter(app.core(), &step)?;
            let no = find(app, &known, &step)?;
            let row = find_attempt(app.core(), &known, no, attempt)?;
            let place = log_place(app.core(), app.files(), &row, &step)?;
            let not_begun = app.core().step(known.id(), no)?.filter(|_| row.started_ms.is_none());
            let why = not_begun.map(|step| why_no_log(app.core(), &known, &step)).transpose()?;
            Ok((row.id, app.files().log(row.id, &step), place, why))
        })
        .await?;
    if which.follow {
        let from = stream::position(&headers, which.offset)?.unwrap_or(0);
        let wake = app.core().subscribe_here(vec![Topic::Run(execution.run)]);
        let tail = Tail { app: app.clone(), execution, path, offset: from, wake, over: false };
        return Ok(stream::respond(&app, tail));
    }
    let part = Part { offset: which.offset, limit: which.limit };
    app.blocking(move |_| {
        let file = open_log(&path).map_err(|problem| match &place {
            LogPlace::Elsewhere { .. } => Problem::not_found(place.told().unwrap_or_default()),
            _ => why.map_or(problem, Problem::not_found),
        })?;
        let mut response = files::send(file, "text/plain; charset=utf-8", &headers, part)?;
        if let LogPlace::Partly { received, owed } = &place
            && let Ok(missing) = HeaderValue::from_str(&(owed.size - received).to_string())
        {
            response.headers_mut().insert(MISSING, missing);
        }
        Ok(response)
    })
    .await
}

/// Which lines of a log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WhichLines {
    /// The attempt; the last one if it is left out.
    attempt: Option<u32>,
    /// The number of the first line, from 1; the last lines if it is left out.
    #[param(minimum = 1)]
    from: Option<u64>,
    /// The most lines, at most 2000; 200 if it is left out.
    #[param(minimum = 1, maximum = 2000)]
    count: Option<usize>,
}

/// Read lines of a step's log by their numbers
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{step}/log/lines", tag = "logs",
    params(WhichLines, ("run" = String, Path, description = "The run's id"),
           ("step" = String, Path, description = "The step's id; an item of a fan-out is `step[2]`")),
    responses(
        (status = 200, body = LogLines),
        (status = 404, description = "Problem: there is no such step, or it has printed nothing yet"),
    )
)]
async fn lines(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
    Query(which): Query<WhichLines>,
) -> Answer<Json<LogLines>> {
    let count = which.count.unwrap_or(200);
    if !(1..=2_000).contains(&count) {
        return Err(Problem::malformed(format!("count: {count} is not between 1 and 2000")));
    }
    app.blocking(move |app| {
        let file = open_log(&path_of(app, run, &step, which.attempt)?)?;
        let part = which.from.map_or(LogPart::Last, LogPart::From);
        Ok(Json(read_lines(file, part, count)?))
    })
    .await
}

/// A search in a log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Sought {
    /// The attempt; the last one if it is left out.
    attempt: Option<u32>,
    /// The text, in any case.
    #[param(min_length = 1, max_length = 1000)]
    q: String,
    /// Only lines after this one.
    after: Option<u64>,
}

/// Search a step's log
///
/// Escape sequences, such as colours, do not count as text.
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{step}/log/search", tag = "logs",
    params(Sought, ("run" = String, Path, description = "The run's id"),
           ("step" = String, Path, description = "The step's id; an item of a fan-out is `step[2]`")),
    responses(
        (status = 200, body = LogHits),
        (status = 404, description = "Problem: there is no such step, or it has printed nothing yet"),
    )
)]
async fn search(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
    Query(sought): Query<Sought>,
) -> Answer<Json<LogHits>> {
    if !(1..=1_000).contains(&sought.q.chars().count()) {
        return Err(Problem::malformed("q: must be 1 to 1000 characters"));
    }
    app.blocking(move |app| {
        let file = open_log(&path_of(app, run, &step, sought.attempt)?)?;
        Ok(Json(search_lines(file, &sought.q, sought.after.unwrap_or(0))?))
    })
    .await
}

/// Returns the file of an attempt's log.
fn path_of(app: &ServerState, run: RunId, step: &str, attempt: Option<u32>) -> Answer<PathBuf> {
    let known = RunWithPlan::load(app.core(), run)?;
    let no = find(app, &known, step)?;
    let row = find_attempt(app.core(), &known, no, attempt)?;
    let path = app.files().log(row.id, step);
    match log_place(app.core(), app.files(), &row, step)? {
        LogPlace::Here | LogPlace::Partly { .. } => Ok(path),
        // A step that has printed nothing has no file; any other place is named.
        place if !row.status().is_terminal() && matches!(place, LogPlace::Missing) => Ok(path),
        place => Err(Problem::not_found(place.told().unwrap_or_default())),
    }
}

/// Opens a log in the folder of its run, where a step could have put anything else under its name.
fn open_log(path: &Path) -> Answer<File> {
    let (folder, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    let is_link = std::fs::symlink_metadata(folder).is_ok_and(|found| found.is_symlink());
    match sprag_process::open_below(folder, Path::new(name)) {
        Ok(file) if !is_link => Ok(file),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Problem::not_found("the step has printed nothing yet"))
        }
        _ => Err(Problem::not_found("the step's log is not a regular file")),
    }
}

/// A reader that follows a log.
struct Tail {
    app: ServerState,
    execution: ExecutionId,
    path: PathBuf,
    offset: u64,
    wake: Subscription,
    /// Whether the attempt has ended: the file then holds all that there will be.
    over: bool,
}

impl Tail {
    /// Returns the lines that are there.
    async fn read(&mut self) -> Option<Bytes> {
        let (path, offset, execution) = (self.path.clone(), self.offset, self.execution);
        let read = self.app.blocking(move |app| {
            // The status is read before the file: if the attempt has ended by then, all that it printed is in the
            // file.
            let row = app.core().execution(execution)?;
            let over = row.is_none_or(|row| row.status().is_terminal());
            if path.exists() {
                open_log(&path)?;
            }
            let mut reader = LogReader::at(&path, offset);
            let mut out = BytesMut::new();
            for _ in 0..LINES {
                if out.len() >= BYTES {
                    break;
                }
                let entries = reader.read(1).map_err(|error| crate::problem::internal(error.to_string()))?;
                if entries.is_empty() {
                    break;
                }
                for entry in &entries {
                    let json = serde_json::to_vec(entry).unwrap_or_default();
                    stream::event(&mut out, reader.offset(), "line", &json);
                }
            }
            Ok((out.freeze(), reader.offset(), over))
        });
        let (out, offset, over) = read.await.ok()?;
        self.offset = offset;
        self.over = over;
        Some(out)
    }
}

impl Source for Tail {
    async fn next(&mut self, limit: Duration) -> Option<Bytes> {
        let looks = (limit.as_millis() / LOOK.as_millis()).max(1);
        for _ in 0..looks {
            let over = self.over;
            let lines = self.read().await?;
            if !lines.is_empty() {
                return Some(lines);
            }
            if over {
                return None;
            }
            self.wake.wait(LOOK).await;
        }
        Some(Bytes::new())
    }
}
