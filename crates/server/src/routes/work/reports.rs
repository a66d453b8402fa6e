//! Reports of how work ended, by the workers that did it.

use sprag_worker::wire;

use super::{Report, Worker};
use crate::extract::Json;
use crate::problem::Answer;

/// Report how something ended, and receive what follows in the same run
///
/// The same report a second time is answered like the first: its answer may have been lost.
#[utoipa::path(
    post, path = "/v1/work/finish", tag = "work", request_body = wire::Finish,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses(
        (status = 200, body = wire::Finished),
        (status = 409, description = "Problem: it belongs to somebody else, or has ended otherwise"),
        (status = 413, description = "Problem: the result has more than 16 MiB"),
    )
)]
pub(crate) async fn finish(
    Worker(worker): Worker,
    Report(told): Report<wire::Finish>,
) -> Answer<Json<wire::Finished>> {
    Ok(Json(worker.finish(told).await?))
}

/// Give something back unfinished
#[utoipa::path(
    post, path = "/v1/work/release", tag = "work", request_body = wire::Held,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done), (status = 409, description = "Problem: it is not the worker's"))
)]
pub(crate) async fn release(
    Worker(worker): Worker,
    Json(wire::Held { lease }): Json<wire::Held>,
) -> Answer<Json<wire::Done>> {
    Ok(Json(worker.release(lease).await?))
}

/// Say that the processes that did something are gone, and nobody knows how it would have ended
#[utoipa::path(
    post, path = "/v1/work/vanished", tag = "work", request_body = wire::Held,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses((status = 200, body = wire::Done), (status = 409, description = "Problem: it is not the worker's"))
)]
pub(crate) async fn vanished(
    Worker(worker): Worker,
    Json(wire::Held { lease }): Json<wire::Held>,
) -> Answer<Json<wire::Done>> {
    Ok(Json(worker.vanished(lease).await?))
}
