//! `/mcp`: the same tools that `sprag mcp` has, over streamable HTTP.
//!
//! Each request stands for itself: nothing is kept between two of them, so that a restart loses no session.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sprag_mcp::{Agents, Caller};
use tokio::sync::watch;

use crate::access::{MayRun, MayWork};
use crate::app::App;
use crate::problem::Problem;

/// How long requests may go on once the server is to end.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
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
async fn allowed(
    _: MayRun,
    _: MayWork,
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Response {
    // Dropped with this request: whoever works for it then hears that nobody waits any more.
    let (_there, caller) = watch::channel(());
    request.extensions_mut().insert(Caller(caller));
    tokio::select! {
        answer = next.run(request) => answer,
        () = last_call(&app) => Problem::unavailable("the server ends").into_response(),
    }
}

/// Waits until the server is to end, and a little longer, so that what is about to be answered is.
async fn last_call(app: &App) {
    let _ = app.stopping().wait_for(|stop| *stop).await;
    let _ = tokio::time::timeout(LAST_ANSWERS, std::future::pending::<()>()).await;
}
