//! Webhooks, for callers that may do everything.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use sprag_app::hooks::{HookView, NewHook};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::MayAdmin;
use crate::extract::{IdPath, Json};
use crate::hooks::{HookMeans, test_hook};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, remove))
        .routes(routes!(retry))
        .routes(routes!(test))
}

/// Hooks.
#[derive(Debug, Serialize, ToSchema)]
struct Hooks {
    /// The hooks, without their secrets.
    hooks: Vec<HookView>,
}

/// List hooks, without their secrets
#[utoipa::path(get, path = "/v1/hooks", tag = "hooks", responses((status = 200, body = Hooks)))]
async fn list(_: MayAdmin, State(app): State<ServerState>) -> Answer<Json<Hooks>> {
    let hooks = app.blocking(|app| Ok(app.core().hooks()?)).await?;
    Ok(Json(Hooks { hooks: hooks.iter().map(HookView::of).collect() }))
}

/// A hook with its secret, which is shown once.
#[derive(Debug, Serialize, ToSchema)]
struct MadeHook {
    /// The hook.
    #[serde(flatten)]
    view: HookView,
    /// The key that signs its messages. It is not shown again.
    secret: String,
}

/// Add a webhook
///
/// Messages of the format `json` are POSTs of `{"hook": ID, "events": [ENTRY, …], "runs": {…}}` with the headers `sprag-event-id` (the last
/// entry's number), `sprag-timestamp` and `sprag-signature: v1=HEX`, the HMAC-SHA256 of the time, a dot and the
/// body. They are delivered in order and at least once.
#[utoipa::path(
    post, path = "/v1/hooks", tag = "hooks", request_body = NewHook,
    responses(
        (status = 201, body = MadeHook),
        (status = 409, description = "Problem: there are too many hooks"),
        (status = 422, description = "Problem: the URL, the secret or the filter is not valid"),
    )
)]
async fn create(
    _: MayAdmin,
    State(app): State<ServerState>,
    Json(new): Json<NewHook>,
) -> Answer<(StatusCode, Json<MadeHook>)> {
    let (row, secret) = app.core().add_hook(new, app.options().private_hooks).await?;
    Ok((StatusCode::CREATED, Json(MadeHook { view: HookView::of(&row), secret })))
}

async fn load(app: &ServerState, id: &IdPath) -> Answer<Json<HookView>> {
    let number = id.number()?;
    app.blocking(move |app| Ok(Json(HookView::of(&app.core().hook(number)?)))).await
}

/// Show a hook
#[utoipa::path(
    get, path = "/v1/hooks/{id}", tag = "hooks",
    params(("id" = String, Path, description = "The hook's number")),
    responses((status = 200, body = HookView), (status = 404, description = "Problem: there is no such hook"))
)]
async fn show(_: MayAdmin, State(app): State<ServerState>, id: IdPath) -> Answer<Json<HookView>> {
    load(&app, &id).await
}

/// Remove a hook
#[utoipa::path(
    delete, path = "/v1/hooks/{id}", tag = "hooks",
    params(("id" = String, Path, description = "The hook's number")),
    responses((status = 204, description = "Removed"), (status = 404, description = "Problem: there is no such hook"))
)]
async fn remove(_: MayAdmin, State(app): State<ServerState>, id: IdPath) -> Answer<StatusCode> {
    app.core().remove_hook(id.number()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Continue a parked hook from its position
#[utoipa::path(
    post, path = "/v1/hooks/{id}/retry", tag = "hooks",
    params(("id" = String, Path, description = "The hook's number")),
    responses((status = 200, body = HookView), (status = 404, description = "Problem: there is no such hook"))
)]
async fn retry(_: MayAdmin, State(app): State<ServerState>, id: IdPath) -> Answer<Json<HookView>> {
    app.core().retry_hook(id.number()?).await?;
    load(&app, &id).await
}

/// The answer to a test message.
#[derive(Debug, Serialize, ToSchema)]
struct TestedHook {
    /// The status with which the receiver accepted it.
    answer: String,
}

/// Send a test message at once, without moving the hook's position
#[utoipa::path(
    post, path = "/v1/hooks/{id}/test", tag = "hooks",
    params(("id" = String, Path, description = "The hook's number")),
    responses(
        (status = 200, body = TestedHook),
        (status = 404, description = "Problem: there is no such hook"),
        (status = 409, description = "Problem: the receiver did not accept the message"),
    )
)]
async fn test(_: MayAdmin, State(app): State<ServerState>, id: IdPath) -> Answer<Json<TestedHook>> {
    let number = id.number()?;
    let hook = app.blocking(move |app| Ok(app.core().hook(number)?)).await?;
    let means = HookMeans {
        allow_private: app.options().private_hooks,
        outgoing: app.options().outgoing.clone(),
        program: app.options().program.clone(),
        data: app.core().data().to_owned(),
    };
    let answer = test_hook(app.core(), &hook, &means).await;
    let answer = answer.map_err(|error| Problem::refused(format!("not accepted: {}", error.message)))?;
    Ok(Json(TestedHook { answer }))
}
