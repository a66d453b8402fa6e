//! The sign of life of servers that deliver webhooks: each holds a shared lock on one file of the data directory. The
//! kernel releases it when the process ends, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;

use crate::App;

/// The lock of a server that delivers webhooks, for as long as it does.
#[derive(Debug)]
pub struct DeliveryPresence {
    _lock: File,
}

impl App {
    /// Whether a server with this data directory delivers webhooks.
    pub fn has_delivery(&self) -> bool {
        let Ok(file) = sprag_process::open_regular(&self.delivery_file()) else { return false };
        matches!(file.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Tells other processes of this machine that this one delivers webhooks. Returns none if that is not possible now: a
    /// process that asks [`App::has_delivery`] holds the lock for some microseconds.
    pub fn show_delivery(&self) -> Option<DeliveryPresence> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.delivery_file());
        let file =
            file.inspect_err(|error| tracing::warn!(%error, "others do not see that webhooks are delivered"));
        file.ok().filter(|file| file.try_lock_shared().is_ok()).map(|_lock| DeliveryPresence { _lock })
    }

    fn delivery_file(&self) -> std::path::PathBuf {
        self.data().join("delivering.lock")
    }
}
