//! Threads: the conversations of agent steps, and messages to their agents.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use sprag_app::{
    MOST_EVENTS, RunId, Subscription, ThreadDetail, ThreadView, Topic, TranscriptPage, TranscriptReader,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::{Json, Query, RunPath, StepPath};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;
use crate::stream::{self, Source};

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(send))
        .routes(routes!(stop))
        .routes(routes!(transcript))
        .routes(routes!(archive))
        .routes(routes!(remove))
}

/// Threads.
#[derive(Debug, Serialize, ToSchema)]
struct Threads {
    /// The threads, those of the newest runs first.
    threads: Vec<ThreadView>,
}

/// The threads of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Only threads of this run.
    run: Option<String>,
}

/// List threads: the conversations of agent steps
#[utoipa::path(get, path = "/v1/threads", tag = "threads", params(Which), responses((status = 200, body = Threads)))]
async fn list(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(which): Query<Which>,
) -> Answer<Json<Threads>> {
    let run = which.run.as_deref().map(str::parse).transpose();
    let run: Option<sprag_app::RunId> =
        run.map_err(|error: sprag_lifecycle::RunIdError| Problem::malformed(format!("run: {error}")))?;
    let threads = app.blocking(move |app| Ok(app.core().threads(run, &caller.reach)?)).await?;
    Ok(Json(Threads { threads }))
}

/// Show the thread of an agent step, with the parts of its conversation
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{step}/thread", tag = "threads",
    params(("run" = String, Path, description = "The run"), ("step" = String, Path, description = "The step's name")),
    responses((status = 200, body = ThreadDetail), (status = 404, description = "Problem: there is no such thread"))
)]
async fn show(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
) -> Answer<Json<ThreadDetail>> {
    let thread = app.blocking(move |app| Ok(app.core().conversation(&format!("{run}/{step}"))?)).await?;
    Ok(Json(thread))
}

/// A message to an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewMessage {
    /// The message.
    #[schema(max_length = 262144)]
    message: String,
}

/// The run in which an agent answers a message, or in which it is stopped.
#[derive(Debug, Serialize, ToSchema)]
struct Talk {
    /// The run. Its only step has the name of the thread's step, and its log is the transcript.
    run: String,
}

/// Send a message to the agent of a step whose run has ended
#[utoipa::path(
    post, path = "/v1/runs/{run}/steps/{step}/thread/messages", tag = "threads", request_body = NewMessage,
    params(("run" = String, Path, description = "The run"), ("step" = String, Path, description = "The step's name")),
    responses(
        (status = 201, body = Talk),
        (status = 404, description = "Problem: there is no such thread"),
        (status = 409, description = "Problem: the thread is busy, or its environment is gone"),
    )
)]
async fn send(
    _: MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
    Json(new): Json<NewMessage>,
) -> Answer<(StatusCode, Json<Talk>)> {
    let start = app.core().talk(&format!("{run}/{step}"), &new.message).await?;
    let started = app.core().start_run(start).await?;
    Ok((StatusCode::CREATED, Json(Talk { run: started.run.id.to_string() })))
}

/// Stop an agent that answers a message
#[utoipa::path(
    post, path = "/v1/runs/{run}/steps/{step}/thread/stop", tag = "threads",
    params(("run" = String, Path, description = "The run"), ("step" = String, Path, description = "The step's name")),
    responses(
        (status = 200, body = Talk),
        (status = 404, description = "Problem: there is no such thread"),
        (status = 409, description = "Problem: the thread is not active, or the step itself is running"),
    )
)]
async fn stop(
    _: MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
) -> Answer<Json<Talk>> {
    let run = app.core().stop_thread(&format!("{run}/{step}")).await?;
    Ok(Json(Talk { run: run.to_string() }))
}

/// Archive a thread
///
/// It takes no further messages, and lists leave it out.
#[utoipa::path(
    post, path = "/v1/runs/{run}/steps/{step}/thread/archive", tag = "threads",
    params(("run" = String, Path, description = "The run"), ("step" = String, Path, description = "The step's name")),
    responses(
        (status = 204),
        (status = 404, description = "Problem: there is no such thread"),
        (status = 409, description = "Problem: an agent works in the thread, or its run has not ended"),
    )
)]
async fn archive(
    _: MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
) -> Answer<StatusCode> {
    app.core().archive_thread(&format!("{run}/{step}")).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a thread
///
/// An agent that answers a message in it is stopped, and it takes no further messages.
#[utoipa::path(
    delete, path = "/v1/runs/{run}/steps/{step}/thread", tag = "threads",
    params(("run" = String, Path, description = "The run"), ("step" = String, Path, description = "The step's name")),
    responses(
        (status = 204),
        (status = 404, description = "Problem: there is no such thread"),
        (status = 409, description = "Problem: the run of its step has not ended"),
    )
)]
async fn remove(
    _: MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
) -> Answer<StatusCode> {
    app.core().remove_thread(&format!("{run}/{step}")).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The interval at which a growing transcript is read.
const LOOK: Duration = Duration::from_millis(200);
/// The number of events of a page, unless the caller names another.
const EVENTS: usize = 200;

/// Which part of a transcript.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WhichEvents {
    /// The position after which to begin; 0 if it is left out.
    after: Option<u64>,
    /// The most events, at most 1000; 200 if it is left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Whether to continue as server-sent events until the thread is idle and its run has ended: each event has its kind
    /// as `event`, and the position after it as `id`.
    #[serde(default)]
    follow: bool,
}

/// Read the transcript of a thread
///
/// All events of the agent in order: those of the step's attempts, and those of people's messages. Secrets are masked.
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{step}/thread/transcript", tag = "threads",
    params(WhichEvents, ("run" = String, Path, description = "The run"),
           ("step" = String, Path, description = "The step's name"),
           ("Last-Event-ID" = Option<u64>, Header, description = "The position to continue from")),
    responses(
        (status = 200, content((TranscriptPage = "application/json"), (String = "text/event-stream"))),
        (status = 404, description = "Problem: there is no such thread"),
    )
)]
async fn transcript(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
    headers: HeaderMap,
    Query(which): Query<WhichEvents>,
) -> Answer<Response> {
    let limit = which.limit.unwrap_or(EVENTS);
    if !(1..=MOST_EVENTS).contains(&limit) {
        return Err(Problem::malformed(format!("limit: {limit} is not between 1 and {MOST_EVENTS}")));
    }
    let from = stream::position(&headers, which.after)?.unwrap_or(0);
    let name = format!("{run}/{step}");
    let mut reader = app.blocking(move |app| Ok(app.core().transcript(&name)?)).await?;
    if which.follow {
        let wake = app.core().subscribe_here(vec![Topic::Run(run)]);
        let tail = Tail { app: app.clone(), run, reader: Some(reader), position: from, wake, is_over: false };
        return Ok(stream::respond(&app, tail));
    }
    let page = app.blocking(move |app| Ok(reader.read(app.core(), from, limit)?)).await?;
    Ok(Json(page).into_response())
}

/// A reader that follows a transcript.
struct Tail {
    app: ServerState,
    run: RunId,
    reader: Option<TranscriptReader>,
    position: u64,
    wake: Subscription,
    /// Whether the thread had no holder and its run had ended: the files then hold all that there will be.
    is_over: bool,
}

impl Tail {
    /// Returns the events that are there.
    async fn read(&mut self) -> Option<Bytes> {
        let (mut reader, from, run) = (self.reader.take()?, self.position, self.run);
        let read = self.app.blocking(move |app| {
            let page = reader.read(app.core(), from, MOST_EVENTS)?;
            let mut out = BytesMut::new();
            for event in &page.events {
                let kind = event.event["event"].as_str().unwrap_or("event");
                let json = serde_json::to_vec(event).unwrap_or_default();
                stream::event(&mut out, event.position, kind, &json);
            }
            Ok((reader, out.freeze(), page))
        });
        let (reader, out, page) = read
            .await
            .inspect_err(|problem| tracing::debug!(%run, ?problem, "a transcript cannot be followed"))
            .ok()?;
        self.reader = Some(reader);
        self.position = page.next;
        self.is_over = !page.is_live;
        Some(out)
    }
}

impl Source for Tail {
    async fn next(&mut self, limit: Duration) -> Option<Bytes> {
        let looks = (limit.as_millis() / LOOK.as_millis()).max(1);
        for _ in 0..looks {
            let was_over = self.is_over;
            let events = self.read().await?;
            if !events.is_empty() {
                return Some(events);
            }
            if was_over {
                return None;
            }
            self.wake.wait(LOOK).await;
        }
        Some(Bytes::new())
    }
}
