//! Who did what.

use axum::extract::{Query, State};
use serde::Deserialize;
use sprag_app::{Audit, AuditFilter, MOST_AUDITED};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::MayAdmin;
use crate::extract::Json;
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(audit))
}

/// Which acts to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Only acts of this author: `KIND:NAME`, or the name alone.
    by: Option<String>,
    /// Only acts of this kind, such as `run.created` or `token`.
    act: Option<String>,
    /// Only acts on this run.
    run: Option<String>,
    /// Only acts since this time (RFC 3339).
    since: Option<String>,
    /// The most acts, at most 10000.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<usize>,
}

/// Read who did what, newest first
#[utoipa::path(
    get, path = "/v1/audit", tag = "events", params(Which), responses((status = 200, body = Audit))
)]
async fn audit(
    _: MayAdmin,
    State(app): State<ServerState>,
    Query(which): Query<Which>,
) -> Answer<Json<Audit>> {
    let limit = which.limit.unwrap_or(200);
    if !(1..=MOST_AUDITED).contains(&limit) {
        return Err(Problem::malformed(format!("limit: {limit} is not between 1 and {MOST_AUDITED}")));
    }
    let run = which.run.as_deref().map(super::events::parse_run).transpose()?;
    let since_ms = which.since.as_deref().map(|text| {
        sprag_app::text::parse_rfc3339(text).ok_or_else(|| {
            Problem::malformed(format!("since: {text:?} is no time like 2026-01-31T10:00:00Z"))
        })
    });
    let since_ms = since_ms.transpose()?;
    let filter = AuditFilter { by: which.by, act: which.act, run, since_ms, limit };
    app.blocking(move |app| Ok(Json(app.core().audit(&filter)?))).await
}
