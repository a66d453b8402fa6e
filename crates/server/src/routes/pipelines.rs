//! Pipelines: check and list them; and the tables of all lifecycles.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_app::view::LifecycleView;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::Json;
use crate::pipelines::{self, name_of};
use crate::problem::Answer;
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(validate)).routes(routes!(lifecycles))
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
async fn list(_: MayRead, State(app): State<ServerState>) -> Answer<Json<Pipelines>> {
    app.blocking(|app| {
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
        Ok(Json(Pipelines { pipelines: pipelines::files(project).into_iter().map(view).collect() }))
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
