//! What steps printed: a part of it, or as it grows.

use std::path::PathBuf;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use sprag::Known;
use sprag_lifecycle::ExecutionId;
use sprag_process::LogReader;
use sprag_store::{ExecutionRow, Row, Subscription, Table, Topic};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::steps::find;
use crate::access::MayRead;
use crate::app::App;
use crate::extract::{Query, RunPath, StepPath};
use crate::files::{self, Part};
use crate::problem::{Answer, Problem};
use crate::stream::{self, Source};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(log))
}

/// How often a log is looked at while it grows.
const LOOK: Duration = Duration::from_millis(200);
/// How many lines are sent at once.
const LINES: usize = 500;

/// Which part of a log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Only this attempt's; the last one's if it is left out.
    attempt: Option<u32>,
    /// From which byte on.
    offset: Option<u64>,
    /// How many bytes at most.
    limit: Option<u64>,
    /// Go on as server-sent events until the attempt has ended: each line is an event, its `id` the offset
    /// after it.
    #[serde(default)]
    follow: bool,
}

/// Read what a step printed
///
/// Each line is a time, `out`, `err` or `note`, and the text. `Range` and `offset` with `limit` give a part.
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{step}/log", tag = "logs",
    params(Which, ("run" = String, Path, description = "The run's id"),
           ("step" = String, Path, description = "The step's id; an item of a fan-out is `step[2]`"),
           ("Range" = Option<String>, Header, description = "`bytes=FIRST-LAST`"),
           ("Last-Event-ID" = Option<u64>, Header, description = "Where to go on following")),
    responses(
        (status = 200, content((String = "text/plain"), (String = "text/event-stream"))),
        (status = 206, body = String, content_type = "text/plain", description = "The part that was asked for"),
        (status = 404, description = "Problem: there is no such step, or it has printed nothing yet"),
        (status = 416, description = "Problem: the log has no such part"),
    )
)]
async fn log(
    _: MayRead,
    State(app): State<App>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
    headers: HeaderMap,
    Query(which): Query<Which>,
) -> Answer<Response> {
    let attempt = which.attempt;
    let (execution, path) = app
        .blocking(move |app| {
            let known = Known::load(app.store(), run)?;
            let no = find(app, &known, &step)?;
            let last = app.store().read(|db| {
                let wanted = |row: &ExecutionRow| {
                    row.id.step == no && attempt.is_none_or(|attempt| attempt == row.id.attempt)
                };
                Ok(db.executions(run)?.into_iter().rfind(wanted))
            })?;
            let row =
                last.ok_or_else(|| Problem::not_found(format!("step {step:?} has no such attempt yet")))?;
            Ok((row.id, app.files().log(row.id, &step)))
        })
        .await?;
    if which.follow {
        let from = stream::position(&headers, which.offset).map_err(Problem::malformed)?.unwrap_or(0);
        let wake = app.store().subscribe_from(vec![Topic::Run(run)], sprag_store::Reach::Here);
        let tail = Tail { app: app.clone(), execution, path, offset: from, wake, over: false };
        return Ok(stream::respond(&app, tail));
    }
    let part = Part { offset: which.offset, limit: which.limit };
    app.blocking(move |_| {
        let file = std::fs::File::open(&path).map_err(|_| Problem::not_found("nothing was printed yet"))?;
        files::send(file, "text/plain; charset=utf-8", &headers, part)
    })
    .await
}

/// One who follows a log.
struct Tail {
    app: App,
    execution: ExecutionId,
    path: PathBuf,
    offset: u64,
    wake: Subscription,
    /// The attempt has ended: what is in the file is all there will be.
    over: bool,
}

impl Tail {
    /// The lines that are there.
    async fn read(&mut self) -> Option<Bytes> {
        let (path, offset, execution) = (self.path.clone(), self.offset, self.execution);
        let read = self.app.blocking(move |app| {
            // Whether it has ended is asked first: what it printed before is then in the file.
            let row = app.store().read(|db| Table::<ExecutionRow>::load(db, execution))?;
            let over = row.is_none_or(|row| row.status().is_terminal());
            let mut reader = LogReader::at(&path, offset);
            let mut out = BytesMut::new();
            for _ in 0..LINES {
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
