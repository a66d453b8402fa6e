//! Accounts of coding agents, and the holds on them.

use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use sprag_app::AccountView;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::{AccountPath, Json};
use crate::problem::Answer;
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(hold)).routes(routes!(release))
}

/// Accounts.
#[derive(Debug, Serialize, ToSchema)]
struct Accounts {
    /// The accounts that runs or persons have named, by name.
    accounts: Vec<AccountView>,
}

/// List accounts of coding agents
#[utoipa::path(get, path = "/v1/accounts", tag = "accounts", responses((status = 200, body = Accounts)))]
async fn list(MayRead(caller): MayRead, State(app): State<ServerState>) -> Answer<Json<Accounts>> {
    let mut accounts = app.blocking(|app| Ok(app.core().accounts()?)).await?;
    // Accounts belong to no pipeline: runs of all of them share one.
    accounts.retain(|_| caller.reach.is_everything());
    Ok(Json(Accounts { accounts }))
}

/// A request to hold an account.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Hold {
    /// The length of the hold in seconds; without it only a release ends the hold.
    #[schema(maximum = 316224000)]
    seconds: Option<u32>,
    /// The reason, in a few words.
    #[schema(max_length = 200)]
    reason: Option<String>,
}

/// Hold an account: no further step uses it until the hold ends
#[utoipa::path(
    post, path = "/v1/accounts/{account}/hold", tag = "accounts", request_body = Hold,
    params(("account" = String, Path, description = "The account's name")),
    responses((status = 200, body = AccountView), (status = 422, description = "Problem: the request is not valid"))
)]
async fn hold(
    _: MayRun,
    State(app): State<ServerState>,
    AccountPath(account): AccountPath,
    Json(wanted): Json<Hold>,
) -> Answer<Json<AccountView>> {
    let time = wanted.seconds.map(|seconds| Duration::from_secs(seconds.into()));
    Ok(Json(app.core().hold_account(&account, time, wanted.reason.as_deref()).await?))
}

/// Release an account
#[utoipa::path(
    post, path = "/v1/accounts/{account}/release", tag = "accounts",
    params(("account" = String, Path, description = "The account's name")),
    responses(
        (status = 200, body = AccountView),
        (status = 404, description = "Problem: there is no such account"),
        (status = 409, description = "Problem: it is not held"),
    )
)]
async fn release(
    _: MayRun,
    State(app): State<ServerState>,
    AccountPath(account): AccountPath,
) -> Answer<Json<AccountView>> {
    Ok(Json(app.core().release_account(&account).await?))
}
