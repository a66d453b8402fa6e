//! Runs: started, listed, shown, ended, gone on with.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sprag::view::{RunDetail, RunView};
use sprag::{Known, RunId};
use sprag_lifecycle::{RunStatus, Word};
use sprag_store::ops::{self, Created};
use sprag_store::{Row, RunRow, Table};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::app::App;
use crate::extract::{IfMatch, Json, OptionalJson, Query, RunPath};
use crate::pipelines;
use crate::problem::{Answer, Problem, internal};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show))
        .routes(routes!(cancel))
        .routes(routes!(retry))
        .routes(routes!(resume))
        .routes(routes!(rewind))
        .routes(routes!(fork))
}

/// How many runs a page has at most.
const MOST: usize = 500;
/// How many runs are looked through for one page.
const LOOKED_THROUGH: usize = 20_000;
/// How long a key may be.
const LONGEST_KEY: usize = 255;

/// A run to be started: a pipeline as text, or the name of one of the project's.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewRun {
    /// The pipeline itself, in YAML.
    #[schema(example = "steps:\n  - id: hello\n    run: echo hello\n")]
    yaml: Option<String>,
    /// The name of one of the project's pipelines.
    pipeline: Option<String>,
    /// What it is given.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Object>)]
    inputs: BTreeMap<String, Value>,
    /// Added to the priority of its steps.
    #[serde(default)]
    #[schema(minimum = -1000000, maximum = 1000000)]
    priority: i32,
    /// The folder in which its commands run; the project's if it is left out.
    dir: Option<String>,
}

/// Runs, newest first.
#[derive(Debug, Serialize, ToSchema)]
struct Runs {
    /// The runs.
    runs: Vec<RunView>,
    /// Where the next page begins; nothing if there is none.
    next_cursor: Option<String>,
}

/// Which runs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Only runs in one of these statuses, separated by commas.
    status: Option<String>,
    /// Only runs of this pipeline.
    pipeline: Option<String>,
    /// Only runs older than this one: `next_cursor` of the page before.
    cursor: Option<String>,
    /// How many, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// List runs
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(Which), responses((status = 200, body = Runs)))]
async fn list(_: MayRead, State(app): State<App>, Query(which): Query<Which>) -> Answer<Json<Runs>> {
    let limit = which.limit.unwrap_or(50);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::malformed(format!("limit: {limit} is not between 1 and {MOST}")));
    }
    let statuses = statuses(which.status.as_deref())?;
    let cursor = which.cursor.as_deref().map(str::parse::<RunId>).transpose();
    let cursor = cursor.map_err(|error| Problem::malformed(format!("cursor: {error}")))?;
    let pipeline = which.pipeline;
    app.read(move |db| {
        let mut before = cursor;
        let mut found: Vec<RunRow> = Vec::new();
        let mut looked = 0;
        loop {
            let page = db.runs(before, &statuses, MOST)?;
            looked += page.len();
            let last_page = page.len() < MOST;
            for row in page {
                if found.len() == limit {
                    break;
                }
                before = Some(row.id);
                if pipeline.as_deref().is_none_or(|pipeline| pipeline == &*row.pipeline) {
                    found.push(row);
                }
            }
            if found.len() == limit || last_page || looked >= LOOKED_THROUGH {
                let more = found.len() == limit || !last_page;
                let next_cursor = before.filter(|_| more).map(|run| run.to_string());
                return Ok(Json(Runs { runs: found.iter().map(RunView::of).collect(), next_cursor }));
            }
        }
    })
    .await
}

fn statuses(text: Option<&str>) -> Answer<Vec<RunStatus>> {
    let words = text.into_iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty());
    words
        .map(|word| {
            RunStatus::parse(word).ok_or_else(|| {
                let all: Vec<&str> = RunStatus::ALL.iter().map(|status| status.as_str()).collect();
                Problem::malformed(format!("status: {word:?} is no status of a run"))
                    .next(format!("one of: {}", all.join(", ")))
            })
        })
        .collect()
}

/// Start a run
///
/// With an `Idempotency-Key`, the same request starts one run however often it is sent: later ones are
/// answered with 200 and the run that there is.
#[utoipa::path(
    post, path = "/v1/runs", tag = "runs", request_body = NewRun,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key never starts a second run")),
    responses(
        (status = 201, body = RunView, description = "It was started"),
        (status = 200, body = RunView, description = "The key had started it before"),
        (status = 409, description = "Problem: the concurrency group refuses it"),
        (status = 422, description = "Problem: the pipeline or its inputs are not right, each with its place"),
    )
)]
async fn create(
    _: MayRun,
    State(app): State<App>,
    headers: HeaderMap,
    Json(wanted): Json<NewRun>,
) -> Answer<Response> {
    let key = key_of(&headers)?;
    let dir = match wanted.dir.as_deref() {
        None => app.dir().to_owned(),
        Some(dir) => absolute(dir)?,
    };
    let (plan, inputs) = app
        .blocking(move |app| {
            let loaded = match (&wanted.yaml, &wanted.pipeline) {
                (Some(text), None) => pipelines::inline(text)?,
                (None, Some(name)) => pipelines::named(app.options().project.as_deref(), name)?,
                _ => return Err(Problem::invalid("name either `yaml` or `pipeline`")),
            };
            pipelines::plan(&loaded.pipeline, &wanted.inputs)
        })
        .await?;
    let mut new = app.store().person().new_run(Arc::new(plan));
    new.inputs = json!(inputs).to_string().into();
    new.context = json!({ "dir": dir }).to_string().into();
    new.priority = wanted.priority;
    new.idempotency_key = key;
    let (hash, given) = (ops::plan_hash(&new.plan), Arc::clone(&new.inputs));
    let (status, run) = match app.store().person().create_run(new).await? {
        Created::New(run) => (StatusCode::CREATED, row_of(&app, run).await?),
        Created::Existing(run) => {
            let row = row_of(&app, run).await?;
            if row.plan != hash || row.inputs != given {
                return Err(Problem::invalid("the idempotency key has started a run of something else")
                    .next("use a key of its own for each request"));
            }
            (StatusCode::OK, row)
        }
        Created::NameTaken => return Err(Problem::unavailable("no free name for the run was found")),
    };
    let location = HeaderValue::from_str(&format!("/v1/runs/{}", run.id));
    let mut response = (status, Json(RunView::of(&run))).into_response();
    response.headers_mut().insert(header::LOCATION, location.map_err(|error| internal(error.to_string()))?);
    Ok(response)
}

fn key_of(headers: &HeaderMap) -> Answer<Option<Arc<str>>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= LONGEST_KEY => Ok(Some(key.into())),
        _ => {
            Err(Problem::malformed(format!("idempotency-key: between 1 and {LONGEST_KEY} plain characters")))
        }
    }
}

fn absolute(dir: &str) -> Answer<std::path::PathBuf> {
    let path = std::path::PathBuf::from(dir);
    match path.is_absolute() && !dir.contains('\0') {
        true => Ok(path),
        false => Err(Problem::invalid(format!("dir: {dir:?} is not an absolute path"))),
    }
}

pub(super) async fn row_of(app: &App, run: RunId) -> Answer<RunRow> {
    let row = app.read(move |db| Table::<RunRow>::load(db, run)).await?;
    row.ok_or_else(|| {
        Problem::not_found(format!("there is no run {run}")).next("list the runs: GET /v1/runs")
    })
}

/// The run and its plan.
pub(super) async fn known(app: &App, run: RunId) -> Answer<Known> {
    app.blocking(move |app| Ok(Known::load(app.store(), run)?)).await
}

/// Show a run and its steps
///
/// The answer's `ETag` is the version of the run's row.
#[utoipa::path(
    get, path = "/v1/runs/{run}", tag = "runs", params(("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = RunDetail), (status = 404, description = "Problem: there is no such run"))
)]
async fn show(_: MayRead, State(app): State<App>, RunPath(run): RunPath) -> Answer<Response> {
    detail(&app, run).await
}

async fn detail(app: &App, run: RunId) -> Answer<Response> {
    let told = app
        .blocking(move |app| {
            let known = Known::load(app.store(), run)?;
            let steps = app.store().read(|db| db.steps(run))?;
            Ok(RunDetail::of(&known.run, &known.plan, &steps))
        })
        .await?;
    let tag = HeaderValue::from_str(&format!("\"{}\"", told.version));
    let mut response = Json(told).into_response();
    response.headers_mut().insert(header::ETAG, tag.map_err(|error| internal(error.to_string()))?);
    Ok(response)
}

/// End a run: what goes on is ended, what waits never starts
///
/// With `If-Match`, only if the run's row is still the one that the caller has seen.
#[utoipa::path(
    post, path = "/v1/runs/{run}/cancel", tag = "runs",
    params(("run" = String, Path, description = "The run's id"),
           ("If-Match" = Option<String>, Header, description = "The `ETag` of the run")),
    responses(
        (status = 200, body = RunDetail),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run has ended, or is being ended"),
        (status = 412, description = "Problem: the run has changed since"),
    )
)]
async fn cancel(_: MayRun, State(app): State<App>, RunPath(run): RunPath, seen: IfMatch) -> Answer<Response> {
    // The version is compared in the transaction that cancels.
    let done = app.store().write(move |session| {
        if let Some(row) = Table::<RunRow>::load(session.db(), run)?
            && let Err(problem) = seen.check(row.version())
        {
            return Ok(Err(problem));
        }
        ops::cancel_run(session, run).map(Ok)
    });
    done.await??.require_applied()?;
    detail(&app, run).await
}

/// From where to go on.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RetryFrom {
    /// The step; what failed if it is left out.
    step: Option<String>,
}

/// Try again what failed, or one step and all that follows it
#[utoipa::path(
    post, path = "/v1/runs/{run}/retry", tag = "runs", request_body = Option<RetryFrom>,
    params(("run" = String, Path, description = "The run's id")),
    responses(
        (status = 200, body = RunDetail),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run has not ended"),
        (status = 422, description = "Problem: the run has no such step"),
    )
)]
async fn retry(
    _: MayRun,
    State(app): State<App>,
    RunPath(run): RunPath,
    OptionalJson(from): OptionalJson<RetryFrom>,
) -> Answer<Response> {
    let known = known(&app, run).await?;
    let to = from.step.map(|step| known.step_no(&step)).transpose()?;
    if to.is_none() && !known.run.status().is_terminal() {
        // The table refuses it, and says why.
        app.store().person().resume_run(run, None).await?.require_applied()?;
    }
    sprag::again(app.store(), &known, to, None).await?;
    detail(&app, run).await
}

/// Go on with a run that failed, was cancelled, or whose process died
#[utoipa::path(
    post, path = "/v1/runs/{run}/resume", tag = "runs",
    params(("run" = String, Path, description = "The run's id")),
    responses(
        (status = 200, body = RunDetail),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run is completed, or somebody works on it"),
    )
)]
async fn resume(_: MayRun, State(app): State<App>, RunPath(run): RunPath) -> Answer<Response> {
    let known = known(&app, run).await?;
    if !known.run.status().is_terminal() {
        sprag::take_from_the_dead(app.store(), &known.run).await?;
    }
    sprag::again(app.store(), &known, None, None).await?;
    detail(&app, run).await
}

/// A step to go back to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RewindTo {
    /// The step.
    to: String,
}

/// Go back: a step and everything after it run again
#[utoipa::path(
    post, path = "/v1/runs/{run}/rewind", tag = "runs", request_body = RewindTo,
    params(("run" = String, Path, description = "The run's id")),
    responses(
        (status = 200, body = RunDetail),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run has not ended"),
        (status = 422, description = "Problem: the run has no such step"),
    )
)]
async fn rewind(
    _: MayRun,
    State(app): State<App>,
    RunPath(run): RunPath,
    Json(wanted): Json<RewindTo>,
) -> Answer<Response> {
    let known = known(&app, run).await?;
    let to = known.step_no(&wanted.to)?;
    sprag::again(app.store(), &known, Some(to), None).await?;
    detail(&app, run).await
}

/// A step to begin after.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ForkAfter {
    /// The finished step.
    from: String,
}

/// Start a new run from where another had finished a step
#[utoipa::path(
    post, path = "/v1/runs/{run}/fork", tag = "runs", request_body = ForkAfter,
    params(("run" = String, Path, description = "The run's id")),
    responses(
        (status = 201, body = RunView),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the step is not done"),
        (status = 422, description = "Problem: the run has no such step"),
    )
)]
async fn fork(
    _: MayRun,
    State(app): State<App>,
    RunPath(run): RunPath,
    Json(wanted): Json<ForkAfter>,
) -> Answer<Response> {
    let known = known(&app, run).await?;
    let (step, new) = app.blocking(move |app| Ok(sprag::fork(app.store(), &known, &wanted.from)?)).await?;
    let made = match app.store().person().fork_run(run, step, new).await? {
        Created::New(run) | Created::Existing(run) => run,
        Created::NameTaken => return Err(Problem::unavailable("the name drawn for the run was taken")),
    };
    let row = row_of(&app, made).await?;
    let location = HeaderValue::from_str(&format!("/v1/runs/{made}"));
    let mut response = (StatusCode::CREATED, Json(RunView::of(&row))).into_response();
    response.headers_mut().insert(header::LOCATION, location.map_err(|error| internal(error.to_string()))?);
    Ok(response)
}
