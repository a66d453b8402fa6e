//! Lock files on refs that a killed git has left behind.
//!
//! Git removes its lock files at its end, unless it is killed: by `kill -9`, or with the step in which it packs refs in
//! the background. A lock that stays blocks every later git: the one of `packed-refs` every deletion of a ref, and one
//! below `refs/sprag/` the landings of all runs.

use std::{
    fs::{self, File},
    path::Path,
    time::Duration,
};

use sprag_process::open_regular;

use crate::{error::Kind, foreign_git, owner::is_file_at};

/// The age from which a lock may be abandoned. Git holds these locks for a moment.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// The tolerance for the age of a process, which has another clock than files.
const TOLERANCE: Duration = Duration::from_secs(2);

/// Removes a lock on refs if it is old and no git that could have created it is running. Returns whether it was removed.
///
/// Processes of Sprag take turns: each locks the file and checks that it is still the same one.
pub(crate) fn remove_if_abandoned(lock: &Path) -> bool {
    if !is_on_refs(lock) {
        return false;
    }
    let Ok(file) = open_regular(lock) else { return false };
    if file.try_lock().is_err() || !is_file_at(&file, lock) || !is_abandoned(&file) {
        return false;
    }
    if lock.ends_with("packed-refs.lock") {
        // The killed git was writing this file, and git does not overwrite it.
        let _ = fs::remove_file(lock.with_extension("new"));
    }
    let removed = fs::remove_file(lock).is_ok();
    if removed {
        tracing::warn!(run = "", path = %lock.display(), "removed a lock file that a killed git left behind");
    }
    removed
}

/// Runs a git command again if it failed because of a lock file that is gone since.
pub(crate) fn retry<T>(run: impl Fn() -> Result<T, Kind>) -> Result<T, Kind> {
    match run() {
        Err(Kind::StaleGitLock { path }) if !path.exists() => run(),
        other => other,
    }
}

/// Returns whether the file locks all packed refs, or a ref that only Sprag writes.
fn is_on_refs(lock: &Path) -> bool {
    let is_lock = lock.extension().is_some_and(|extension| extension == "lock");
    is_lock && (lock.ends_with("packed-refs.lock") || lock.to_string_lossy().contains("/refs/sprag/"))
}

fn is_abandoned(file: &File) -> bool {
    let created = file.metadata().and_then(|found| found.modified());
    let Some(age) = created.ok().and_then(|created| created.elapsed().ok()) else { return false };
    age >= ABANDONED_AFTER && !foreign_git::is_running_since(age.saturating_sub(TOLERANCE))
}
