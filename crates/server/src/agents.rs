//! `/mcp`: the same tools that `sprag mcp` has, over streamable HTTP.
//!
//! Each request stands for itself: nothing is kept between two of them, so that a restart loses no session.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sprag_mcp::Agents;

use crate::access::{MayRun, MayWork};
use crate::app::App;

/// An answer has to come before the request's own time is over.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

pub(crate) fn router(app: &App) -> Router<App> {
    let agents = Agents::new(app.store().clone(), app.data(), app.dir()).waiting_at_most(LONGEST_WAIT);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        // Names and origins are looked at for all requests alike, before they come here.
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(app.options().body_limit);
    let service = StreamableHttpService::new(
        move || Ok(agents.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    Router::new().route_service("/mcp", service).layer(from_fn_with_state(app.clone(), allowed))
}

/// The tools start runs and report work: whoever uses them may do both.
async fn allowed(_: MayRun, _: MayWork, State(_): State<App>, request: Request, next: Next) -> Response {
    next.run(request).await
}
