//! Workers register, claim work, and send heartbeats.

use axum::extract::State;
use sprag_app::NewWorker;
use sprag_worker::wire;

use super::Worker;
use crate::access::MayWork;
use crate::extract::Json;
use crate::problem::Answer;
use crate::state::ServerState;

/// Present a worker, new or come back
///
/// `id` is the server's to know: what is sent is not looked at. The host in `process` is bound to the token.
#[utoipa::path(
    post, path = "/v1/work/register", tag = "work", request_body = Object,
    params(("x-sprag-worker" = String, Header, description = "32 to 128 letters and digits that the worker draws")),
    responses(
        (status = 200, body = wire::Registered),
        (status = 409, description = "Problem: it is draining"),
        (status = 429, description = "Problem: the token has as many workers as it may have"),
    )
)]
pub(crate) async fn register(
    Worker(worker): Worker,
    MayWork(caller): MayWork,
    Json(new): Json<NewWorker>,
) -> Answer<Json<wire::Registered>> {
    caller.reach.check_host(new.process.split('/').next().unwrap_or_default())?;
    caller.reach.check_queues(new.queues.split(',').filter(|queue| !queue.is_empty()))?;
    Ok(Json(worker.register(new, &caller.name, caller.is_own()).await?))
}

/// Receive work; waits for some, if asked to
///
/// The same nonce gets what it got before, for as long as that is held: the answer may have been lost.
#[utoipa::path(
    post, path = "/v1/work/claim", tag = "work", request_body = wire::Claim,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Claimed, description = "Nothing, if nothing came in time"))
)]
pub(crate) async fn claim(
    Worker(worker): Worker,
    MayWork(caller): MayWork,
    State(app): State<ServerState>,
    Json(wanted): Json<wire::Claim>,
) -> Answer<Json<wire::Claimed>> {
    caller.reach.check_queues(wanted.claimer.queues.iter().map(|queue| &**queue))?;
    Ok(Json(worker.claim(wanted, app.stopping()).await?))
}

/// Show that a worker is there, and keep what it holds
#[utoipa::path(
    post, path = "/v1/work/heartbeat", tag = "work", request_body = wire::Heartbeat,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Beaten, description = "Each lease is `held`, `cancel` or `lost`"))
)]
pub(crate) async fn heartbeat(
    Worker(worker): Worker,
    Json(told): Json<wire::Heartbeat>,
) -> Answer<Json<wire::Beaten>> {
    Ok(Json(worker.heartbeat(told).await?))
}

/// Wait until something that a worker holds has to end
#[utoipa::path(
    post, path = "/v1/work/watch", tag = "work", request_body = wire::Watch,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Watched))
)]
pub(crate) async fn watch(
    Worker(worker): Worker,
    State(app): State<ServerState>,
    Json(asked): Json<wire::Watch>,
) -> Answer<Json<wire::Watched>> {
    Ok(Json(worker.watch(asked, app.stopping()).await?))
}

/// Take no more work
#[utoipa::path(
    post, path = "/v1/work/drain", tag = "work",
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done))
)]
pub(crate) async fn drain(Worker(worker): Worker) -> Answer<Json<wire::Done>> {
    Ok(Json(worker.drain().await?))
}

/// Leave: whatever it still held goes to others
#[utoipa::path(
    post, path = "/v1/work/leave", tag = "work",
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done))
)]
pub(crate) async fn leave(Worker(worker): Worker) -> Answer<Json<wire::Done>> {
    Ok(Json(worker.leave().await?))
}
