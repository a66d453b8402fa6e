//! Files between this host and the server: those that a step passes on are sent before its end is reported, and those that
//! its texts name are fetched before it starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use sprag_process::{make_private_folder, private_options};
use sprag_store::{Assignment, Ending, Lease};
use sprag_worker::wire::{FileSize, WantedFile};
use sprag_worker::{Control, Ended, Files, pause};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::Error;
use crate::logs::{LARGEST_PIECE, PIECE_WITHIN, encoded, piece};

/// The files of one execution.
pub(crate) struct FileTransfer<'t> {
    pub(crate) client: &'t Client,
    pub(crate) files: &'t Files,
    pub(crate) lease: Lease,
}

impl FileTransfer<'_> {
    /// Fetches the files that the names of an execution contain, and returns the execution with their paths on this host.
    /// Returns how it ends if a file cannot be fetched.
    pub(crate) async fn fetch(
        &self,
        assignment: &Assignment,
        lost: &mut Control,
    ) -> Result<Assignment, Ended> {
        let mut fetched = assignment.clone();
        let mut paths = Vec::new();
        for path in &assignment.files {
            let local = self.local(path).ok_or_else(|| failed(&format!("{path:?} is no file of a run")))?;
            let fetching = self.fetch_one(path, &local);
            let mut cancel = lost.clone();
            tokio::select! {
                done = fetching => done.map_err(|error| failed(&format!("{path}: {error}")))?,
                () = lost.lost() => return Err(Ended::Lost),
                () = cancel.cancelled() => return Err(Ended::Report(Ending::Cancelled)),
            }
            paths.push((path.clone(), local.display().to_string()));
        }
        if paths.is_empty() {
            return Ok(fetched);
        }
        let mut inputs: Value = serde_json::from_str(&fetched.inputs).unwrap_or_default();
        replace(&mut inputs, &paths);
        fetched.inputs = Arc::from(inputs.to_string());
        if let Some(steps) = &fetched.steps {
            let mut steps = steps.value();
            replace(&mut steps, &paths);
            fetched.steps = serde_json::from_value(Value::String(steps.to_string())).ok();
        }
        Ok(fetched)
    }

    /// Returns the path on this host of the copy of a server's file: the same below the folder of all runs.
    fn local(&self, path: &str) -> Option<PathBuf> {
        let parts: Vec<&str> = path.rsplitn(6, '/').collect();
        let [file, name, step, "files", run, _] = parts[..] else { return None };
        let odd = |part: &&str| part.is_empty() || *part == "." || *part == "..";
        if [file, name, step, run].iter().any(odd) {
            return None;
        }
        Some(self.files.run(run.parse().ok()?).join("files").join(step).join(name).join(file))
    }

    async fn fetch_one(&self, path: &str, local: &Path) -> Result<(), Error> {
        let wrong = |error: std::io::Error| Error::Local(format!("{}: {error}", local.display()));
        // A step of this host wrote it, or an earlier step here has fetched it.
        if local.exists() {
            return Ok(());
        }
        let folder = local.parent().unwrap_or(Path::new("/"));
        make_private_folder(folder).map_err(wrong)?;
        // Two steps may fetch it at the same time.
        let Lease { execution, fence } = self.lease;
        let part = folder.join(format!(".part-{}-{}-{fence}", execution.step, execution.attempt));
        let mut backoff = Backoff::default();
        let mut offset = 0;
        loop {
            let wanted = WantedFile { lease: self.lease, path: path.to_owned(), offset };
            match self.client.read("/v1/work/file", &wanted, PIECE_WITHIN).await {
                Ok(bytes) if bytes.is_empty() => break,
                Ok(bytes) => {
                    write(&part, offset, &bytes).map_err(wrong)?;
                    offset += bytes.len() as u64;
                    backoff = Backoff::default();
                }
                Err(error) if error.is_unknown() => {
                    tracing::warn!(path, %error, "fetching a file failed: retrying");
                    pause(backoff.next(error.after())).await;
                }
                Err(error) => {
                    let _ = std::fs::remove_file(&part);
                    return Err(error);
                }
            }
        }
        if offset == 0 {
            write(&part, 0, &[]).map_err(wrong)?;
        }
        std::fs::rename(&part, local).map_err(wrong)
    }

    /// Sends the files that an execution passes on, and returns its ending with the paths of the server's copies.
    pub(crate) async fn send(&self, name: &str, ended: Ended, lost: &mut Control) -> Ended {
        let Ended::Report(mut ending) = ended else { return ended };
        let result = match &mut ending {
            Ending::Completed { result } | Ending::Failed { result, .. } | Ending::TimedOut { result } => {
                result
            }
            _ => return Ended::Report(ending),
        };
        let kept = self.files.kept(self.lease.execution, name);
        let mut facts: Value =
            result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let mut sent = Vec::new();
        for (output, value) in facts["outputs"].as_object().into_iter().flatten() {
            let Some(path) = value.as_str().map(Path::new).filter(|path| path.starts_with(&kept)) else {
                continue;
            };
            let sending = self.send_one(output, path);
            let answer = tokio::select! {
                answer = sending => answer,
                () = lost.lost() => return Ended::Lost,
            };
            match answer {
                Ok(at_server) => sent.push((path.display().to_string(), at_server)),
                Err(error) => {
                    return failed(&format!("output `{output}` was not sent to the server: {error}"));
                }
            }
        }
        if !sent.is_empty() {
            replace(&mut facts["outputs"], &sent);
            *result = Some(facts.to_string().into());
        }
        Ended::Report(ending)
    }

    async fn send_one(&self, output: &str, path: &Path) -> Result<String, Error> {
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let Lease { execution, fence } = self.lease;
        let mut backoff = Backoff::default();
        let mut offset = 0;
        loop {
            let from = path.to_owned();
            let read = tokio::task::spawn_blocking(move || piece(&from, offset, LARGEST_PIECE)).await;
            let read = read.map_err(|error| Error::Local(error.to_string()))?;
            let bytes: Bytes = read.map_err(|error| Error::Local(format!("{}: {error}", path.display())))?;
            let is_end = bytes.is_empty();
            let target = format!(
                "/v1/work/files?run={}&step={}&attempt={}&fence={fence}&name={}&file={}&offset={offset}",
                execution.run,
                execution.step,
                execution.attempt,
                encoded(output),
                encoded(&file),
            );
            match self.client.send::<FileSize>(&target, "application/octet-stream", bytes, PIECE_WITHIN).await
            {
                Ok(FileSize { path, .. }) if is_end => return Ok(path),
                Ok(FileSize { size, .. }) => {
                    offset = size;
                    backoff = Backoff::default();
                }
                Err(error) if error.is_unknown() => {
                    tracing::warn!(path = %path.display(), %error, "sending a file failed: retrying");
                    pause(backoff.next(error.after())).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn write(path: &Path, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = private_options().create(true).truncate(offset == 0).write(true).open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

/// Replaces whole texts in a value.
fn replace(value: &mut Value, paths: &[(String, String)]) {
    match value {
        Value::String(text) => {
            if let Some((_, with)) = paths.iter().find(|(path, _)| path == text) {
                text.clone_from(with);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, paths)),
        Value::Object(entries) => entries.values_mut().for_each(|value| replace(value, paths)),
        _ => {}
    }
}

fn failed(message: &str) -> Ended {
    let facts = json!({ "reason": "file", "message": message });
    Ended::Report(Ending::Failed { result: Some(facts.to_string().into()), retriable: true })
}
