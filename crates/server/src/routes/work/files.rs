//! Files that steps on other hosts pass on.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use sprag_worker::wire;

use super::Worker;
use super::logs::Piece;
use crate::extract::{Json, Query};
use crate::problem::Answer;

/// Add to a file that an execution passes on
///
/// Bytes that are there already are passed over, so that a piece can be sent again. The answer has the path of the server's
/// copy, which the worker reports as the value of the output.
#[utoipa::path(
    post, path = "/v1/work/files", tag = "work",
    params(wire::FileChunk, ("x-sprag-worker" = String, Header, description = "The worker's key")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = wire::FileSize),
        (status = 409, description = "Problem: the execution is not the worker's, or there would be a gap"),
        (status = 413, description = "Problem: the file is as long as it may be"),
    )
)]
pub(crate) async fn append_file(
    Worker(worker): Worker,
    Query(chunk): Query<wire::FileChunk>,
    piece: Piece,
) -> Answer<Json<wire::FileSize>> {
    Ok(Json(worker.append_file(chunk, piece).await?))
}

/// Read a piece of a file that an earlier step has passed on
///
/// The worker must hold a step whose names contain the path; other files are not found. An empty answer is the file's end.
#[utoipa::path(
    post, path = "/v1/work/file", tag = "work", request_body = wire::WantedFile,
    params(("x-sprag-worker" = String, Header, description = "The worker's key")),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 404, description = "Problem: the step names no such file"),
        (status = 409, description = "Problem: the execution is not the worker's"),
    )
)]
pub(crate) async fn read(Worker(worker): Worker, Json(wanted): Json<wire::WantedFile>) -> Answer<Response> {
    let mut response = Body::from(worker.file_piece(wanted).await?).into_response();
    let kind = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
