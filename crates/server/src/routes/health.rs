//! Health: whether the server is alive and ready; and its metrics.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::MayRead;
use crate::extract::Json;
use crate::metrics::Present;
use crate::problem::{Answer, Problem, internal};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz)).routes(routes!(metrics))
}

/// The state of a server.
#[derive(Debug, Serialize, ToSchema)]
struct Health {
    /// `ok`.
    status: &'static str,
    /// The program's version.
    version: &'static str,
}

impl Health {
    fn ok() -> Json<Health> {
        Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
    }
}

/// Check that the process answers
#[utoipa::path(get, path = "/healthz", tag = "server", responses((status = 200, body = Health)))]
async fn healthz() -> Json<Health> {
    Health::ok()
}

/// Check that the store is reachable and the executor makes progress
#[utoipa::path(
    get, path = "/readyz", tag = "server",
    responses((status = 200, body = Health), (status = 503, description = "Problem: the server is not ready"))
)]
async fn readyz(State(app): State<ServerState>) -> Answer<Json<Health>> {
    // Asked first, because it tells why the worker has ended, if the store is the reason.
    app.blocking(|app| Ok(app.core().last_seq()?)).await?;
    if !app.is_alive() {
        return Err(Problem::unavailable("the executor or the worker of this server has stopped"));
    }
    if *app.stopping().borrow() {
        return Err(Problem::unavailable("the server is shutting down"));
    }
    Ok(Health::ok())
}

/// Get all metrics, for Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "server",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"))
)]
async fn metrics(_: MayRead, State(app): State<ServerState>) -> Answer<impl IntoResponse> {
    let present = app.blocking(|app| {
        let core = app.core();
        let hooks_parked = core.hooks()?.iter().filter(|hook| hook.parked.is_some()).count();
        Ok(Present {
            queues: core.queues()?,
            accounts: core.accounts()?,
            workers: core.workers()?.len(),
            hooks_parked,
        })
    });
    let present = present.await?;
    let text = app.metrics().text(&present).map_err(|error| internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text))
}
