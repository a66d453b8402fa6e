//! Gates: questions and signals that runs wait for from outside.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_app::gates::{Question, questions};
use sprag_app::view::GateView;
use sprag_app::{GateKind, GateRow, Reach, RunId, RunWithPlan, gates};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::{IdPath, Json, Query, RunPath};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(answer))
        .routes(routes!(signal))
}

/// The most gates that are listed.
const MOST: usize = 500;

/// Which gates to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Only those of this run.
    run: Option<String>,
    /// With `run`: only questions, also those of its child runs, whose steps are named as that run names them, such as
    /// `each[0].ask`.
    #[serde(default)]
    children: bool,
    /// Only this kind: `question`, `time` or `signal`.
    kind: Option<String>,
    /// Only gates after this one: `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Open gates.
#[derive(Debug, Serialize, ToSchema)]
struct Gates {
    /// The gates.
    gates: Vec<GateView>,
    /// The cursor of the next page; absent if there is none.
    next_cursor: Option<String>,
}

/// List the questions, points in time and signals that runs wait for
#[utoipa::path(get, path = "/v1/gates", tag = "gates", params(Which), responses((status = 200, body = Gates)))]
async fn list(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(which): Query<Which>,
) -> Answer<Json<Gates>> {
    let run = which.run.as_deref().map(str::parse).transpose();
    let run: Option<sprag_app::RunId> =
        run.map_err(|error: sprag_lifecycle::RunIdError| Problem::malformed(format!("run: {error}")))?;
    let kind = match which.kind.as_deref() {
        None => None,
        Some(word) => Some(GateKind::parse(word).ok_or_else(|| {
            Problem::malformed(format!("kind: {word:?} is not a kind of gate"))
                .next("one of: question, time, signal")
        })?),
    };
    let after = which.cursor.as_deref().map_or(Ok(0), str::parse);
    let after: i64 = after.map_err(|_| Problem::malformed("cursor: not a number"))?;
    app.blocking(move |app| {
        if let Some(run) = run.filter(|_| which.children) {
            let gates = questions_of(app, &caller.reach, run)?;
            return Ok(Json(Gates { gates, next_cursor: None }));
        }
        let rows = match run {
            Some(run) => app.core().open_gates(run)?,
            None => app.core().gates_open(after, MOST)?,
        };
        let full = run.is_none() && rows.len() == MOST;
        let next_cursor = rows.last().filter(|_| full).map(|gate| gate.id.to_string());
        let mut gates = Vec::new();
        for gate in rows.iter().filter(|gate| kind.is_none_or(|kind| kind == gate.kind)) {
            if app.core().reaches(&caller.reach, gate.run)? {
                gates.push(view(app, gate)?);
            }
        }
        Ok(Json(Gates { gates, next_cursor }))
    })
    .await
}

/// Returns the open questions of a run and of its child runs that a caller reaches.
fn questions_of(app: &ServerState, reach: &Reach, run: RunId) -> Answer<Vec<GateView>> {
    let mut gates = Vec::new();
    for Question { gate, step } in questions(app.core(), run)? {
        if app.core().reaches(reach, gate.run)? {
            let known = RunWithPlan::load(app.core(), gate.run)?;
            gates.push(GateView::of(&gate, &known.run.pipeline, &step, app.core().now()));
        }
    }
    Ok(gates)
}

pub(super) fn view(app: &ServerState, gate: &GateRow) -> Answer<GateView> {
    let known = RunWithPlan::load(app.core(), gate.run)?;
    Ok(GateView::of(gate, &known.run.pipeline, &known.name_of(app.core(), gate.step), app.core().now()))
}

fn load(app: &ServerState, id: i64) -> Answer<GateRow> {
    let row = app.core().gate(id)?;
    row.ok_or_else(|| Problem::not_found(format!("there is no gate {id}")).next("list them: GET /v1/gates"))
}

/// Show a gate
#[utoipa::path(
    get, path = "/v1/gates/{id}", tag = "gates",
    params(("id" = String, Path, description = "The gate's number")),
    responses((status = 200, body = GateView), (status = 404, description = "Problem: there is no such gate"))
)]
async fn show(_: MayRead, State(app): State<ServerState>, id: IdPath) -> Answer<Json<GateView>> {
    let id = id.number()?;
    app.blocking(move |app| Ok(Json(view(app, &load(app, id)?)?))).await
}

/// A person's answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GateAnswer)]
struct GateAnswer {
    /// Whether the run continues; decided by the choice if it is left out.
    approved: Option<bool>,
    /// The choice; by default the first one to approve, the last one to reject.
    choice: Option<String>,
    /// A comment; a step that is sent back reads it.
    comment: Option<String>,
    /// The values of the question's fields, by name.
    #[serde(default)]
    fields: serde_json::Map<String, Value>,
}

/// Answer a question
#[utoipa::path(
    post, path = "/v1/gates/{id}/answer", tag = "gates", request_body = GateAnswer,
    params(("id" = String, Path, description = "The gate's number")),
    responses(
        (status = 200, body = GateView),
        (status = 404, description = "Problem: there is no such gate"),
        (status = 409, description = "Problem: the question has been answered or has expired, or its run is being cancelled"),
        (status = 422, description = "Problem: the gate is not a question, or the answer is not valid"),
    )
)]
async fn answer(
    _: MayRun,
    State(app): State<ServerState>,
    id: IdPath,
    Json(given): Json<GateAnswer>,
) -> Answer<Json<GateView>> {
    let id = id.number()?;
    let gate = app.blocking(move |app| load(app, id)).await?;
    let answer = gates::Answer {
        approved: given.approved,
        choice: given.choice.as_deref(),
        comment: given.comment.as_deref(),
        fields: Some(&given.fields),
        texts: None,
    };
    gates::answer(app.core(), &gate, answer).await?;
    app.blocking(move |app| Ok(Json(view(app, &load(app, id)?)?))).await
}

/// A signal to a run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewSignal {
    /// Its name.
    #[schema(min_length = 1, max_length = 255)]
    name: String,
    /// The signal's data, which become the step's outputs.
    #[serde(default)]
    payload: Option<Value>,
}

/// The result of sending a signal.
#[derive(Debug, Serialize, ToSchema)]
struct Sent {
    /// The step that received it; absent if it is stored for a later wait.
    received_by: Option<String>,
}

/// Send a signal to a run that waits for it now or later
#[utoipa::path(
    post, path = "/v1/runs/{run}/signals", tag = "gates", request_body = NewSignal,
    params(("run" = String, Path, description = "The run's id")),
    responses(
        (status = 200, body = Sent),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run has ended"),
        (status = 422, description = "Problem: the name is not valid"),
    )
)]
async fn signal(
    _: MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    Json(new): Json<NewSignal>,
) -> Answer<Json<Sent>> {
    if new.name.is_empty() || new.name.len() > 255 {
        return Err(Problem::invalid("name: must be 1 to 255 bytes"));
    }
    let payload = new.payload.unwrap_or_else(|| serde_json::json!({}));
    let received_by = app.core().signal(run, &new.name, &payload).await?;
    Ok(Json(Sent { received_by }))
}
