//! Threads: the conversations of agent steps, and messages to their agents.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sprag_app::ThreadView;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::{Json, Query, RunPath, StepPath};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(send))
        .routes(routes!(stop))
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

/// Show the thread of an agent step
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{step}/thread", tag = "threads",
    params(("run" = String, Path, description = "The run"), ("step" = String, Path, description = "The step's name")),
    responses((status = 200, body = ThreadView), (status = 404, description = "Problem: there is no such thread"))
)]
async fn show(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
) -> Answer<Json<ThreadView>> {
    let thread = app.blocking(move |app| Ok(app.core().thread(&format!("{run}/{step}"))?)).await?;
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
