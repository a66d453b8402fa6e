//! Files that steps pass on, between workers on different hosts: the worker of the step that wrote a file sends it, and the
//! worker of a later step that names it fetches it.
//!
//! ```text
//!   step a on host 1 ─▶ outputs: { report: r.txt } ─▶ append_file ─▶ runs/RUN/files/a.1/report/r.txt at the server
//!   step b on host 2 ◀─ the same path on host 2 ◀──── file_piece ◀── named by the texts of b
//! ```
//!
//! A worker may fetch a file only if it holds a step whose names contain the file's path, and only a file of the same
//! family of runs: a run, its parents and its children.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};

use serde_json::Value;
use sprag_lifecycle::{ExecutionId, RunId};
use sprag_pipeline::StepSpec;
use sprag_process::{make_private_folder, open_below};
use sprag_store::{Assignment, Lease};
use sprag_worker::wire;

use super::logs::write_at;
use super::{RemoteWorker, refused};
use crate::App;
use crate::error::{Error, ErrorKind};

/// The most files that the names of one step may contain.
const MOST_FILES: usize = 1_000;
/// The deepest nesting of child runs that is followed to the outermost run.
const DEEPEST: usize = 32;
/// The longest name of a file, in bytes.
const LONGEST_NAME: usize = 255;

impl RemoteWorker {
    /// Adds a piece to a file that a step passes on, at its offset, as [`RemoteWorker::append_log`] does for logs.
    pub async fn append_file(
        &self,
        chunk: wire::FileChunk,
        piece: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<wire::FileSize, Error> {
        let run: RunId = chunk.run.parse().map_err(|error| Error::field("run", format!("{error}")))?;
        check_name("name", &chunk.name)?;
        check_name("file", &chunk.file)?;
        if chunk.offset.saturating_add(piece.as_ref().len() as u64) > wire::MOST_FILE_BYTES {
            let message = format!("a file has at most {} bytes", wire::MOST_FILE_BYTES);
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let execution = ExecutionId { run, step: chunk.step, attempt: chunk.attempt };
        let lease = Lease { execution, fence: chunk.fence };
        let worker = self.id;
        // Later steps read the file as soon as this one is done, so only its present owner may write to it.
        let Some(assignment) = self.app.store.worker(lease).assignment().await? else {
            return Err(Error::new(ErrorKind::Refused, "the step is not this worker's any more"));
        };
        let spec = serde_json::from_str::<StepSpec>(&assignment.step().spec).ok();
        if !spec.is_some_and(|spec| spec.outputs.contains_key(&chunk.name)) {
            return Err(Error::field("name", "the step has no output of this name"));
        }
        self.app
            .blocking(move |app| {
                let step = app.store.queries().log_of(worker, lease)?.map_err(refused)?;
                let folder = app.files().kept(execution, &step).join(&chunk.name);
                let path = folder.join(&chunk.file);
                let wrong = |error: std::io::Error| Error::failed(format!("{}: {error}", path.display()));
                make_private_folder(&folder).map_err(wrong)?;
                match write_at(&path, chunk.offset, piece.as_ref()).map_err(wrong)? {
                    Some(size) => Ok(wire::FileSize { size, path: path.display().to_string() }),
                    None => Err(Error::new(ErrorKind::Refused, "bytes before these have not come")),
                }
            })
            .await
    }

    /// Returns a piece of a file that the names of a step contain; empty at the file's end.
    pub async fn file_piece(&self, wanted: wire::WantedFile) -> Result<Vec<u8>, Error> {
        // The names are those that the worker received with the step.
        let Some(assignment) = self.app.store.worker(wanted.lease).assignment().await? else {
            return Err(Error::new(ErrorKind::Refused, "the step is not this worker's any more"));
        };
        let worker = self.id;
        self.app
            .blocking(move |app| {
                app.store.queries().log_of(worker, wanted.lease)?.map_err(refused)?;
                if !named_files(app, &assignment)?.contains(&wanted.path) {
                    return Err(Error::new(ErrorKind::NotFound, "the step names no such file"));
                }
                let runs = app.data().join("runs");
                let below = Path::new(&wanted.path).strip_prefix(&runs).unwrap_or(Path::new(""));
                let gone = |error: std::io::Error| {
                    Error::new(
                        ErrorKind::NotFound,
                        format!("the file {} cannot be read: {error}", wanted.path),
                    )
                };
                let mut file = open_below(&runs, below).map_err(gone)?;
                let mut piece = Vec::new();
                file.seek(SeekFrom::Start(wanted.offset)).map_err(gone)?;
                file.take(wire::MOST_CHUNK_BYTES as u64).read_to_end(&mut piece).map_err(gone)?;
                Ok(piece)
            })
            .await
    }
}

/// Refuses a name that is no single part of a path.
fn check_name(field: &'static str, name: &str) -> Result<(), Error> {
    let mut parts = Path::new(name).components();
    let is_plain =
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    if is_plain && name.len() <= LONGEST_NAME && !name.contains('\0') {
        return Ok(());
    }
    Err(Error::field(field, format!("a name of at most {LONGEST_NAME} bytes, without a folder")))
}

/// Returns the paths of passed-on files in this data directory that the names of a step contain.
pub(super) fn named_files(app: &App, assignment: &Assignment) -> Result<Vec<String>, Error> {
    let runs = app.data().join("runs");
    let Some(prefix) = runs.to_str() else { return Ok(Vec::new()) };
    let inputs = &assignment.inputs;
    let steps = assignment.steps.as_ref().map(sprag_store::StepsRead::value);
    let mut found = BTreeMap::new();
    let inputs: Option<Value> =
        inputs.contains("/files/").then(|| serde_json::from_str(inputs).ok()).flatten();
    let mut todo: Vec<&Value> = steps.iter().chain(&inputs).collect();
    while let Some(next) = todo.pop() {
        match next {
            // An output may contain any number of texts that look like paths.
            Value::String(text) if found.len() < MOST_FILES && text.starts_with(prefix) => {
                let below = Path::new(text).strip_prefix(&runs).ok();
                if let Some(run) = below.and_then(run_of) {
                    found.insert(text.clone(), run);
                }
            }
            Value::Array(items) => todo.extend(items),
            Value::Object(entries) => todo.extend(entries.values()),
            _ => {}
        }
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let own = outermost(app, assignment.lease.execution.run)?;
    let mut families = BTreeMap::new();
    let mut files = Vec::new();
    for (path, run) in found {
        let family = match families.entry(run) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => *unknown.insert(outermost(app, run)?),
        };
        if family == own {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the run of a passed-on file, by its path below the folder of all runs: `RUN/files/STEP.ATTEMPT/NAME/FILE`.
fn run_of(below: &Path) -> Option<RunId> {
    let parts: Vec<&str> = below
        .components()
        .map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect::<Option<_>>()?;
    match parts[..] {
        [run, "files", _, _, _] => run.parse().ok(),
        _ => None,
    }
}

/// Returns the outermost run above a run.
fn outermost(app: &App, mut run: RunId) -> Result<RunId, Error> {
    for _ in 0..DEEPEST {
        match app.store.queries().run(run)?.and_then(|row| row.parent) {
            Some((parent, _)) => run = parent,
            None => break,
        }
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p16_only_plain_names_and_paths_of_passed_on_files_are_accepted() {
        let long = "x".repeat(256);
        for name in ["", ".", "..", "a/b", "/a", "a/", "../x", "a\0b", long.as_str()] {
            assert!(check_name("file", name).is_err(), "{name:?}");
        }
        for name in ["report", "r.txt", "a b", "..x", "é"] {
            assert!(check_name("file", name).is_ok(), "{name:?}");
        }
        let run = RunId::from_i64(77);
        assert_eq!(run_of(Path::new(&format!("{run}/files/a.1/report/r.txt"))), Some(run));
        for path in ["files/a.1/report/r.txt", "x/files/a.1/n/f", "../x", ""] {
            assert_eq!(run_of(Path::new(path)), None, "{path}");
        }
        for path in ["withheld/a.1/n/f", "files/a.1/../f/g", "a.1.log", "files/a.1/f"] {
            assert_eq!(run_of(Path::new(&format!("{run}/{path}"))), None, "{path}");
        }
    }
}
