//! Pipelines: check and list them; and the tables of all lifecycles.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_app::GraphView;
use sprag_app::view::LifecycleView;
use sprag_pipeline::{Input, InputType};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::{Json, PipelinePath};
use crate::pipelines::{self, name_of};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(validate))
        .routes(routes!(lifecycles))
}

/// The project's pipelines.
#[derive(Debug, Serialize, ToSchema)]
struct Pipelines {
    /// The pipelines, in order.
    pipelines: Vec<PipelineView>,
}

/// A pipeline file.
#[derive(Debug, Serialize, ToSchema)]
struct PipelineView {
    /// The name for requests.
    name: String,
    /// The file.
    file: String,
    /// Whether it is valid.
    valid: bool,
    /// The author's description; absent if the file has none.
    description: Option<String>,
    /// The number of its steps.
    steps: usize,
}

/// List the project's pipelines
#[utoipa::path(get, path = "/v1/pipelines", tag = "pipelines", responses((status = 200, body = Pipelines)))]
async fn list(MayRead(caller): MayRead, State(app): State<ServerState>) -> Answer<Json<Pipelines>> {
    app.blocking(move |app| {
        let Some(project) = &app.options().project else {
            return Ok(Json(Pipelines { pipelines: Vec::new() }));
        };
        let view = |path: std::path::PathBuf| {
            let loaded = sprag_pipeline::load_within(&path, project);
            PipelineView {
                name: name_of(&path).unwrap_or_default(),
                file: path.display().to_string(),
                valid: loaded.is_ok(),
                description: loaded.as_ref().ok().and_then(|loaded| loaded.pipeline.description.clone()),
                steps: loaded.map_or(0, |loaded| loaded.pipeline.steps.len()),
            }
        };
        let mut files = pipelines::files(project);
        files.retain(|path| caller.reach.shows_pipeline(&name_of(path).unwrap_or_default()));
        Ok(Json(Pipelines { pipelines: files.into_iter().map(view).collect() }))
    })
    .await
}

/// A pipeline with its inputs and its steps.
#[derive(Debug, Serialize, ToSchema)]
struct PipelineDetail {
    /// The name for requests.
    name: String,
    /// The file.
    file: String,
    /// The author's description; absent if the file has none.
    description: Option<String>,
    /// The declared inputs, in order.
    inputs: Vec<InputView>,
    /// The steps and what they need, laid out.
    graph: GraphView,
    /// Warnings: legal but probably unintended parts, with their positions.
    #[schema(value_type = Vec<Object>)]
    warnings: Value,
}

/// A declared input of a pipeline.
#[derive(Debug, Serialize, ToSchema)]
struct InputView {
    /// The name.
    name: String,
    /// The type: `string`, `integer`, `number`, `boolean`, `list` or `object`.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    kind: InputType,
    /// Whether every run must set it.
    required: bool,
    /// The value of a run that does not set it.
    default: Option<Value>,
    /// The allowed values; empty if any value of the type is allowed.
    allowed: Vec<Value>,
    /// A regular expression that the whole text must fit.
    pattern: Option<String>,
    /// The least number, or size of a text, list or object.
    #[schema(value_type = Option<f64>)]
    min: Option<serde_json::Number>,
    /// The greatest number, or size of a text, list or object.
    #[schema(value_type = Option<f64>)]
    max: Option<serde_json::Number>,
    /// The author's description.
    description: Option<String>,
}

impl From<&Input> for InputView {
    fn from(input: &Input) -> Self {
        InputView {
            name: input.name.clone(),
            kind: input.kind,
            required: input.required,
            default: input.default.clone(),
            allowed: input.allowed.clone(),
            pattern: input.pattern.clone(),
            min: input.bounds.min.clone(),
            max: input.bounds.max.clone(),
            description: input.description.clone(),
        }
    }
}

/// Show a pipeline of the project: its inputs and its steps
#[utoipa::path(
    get, path = "/v1/pipelines/{pipeline}", tag = "pipelines",
    params(("pipeline" = String, Path, description = "The pipeline's name")),
    responses(
        (status = 200, body = PipelineDetail),
        (status = 404, description = "Problem: the project has no such pipeline"),
        (status = 422, description = "Problem: the mistakes in the pipeline, with line and column"),
    )
)]
async fn show(
    _: MayRead,
    State(app): State<ServerState>,
    PipelinePath(name): PipelinePath,
) -> Answer<Json<PipelineDetail>> {
    app.blocking(move |app| {
        let project = app.options().project.as_deref();
        let files = project.map(pipelines::files).unwrap_or_default();
        let file = files.into_iter().find(|path| name_of(path).as_deref() == Some(&name));
        let file = file.ok_or_else(|| {
            Problem::not_found(format!("the project has no pipeline {name:?}"))
                .next("list them: GET /v1/pipelines")
        })?;
        let loaded = pipelines::named(project, &name)?;
        let inputs = loaded.pipeline.inputs.iter().map(InputView::from).collect();
        Ok(Json(PipelineDetail {
            name,
            file: file.display().to_string(),
            description: loaded.pipeline.description.clone(),
            inputs,
            graph: GraphView::of_pipeline(&loaded.pipeline).laid_out(),
            warnings: serde_json::to_value(&loaded.warnings).unwrap_or_default(),
        }))
    })
    .await
}

/// A pipeline to validate.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Draft {
    /// The pipeline itself, in YAML.
    #[schema(example = "steps:\n  - id: hello\n    run: echo hello\n")]
    yaml: String,
}

/// A valid pipeline.
#[derive(Debug, Serialize, ToSchema)]
struct Checked {
    /// Its name.
    name: String,
    /// The ids of its steps.
    steps: Vec<String>,
    /// Warnings: legal but probably unintended parts, with their positions.
    #[schema(value_type = Vec<Object>)]
    warnings: Value,
}

/// Check a pipeline without running it
#[utoipa::path(
    post, path = "/v1/pipelines/validate", tag = "pipelines", request_body = Draft,
    responses(
        (status = 200, body = Checked),
        (status = 422, description = "Problem: the mistakes in the pipeline, with line and column"),
    )
)]
async fn validate(
    _: MayRun,
    State(app): State<ServerState>,
    Json(draft): Json<Draft>,
) -> Answer<Json<Checked>> {
    app.blocking(move |_| {
        let loaded = pipelines::inline(&draft.yaml)?;
        Ok(Json(Checked {
            name: loaded.pipeline.name.clone(),
            steps: loaded.pipeline.steps.iter().map(|step| step.id.clone()).collect(),
            warnings: serde_json::to_value(&loaded.warnings).unwrap_or_default(),
        }))
    })
    .await
}

/// The tables of all lifecycles.
#[derive(Debug, Serialize, ToSchema)]
struct Lifecycles {
    /// One table for each kind of entity.
    lifecycles: Vec<LifecycleView>,
}

/// Show the lifecycle tables: all statuses and transitions
#[utoipa::path(get, path = "/v1/lifecycles", tag = "server", responses((status = 200, body = Lifecycles)))]
async fn lifecycles(_: MayRead) -> Json<Lifecycles> {
    Json(Lifecycles { lifecycles: sprag_app::view::lifecycles() })
}
