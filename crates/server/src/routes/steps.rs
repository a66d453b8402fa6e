//! Steps and executions of a run, their graph, and the reason why the run waits.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sprag_app::view::{ExecutionView, StepView};
use sprag_app::{Explained, GraphView, RunWithPlan};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::MayRead;
use crate::extract::{Json, Query, RunPath, StepPath};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(steps))
        .routes(routes!(step))
        .routes(routes!(executions))
        .routes(routes!(explain))
        .routes(routes!(graph))
}

/// The steps of a run.
#[derive(Debug, Serialize, ToSchema)]
struct Steps {
    /// The steps, and the items of fan-outs.
    steps: Vec<StepView>,
}

/// List a run's steps
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps", tag = "steps",
    params(("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = Steps), (status = 404, description = "Problem: there is no such run"))
)]
async fn steps(_: MayRead, State(app): State<ServerState>, RunPath(run): RunPath) -> Answer<Json<Steps>> {
    app.blocking(move |app| {
        let known = RunWithPlan::load(app.core(), run)?;
        let rows = app.core().steps(run)?;
        let waits = app.core().waiting_for(&known.run)?;
        let current = rows.iter().filter(|step| sprag_app::view::is_current(&rows, step));
        let view = |step| StepView::of(&known.plan, step).waiting(waits.steps.get(&step.no).copied());
        Ok(Json(Steps { steps: current.map(view).collect() }))
    })
    .await
}

/// A step and its attempts.
#[derive(Debug, Serialize, ToSchema)]
struct StepDetail {
    /// The step.
    step: StepView,
    /// The feedback of its last try, or of the step that sent it back.
    feedback: Option<String>,
    /// Its attempts, oldest first.
    executions: Vec<ExecutionView>,
}

/// Show a step and its attempts
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{step}", tag = "steps",
    params(("run" = String, Path, description = "The run's id"),
           ("step" = String, Path, description = "The step's id; an item of a fan-out is `step[2]`")),
    responses((status = 200, body = StepDetail), (status = 404, description = "Problem: there is no such step"))
)]
async fn step(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    StepPath(step): StepPath,
) -> Answer<Json<StepDetail>> {
    app.blocking(move |app| {
        let (known, step) = RunWithPlan::load(app.core(), run)?.enter(app.core(), &step)?;
        let (run, no) = (known.id(), find(app, &known, &step)?);
        let (row, executions) = (app.core().step(run, no)?, app.core().executions(run)?);
        let row = row.ok_or_else(|| Problem::not_found(format!("run {run} has no step {step:?}")))?;
        let now = app.core().now();
        let waits = app.core().waiting_for(&known.run)?;
        let of_step = executions.iter().filter(|execution| execution.id.step == no);
        Ok(Json(StepDetail {
            step: StepView::of(&known.plan, &row).waiting(waits.steps.get(&no).copied()),
            feedback: row.feedback.as_deref().map(str::to_owned),
            executions: of_step.map(|execution| ExecutionView::of(execution, &step, now)).collect(),
        }))
    })
    .await
}

/// Returns the step that a path names. A step in a path that does not exist is answered with not found.
pub(super) fn find(app: &ServerState, known: &RunWithPlan, step: &str) -> Answer<sprag_lifecycle::StepNo> {
    known
        .find_step(step, Some(app.core()))
        .map_err(|error| Problem::from(error).with_status(StatusCode::NOT_FOUND).called("not_found"))
}

/// Which executions to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Only those of this step.
    step: Option<String>,
}

/// Attempts at steps.
#[derive(Debug, Serialize, ToSchema)]
struct Executions {
    /// The executions, ordered by step, then by attempt.
    executions: Vec<ExecutionView>,
}

/// List a run's executions: every attempt at every step
#[utoipa::path(
    get, path = "/v1/runs/{run}/executions", tag = "steps",
    params(Which, ("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = Executions), (status = 404, description = "Problem: there is no such run"))
)]
async fn executions(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    Query(which): Query<Which>,
) -> Answer<Json<Executions>> {
    app.blocking(move |app| {
        let known = RunWithPlan::load(app.core(), run)?;
        let only = which.step.map(|step| find(app, &known, &step)).transpose()?;
        let rows = app.core().executions(run)?;
        let now = app.core().now();
        let wanted = rows.iter().filter(|row| only.is_none_or(|only| only == row.id.step));
        let view = |row| {
            let row: &sprag_app::ExecutionRow = row;
            ExecutionView::of(row, &known.name_of(app.core(), row.id.step), now)
        };
        Ok(Json(Executions { executions: wanted.map(view).collect() }))
    })
    .await
}

/// Explain what a run waits for, since when, until when, and which worker has it
#[utoipa::path(
    get, path = "/v1/runs/{run}/explain", tag = "runs",
    params(("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = Explained), (status = 404, description = "Problem: there is no such run"))
)]
async fn explain(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
) -> Answer<Json<Explained>> {
    app.blocking(move |app| {
        let known = RunWithPlan::load(app.core(), run)?;
        Ok(Json(sprag_app::explain_with_inner(app.core(), &known, &caller.reach)?))
    })
    .await
}

/// What to tell of a graph.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Drawn {
    /// Whether to lay it out too: positions of boxes and lines. They are the same for every run of the same plan.
    #[serde(default)]
    layout: bool,
}

/// Show the steps of a run as a graph: what each needs, and its status
#[utoipa::path(
    get, path = "/v1/runs/{run}/graph", tag = "steps",
    params(Drawn, ("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = GraphView), (status = 404, description = "Problem: there is no such run"))
)]
async fn graph(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    Query(drawn): Query<Drawn>,
) -> Answer<Json<GraphView>> {
    app.blocking(move |app| {
        let known = RunWithPlan::load(app.core(), run)?;
        let graph = GraphView::of_run(app.core(), &known)?;
        Ok(Json(if drawn.layout { graph.laid_out() } else { graph }))
    })
    .await
}
