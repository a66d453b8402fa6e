//! Tokens, for callers that may do everything.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sprag_app::tokens::{OVERLAP, Scope, TokenLimits, TokenView};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::MayAdmin;
use crate::extract::{IdPath, Json, OptionalJson};
use crate::problem::Answer;
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(remove)).routes(routes!(rotate))
}

/// Tokens.
#[derive(Debug, Serialize, ToSchema)]
struct Tokens {
    /// The tokens, without their secrets.
    tokens: Vec<TokenView>,
}

/// List tokens, without their secrets
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", responses((status = 200, body = Tokens)))]
async fn list(_: MayAdmin, State(app): State<ServerState>) -> Answer<Json<Tokens>> {
    let tokens = app.blocking(|app| Ok(app.core().tokens()?)).await?;
    Ok(Json(Tokens { tokens: tokens.iter().map(TokenView::of).collect() }))
}

/// A request to create a token.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewToken {
    /// The token's name.
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    /// The token's scopes.
    #[schema(min_items = 1)]
    scopes: Vec<Scope>,
    /// The token's limits; none if they are left out. `admin` cannot be limited, and `work` only to queues and hosts.
    #[serde(default)]
    limits: TokenLimits,
    /// The seconds until it expires; it never expires if this is left out.
    #[schema(maximum = 3153600000u64)]
    expires_in_s: Option<u32>,
}

/// A token with its secret, which is shown once.
#[derive(Debug, Serialize, ToSchema)]
struct MadeToken {
    /// The token.
    #[serde(flatten)]
    view: TokenView,
    /// The bearer token. The server stores only its hash, and does not show it again.
    token: String,
}

/// Create a token
#[utoipa::path(
    post, path = "/v1/tokens", tag = "tokens", request_body = NewToken,
    responses(
        (status = 201, body = MadeToken),
        (status = 409, description = "Problem: a token with this name exists"),
        (status = 422, description = "Problem: the name or the scopes are missing, or the limits are not valid"),
    )
)]
async fn create(
    _: MayAdmin,
    State(app): State<ServerState>,
    Json(new): Json<NewToken>,
) -> Answer<(StatusCode, Json<MadeToken>)> {
    let expires_in = new.expires_in_s.map(|seconds| Duration::from_secs(seconds.into()));
    let (row, token) = app.core().add_token(&new.name, &new.scopes, new.limits, expires_in).await?;
    Ok((StatusCode::CREATED, Json(MadeToken { view: TokenView::of(&row), token })))
}

/// A request to give a token a new secret.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Rotate {
    /// The seconds for which the old secret stays valid; 600 if this is left out.
    #[schema(maximum = 2592000)]
    overlap_s: Option<u32>,
}

/// Give a token a new secret: both are valid until the overlap ends
#[utoipa::path(
    post, path = "/v1/tokens/{id}/rotate", tag = "tokens", request_body = Option<Rotate>,
    params(("id" = String, Path, description = "The token's number")),
    responses(
        (status = 201, body = MadeToken),
        (status = 404, description = "Problem: there is no such token"),
        (status = 409, description = "Problem: the token has expired, or was rotated at the same moment"),
        (status = 422, description = "Problem: the overlap is too long"),
    )
)]
async fn rotate(
    _: MayAdmin,
    State(app): State<ServerState>,
    id: IdPath,
    OptionalJson(wanted): OptionalJson<Rotate>,
) -> Answer<(StatusCode, Json<MadeToken>)> {
    let overlap = wanted.overlap_s.map_or(OVERLAP, |seconds| Duration::from_secs(seconds.into()));
    let (row, token) = app.core().rotate_token(&id.number()?.to_string(), overlap).await?;
    Ok((StatusCode::CREATED, Json(MadeToken { view: TokenView::of(&row), token })))
}

/// Remove a token with all its secrets: requests with it are refused
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", tag = "tokens",
    params(("id" = String, Path, description = "The token's number")),
    responses((status = 204, description = "Removed"), (status = 404, description = "Problem: there is no such token"))
)]
async fn remove(_: MayAdmin, State(app): State<ServerState>, id: IdPath) -> Answer<StatusCode> {
    app.core().remove_token(id.number()?).await?;
    Ok(StatusCode::NO_CONTENT)
}
