//! Runs: start, list, show, cancel and resume them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_app::view::{DamagedView, GateView, RunDetail, RunView, StartedView};
use sprag_app::{Cancelled, LiveView, Row, RunFilter, RunId, RunLabels, RunRow, RunWithPlan, Started};
use sprag_lifecycle::{RunStatus, Word};
use sprag_pipeline::Selection;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::{IfMatch, Json, OptionalJson, Query, RunPath};
use crate::pipelines;
use crate::problem::{Answer, Problem, internal};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(live))
        .routes(routes!(find))
        .routes(routes!(show))
        .routes(routes!(questions))
        .routes(routes!(cancel))
        .routes(routes!(retry))
        .routes(routes!(skip))
        .routes(routes!(resume))
        .routes(routes!(rewind))
        .routes(routes!(fork))
}

/// The most runs in one page.
const MOST: usize = sprag_app::MOST_RUNS;
/// The most characters of an idempotency key.
const LONGEST_KEY: usize = 255;

/// A request to start a run: a pipeline as text, or the name of one of the project's pipelines.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewRun {
    /// The pipeline itself, in YAML.
    #[schema(example = "steps:\n  - id: hello\n    run: echo hello\n")]
    yaml: Option<String>,
    /// The texts of the child pipelines and prompt files that `yaml` refers to, by their paths from its folder.
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// The name of one of the project's pipelines.
    pipeline: Option<String>,
    /// The run's inputs.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Object>)]
    inputs: BTreeMap<String, Value>,
    /// Added to the priority of its steps.
    #[serde(default)]
    #[schema(minimum = -1000000, maximum = 1000000)]
    priority: i32,
    /// Runs only these steps; the others are skipped.
    #[serde(default)]
    only: Vec<String>,
    /// Runs only this step and all steps that need it.
    from: Option<String>,
    /// Skips these steps.
    #[serde(default)]
    skip: Vec<String>,
    /// The folder in which its commands run; the project's folder if it is left out.
    dir: Option<String>,
    /// A name for the run, of 1 to 128 characters, to find it again; by default the pipeline's `run_name`.
    name: Option<String>,
    /// Labels of the run, at most 32, added to the pipeline's `labels`. Keys and values have 1 to 64 characters.
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Runs, newest first.
#[derive(Debug, Serialize, ToSchema)]
struct Runs {
    /// The runs.
    runs: Vec<RunView>,
    /// The runs of this page that cannot be read, with the reason; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damaged: Vec<DamagedView>,
    /// The cursor of the next page; absent if there is none.
    next_cursor: Option<String>,
    /// The number of runs in each status, of those that the other filters select; only with `counts=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<Counted>,
}

/// The number of runs in each status.
#[derive(Debug, Serialize, ToSchema)]
struct Counted {
    /// The numbers, by status; a status without runs is absent.
    by_status: BTreeMap<&'static str, usize>,
    /// Whether only the newest 20,000 runs were counted.
    more: bool,
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
    /// Only runs with this label, as KEY=VALUE; several are separated by commas.
    label: Option<String>,
    /// Only runs with this text in their id, pipeline, name or a label, in any case.
    text: Option<String>,
    /// Only runs created at this time or later, such as `2026-11-17T10:00:00Z`.
    since: Option<String>,
    /// Only runs created before this time.
    until: Option<String>,
    /// Only child runs of this run.
    parent: Option<String>,
    /// Whether boards, which are runs too, are listed [default: true].
    boards: Option<bool>,
    /// Whether to count the runs in each status too.
    #[serde(default)]
    counts: bool,
    /// Only runs older than this one: `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The page size, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// List runs
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(Which), responses((status = 200, body = Runs)))]
async fn list(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(which): Query<Which>,
) -> Answer<Json<Runs>> {
    let limit = which.limit.unwrap_or(50);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::malformed(format!("limit: {limit} is not between 1 and {MOST}")));
    }
    let statuses = statuses(which.status.as_deref())?;
    let cursor = which.cursor.as_deref().map(str::parse::<RunId>).transpose();
    let cursor = cursor.map_err(|error| Problem::malformed(format!("cursor: {error}")))?;
    let labels = which.label.as_deref().into_iter().flat_map(|text| text.split(','));
    let labels = sprag_app::parse_labels(labels)?;
    let parent = which.parent.as_deref().map(str::parse::<RunId>).transpose();
    let parent = parent.map_err(|error| Problem::malformed(format!("parent: {error}")))?;
    let time = |name: &str, text: Option<&str>| match text.map(sprag_app::text::parse_rfc3339) {
        None => Ok(None),
        Some(Some(ms)) => Ok(Some(ms)),
        Some(None) => {
            Err(Problem::malformed(format!("{name}: not a time")).next("write it as 2026-11-17T10:00:00Z"))
        }
    };
    let filter = RunFilter {
        statuses,
        pipeline: which.pipeline,
        labels,
        before: cursor,
        since_ms: time("since", which.since.as_deref())?,
        until_ms: time("until", which.until.as_deref())?,
        parent,
        text: which.text.filter(|text| !text.is_empty()),
        without_boards: which.boards == Some(false),
        reach: caller.reach,
    };
    app.blocking(move |app| {
        let page = app.core().runs(&filter, limit)?;
        let runs = RunView::list(app.core(), &page.runs)?;
        let counts = which.counts.then(|| app.core().count_runs(&filter)).transpose()?;
        let counts = counts.map(|counts| Counted { by_status: counts.by_status, more: counts.more });
        let damaged = page.damaged.into_iter().map(DamagedView::from).collect();
        Ok(Json(Runs { runs, damaged, next_cursor: page.next.map(|run| run.to_string()), counts }))
    })
    .await
}

/// Show what all live runs do: the executions that workers have, and what runs wait for, by cause
#[utoipa::path(get, path = "/v1/waiting", tag = "runs", responses((status = 200, body = LiveView)))]
async fn live(MayRead(caller): MayRead, State(app): State<ServerState>) -> Answer<Json<LiveView>> {
    app.blocking(move |app| Ok(Json(app.core().live(&caller.reach)?))).await
}

fn statuses(text: Option<&str>) -> Answer<Vec<RunStatus>> {
    let words = text.into_iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty());
    words
        .map(|word| {
            RunStatus::parse(word).ok_or_else(|| {
                let all: Vec<&str> = RunStatus::ALL.iter().map(|status| status.as_str()).collect();
                Problem::malformed(format!("status: {word:?} is not a status of a run"))
                    .next(format!("one of: {}", all.join(", ")))
            })
        })
        .collect()
}

/// Start a run
///
/// With an `Idempotency-Key`, a repeated request starts only one run: later requests are answered with 200 and the
/// existing run. The same key with another pipeline, other inputs, another priority, folder, name or label is refused.
///
/// A run with a worktree starts with committed files. If the folder has uncommitted changes and the server has its own
/// worker, the answer says how many there are, and how the run treats them (`uncommitted`).
#[utoipa::path(
    post, path = "/v1/runs", tag = "runs", request_body = NewRun,
    params(("Idempotency-Key" = Option<String>, Header, description = "A key that never starts a second run")),
    responses(
        (status = 201, body = StartedView, description = "The started run"),
        (status = 200, body = StartedView, description = "The run that the key has already started"),
        (status = 409, description = "Problem: the concurrency group refuses the run"),
        (status = 422, description = "Problem: the pipeline or its inputs are not valid; each mistake has its position"),
    )
)]
async fn create(
    MayRun(caller): MayRun,
    State(app): State<ServerState>,
    headers: HeaderMap,
    Json(wanted): Json<NewRun>,
) -> Answer<Response> {
    let key = key_of(&headers)?;
    let dir = folder(&app, wanted.dir.as_deref())?;
    let wanted_priority = wanted.priority;
    let labels = RunLabels { name: wanted.name.clone(), labels: wanted.labels.clone() };
    let (plan, inputs, labels) = app
        .blocking(move |app| {
            let is_whole = wanted.only.is_empty() && wanted.from.is_none() && wanted.skip.is_empty();
            let by_name = wanted.pipeline.is_some() && wanted.dir.is_none() && is_whole;
            let project = app.options().project.as_deref();
            let yaml = wanted.yaml.as_deref();
            let loaded = pipelines::given(project, yaml, &wanted.files, wanted.pipeline.as_deref())?;
            let selection = Selection { only: wanted.only, from: wanted.from, skip: wanted.skip };
            let pipeline = loaded.pipeline.select(&selection)?;
            let (plan, inputs) = pipelines::plan(&pipeline, &wanted.inputs)?;
            let labels = labels.or_those_of(&pipeline, &inputs)?;
            caller.reach.check_start(&plan, &labels, by_name)?;
            Ok((plan, inputs, labels))
        })
        .await?;
    let plan = Arc::new(plan);
    let uncommitted = app.checkouts().uncommitted(&plan, &dir).await;
    let start = app.core().new_run(plan, &inputs)?.in_folder(dir);
    let start = start.priority(wanted_priority).idempotency_key(key.as_deref()).labelled(labels);
    let Started { run, is_new } = app.core().start_run(start).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let uncommitted = uncommitted.filter(|_| is_new);
    let location = HeaderValue::from_str(&format!("/v1/runs/{}", run.id));
    let started = StartedView { run: RunView::of(&run), uncommitted };
    let mut response = (status, Json(started)).into_response();
    response.headers_mut().insert(header::LOCATION, location.map_err(|error| internal(error.to_string()))?);
    Ok(response)
}

fn key_of(headers: &HeaderMap) -> Answer<Option<Arc<str>>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= LONGEST_KEY => Ok(Some(key.into())),
        _ => Err(Problem::malformed(format!("idempotency-key: must be 1 to {LONGEST_KEY} plain characters"))),
    }
}

/// Returns the folder of a request in which runs work; by default the project's folder.
pub(super) fn folder(app: &ServerState, dir: Option<&str>) -> Answer<std::path::PathBuf> {
    let Some(dir) = dir else { return Ok(app.dir().to_owned()) };
    let path = std::path::PathBuf::from(dir);
    if path.is_absolute() && !dir.contains('\0') {
        return Ok(path);
    }
    Err(Problem::invalid(format!("dir: {dir:?} is not an absolute path")))
}

pub(super) async fn row_of(app: &ServerState, run: RunId) -> Answer<RunRow> {
    let row = app.blocking(move |app| Ok(app.core().run(run)?)).await?;
    row.ok_or_else(|| {
        Problem::not_found(format!("there is no run {run}")).next("list the runs: GET /v1/runs")
    })
}

/// Returns a run and its plan.
pub(super) async fn known(app: &ServerState, run: RunId) -> Answer<RunWithPlan> {
    app.blocking(move |app| Ok(RunWithPlan::load(app.core(), run)?)).await
}

/// The words that name a run.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RunWords {
    /// The run's id, its first or last characters, its name, or the name of its board; the newest run if it is left out.
    name: Option<String>,
}

/// Find a run by what a person calls it
#[utoipa::path(
    get, path = "/v1/runs/find", tag = "runs", params(RunWords),
    responses(
        (status = 200, body = RunView),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: there are no runs yet"),
        (status = 422, description = "Problem: the name means several runs"),
    )
)]
async fn find(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(words): Query<RunWords>,
) -> Answer<Json<RunView>> {
    app.blocking(move |app| {
        let known = sprag_app::find_run_within(app.core(), words.name.as_deref(), &caller.reach)?;
        Ok(Json(RunView::of(&known.run)))
    })
    .await
}

/// The questions that alone keep a run from continuing.
#[derive(Debug, Serialize, ToSchema)]
struct QuestionsAlone {
    /// The open questions of the run and of its child runs; none if the run also waits for something else, or if one
    /// of its steps is executed.
    questions: Vec<GateView>,
}

/// List the questions of a run that waits for nothing else
#[utoipa::path(
    get, path = "/v1/runs/{run}/questions", tag = "gates",
    params(("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = QuestionsAlone), (status = 404, description = "Problem: there is no such run"))
)]
async fn questions(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
) -> Answer<Json<QuestionsAlone>> {
    row_of(&app, run).await?;
    app.blocking(move |app| {
        let gates = sprag_app::questions_alone(app.core(), run)?;
        let questions = gates.iter().map(|gate| super::gates::view(app, gate)).collect::<Answer<_>>()?;
        Ok(Json(QuestionsAlone { questions }))
    })
    .await
}

/// Show a run and its steps
///
/// The answer's `ETag` is the version of the run's row.
#[utoipa::path(
    get, path = "/v1/runs/{run}", tag = "runs", params(("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = RunDetail), (status = 404, description = "Problem: there is no such run"))
)]
async fn show(_: MayRead, State(app): State<ServerState>, RunPath(run): RunPath) -> Answer<Response> {
    detail(&app, run).await
}

async fn detail(app: &ServerState, run: RunId) -> Answer<Response> {
    let told = app
        .blocking(move |app| {
            let known = RunWithPlan::load(app.core(), run)?;
            let steps = app.core().steps(run)?;
            let missing = sprag_app::missing_logs(app.core(), app.files(), &known)?;
            let waits = app.core().waiting_for(&known.run)?;
            let detail = RunDetail::of(&known.run, &known.plan, &steps, &missing);
            let outputs = app.core().run_outputs(&known.run)?;
            let detail = detail.waiting(&known.plan, &steps, &waits).with_outputs(outputs);
            let status = detail.status.with_items(app.core(), &known.plan, &steps)?;
            Ok(RunDetail { status: status.with_inner(app.core())?, ..detail })
        })
        .await?;
    let tag = HeaderValue::from_str(&format!("\"{}\"", told.version));
    let mut response = Json(told).into_response();
    response.headers_mut().insert(header::ETAG, tag.map_err(|error| internal(error.to_string()))?);
    Ok(response)
}

/// Cancel a run: stop its running steps and skip the rest
///
/// With `If-Match`, only if the run's row has not changed since the caller read it.
#[utoipa::path(
    post, path = "/v1/runs/{run}/cancel", tag = "runs",
    params(("run" = String, Path, description = "The run's id"),
           ("If-Match" = Option<String>, Header, description = "The `ETag` of the run")),
    responses(
        (status = 200, body = RunDetail),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run has ended, or is being cancelled"),
        (status = 412, description = "Problem: the run has changed since"),
    )
)]
async fn cancel(
    _: MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    seen: IfMatch,
) -> Answer<Response> {
    if let Cancelled::Changed { version } = app.core().cancel_run(run, seen.0).await? {
        seen.check(version)?;
    }
    detail(&app, run).await
}

/// The step from which a retry starts.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RetryFrom {
    /// The step; all failed steps if it is left out.
    step: Option<String>,
    /// Whether to start the next try of a step of a live run that waits for its delay, instead.
    #[serde(default)]
    now: bool,
}

/// Retry the failed steps, or one step and all steps that depend on it
///
/// With `now`, the run is live and the step waits for the delay before its next try or round, which then starts at once.
#[utoipa::path(
    post, path = "/v1/runs/{run}/retry", tag = "runs", request_body = Option<RetryFrom>,
    params(("run" = String, Path, description = "The run's id")),
    responses(
        (status = 200, body = RunDetail),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run has not ended; with `now`, the step waits for no further try"),
        (status = 422, description = "Problem: the run has no such step"),
    )
)]
async fn retry(
    _: MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    OptionalJson(from): OptionalJson<RetryFrom>,
) -> Answer<Response> {
    if from.now {
        let step = from.step.ok_or_else(|| Problem::invalid("step: `now` needs the name of a step"))?;
        app.core().retry_now(run, &step).await?;
        return detail(&app, run).await;
    }
    let known = known(&app, run).await?;
    let to = from.step.map(|step| known.path_to(app.core(), &step)).transpose()?;
    if to.is_none() {
        app.core().require_retryable(run).await?;
    }
    sprag_app::resume_from(app.core(), &known, to, None).await?;
    detail(&app, run).await
}

/// The step to skip.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SkipStep {
    /// The step, or an item of a fan-out such as `each[3]`.
    step: String,
}

/// Skip a step of a live run: it counts as done for the steps that need it
///
/// A step that has begun is stopped first. A step whose needs are open is skipped when they are met.
#[utoipa::path(
    post, path = "/v1/runs/{run}/skip", tag = "runs", request_body = SkipStep,
    params(("run" = String, Path, description = "The run's id")),
    responses(
        (status = 200, body = RunDetail),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run or the step has ended"),
        (status = 422, description = "Problem: the run has no such step"),
    )
)]
async fn skip(
    _: MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    Json(wanted): Json<SkipStep>,
) -> Answer<Response> {
    app.core().skip_step(run, &wanted.step).await?;
    detail(&app, run).await
}

/// Resume a run that failed, was cancelled, or whose process died
#[utoipa::path(
    post, path = "/v1/runs/{run}/resume", tag = "runs",
    params(("run" = String, Path, description = "The run's id")),
    responses(
        (status = 200, body = RunDetail),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run is completed, or a worker has it"),
    )
)]
async fn resume(_: MayRun, State(app): State<ServerState>, RunPath(run): RunPath) -> Answer<Response> {
    let known = known(&app, run).await?;
    if !known.run.status().is_terminal() {
        sprag_app::abandon_dead_owners(app.core(), &known.run).await?;
    }
    sprag_app::resume_from(app.core(), &known, None, None).await?;
    detail(&app, run).await
}

/// A step to go back to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RewindTo {
    /// The step.
    to: String,
}

/// Rewind a run: a step and all steps that depend on it run again
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
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    Json(wanted): Json<RewindTo>,
) -> Answer<Response> {
    let known = known(&app, run).await?;
    let to = known.path_to(app.core(), &wanted.to)?;
    sprag_app::resume_from(app.core(), &known, Some(to), None).await?;
    detail(&app, run).await
}

/// The step after which the new run starts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ForkAfter {
    /// The finished step.
    from: String,
}

/// Start a new run from a finished step of another run
///
/// With an `Idempotency-Key`, a repeated request starts only one run: later requests are answered with 200 and the
/// existing run. The same key for another run or step is refused.
#[utoipa::path(
    post, path = "/v1/runs/{run}/fork", tag = "runs", request_body = ForkAfter,
    params(
        ("run" = String, Path, description = "The run's id"),
        ("Idempotency-Key" = Option<String>, Header, description = "A key that never starts a second run"),
    ),
    responses(
        (status = 201, body = RunView, description = "The started run"),
        (status = 200, body = RunView, description = "The run that the key has already started"),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the step is not done"),
        (status = 422, description = "Problem: the run has no such step"),
    )
)]
async fn fork(
    _: MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    headers: HeaderMap,
    Json(wanted): Json<ForkAfter>,
) -> Answer<Response> {
    let key = key_of(&headers)?;
    let known = known(&app, run).await?;
    let fork = app.blocking(move |app| Ok(sprag_app::fork(app.core(), &known, &wanted.from)?)).await?;
    let Started { run, is_new } = app.core().fork_run(fork.idempotency_key(key.as_deref())).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let location = HeaderValue::from_str(&format!("/v1/runs/{}", run.id));
    let mut response = (status, Json(RunView::of(&run))).into_response();
    response.headers_mut().insert(header::LOCATION, location.map_err(|error| internal(error.to_string()))?);
    Ok(response)
}
