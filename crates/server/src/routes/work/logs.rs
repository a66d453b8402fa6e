//! The logs of steps on other hosts, as they grow.

use axum::extract::{FromRequest, Request};
use sprag_worker::wire;

use super::Worker;
use crate::bodies::ReadBody;
use crate::extract::{Json, Query, read_body};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

/// A piece of a log.
pub(crate) struct Piece(ReadBody);

impl FromRequest<ServerState> for Piece {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &ServerState) -> Result<Self, Problem> {
        read_body(request, wire::MOST_CHUNK_BYTES, app).await.map(Piece)
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// Add to the log of an execution
///
/// Bytes that are there already are passed over, so that a piece can be sent again. One that would leave a gap is
/// refused with 409: ask for the size with an empty piece. Once the log does not grow any more, `whole` says how long it
/// is: until all of it is here, `status` and `logs` say what is missing, and that the worker's host has it in `path`.
#[utoipa::path(
    post, path = "/v1/work/logs", tag = "work",
    params(wire::Chunk, ("x-sprag-worker" = String, Header, description = "The worker's key")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = wire::LogSize),
        (status = 409, description = "Problem: the execution is not the worker's, or there would be a gap"),
        (status = 413, description = "Problem: the log is as long as it may be"),
    )
)]
pub(crate) async fn append(
    Worker(worker): Worker,
    Query(chunk): Query<wire::Chunk>,
    piece: Piece,
) -> Answer<Json<wire::LogSize>> {
    Ok(Json(worker.append_log(chunk, piece).await?))
}
