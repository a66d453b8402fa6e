//! Environments on other hosts: workers there ask for them, make them, report them, and clean them up.

use sprag_worker::wire;

use super::Worker;
use crate::extract::Json;
use crate::problem::Answer;

/// Ask or tell about the environment of a run, while holding a step of it
#[utoipa::path(
    post, path = "/v1/work/environment", tag = "work", request_body = wire::AskEnvironment,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses(
        (status = 200, body = Object),
        (status = 409, description = "Problem: the step is not the worker's, or the environment is another's"),
    )
)]
pub(crate) async fn ask(
    Worker(worker): Worker,
    Json(asked): Json<wire::AskEnvironment>,
) -> Answer<Json<wire::Told>> {
    Ok(Json(worker.environment(asked).await?))
}

/// Ask what can go on the worker's host: files of runs that have ended, environments that nobody needs
#[utoipa::path(
    post, path = "/v1/work/tidy", tag = "work", request_body = wire::Tidy,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Due))
)]
pub(crate) async fn tidy(Worker(worker): Worker, Json(asked): Json<wire::Tidy>) -> Answer<Json<wire::Due>> {
    Ok(Json(worker.tidy(asked).await?))
}

/// Begin to remove an environment of the worker's host
#[utoipa::path(
    post, path = "/v1/work/destroy", tag = "work", request_body = wire::Destroy,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::MayDestroy), (status = 409, description = "Problem: it is on another host"))
)]
pub(crate) async fn destroy(
    Worker(worker): Worker,
    Json(asked): Json<wire::Destroy>,
) -> Answer<Json<wire::MayDestroy>> {
    Ok(Json(worker.destroy(asked).await?))
}

/// Say how removing an environment went
#[utoipa::path(
    post, path = "/v1/work/destroyed", tag = "work", request_body = wire::Destroyed,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done), (status = 409, description = "Problem: somebody else is at it"))
)]
pub(crate) async fn destroyed(
    Worker(worker): Worker,
    Json(told): Json<wire::Destroyed>,
) -> Answer<Json<wire::Done>> {
    Ok(Json(worker.destroyed(told).await?))
}
