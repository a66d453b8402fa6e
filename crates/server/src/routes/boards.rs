//! Boards: create, watch and close them; their tasks and notes.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sprag_app::BoardRow;
use sprag_app::boards::{
    self, BoardSpec, BoardView, NoteSpec, NoteView, Report, TaskAdded, TaskSpec, TaskView,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun, MayWork};
use crate::extract::{BoardPath, Json, OptionalJson, Query, TaskPath};
use crate::problem::{Answer, Problem};
use crate::state::ServerState;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show))
        .routes(routes!(set_plan))
        .routes(routes!(close))
        .routes(routes!(report))
        .routes(routes!(tasks, add))
        .routes(routes!(task))
        .routes(routes!(cancel))
        .routes(routes!(retry))
        .routes(routes!(notes, note))
}

/// The most boards, tasks or notes in one page.
const MOST: usize = 1_000;

/// Boards, newest first.
#[derive(Debug, Serialize, ToSchema)]
struct Boards {
    /// The boards.
    boards: Vec<BoardView>,
}

/// Tasks, in order.
#[derive(Debug, Serialize, ToSchema)]
struct Tasks {
    /// The tasks.
    tasks: Vec<TaskView>,
}

/// A request to add tasks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewTasks {
    /// The tasks. Either all of them are added or none.
    tasks: Vec<TaskSpec>,
}

/// The result of adding tasks.
#[derive(Debug, Serialize, ToSchema)]
struct Added {
    /// One result for each task, in order.
    tasks: Vec<TaskAdded>,
}

/// Notes, in order.
#[derive(Debug, Serialize, ToSchema)]
struct Notes {
    /// The notes.
    notes: Vec<NoteView>,
}

/// Returns the board that a path names.
async fn known(app: &ServerState, name: String) -> Answer<BoardRow> {
    app.blocking(move |app| Ok(boards::known(app.core(), &name)?)).await
}

fn limit(wanted: Option<usize>) -> Answer<usize> {
    match wanted.unwrap_or(100) {
        limit if (1..=MOST).contains(&limit) => Ok(limit),
        limit => Err(Problem::malformed(format!("limit: {limit} is not between 1 and {MOST}"))),
    }
}

/// Which boards to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WhichBoards {
    /// Whether to include closed boards.
    #[serde(default)]
    all: bool,
    /// The page size, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// List boards
#[utoipa::path(get, path = "/v1/boards", tag = "boards", params(WhichBoards), responses((status = 200, body = Boards)))]
async fn list(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(which): Query<WhichBoards>,
) -> Answer<Json<Boards>> {
    let limit = limit(which.limit)?;
    app.blocking(move |app| {
        let mut listed = Vec::new();
        for board in boards::list(app.core(), which.all, limit)? {
            if app.core().reaches_shown(&caller.reach, &board.run)? {
                listed.push(board);
            }
        }
        Ok(Json(Boards { boards: listed }))
    })
    .await
}

/// Create a board
#[utoipa::path(
    post, path = "/v1/boards", tag = "boards", request_body = BoardSpec,
    responses(
        (status = 201, body = BoardView),
        (status = 409, description = "Problem: an open board has this name"),
        (status = 422, description = "Problem: the name or another field is not valid"),
    )
)]
async fn create(
    MayRun(caller): MayRun,
    State(app): State<ServerState>,
    Json(spec): Json<BoardSpec>,
) -> Answer<Response> {
    caller.reach.check_board(&spec.name, spec.queue.as_deref())?;
    let made = boards::create(app.core(), &spec).await?;
    Ok((StatusCode::CREATED, Json(made)).into_response())
}

/// Show a board
#[utoipa::path(
    get, path = "/v1/boards/{board}", tag = "boards",
    params(("board" = String, Path, description = "The board's name, or its run's id")),
    responses((status = 200, body = BoardView), (status = 404, description = "Problem: there is no such board"))
)]
async fn show(
    _: MayRead,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
) -> Answer<Json<BoardView>> {
    app.blocking(move |app| Ok(Json(boards::view(app.core(), &boards::known(app.core(), &name)?)?))).await
}

/// The goal and the plan of a board.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Plan {
    /// The new goal; unchanged if it is left out.
    goal: Option<String>,
    /// The new plan; unchanged if it is left out.
    plan: Option<String>,
}

/// Change a board's goal or plan
#[utoipa::path(
    put, path = "/v1/boards/{board}/plan", tag = "boards", request_body = Plan,
    params(("board" = String, Path, description = "The board's name, or its run's id")),
    responses((status = 200, body = BoardView), (status = 404, description = "Problem: there is no such board"))
)]
async fn set_plan(
    _: MayRun,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
    Json(wanted): Json<Plan>,
) -> Answer<Json<BoardView>> {
    let board = known(&app, name).await?;
    let (goal, plan) = (wanted.goal.as_deref(), wanted.plan.as_deref());
    Ok(Json(boards::set_plan(app.core(), &board, goal, plan).await?))
}

/// Options for closing a board.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Close {
    /// Whether to cancel tasks that have not been started.
    #[serde(default)]
    cancel_waiting: bool,
}

/// Close a board: it takes no more tasks and ends with the last one
#[utoipa::path(
    post, path = "/v1/boards/{board}/close", tag = "boards", request_body = Option<Close>,
    params(("board" = String, Path, description = "The board's name, or its run's id")),
    responses(
        (status = 200, body = BoardView),
        (status = 404, description = "Problem: there is no such board"),
        (status = 409, description = "Problem: the board is closed"),
    )
)]
async fn close(
    _: MayRun,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
    OptionalJson(how): OptionalJson<Close>,
) -> Answer<Json<BoardView>> {
    let board = known(&app, name).await?;
    Ok(Json(boards::close(app.core(), &board, how.cancel_waiting).await?))
}

/// Get all results of a board
#[utoipa::path(
    get, path = "/v1/boards/{board}/report", tag = "boards",
    params(("board" = String, Path, description = "The board's name, or its run's id")),
    responses((status = 200, body = Report), (status = 404, description = "Problem: there is no such board"))
)]
async fn report(
    _: MayRead,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
) -> Answer<Json<Report>> {
    app.blocking(move |app| Ok(Json(boards::report(app.core(), &boards::known(app.core(), &name)?)?))).await
}

/// Which tasks to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WhichTasks {
    /// Only tasks in one of these statuses, separated by commas.
    status: Option<String>,
    /// Only tasks after this number.
    #[serde(default)]
    after: u32,
    /// The page size, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// List a board's tasks
#[utoipa::path(
    get, path = "/v1/boards/{board}/tasks", tag = "boards",
    params(("board" = String, Path, description = "The board's name, or its run's id"), WhichTasks),
    responses((status = 200, body = Tasks), (status = 404, description = "Problem: there is no such board"))
)]
async fn tasks(
    _: MayRead,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
    Query(which): Query<WhichTasks>,
) -> Answer<Json<Tasks>> {
    let limit = limit(which.limit)?;
    let words = which.status.unwrap_or_default();
    let statuses: Vec<String> = words.split(',').filter(|word| !word.is_empty()).map(Into::into).collect();
    app.blocking(move |app| {
        let board = boards::known(app.core(), &name)?;
        Ok(Json(Tasks { tasks: boards::tasks(app.core(), &board, &statuses, which.after, limit)? }))
    })
    .await
}

/// Add tasks to an open board, all or none
#[utoipa::path(
    post, path = "/v1/boards/{board}/tasks", tag = "boards", request_body = NewTasks,
    params(("board" = String, Path, description = "The board's name, or its run's id")),
    responses(
        (status = 200, body = Added),
        (status = 404, description = "Problem: there is no such board"),
        (status = 409, description = "Problem: the board is closed, or a needed task does not exist"),
        (status = 422, description = "Problem: a task is not valid"),
    )
)]
async fn add(
    MayRun(caller): MayRun,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
    Json(new): Json<NewTasks>,
) -> Answer<Json<Added>> {
    let board = known(&app, name).await?;
    caller.reach.check_queues(new.tasks.iter().filter_map(|task| task.queue.as_deref()))?;
    Ok(Json(Added { tasks: boards::add_tasks(app.core(), &board, &new.tasks).await? }))
}

/// Show a task
#[utoipa::path(
    get, path = "/v1/boards/{board}/tasks/{task}", tag = "boards",
    params(("board" = String, Path, description = "The board's name, or its run's id"),
           ("task" = String, Path, description = "The task's key, or its number")),
    responses((status = 200, body = TaskView), (status = 404, description = "Problem: there is no such task"))
)]
async fn task(
    _: MayRead,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
    TaskPath(task): TaskPath,
) -> Answer<Json<TaskView>> {
    app.blocking(move |app| {
        let board = boards::known(app.core(), &name)?;
        Ok(Json(boards::task(app.core(), &board, &task)?))
    })
    .await
}

/// Cancel a task; its holder learns it at the next heartbeat
#[utoipa::path(
    post, path = "/v1/boards/{board}/tasks/{task}/cancel", tag = "boards",
    params(("board" = String, Path, description = "The board's name, or its run's id"),
           ("task" = String, Path, description = "The task's key, or its number")),
    responses(
        (status = 200, body = TaskView),
        (status = 404, description = "Problem: there is no such task"),
        (status = 409, description = "Problem: the task is settled"),
    )
)]
async fn cancel(
    _: MayRun,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
    TaskPath(task): TaskPath,
) -> Answer<Json<TaskView>> {
    let board = known(&app, name).await?;
    Ok(Json(boards::cancel_task(app.core(), &board, &task).await?))
}

/// Retry a task that failed, was cancelled, or was skipped
#[utoipa::path(
    post, path = "/v1/boards/{board}/tasks/{task}/retry", tag = "boards",
    params(("board" = String, Path, description = "The board's name, or its run's id"),
           ("task" = String, Path, description = "The task's key, or its number")),
    responses(
        (status = 200, body = TaskView),
        (status = 404, description = "Problem: there is no such task"),
        (status = 409, description = "Problem: there is nothing to retry"),
    )
)]
async fn retry(
    _: MayRun,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
    TaskPath(task): TaskPath,
) -> Answer<Json<TaskView>> {
    let board = known(&app, name).await?;
    Ok(Json(boards::retry_task(app.core(), &board, &task).await?))
}

/// Which notes to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WhichNotes {
    /// Only notes on this subject.
    tag: Option<String>,
    /// Only notes after this number.
    #[serde(default)]
    after: i64,
    /// The page size, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Read a board's notes
#[utoipa::path(
    get, path = "/v1/boards/{board}/notes", tag = "boards",
    params(("board" = String, Path, description = "The board's name, or its run's id"), WhichNotes),
    responses((status = 200, body = Notes), (status = 404, description = "Problem: there is no such board"))
)]
async fn notes(
    _: MayRead,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
    Query(which): Query<WhichNotes>,
) -> Answer<Json<Notes>> {
    let limit = limit(which.limit)?;
    app.blocking(move |app| {
        let board = boards::known(app.core(), &name)?;
        let tag = which.tag.as_deref();
        Ok(Json(Notes { notes: boards::notes(app.core(), &board, tag, which.after, limit)? }))
    })
    .await
}

/// Add a note to a board
#[utoipa::path(
    post, path = "/v1/boards/{board}/notes", tag = "boards", request_body = NoteSpec,
    params(("board" = String, Path, description = "The board's name, or its run's id")),
    responses(
        (status = 201, body = NoteView),
        (status = 404, description = "Problem: there is no such board"),
        (status = 422, description = "Problem: the note is not valid"),
    )
)]
async fn note(
    _: MayWork,
    State(app): State<ServerState>,
    BoardPath(name): BoardPath,
    Json(note): Json<NoteSpec>,
) -> Answer<Response> {
    let board = known(&app, name).await?;
    let left = boards::add_note(app.core(), &board, &note).await?;
    Ok((StatusCode::CREATED, Json(left)).into_response())
}
