//! Logs that the server has not completely received: they stay on this machine's disk until it has, even if the
//! worker stops.
//!
//! ```text
//!   runs/RUN/NAME.log           the step's log
//!   runs/RUN/NAME.log.unsent    the key to send it with, and the attempt; removed once the log was received
//!   runs/RUN/NAME.log.refused   the same for a log that the server refuses; removed with its run
//! ```
//!
//! The note is written before the step starts, so that no log of a killed worker stays unsent: the next worker in the
//! same folder sends it under the key of the first. No log is deleted before the server has received it. The backlog
//! is bounded: a worker with more takes no further steps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sprag_app::text::size;
use sprag_store::Lease;
use sprag_worker::wire::Part;
use tokio::sync::{Notify, watch};

/// The extension of the note about a log that is to be sent.
const UNSENT: &str = "unsent";
/// The extension of the note about a log that the server refuses.
const REFUSED: &str = "refused";

/// The note about a log that is to be sent: the facts that sending needs.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Note {
    /// The name of the server's store.
    pub(crate) store: String,
    /// The key of the worker that ran the attempt. It proves that the log belongs to that worker's attempt, and is of
    /// no other use once the worker is gone.
    pub(crate) key: String,
    /// The lease of the attempt.
    pub(crate) lease: Lease,
    /// The log of the attempt that the note is about: the step's, or its setup's.
    pub(crate) part: Part,
}

/// The logs that wait to be sent after their steps have ended. Cloning it is cheap.
#[derive(Clone)]
pub(crate) struct Backlog(Arc<Inner>);

struct Inner {
    /// The number of bytes that may wait before the worker takes no more steps.
    most: u64,
    /// The logs, with the number of bytes that the server has not received.
    waiting: Mutex<BTreeMap<PathBuf, u64>>,
    changed: Notify,
    /// The reason why the worker takes no steps; none while it takes steps.
    notice: watch::Sender<Option<String>>,
    folder: PathBuf,
}

impl Backlog {
    /// Creates the backlog of a data folder.
    pub(crate) fn new(folder: &Path, most: u64) -> Backlog {
        let (waiting, changed, notice) = (Mutex::default(), Notify::new(), watch::Sender::default());
        Backlog(Arc::new(Inner { most, waiting, changed, notice, folder: folder.to_owned() }))
    }

    /// Returns the reason why the worker takes no steps, as a value to watch; none while it takes steps.
    pub(crate) fn notice(&self) -> watch::Receiver<Option<String>> {
        self.0.notice.subscribe()
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<PathBuf, u64>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of logs that wait, and of their bytes.
    pub(crate) fn size(&self) -> (usize, u64) {
        let waiting = self.waiting();
        (waiting.len(), waiting.values().sum())
    }

    /// Adds a log, or updates the number of its bytes that are left.
    pub(crate) fn put(&self, log: &Path, left: u64) {
        self.waiting().insert(log.to_owned(), left);
        self.tell();
    }

    /// Removes a log, because it was received or cannot be sent.
    pub(crate) fn remove(&self, log: &Path) {
        self.waiting().remove(log);
        self.tell();
    }

    /// Returns the next log to send, after this one in turn.
    pub(crate) fn next(&self, after: Option<&Path>) -> Option<PathBuf> {
        let waiting = self.waiting();
        let later = after.and_then(|after| waiting.keys().find(|log| **log > *after));
        later.or_else(|| waiting.keys().next()).cloned()
    }

    /// Waits until the backlog has changed.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Waits until there is room for the logs of further steps.
    pub(crate) async fn room(&self) {
        let mut notice = self.0.notice.subscribe();
        // The sender lives as long as the backlog.
        let _ = notice.wait_for(Option::is_none).await;
    }

    /// Waits until there is no room for the logs of further steps.
    pub(crate) async fn full(&self) {
        let mut notice = self.0.notice.subscribe();
        let _ = notice.wait_for(Option::is_some).await;
    }

    fn tell(&self) {
        let (logs, bytes) = self.size();
        self.0.changed.notify_one();
        self.0.notice.send_if_modified(|notice| {
            let full = bytes > self.0.most;
            if full == notice.is_some() {
                return false;
            }
            *notice = full.then(|| {
                format!(
                    "takes no further steps: {} of {logs} logs in {} wait to be sent, and {} may",
                    size(bytes),
                    self.0.folder.display(),
                    size(self.0.most)
                )
            });
            true
        });
    }
}

fn beside(log: &Path, ending: &str) -> PathBuf {
    let mut path = log.as_os_str().to_owned();
    path.push(".");
    path.push(ending);
    path.into()
}

/// Writes the note that a log is to be sent. Only its owner may read the file, because it contains the key.
pub(crate) fn remember(log: &Path, note: &Note) -> std::io::Result<()> {
    if let Some(folder) = log.parent() {
        sprag_process::make_private_folder(folder)?;
    }
    sprag_process::replace_private(&beside(log, UNSENT), &serde_json::to_vec(note)?)
}

/// Returns the note about a log; none if the log was sent.
pub(crate) fn read(log: &Path) -> Option<Note> {
    /// The largest size of a note; real notes are shorter.
    const MAX_BYTES: u64 = 64 << 10;
    serde_json::from_slice(&sprag_process::read_regular(&beside(log, UNSENT), MAX_BYTES).ok()?).ok()
}

/// Deletes a log that was received, and its note.
pub(crate) fn received(log: &Path) {
    let _ = std::fs::remove_file(log);
    forget(log);
}

/// Deletes the note about a log.
pub(crate) fn forget(log: &Path) {
    let _ = std::fs::remove_file(beside(log, UNSENT));
}

/// Keeps a log that the server refuses, without further tries.
pub(crate) fn refused(log: &Path) {
    let _ = std::fs::rename(beside(log, UNSENT), beside(log, REFUSED));
}

/// Whether a log must not be deleted, because the server has not received it.
pub(crate) fn is_kept(log: &Path) -> bool {
    beside(log, UNSENT).exists() || beside(log, REFUSED).exists()
}

/// Returns the logs in a data folder that this store has not completely received.
pub(crate) fn find(data: &Path, store: &str) -> Vec<PathBuf> {
    let runs = std::fs::read_dir(data.join("runs")).into_iter().flatten().flatten();
    let files = runs.flat_map(|run| std::fs::read_dir(run.path()).into_iter().flatten().flatten());
    files
        .filter_map(|file| {
            let path = file.path();
            let log = path.to_str()?.strip_suffix(&format!(".{UNSENT}")).map(PathBuf::from)?;
            read(&log).is_some_and(|note| note.store == store).then_some(log)
        })
        .collect()
}
