//! Environments: the worktrees and folders in which runs work.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sprag_app::view::EnvironmentView;
use sprag_app::{EnvironmentRow, Environments as Keeper};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::{IdPath, Json, Query};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)).routes(routes!(cleanup))
}

/// Which environments to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Only those of this run.
    run: Option<String>,
    /// Whether to include removed environments.
    #[serde(default)]
    all: bool,
}

/// Environments.
#[derive(Debug, Serialize, ToSchema)]
struct Environments {
    /// The environments.
    environments: Vec<EnvironmentView>,
}

/// List the environments of runs
#[utoipa::path(
    get, path = "/v1/environments", tag = "environments", params(Which),
    responses((status = 200, body = Environments))
)]
async fn list(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(which): Query<Which>,
) -> Answer<Json<Environments>> {
    let run = which.run.as_deref().map(str::parse::<sprag_app::RunId>).transpose();
    let run = run.map_err(|error| Problem::malformed(format!("run: {error}")))?;
    app.blocking(move |app| {
        let rows = match run {
            Some(run) => app.core().environments_of(run)?,
            None => app.core().environments(which.all)?,
        };
        let mut environments = Vec::new();
        for row in &rows {
            if app.core().reaches_environment(&caller.reach, row)? {
                environments.push(view(app, row));
            }
        }
        Ok(Json(Environments { environments }))
    })
    .await
}

fn view(app: &ServerState, row: &EnvironmentRow) -> EnvironmentView {
    let keeper = Keeper::new(app.core(), app.id());
    EnvironmentView::of(row, keeper.why_there(row))
}

fn load(app: &ServerState, id: i64) -> Answer<EnvironmentView> {
    let row = app.core().environment(id)?;
    let row = row.ok_or_else(|| {
        Problem::not_found(format!("there is no environment {id}")).next("list them: GET /v1/environments")
    })?;
    Ok(view(app, &row))
}

/// Show an environment
#[utoipa::path(
    get, path = "/v1/environments/{id}", tag = "environments",
    params(("id" = String, Path, description = "The environment's number")),
    responses((status = 200, body = EnvironmentView), (status = 404, description = "Problem: there is no such environment"))
)]
async fn show(_: MayRead, State(app): State<ServerState>, id: IdPath) -> Answer<Json<EnvironmentView>> {
    let id = id.number()?;
    app.blocking(move |app| load(app, id).map(Json)).await
}

/// Request the removal of an environment
///
/// It is removed once its run has ended. Uncommitted work is saved as a ref first.
#[utoipa::path(
    post, path = "/v1/environments/{id}/cleanup", tag = "environments",
    params(("id" = String, Path, description = "The environment's number")),
    responses((status = 202, body = EnvironmentView), (status = 404, description = "Problem: there is no such environment"))
)]
async fn cleanup(
    _: MayRun,
    State(app): State<ServerState>,
    id: IdPath,
) -> Answer<(StatusCode, Json<EnvironmentView>)> {
    let id = id.number()?;
    if !app.core().request_cleanup(id).await? {
        return Err(Problem::not_found(format!("there is no environment {id}")));
    }
    let told = app.blocking(move |app| load(app, id)).await?;
    Ok((StatusCode::ACCEPTED, Json(told)))
}
