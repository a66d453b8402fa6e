//! Changes that a run's steps made to files, and people's comments on them.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sprag_app::{
    CommentView, MOST_OVER_HTTP, ReviewComment, RunChanges, RunDiff, RunWithPlan, run_changes, run_diff,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{Caller, MayRead, MayRun};
use crate::extract::{IdPath, Json, Query, RunPath};
use crate::problem::Answer;
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(diff))
        .routes(routes!(changes))
        .routes(routes!(comments, comment))
        .routes(routes!(sent))
        .routes(routes!(remove))
}

/// Which changes to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// A step, one attempt at it (`work@2`), or two of them with `..` in between; everything that the run has changed if
    /// it is left out.
    steps: Option<String>,
}

/// Show what a run's steps changed in its worktree, as a patch
#[utoipa::path(
    get, path = "/v1/runs/{run}/diff", tag = "steps",
    params(Which, ("run" = String, Path, description = "The run's id")),
    responses(
        (status = 200, body = RunDiff),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run has no worktree here, no step has ended yet, or the patch is larger than 32 MB"),
        (status = 422, description = "Problem: nothing is recorded of such a step"),
    )
)]
async fn diff(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    Query(which): Query<Which>,
) -> Answer<Json<RunDiff>> {
    app.blocking(move |app| {
        let known = RunWithPlan::load(app.core(), run)?;
        Ok(Json(run_diff(app.core(), &known, which.steps.as_deref(), MOST_OVER_HTTP)?))
    })
    .await
}

/// Which changed files to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Part {
    /// A step, one attempt at it (`work@2`), or two of them with `..` in between; everything that the run has changed if
    /// it is left out.
    steps: Option<String>,
    /// Only this file, with its changes as git prints them.
    path: Option<String>,
    /// The path of this file before it was renamed, as the list has it.
    old_path: Option<String>,
}

/// List the files that a run's steps changed, or show the changes of one of them
#[utoipa::path(
    get, path = "/v1/runs/{run}/changes", tag = "steps",
    params(Part, ("run" = String, Path, description = "The run's id")),
    responses(
        (status = 200, body = RunChanges),
        (status = 404, description = "Problem: there is no such run"),
        (status = 409, description = "Problem: the run has no worktree here, no step has ended yet, or the answer is larger than 32 MB"),
        (status = 422, description = "Problem: nothing is recorded of such a step"),
    )
)]
async fn changes(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    Query(part): Query<Part>,
) -> Answer<Json<RunChanges>> {
    app.blocking(move |app| {
        let known = RunWithPlan::load(app.core(), run)?;
        let path = part.path.as_deref().map(|path| (path, part.old_path.as_deref()));
        Ok(Json(run_changes(app.core(), &known, part.steps.as_deref(), path, MOST_OVER_HTTP)?))
    })
    .await
}

/// Comments on a run's changes.
#[derive(Debug, Serialize, ToSchema)]
struct Comments {
    /// The comments, oldest first.
    comments: Vec<CommentView>,
}

/// List the comments on a run's changes
#[utoipa::path(
    get, path = "/v1/runs/{run}/comments", tag = "steps",
    params(("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = Comments), (status = 404, description = "Problem: there is no such run"))
)]
async fn comments(
    _: MayRead,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
) -> Answer<Json<Comments>> {
    app.blocking(move |app| Ok(Json(Comments { comments: app.core().review_comments(run)? }))).await
}

/// Returns the name under which a caller comments.
fn author(caller: &Caller) -> &str {
    if caller.name.is_empty() { "local" } else { &caller.name }
}

/// Comment on lines of a run's changes
///
/// A comment belongs to the two commits that were compared. It is only a remark until it is sent with the answer to a
/// question.
#[utoipa::path(
    post, path = "/v1/runs/{run}/comments", tag = "steps", request_body = ReviewComment,
    params(("run" = String, Path, description = "The run's id")),
    responses(
        (status = 201, body = CommentView),
        (status = 404, description = "Problem: there is no such run, or no comment to replace"),
        (status = 409, description = "Problem: the run has too many comments"),
        (status = 422, description = "Problem: the comment is not valid"),
    )
)]
async fn comment(
    MayRun(caller): MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    Json(new): Json<ReviewComment>,
) -> Answer<(StatusCode, Json<CommentView>)> {
    let added = app.core().comment_changes(run, author(&caller), new).await?;
    app.feed().review_changed(run);
    Ok((StatusCode::CREATED, Json(added)))
}

/// Remove a comment on a run's changes
#[utoipa::path(
    delete, path = "/v1/runs/{run}/comments/{id}", tag = "steps",
    params(("run" = String, Path, description = "The run's id"),
           ("id" = String, Path, description = "The comment's number")),
    responses((status = 204), (status = 404, description = "Problem: there is no such comment"))
)]
async fn remove(
    MayRun(caller): MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    id: IdPath,
) -> Answer<StatusCode> {
    app.core().remove_comment(run, author(&caller), id.number()?).await?;
    app.feed().review_changed(run);
    Ok(StatusCode::NO_CONTENT)
}

/// Comments that were sent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SentComments {
    /// The numbers of the comments.
    #[schema(max_items = 2000)]
    ids: Vec<i64>,
}

/// Mark comments as sent, such as with the answer to a question
#[utoipa::path(
    post, path = "/v1/runs/{run}/comments/sent", tag = "steps", request_body = SentComments,
    params(("run" = String, Path, description = "The run's id")),
    responses((status = 200, body = Comments), (status = 404, description = "Problem: there is no such run or comment"))
)]
async fn sent(
    MayRun(caller): MayRun,
    State(app): State<ServerState>,
    RunPath(run): RunPath,
    Json(sent): Json<SentComments>,
) -> Answer<Json<Comments>> {
    let comments = app.core().mark_comments_sent(run, author(&caller), sent.ids).await?;
    app.feed().review_changed(run);
    Ok(Json(Comments { comments }))
}
