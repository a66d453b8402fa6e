//! The logs of steps on other hosts, as they grow. They are stored in the same files as those of steps that run here.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId};
use sprag_process::{make_private_folder, private_options, regular};
use sprag_store::ops::Lease;
use sprag_store::{Backend, ExecutionRow, Outcome, Row, RunRow, StepRow, Table, WorkerRow, step_name};
use sprag_worker::{Owed, wire};

use super::{Worker, refused};
use crate::app::App;
use crate::bodies::ReadBody;
use crate::extract::{Json, Query, read_body};
use crate::problem::{Answer, Problem, internal};

/// The longest path of a log on a worker's host, in bytes.
const LONGEST_PATH: usize = 4096;

/// A piece of a log.
pub(crate) struct Piece(ReadBody);

impl FromRequest<App> for Piece {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        read_body(request, wire::MOST_CHUNK_BYTES, app).await.map(Piece)
    }
}

/// Add to the log of an execution
///
/// Bytes that are there already are passed over, so that a piece can be sent again. One that would leave a gap is
/// refused with 409: ask for the size with an empty piece. Once the log does not grow any more, `whole` says how long it
/// is: until all of it is here, `status` and `logs` say what is missing, and that the worker's host has it in `path`.
#[utoipa::path(
    post, path = "/v1/work/logs", tag = "work",
    params(wire::Chunk, ("x-sprag-worker" = String, Header, description = "The worker's key")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = wire::LogSize),
        (status = 409, description = "Problem: the execution is not the worker's, or there would be a gap"),
        (status = 413, description = "Problem: the log is as long as it may be"),
    )
)]
pub(crate) async fn append(
    Worker(id): Worker,
    State(app): State<App>,
    Query(chunk): Query<wire::Chunk>,
    Piece(piece): Piece,
) -> Answer<Json<wire::LogSize>> {
    let run: RunId = chunk.run.parse().map_err(|error| Problem::invalid(format!("run: {error}")))?;
    let execution = ExecutionId { run, step: chunk.step, attempt: chunk.attempt };
    let lease = Lease { execution, fence: chunk.fence };
    if chunk.path.as_ref().is_some_and(|path| path.len() > LONGEST_PATH) {
        return Err(Problem::invalid(format!("path: at most {LONGEST_PATH} bytes")));
    }
    if chunk.path.as_ref().is_some_and(|path| path.chars().any(char::is_control)) {
        return Err(Problem::invalid("path: it holds control characters"));
    }
    if chunk.offset.saturating_add(piece.bytes.len() as u64) > wire::MOST_LOG_BYTES {
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("a log has at most {} bytes", wire::MOST_LOG_BYTES),
        ));
    }
    app.blocking(move |app| {
        let name = match app.store().read(|db| owned(db, id, lease))? {
            Ok(name) => name,
            Err(outcome) => return Err(refused(outcome)),
        };
        let files = app.files();
        let path = match chunk.part {
            wire::Part::Step => files.log(execution, &name),
            wire::Part::Setup => files.log(execution, "_setup"),
        };
        let wrong = |error: std::io::Error| internal(format!("{}: {error}", path.display()));
        make_private_folder(&files.run(run)).map_err(wrong)?;
        let size = write_at(&path, chunk.offset, &piece.bytes).map_err(wrong)?;
        let step = if chunk.part == wire::Part::Setup { "_setup" } else { name.as_str() };
        match size {
            Some(size) => {
                if let Some(whole) = chunk.whole {
                    note_rest(app, id, execution, step, size, whole, chunk.path.as_deref()).map_err(wrong)?;
                }
                Ok(Json(wire::LogSize { size }))
            }
            None => Err(Problem::refused("bytes before these have not come")
                .next("send an empty piece at offset 0: the answer says how many have")),
        }
    })
    .await
}

/// Records that a worker's host has the rest of a log, or that all of it is here.
fn note_rest(
    app: &App,
    worker: sprag_store::Id,
    execution: ExecutionId,
    step: &str,
    received: u64,
    whole: u64,
    path: Option<&str>,
) -> std::io::Result<()> {
    let files = app.files();
    if received >= whole {
        files.forget_owed(execution, step);
        return Ok(());
    }
    let row = app.store().read(|db| Table::<WorkerRow>::load(db, worker)).ok().flatten();
    let host = row.map(|row| row.host().to_owned()).unwrap_or_default();
    let owed = Owed { size: whole, host, path: path.unwrap_or_default().to_owned() };
    files.note_owed(execution, step, &owed)
}

/// Returns the step's name, if the execution is this worker's: while it runs, after its own report, and after it was
/// taken from the worker. No other worker runs that attempt then, and what it printed is evidence.
fn owned(
    db: &mut dyn Backend,
    worker: sprag_store::Id,
    lease: Lease,
) -> sprag_store::Result<Result<String, Outcome<sprag_lifecycle::Execution>>> {
    let id = lease.execution;
    let Some(row) = Table::<ExecutionRow>::load(db, id)? else { return Ok(Err(Outcome::NotFound)) };
    let taken_away = row.status() == ExecutionStatus::Abandoned && row.fence == lease.fence + 1;
    if (row.fence != lease.fence && !taken_away) || row.owner != Some(worker) {
        return Ok(Err(Outcome::Superseded(sprag_lifecycle::ExecutionPredicate::MatchingFence)));
    }
    let run = Table::<RunRow>::load(db, id.run)?;
    let plan = run.map(|run| db.plan(run.plan)).transpose()?.flatten();
    let step = Table::<StepRow>::load(db, (id.run, id.step))?;
    Ok(match (plan, step) {
        (Some(plan), Some(step)) => Ok(step_name(&plan, &step)),
        _ => Err(Outcome::NotFound),
    })
}

/// Appends the bytes that the file does not have yet. Returns the file's length, or none if bytes before them are
/// missing.
///
/// The lock orders two requests for one file: a repeated request may overlap with the first.
fn write_at(path: &Path, offset: u64, bytes: &[u8]) -> std::io::Result<Option<u64>> {
    let mut file = regular(private_options().create(true).write(true).truncate(false).open(path)?)?;
    file.lock()?;
    let size = file.metadata()?.len();
    if offset > size {
        return Ok(None);
    }
    let known = (size - offset).min(bytes.len() as u64) as usize;
    if known < bytes.len() {
        file.seek(SeekFrom::Start(size))?;
        file.write_all(&bytes[known..])?;
    }
    Ok(Some(size + (bytes.len() - known) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_comes_again_changes_nothing_and_a_gap_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let write = |offset, bytes: &str| write_at(&path, offset, bytes.as_bytes()).expect("written");
        assert_eq!(write(0, ""), Some(0));
        assert_eq!(write(0, "abc"), Some(3));
        assert_eq!(write(0, "abc"), Some(3));
        assert_eq!(write(1, "bcde"), Some(5));
        assert_eq!(write(9, "x"), None);
        assert_eq!(write(0, ""), Some(5));
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "abcde");
    }
}
