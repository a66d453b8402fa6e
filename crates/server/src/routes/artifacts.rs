//! Artifacts: files that the steps of a run handed on.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::runs::row_of;
use crate::access::MayRead;
use crate::extract::{Json, RestPath, RunPath};
use crate::files::{self, Part};
use crate::problem::Answer;
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get))
}

/// The most files that are listed.
const MOST: usize = 10_000;

/// The files of a run.
#[derive(Debug, Serialize, ToSchema)]
struct Artifacts {
    /// The files, in order.
    artifacts: Vec<Artifact>,
}

/// An output file of a step.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
struct Artifact {
    /// The path for requests: the step and its attempt, the output's name, the file.
    path: String,
    /// The file's size in bytes.
    bytes: u64,
}

/// List the output files of a run's steps
#[utoipa::path(
    get, path = "/v1/runs/{run}/artifacts", tag = "artifacts",
    params(("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = Artifacts), (status = 404, description = "Problem: there is no such run"))
)]
async fn list(_: MayRead, State(app): State<ServerState>, RunPath(run): RunPath) -> Answer<Json<Artifacts>> {
    row_of(&app, run).await?;
    app.blocking(move |app| {
        let folder = app.files().run(run).join("files");
        let mut found = Vec::new();
        let mut todo = vec![(folder, String::new())];
        while let Some((folder, name)) = todo.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let Ok(part) = entry.file_name().into_string() else { continue };
                let path = if name.is_empty() { part } else { format!("{name}/{part}") };
                match entry.metadata() {
                    Ok(facts) if facts.is_dir() => todo.push((entry.path(), path)),
                    Ok(facts) if facts.is_file() && found.len() < MOST => {
                        found.push(Artifact { path, bytes: facts.len() });
                    }
                    _ => {}
                }
            }
        }
        found.sort();
        Ok(Json(Artifacts { artifacts: found }))
    })
    .await
}

/// Get an output file of a run's step
#[utoipa::path(
    get, path = "/v1/runs/{run}/artifacts/{*path}", tag = "artifacts",
    params(("run" = String, Path, description = "The run's id"),
           ("path" = String, Path, description = "The file's path as listed; it contains slashes"),
           ("Range" = Option<String>, Header, description = "`bytes=FIRST-LAST`")),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, body = Vec<u8>, content_type = "application/octet-stream", description = "The requested part"),
        (status = 404, description = "Problem: there is no such file"),
        (status = 416, description = "Problem: the file has no such part"),
    )
)]
async fn get(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    RestPath(path): RestPath,
    headers: HeaderMap,
) -> Answer<Response> {
    row_of(&app, run).await?;
    app.blocking(move |app| {
        let file = files::open_below(&app.files().run(run).join("files"), &path)?;
        let mut response = files::send(file, "application/octet-stream", &headers, Part::default())?;
        // Whatever the file holds, a browser must not run it as a page of this server.
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
        Ok(response)
    })
    .await
}
