//! Tasks, as their claimers see them: claim, hold and report them. The token of a claim is the right to the task.

use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use sprag_app::boards::{self, ClaimSpec, Claimed, Done, Held, Nothing, OpenTaskView, lease_of};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayWork};
use crate::extract::{Json, OptionalJson, Query, TokenPath};
use crate::problem::Answer;
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(claim))
        .routes(routes!(start))
        .routes(routes!(heartbeat))
        .routes(routes!(done))
        .routes(routes!(fail))
        .routes(routes!(release))
}

/// The longest wait for a task in one request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Open tasks.
#[derive(Debug, Serialize, ToSchema)]
struct OpenTasks {
    /// The tasks that wait for a claimer or have one.
    tasks: Vec<OpenTaskView>,
}

/// Which open tasks to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WhichTasks {
    /// Only tasks in this queue.
    queue: Option<String>,
}

/// List the open tasks of all live runs and boards
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", params(WhichTasks), responses((status = 200, body = OpenTasks)))]
async fn list(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(which): Query<WhichTasks>,
) -> Answer<Json<OpenTasks>> {
    app.blocking(move |app| {
        let is_shown = |run: &str| app.core().reaches_shown(&caller.reach, run);
        let tasks = boards::open_tasks(app.core(), which.queue.as_deref(), is_shown)?;
        Ok(Json(OpenTasks { tasks }))
    })
    .await
}

/// A task, or the reason why there is none.
#[derive(Debug, Serialize, ToSchema)]
struct Claimable {
    /// The task.
    task: Option<Claimed>,
    /// The reason why there is no task.
    nothing: Option<Nothing>,
}

/// Claim a task
///
/// With `wait_s`, waits for a task. A caller that disconnects while it waits gets none. A name belongs to the token
/// of the request: the same name with another token is another agent.
#[utoipa::path(
    post, path = "/v1/tasks/claim", tag = "tasks", request_body = ClaimSpec,
    responses(
        (status = 200, body = Claimable),
        (status = 404, description = "Problem: there is no such board"),
        (status = 422, description = "Problem: the request is not valid"),
    )
)]
async fn claim(
    MayWork(caller): MayWork,
    State(app): State<ServerState>,
    Json(claim): Json<ClaimSpec>,
) -> Answer<Json<Claimable>> {
    let scope = caller.agent_scope();
    let wanted = app.blocking(move |app| Ok(claim.wanted(app.core(), LONGEST_WAIT, scope)?)).await?;
    let queues = wanted.queues.iter().map(String::as_str);
    caller.reach.check_queues(queues.chain(wanted.board.iter().map(|board| &*board.queue)))?;
    let mut stopping = app.stopping();
    let claimed = tokio::select! {
        claimed = boards::claim(app.core(), &wanted) => claimed?,
        // The server is stopping: the claimer should ask again, so that it reaches the server that runs then.
        _ = stopping.wait_for(|stop| *stop) => Err(Nothing { why: "stopping".into(), retry_after_s: 1 }),
    };
    Ok(Json(match claimed {
        Ok(task) => Claimable { task: Some(task), nothing: None },
        Err(nothing) => Claimable { task: None, nothing: Some(nothing) },
    }))
}

/// A request to extend a lease.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Keep {
    /// The lease in seconds from now [default: 1800].
    #[schema(minimum = 1, maximum = 604800)]
    lease_s: Option<u64>,
}

/// Get a claimed task again, and extend its lease
#[utoipa::path(
    post, path = "/v1/tasks/{token}/start", tag = "tasks", request_body = Option<Keep>,
    params(("token" = String, Path, description = "The token of the claim")),
    responses(
        (status = 200, body = Claimed),
        (status = 404, description = "Problem: the token is not valid"),
        (status = 409, description = "Problem: the caller no longer holds the task, or it was cancelled"),
        (status = 422, description = "Problem: the lease is not valid"),
    )
)]
async fn start(
    _: MayWork,
    State(app): State<ServerState>,
    TokenPath(token): TokenPath,
    OptionalJson(keep): OptionalJson<Keep>,
) -> Answer<Json<Claimed>> {
    Ok(Json(boards::start(app.core(), &token, lease_of(keep.lease_s)).await?))
}

/// Extend the lease of a task
#[utoipa::path(
    post, path = "/v1/tasks/{token}/heartbeat", tag = "tasks", request_body = Option<Keep>,
    params(("token" = String, Path, description = "The token of the claim")),
    responses(
        (status = 200, body = Held),
        (status = 404, description = "Problem: the token is not valid"),
        (status = 409, description = "Problem: the caller no longer holds the task, or it was cancelled"),
        (status = 422, description = "Problem: the lease is not valid"),
    )
)]
async fn heartbeat(
    _: MayWork,
    State(app): State<ServerState>,
    TokenPath(token): TokenPath,
    OptionalJson(keep): OptionalJson<Keep>,
) -> Answer<Json<Held>> {
    Ok(Json(boards::heartbeat(app.core(), &token, lease_of(keep.lease_s)).await?))
}

/// The confirmation of a report.
#[derive(Debug, Serialize, ToSchema)]
struct Reported {
    /// The token.
    token: String,
    /// The new status of the task.
    outcome: &'static str,
}

/// Report that a task is done
#[utoipa::path(
    post, path = "/v1/tasks/{token}/done", tag = "tasks", request_body = Option<Done>,
    params(("token" = String, Path, description = "The token of the claim")),
    responses(
        (status = 200, body = Reported),
        (status = 404, description = "Problem: the token is not valid"),
        (status = 409, description = "Problem: the caller no longer holds the task"),
        (status = 422, description = "Problem: the report is not valid"),
    )
)]
async fn done(
    _: MayWork,
    State(app): State<ServerState>,
    TokenPath(token): TokenPath,
    OptionalJson(report): OptionalJson<Done>,
) -> Answer<Json<Reported>> {
    boards::done(app.core(), &token, &report).await?;
    Ok(Json(Reported { token, outcome: "done" }))
}

/// The report of a failure.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Failed {
    /// The reason of the failure; the next try reads it.
    reason: String,
    /// Whether another try is useless.
    #[serde(default)]
    for_good: bool,
}

/// Report that a task failed
#[utoipa::path(
    post, path = "/v1/tasks/{token}/fail", tag = "tasks", request_body = Failed,
    params(("token" = String, Path, description = "The token of the claim")),
    responses(
        (status = 200, body = Reported),
        (status = 404, description = "Problem: the token is not valid"),
        (status = 409, description = "Problem: the caller no longer holds the task"),
        (status = 422, description = "Problem: the report is not valid"),
    )
)]
async fn fail(
    _: MayWork,
    State(app): State<ServerState>,
    TokenPath(token): TokenPath,
    Json(failed): Json<Failed>,
) -> Answer<Json<Reported>> {
    boards::fail(app.core(), &token, &failed.reason, !failed.for_good).await?;
    Ok(Json(Reported { token, outcome: "failed" }))
}

/// Release a task unfinished
#[utoipa::path(
    post, path = "/v1/tasks/{token}/release", tag = "tasks",
    params(("token" = String, Path, description = "The token of the claim")),
    responses(
        (status = 200, body = Reported),
        (status = 404, description = "Problem: the token is not valid"),
        (status = 409, description = "Problem: the caller no longer holds the task"),
    )
)]
async fn release(
    _: MayWork,
    State(app): State<ServerState>,
    TokenPath(token): TokenPath,
) -> Answer<Json<Reported>> {
    boards::release(app.core(), &token).await?;
    Ok(Json(Reported { token, outcome: "released" }))
}
