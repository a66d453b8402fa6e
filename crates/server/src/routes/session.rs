//! Signing in from a browser, and the caller's own permissions.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sprag_app::tokens::{Scope, TokenLimits};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{Caller, MayRead};
use crate::connections::origin_of;
use crate::extract::Json;
use crate::guard::Peer;
use crate::problem::{Answer, Problem, internal};
use crate::rate::Whose;
use crate::session::{LASTS_S, cookie_name};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(sign_in, sign_out)).routes(routes!(me))
}

/// A request to sign in: with a token, or with the code that `sprag serve --open` passed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SignIn {
    /// A token.
    token: Option<String>,
    /// A code that is valid once, for two minutes.
    code: Option<String>,
}

/// The caller, and the server that it calls.
#[derive(Debug, Serialize, ToSchema)]
struct Me {
    /// The token's name; absent if the server requires none.
    name: Option<String>,
    /// The token's scopes.
    scopes: Vec<Scope>,
    /// The token's limits; absent if it has none.
    #[serde(skip_serializing_if = "TokenLimits::is_empty")]
    limits: TokenLimits,
    /// Whether the server requires a token.
    auth: bool,
    /// The server's version.
    version: &'static str,
    /// The build of the dashboard that this server serves; a page of another build should be reloaded.
    page: Option<String>,
    /// The server's time, in milliseconds since 1970.
    now_ms: i64,
}

impl Me {
    fn of(app: &ServerState, caller: &Caller) -> Me {
        Me {
            name: Some(caller.name.to_string()).filter(|name| !name.is_empty()),
            scopes: caller.scopes.clone(),
            limits: caller.reach.limits().clone(),
            auth: app.access().is_required(),
            version: env!("CARGO_PKG_VERSION"),
            page: crate::pages::build(),
            now_ms: app.core().now().wall_ms,
        }
    }
}

/// Sign in from a browser: exchange a token for a cookie
///
/// The cookie is `HttpOnly` and `SameSite=Strict`, and lasts thirty days or until the token is removed. A request that
/// changes something and shows only a cookie needs the `Origin` of this server.
#[utoipa::path(
    post, path = "/v1/session", tag = "session", request_body = SignIn,
    responses(
        (status = 200, body = Me),
        (status = 401, description = "Problem: the token or the code is not valid"),
    )
)]
async fn sign_in(
    State(app): State<ServerState>,
    peer: Option<axum::Extension<Peer>>,
    headers: HeaderMap,
    Json(given): Json<SignIn>,
) -> Answer<Response> {
    let caller = match (&given.token, &given.code) {
        (Some(token), None) => app.access().by_token(&app, token).await,
        (None, Some(code)) => app.access().by_code(&app, code),
        _ => return Err(Problem::invalid("give either `token` or `code`")),
    };
    let caller = match caller {
        Ok(caller) => caller,
        Err(problem) => {
            // Callers that guess tokens are slowed down.
            if let Some(axum::Extension(Peer(peer))) = peer {
                let now_ms = app.core().now().steady_ms;
                app.failed_rate()
                    .take(Whose::Failed(origin_of(peer.ip())), now_ms)
                    .map_err(Problem::too_many)?;
            }
            return Err(problem);
        }
    };
    let value = app.access().sessions().issue(&caller.hash, app.core().now().wall_ms);
    let mut response = Json(Me::of(&app, &caller)).into_response();
    set_cookie(&mut response, &headers, &value, LASTS_S)?;
    Ok(response)
}

/// Sign out: remove the cookie
#[utoipa::path(delete, path = "/v1/session", tag = "session", responses((status = 204)))]
async fn sign_out(headers: HeaderMap) -> Answer<Response> {
    let mut response = StatusCode::NO_CONTENT.into_response();
    set_cookie(&mut response, &headers, "", 0)?;
    Ok(response)
}

fn set_cookie(response: &mut Response, headers: &HeaderMap, value: &str, seconds: i64) -> Answer<()> {
    let name = cookie_name(headers);
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok()).unwrap_or_default();
    let secure = if origin.starts_with("https://") { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    let cookie = HeaderValue::from_str(&cookie).map_err(|error| internal(error.to_string()))?;
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(())
}

/// Show what the caller may do
#[utoipa::path(get, path = "/v1/me", tag = "session", responses((status = 200, body = Me)))]
async fn me(MayRead(caller): MayRead, State(app): State<ServerState>) -> Json<Me> {
    Json(Me::of(&app, &caller))
}
