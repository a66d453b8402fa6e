//! The endpoints of remote workers, which hold a token with the scope `work` and need no database. Each endpoint reads
//! its request, calls one use case of [`RemoteWorker`], and answers.

mod claims;
mod environments;
mod files;
mod logs;
mod reports;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use sprag_app::RemoteWorker;
use sprag_app::tokens::Scope;
use sprag_worker::wire;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{Caller, forbidden};
use crate::extract::{parse, read_body};
use crate::problem::Problem;
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(claims::register))
        .routes(routes!(claims::claim))
        .routes(routes!(claims::heartbeat))
        .routes(routes!(claims::watch))
        .routes(routes!(claims::drain))
        .routes(routes!(claims::leave))
        .routes(routes!(reports::finish))
        .routes(routes!(reports::release))
        .routes(routes!(reports::vanished))
        .routes(routes!(logs::append))
        .routes(routes!(files::append_file))
        .routes(routes!(files::read))
        .routes(routes!(environments::ask))
        .routes(routes!(environments::tidy))
        .routes(routes!(environments::destroy))
        .routes(routes!(environments::destroyed))
}

/// The most bytes of a report: its outputs, a megabyte each, and a little more.
const MOST_REPORT_BYTES: usize = 32 << 20;
/// A worker that may work. Its number is bound to the token that the request shows.
pub(crate) struct Worker(pub(crate) RemoteWorker);

impl FromRequestParts<ServerState> for Worker {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &ServerState) -> Result<Self, Problem> {
        let caller = match parts.extensions.get::<Caller>() {
            Some(caller) if caller.may(Scope::Work) => caller,
            _ => return Err(forbidden(Scope::Work)),
        };
        let key = parts.headers.get(wire::WORKER).and_then(|key| key.to_str().ok()).unwrap_or_default();
        if !(32..=128).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(Problem::malformed(format!(
                "{}: 32 to 128 letters and digits that the worker draws, and keeps to itself",
                wire::WORKER
            )));
        }
        Ok(Worker(app.core().remote_worker(wire::worker_id(key, &caller.identity))))
    }
}

/// A body that may be as long as a worker's report.
pub(crate) struct Report<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<ServerState> for Report<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &ServerState) -> Result<Self, Problem> {
        parse(&read_body(request, MOST_REPORT_BYTES, app).await?.bytes).map(Report)
    }
}
