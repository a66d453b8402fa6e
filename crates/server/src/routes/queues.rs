//! Queues and the workers that serve them.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use sprag_app::view::{QueueView, WorkerView};
use sprag_app::{QueueRow, WorkerRow};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::{Json, QueuePath};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(hold))
        .routes(routes!(release))
        .routes(routes!(limit))
        .routes(routes!(workers))
}

/// Queues.
#[derive(Debug, Serialize, ToSchema)]
struct Queues {
    /// The queues that have settings, executions or workers.
    queues: Vec<QueueView>,
}

/// List queues
#[utoipa::path(get, path = "/v1/queues", tag = "queues", responses((status = 200, body = Queues)))]
async fn list(MayRead(caller): MayRead, State(app): State<ServerState>) -> Answer<Json<Queues>> {
    let mut queues = all(&app).await?;
    queues.retain(|queue| caller.reach.shows_queue(&queue.name));
    Ok(Json(Queues { queues }))
}

async fn all(app: &ServerState) -> Answer<Vec<QueueView>> {
    app.blocking(|app| Ok(app.core().queues()?)).await
}

async fn change(
    app: &ServerState,
    name: String,
    change: impl Fn(&mut QueueRow) + Send + 'static,
) -> Answer<Json<QueueView>> {
    app.core().change_queue(&name, change).await?;
    let found = all(app).await?.into_iter().find(|queue| queue.name == name);
    found.map(Json).ok_or_else(|| Problem::not_found(format!("there is no queue {name:?}")))
}

/// Hold a queue: it hands over no executions until it is released
#[utoipa::path(
    post, path = "/v1/queues/{queue}/hold", tag = "queues",
    params(("queue" = String, Path, description = "The queue's name")),
    responses((status = 200, body = QueueView), (status = 422, description = "Problem: the name is not valid"))
)]
async fn hold(
    _: MayRun,
    State(app): State<ServerState>,
    QueuePath(queue): QueuePath,
) -> Answer<Json<QueueView>> {
    change(&app, queue, |queue| queue.held = true).await
}

/// Release a queue
#[utoipa::path(
    post, path = "/v1/queues/{queue}/release", tag = "queues",
    params(("queue" = String, Path, description = "The queue's name")),
    responses((status = 200, body = QueueView), (status = 422, description = "Problem: the name is not valid"))
)]
async fn release(
    _: MayRun,
    State(app): State<ServerState>,
    QueuePath(queue): QueuePath,
) -> Answer<Json<QueueView>> {
    change(&app, queue, |queue| queue.held = false).await
}

/// A request to limit a queue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct QueueLimit {
    /// The number of executions that may be handed over at once; absent for no limit.
    #[schema(maximum = 2147483647)]
    limit: Option<u32>,
}

/// Limit how many executions of a queue are handed over at once
#[utoipa::path(
    put, path = "/v1/queues/{queue}/limit", tag = "queues", request_body = QueueLimit,
    params(("queue" = String, Path, description = "The queue's name")),
    responses((status = 200, body = QueueView), (status = 422, description = "Problem: the name is not valid"))
)]
async fn limit(
    _: MayRun,
    State(app): State<ServerState>,
    QueuePath(queue): QueuePath,
    Json(wanted): Json<QueueLimit>,
) -> Answer<Json<QueueView>> {
    if wanted.limit.is_some_and(|limit| i32::try_from(limit).is_err()) {
        return Err(Problem::invalid(format!("limit: at most {}", i32::MAX)));
    }
    change(&app, queue, move |queue| queue.limit = wanted.limit).await
}

/// Workers.
#[derive(Debug, Serialize, ToSchema)]
struct Workers {
    /// The workers.
    workers: Vec<WorkerView>,
}

/// List workers
#[utoipa::path(get, path = "/v1/workers", tag = "workers", responses((status = 200, body = Workers)))]
async fn workers(MayRead(caller): MayRead, State(app): State<ServerState>) -> Answer<Json<Workers>> {
    let is_shown = move |worker: &WorkerRow| caller.reach.shows_worker(worker);
    let workers = app.blocking(move |app| Ok(app.core().worker_views(is_shown)?)).await?;
    Ok(Json(Workers { workers }))
}
