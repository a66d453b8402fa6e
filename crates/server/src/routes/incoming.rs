//! Requests from outside that start runs, at `/in/PIPELINE/RULE`. They have a signature instead of a token, so these
//! paths can be served on an address of their own.
//!
//! ```text
//!   rate ─▶ size ─▶ signature, over the raw bytes ─▶ commit ─▶ 202 (new) or 200 (known), with the event's id
//! ```

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Serialize;
use sprag_app::rules::{NotTaken, Taken};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::bodies::BodyOf;
use crate::connections::origin_of;
use crate::extract::{Json, RulePath, announced_too_long};
use crate::guard::Peer;
use crate::problem::{Answer, Problem};
use crate::rate::Whose;
use crate::state::ServerState;

/// The path of these endpoints.
pub(crate) const PATH: &str = "/in/{pipeline}/{rule}";

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(take))
}

/// Returns the endpoints for an address that has no others.
pub(crate) fn only() -> Router<ServerState> {
    Router::new().route(PATH, post(take))
}

/// A request that was taken.
#[derive(Debug, Serialize, ToSchema)]
struct TakenRequest {
    /// The number of the event, which is on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<String>,
    /// The word with which Slack asks whether this is the right server. Then there is no event.
    #[serde(skip_serializing_if = "Option::is_none")]
    challenge: Option<String>,
}

/// Take a signed request for a rule
///
/// The request needs no token: its signature is checked over the raw bytes, with each secret of the rule. The answer
/// comes after the event is on disk. A sender that gets no answer, or a 5xx, should repeat the request: it is taken once.
#[utoipa::path(
    post, path = "/in/{pipeline}/{rule}", tag = "webhooks",
    params(
        ("pipeline" = String, Path, description = "The name of the pipeline"),
        ("rule" = String, Path, description = "The id of its rule"),
    ),
    responses(
        (status = 200, body = TakenRequest, description = "The event was taken before; or the answer to Slack's challenge"),
        (status = 202, body = TakenRequest, description = "The event is on disk"),
        (status = 400, description = "Problem: the body is not what its type says"),
        (status = 401, description = "Problem: the signature is missing, wrong or too old"),
        (status = 404, description = "Problem: there is no such webhook"),
        (status = 413, description = "Problem: the body is longer than the rule allows"),
        (status = 415, description = "Problem: the type of the body is none that rules read"),
        (status = 503, description = "Problem: the rule, a secret or the store is not available: repeat the request"),
    )
)]
async fn take(State(app): State<ServerState>, path: RulePath, request: Request) -> Answer<Response> {
    let origin = request.extensions().get::<Peer>().map(|peer| origin_of(peer.0.ip()));
    let now_ms = app.core().now().steady_ms;
    // Senders behind a proxy of this machine share its address, which says nothing about how much each sends.
    if let Some(origin) = origin.filter(|ip| !ip.is_loopback() || app.options().rate_limit.is_some()) {
        app.sender_rate().take(Whose::Peer(origin), now_ms).map_err(Problem::too_many)?;
    }
    let endpoint = app.blocking(move |app| Ok(app.core().endpoint(&path.name())?)).await?;
    if announced_too_long(request.headers(), endpoint.max_body()) {
        app.core().refuse_too_large(&endpoint);
        return Err(Problem::body_too_large(endpoint.max_body()));
    }
    let (parts, body) = request.into_parts();
    // The bytes that are being read count for the sender's address: nothing else is known of it yet.
    let body = app.bodies().read(body, endpoint.max_body(), BodyOf::Sender(origin)).await;
    let body = body.inspect_err(|problem| {
        if problem.status == StatusCode::PAYLOAD_TOO_LARGE.as_u16() {
            app.core().refuse_too_large(&endpoint);
        }
    })?;
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    match app.core().take_request(&endpoint, header, &body.bytes).await {
        Ok(Taken::Event(receipt)) => {
            let status = if receipt.is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
            let event = Some(receipt.event.to_string());
            Ok((status, Json(TakenRequest { event, challenge: None })).into_response())
        }
        Ok(Taken::Look) => {
            let taken = TakenRequest { event: None, challenge: None };
            Ok((StatusCode::ACCEPTED, Json(taken)).into_response())
        }
        Ok(Taken::Challenge(word)) => {
            Ok(Json(TakenRequest { event: None, challenge: Some(word) }).into_response())
        }
        Err(NotTaken::Unsigned(why)) => {
            // Callers that guess signatures are slowed down.
            if let Some(origin) = origin {
                app.failed_rate().take(Whose::Failed(origin), now_ms).map_err(Problem::too_many)?;
            }
            tracing::warn!(why, "a request for a rule was refused");
            let message = format!("the request is refused: {why}");
            Err(Problem::new(StatusCode::UNAUTHORIZED, "unsigned", message)
                .next("compare the sender's secret with the variables in the rule's `secrets`"))
        }
        Err(NotTaken::Malformed(why)) => Err(Problem::malformed(why)),
        Err(NotTaken::UnknownType(why)) => {
            let problem = Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", why);
            Err(problem.next("send JSON, a form or text"))
        }
        Err(NotTaken::Error(error)) => Err(error.into()),
    }
}
