//! The logs of steps on other hosts, as they grow. They are stored in the same files as those of steps that run here.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use sprag_lifecycle::{ExecutionId, RunId};
use sprag_process::{make_private_folder, private_options, regular};
use sprag_store::{Id, Lease};
use sprag_worker::{Owed, wire};

use super::{RemoteWorker, refused};
use crate::App;
use crate::error::{Error, ErrorKind, Hint};

/// The longest path of a log on a worker's host, in bytes.
const LONGEST_PATH: usize = 4096;
/// The name of the log of an environment's setup.
const SETUP: &str = "_setup";

impl RemoteWorker {
    /// Adds a piece to the log of an execution, at its offset. Bytes that are there already are passed over, so that a
    /// piece can be sent again; a piece that would leave a gap is refused.
    pub async fn append_log(
        &self,
        chunk: wire::Chunk,
        piece: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<wire::LogSize, Error> {
        let run: RunId = chunk.run.parse().map_err(|error| Error::field("run", format!("{error}")))?;
        if let Some(path) = &chunk.path {
            check_path(path)?;
        }
        if chunk.offset.saturating_add(piece.as_ref().len() as u64) > wire::MOST_LOG_BYTES {
            let message = format!("a log has at most {} bytes", wire::MOST_LOG_BYTES);
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let execution = ExecutionId { run, step: chunk.step, attempt: chunk.attempt };
        let worker = self.id;
        self.app.blocking(move |app| append(app, worker, execution, &chunk, piece.as_ref())).await
    }
}

fn check_path(path: &str) -> Result<(), Error> {
    if path.len() > LONGEST_PATH {
        return Err(Error::field("path", format!("at most {LONGEST_PATH} bytes")));
    }
    if path.chars().any(char::is_control) {
        return Err(Error::field("path", "it holds control characters"));
    }
    Ok(())
}

fn append(
    app: &App,
    worker: Id,
    execution: ExecutionId,
    chunk: &wire::Chunk,
    piece: &[u8],
) -> Result<wire::LogSize, Error> {
    let lease = Lease { execution, fence: chunk.fence };
    let name = app.store.queries().log_of(worker, lease)?.map_err(refused)?;
    let name = match chunk.part {
        wire::Part::Step => name.as_str(),
        wire::Part::Setup => SETUP,
    };
    let files = app.files();
    let path = files.log(execution, name);
    let wrong = |error: std::io::Error| Error::failed(format!("{}: {error}", path.display()));
    make_private_folder(&files.run(execution.run)).map_err(wrong)?;
    let Some(size) = write_at(&path, chunk.offset, piece).map_err(wrong)? else {
        return Err(
            Error::new(ErrorKind::Refused, "bytes before these have not come").hint(Hint::AskForLogSize)
        );
    };
    if let Some(whole) = chunk.whole {
        note_rest(app, worker, execution, name, size, whole, chunk.path.as_deref()).map_err(wrong)?;
    }
    Ok(wire::LogSize { size })
}

/// Deletes the log of an execution that its worker holds. The release that follows refuses any other worker.
pub(super) fn forget_log(app: &App, worker: Id, lease: Lease) -> Result<(), Error> {
    let Ok(name) = app.store.queries().log_of(worker, lease)? else { return Ok(()) };
    let path = app.files().log(lease.execution, &name);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::failed(format!("{}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Records that a worker's host has the rest of a log, or that all of it is here.
fn note_rest(
    app: &App,
    worker: Id,
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
    let row = app.store.queries().worker(worker).ok().flatten();
    let host = row.map(|row| row.host().to_owned()).unwrap_or_default();
    let owed = Owed { size: whole, host, path: path.unwrap_or_default().to_owned() };
    files.note_owed(execution, step, &owed)
}

/// Appends the bytes that the file does not have yet. Returns the file's length, or none if bytes before them are
/// missing.
///
/// The lock orders two requests for one file: a repeated request may overlap with the first.
pub(super) fn write_at(path: &Path, offset: u64, bytes: &[u8]) -> std::io::Result<Option<u64>> {
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
