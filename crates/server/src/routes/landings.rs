//! Landings: the branches that runs bring their work to, and whose turn it is.

use axum::extract::State;
use sprag_app::LandingsView;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::MayRead;
use crate::extract::Json;
use crate::problem::Answer;
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// List landings: whose turn it is, what waits, and what was refused
///
/// Landings of live runs, and of the newest 500 runs. The turn is known for repositories of this host.
#[utoipa::path(get, path = "/v1/landings", tag = "landings", responses((status = 200, body = LandingsView)))]
async fn list(MayRead(caller): MayRead, State(app): State<ServerState>) -> Answer<Json<LandingsView>> {
    app.blocking(move |app| Ok(Json(app.core().landings(&caller.reach)?))).await
}
