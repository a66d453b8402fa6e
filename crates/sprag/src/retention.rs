//! Forgetting runs that ended long ago: their rows, then their files.

use std::path::Path;
use std::time::Duration;

use sprag_store::Store;
use sprag_worker::Files;

use crate::view::size_of;

/// How many runs are looked at in one transaction: others want to write too.
const AT_ONCE: usize = 100;

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Forgotten {
    /// How many runs went, those that were other runs' work among them.
    pub runs: usize,
    /// Plans that no run has any more.
    pub plans: usize,
    /// How many bytes of logs and files went with them.
    pub bytes: u64,
    /// Runs that are old enough and have to stay for now, and why.
    pub kept: Vec<(String, &'static str)>,
}

/// Forgets runs that ended longer ago than `keep`; with `dry_run`, only says which.
pub async fn forget(
    store: &Store,
    data: &Path,
    keep: Duration,
    dry_run: bool,
) -> sprag_store::Result<Forgotten> {
    let before_ms = store.now().wall_ms - i64::try_from(keep.as_millis()).unwrap_or(i64::MAX / 2);
    let files = Files::new(data);
    let mut done = Forgotten::default();
    let mut after = None;
    // Ends: each round begins after the last run of the one before.
    loop {
        let page = match dry_run {
            true => store.person().forgettable_runs(before_ms, after, AT_ONCE).await?,
            false => store.person().forget_runs(before_ms, after, AT_ONCE).await?,
        };
        for run in &page.runs {
            done.bytes += remove(&files.run(*run), dry_run);
        }
        done.runs += page.runs.len();
        done.kept.extend(page.kept.iter().map(|(run, why)| (run.to_string(), *why)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if !dry_run {
        done.plans = store.person().forget_plans().await?;
    }
    Ok(done)
}

fn remove(folder: &Path, dry_run: bool) -> u64 {
    let bytes = if folder.exists() { size_of(folder) } else { 0 };
    if !dry_run
        && let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %folder.display(), %error, "the files of a forgotten run are still there");
        return 0;
    }
    bytes
}
