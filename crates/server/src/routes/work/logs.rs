//! What steps print elsewhere, as it grows. The files are those of steps that run here.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use bytes::Bytes;
use sprag_lifecycle::{ExecutionId, RunId};
use sprag_store::ops::Lease;
use sprag_store::{Backend, ExecutionRow, Outcome, RunRow, StepRow, Table, step_name};
use sprag_worker::wire;

use super::{Worker, refused};
use crate::app::App;
use crate::extract::{Json, Query, read_body};
use crate::problem::{Answer, Problem, internal};

/// A piece of a log.
pub(crate) struct Piece(Bytes);

impl FromRequest<App> for Piece {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &App) -> Result<Self, Problem> {
        read_body(request, wire::MOST_CHUNK_BYTES).await.map(Piece)
    }
}

/// Add to the log of an execution
///
/// Bytes that are there already are passed over, so that a piece can be sent again. One that would leave a gap is
/// refused with 409: ask for the size with an empty piece.
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
    Piece(bytes): Piece,
) -> Answer<Json<wire::LogSize>> {
    let run: RunId = chunk.run.parse().map_err(|error| Problem::invalid(format!("run: {error}")))?;
    let execution = ExecutionId { run, step: chunk.step, attempt: chunk.attempt };
    let lease = Lease { execution, fence: chunk.fence };
    if chunk.offset.saturating_add(bytes.len() as u64) > wire::MOST_LOG_BYTES {
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
        std::fs::create_dir_all(files.run(run)).map_err(wrong)?;
        let size = write_at(&path, chunk.offset, &bytes).map_err(wrong)?;
        match size {
            Some(size) => Ok(Json(wire::LogSize { size })),
            None => Err(Problem::refused("bytes before these have not come")
                .next("send an empty piece at offset 0: the answer says how many have")),
        }
    })
    .await
}

/// The step's name, if the execution is this worker's: while it goes on, and after its own report.
fn owned(
    db: &mut dyn Backend,
    worker: sprag_store::Id,
    lease: Lease,
) -> sprag_store::Result<Result<String, Outcome<sprag_lifecycle::Execution>>> {
    let id = lease.execution;
    let Some(row) = Table::<ExecutionRow>::load(db, id)? else { return Ok(Err(Outcome::NotFound)) };
    if row.fence != lease.fence || row.owner != Some(worker) {
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

/// Adds what is not there yet; how long the file is then. None if bytes before it are missing.
///
/// The lock orders two requests for one file: one that was sent again may meet the first.
fn write_at(path: &Path, offset: u64, bytes: &[u8]) -> std::io::Result<Option<u64>> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
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
