//! The sign of life of processes that watch rules: each holds a shared lock on one file of the data directory. The kernel
//! releases it when the process ends, however it ends.

use std::fs::{OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::PoisonError;

use super::RuleKeeper;
use crate::App;
use crate::error::Error;

impl App {
    /// Whether a process fires rules: a live worker, or a server of this machine, with or without a worker.
    pub fn is_watched(&self) -> Result<bool, Error> {
        if self.has_workers()? {
            return Ok(true);
        }
        let Ok(file) = sprag_process::open_regular(&self.watchers_file()) else { return Ok(false) };
        Ok(matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }

    fn watchers_file(&self) -> std::path::PathBuf {
        self.data().join("watching.lock")
    }
}

impl RuleKeeper {
    /// Takes the lock that tells other processes of this machine that this one watches, if it does not have it yet. A
    /// process that asks [`App::is_watched`] holds it for some microseconds: the next look tries again.
    pub(super) fn show_presence(&self) {
        let mut presence = self.presence.lock().unwrap_or_else(PoisonError::into_inner);
        if presence.is_some() {
            return;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        match options.open(self.app.watchers_file()) {
            Ok(file) => *presence = file.try_lock_shared().is_ok().then_some(file),
            Err(error) => tracing::warn!(%error, "other processes do not see that this one watches rules"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sprag_store::{Store, System};
    use sprag_sweeper::Triggers;

    use super::*;

    #[tokio::test]
    async fn a_process_without_a_worker_is_seen_to_watch() {
        let folder = tempfile::tempdir().unwrap();
        let app = App::with_store(Store::in_memory(Arc::new(System), Arc::new(System)), folder.path());
        assert!(!app.is_watched().unwrap());
        let (one, other) = (RuleKeeper::new(&app), RuleKeeper::new(&app));
        one.fire_due().await.unwrap();
        assert!(!app.is_watched().unwrap(), "a command that fires once does not watch");
        one.fire().await.unwrap();
        other.fire().await.unwrap();
        drop(one);
        assert!(app.is_watched().unwrap());
        drop(other);
        assert!(!app.is_watched().unwrap());
    }
}
