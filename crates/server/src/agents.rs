//! `/mcp`: the same tools that `sprag mcp` has, over streamable HTTP.
//!
//! Each request is complete in itself: the server keeps nothing between two of them, so that a restart loses no
//! session.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sprag_mcp::{Agents, Caller, Permit};
use tokio::sync::watch;

use crate::access;
use crate::bodies::BodyOf;
use crate::problem::Problem;
use crate::state::ServerState;

/// The time for which requests may continue once the server is stopping.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// The longest wait of a tool: its answer has to come before the request's own time limit.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The path of the tools.
pub(crate) const PATH: &str = "/mcp";

pub(crate) fn router(app: &ServerState) -> Router<ServerState> {
    let agents = Agents::new(app.core().clone(), app.dir())
        .waiting_at_most(LONGEST_WAIT)
        .looking_through(app.checkouts().clone());
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        // The guard checks hosts and origins of all requests before they come here.
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(app.options().body_limit);
    let service = StreamableHttpService::new(
        move || Ok(agents.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    Router::new().route_service(PATH, service).layer(from_fn_with_state(app.clone(), allowed))
}

/// Passes a request on with what its caller may do. Each tool needs a scope of its own.
async fn allowed(
    Extension(caller): Extension<access::Caller>,
    State(app): State<ServerState>,
    request: Request,
    next: Next,
) -> Response {
    // The body is read here, so that it counts like every other body.
    let (parts, body) = request.into_parts();
    let token = caller.token.filter(|_| !caller.is_own());
    let body = match app.bodies().read(body, app.options().body_limit, BodyOf::token(token)).await {
        Ok(body) => body,
        Err(problem) => return problem.into_response(),
    };
    let mut request = Request::from_parts(parts, Body::from(body.bytes.clone()));
    // Dropped with this request: the task that works for it then learns that the caller no longer waits.
    let (_open, there) = watch::channel(());
    request.extensions_mut().insert(Caller {
        there,
        scope: caller.agent_scope(),
        author: caller.author(),
        permit: Permit { scopes: caller.scopes, reach: caller.reach },
        step: caller.step,
    });
    tokio::select! {
        answer = next.run(request) => answer,
        () = last_call(&app) => Problem::unavailable("the server is shutting down").into_response(),
    }
}

/// Waits until the server is stopping, and a little longer, so that answers that are almost ready are still sent.
async fn last_call(app: &ServerState) {
    let _ = app.stopping().wait_for(|stop| *stop).await;
    app.core().pause(LAST_ANSWERS).await;
}
