//! Tokens, for those who may do everything.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sprag::text::rfc3339;
use sprag_store::TokenRow;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayAdmin, Scope, new_token};
use crate::app::App;
use crate::extract::{IdPath, Json};
use crate::problem::{Answer, Problem};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(remove))
}

/// A token without its secret.
#[derive(Debug, Serialize, ToSchema)]
struct TokenView {
    /// Its number.
    id: String,
    /// What people call it.
    name: String,
    /// What it may do.
    scopes: Vec<String>,
    /// When it was made.
    created_at: String,
    /// When it ends.
    expires_at: Option<String>,
}

impl TokenView {
    fn of(token: &TokenRow) -> Self {
        TokenView {
            id: token.id.to_string(),
            name: token.name.to_string(),
            scopes: token.scopes.split(',').map(str::to_owned).collect(),
            created_at: rfc3339(token.created_ms),
            expires_at: token.expires_ms.map(rfc3339),
        }
    }
}

/// Tokens.
#[derive(Debug, Serialize, ToSchema)]
struct Tokens {
    /// The tokens, without their secrets.
    tokens: Vec<TokenView>,
}

/// List tokens, without their secrets
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", responses((status = 200, body = Tokens)))]
async fn list(_: MayAdmin, State(app): State<App>) -> Answer<Json<Tokens>> {
    let tokens = app.read(|db| db.tokens()).await?;
    Ok(Json(Tokens { tokens: tokens.iter().map(TokenView::of).collect() }))
}

/// A token to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewToken {
    /// What to call it.
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    /// What it may do.
    #[schema(min_items = 1)]
    scopes: Vec<Scope>,
    /// After how many seconds it ends; never if it is left out.
    #[schema(maximum = 3153600000u64)]
    expires_in_s: Option<u32>,
}

/// A token with its secret, which is shown once.
#[derive(Debug, Serialize, ToSchema)]
struct MadeToken {
    /// The token.
    #[serde(flatten)]
    view: TokenView,
    /// What its bearer shows. It is not kept, and never shown again.
    token: String,
}

/// Make a token
#[utoipa::path(
    post, path = "/v1/tokens", tag = "tokens", request_body = NewToken,
    responses(
        (status = 201, body = MadeToken),
        (status = 409, description = "Problem: there is one of that name"),
        (status = 422, description = "Problem: it has no name, or no scope"),
    )
)]
async fn create(
    _: MayAdmin,
    State(app): State<App>,
    Json(new): Json<NewToken>,
) -> Answer<(StatusCode, Json<MadeToken>)> {
    if new.name.is_empty() || new.name.chars().count() > 100 || new.scopes.is_empty() {
        return Err(Problem::invalid("a token needs a name of at most 100 characters, and a scope"));
    }
    let ends = new.expires_in_s.map(|seconds| app.store().now().wall_ms + i64::from(seconds) * 1000);
    let (secret, row) = new_token(app.store(), &new.name, &new.scopes, ends);
    let kept = row.clone();
    let made = app.store().write(move |session| {
        if session.db().tokens()?.iter().any(|token| token.name == kept.name) {
            return Ok(false);
        }
        session.db().put_token(&kept).map(|()| true)
    });
    match made.await? {
        true => Ok((StatusCode::CREATED, Json(MadeToken { view: TokenView::of(&row), token: secret }))),
        false => Err(Problem::refused(format!("there is a token {:?} already", new.name))),
    }
}

/// Remove a token: whoever has it is not let in any more
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", tag = "tokens",
    params(("id" = String, Path, description = "The token's number")),
    responses((status = 204, description = "It is gone"), (status = 404, description = "Problem: it is not there"))
)]
async fn remove(_: MayAdmin, State(app): State<App>, id: IdPath) -> Answer<StatusCode> {
    match app.store().service().remove_token(id.number()?).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found(format!("there is no token {}", id.0))),
    }
}
