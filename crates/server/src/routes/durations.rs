//! The usual time that pipelines take.

use axum::extract::State;
use serde::Deserialize;
use sprag_app::DurationsView;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::MayRead;
use crate::extract::{Json, Query};
use crate::problem::Answer;
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(durations))
}

/// Which durations to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// The pipeline's name.
    pipeline: String,
}

/// Show the usual time that a pipeline and its steps take
///
/// Medians of its last ten completed runs that the caller reaches. A pipeline without such runs has none.
#[utoipa::path(
    get, path = "/v1/durations", tag = "pipelines", params(Which), responses((status = 200, body = DurationsView))
)]
async fn durations(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(which): Query<Which>,
) -> Answer<Json<DurationsView>> {
    app.blocking(move |app| Ok(Json(app.core().usual_durations(&which.pipeline, &caller.reach)?))).await
}
