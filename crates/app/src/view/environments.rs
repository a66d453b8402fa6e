//! The environments of runs, as programs see them.

use serde::Serialize;
use sprag_lifecycle::Word;
use sprag_store::Row;

use crate::text::rfc3339;

views! {
    /// The environment of a run: a worktree or a folder.
    pub struct EnvironmentView {
        /// Its number.
        pub id: String,
        /// The run that it belongs to.
        pub run: Option<String>,
        /// Its status.
        pub status: &'static str,
        /// The host it is on.
        pub host: String,
        /// The directory.
        pub path: String,
        /// Its branch.
        pub branch: Option<String>,
        /// The repository's git directory.
        pub repository: Option<String>,
        /// Its keep policy: `never`, `on_failure`, `always`.
        pub keep: &'static str,
        /// Its size in bytes; 0 if it is not known here, as on another host.
        pub bytes: u64,
        /// The time when it was first requested.
        pub created_at: String,
        /// The number of the current attempt to create it.
        pub attempt: u32,
        /// The number of removals that were started.
        pub removals: u32,
        /// The reason why it still exists.
        pub why: String,
    }
}

impl EnvironmentView {
    /// Returns the view of an environment, with the reason why it is still there.
    pub fn of(row: &sprag_store::EnvironmentRow, why: String) -> Self {
        // Details that cannot be read are told as the reason why it is there.
        let details = sprag_store::EnvironmentDetails::of_readable(row);
        EnvironmentView {
            id: row.id.to_string(),
            run: row.run.map(|run| run.to_string()),
            status: row.status().as_str(),
            host: row.host.to_string(),
            path: row.path.to_string(),
            branch: details.branch,
            repository: details.repository,
            keep: details.keep.as_str(),
            bytes: bytes_of(row),
            created_at: rfc3339(row.created_ms),
            attempt: row.provision_attempt,
            removals: row.destroy_attempt,
            why,
        }
    }
}

/// Returns the number of bytes in an environment's folder, if it is on this host.
pub fn bytes_of(row: &sprag_store::EnvironmentRow) -> u64 {
    crate::local_files::LocalFiles::of(row).map_or(0, |files| size_of(&files.path))
}

/// Returns the number of bytes in a folder, without following links; files that cannot be read count as 0.
pub fn size_of(path: &std::path::Path) -> u64 {
    /// The most files that are counted one by one.
    const MOST: usize = 200_000;
    let mut total = 0;
    let mut todo = vec![path.to_owned()];
    let mut seen = 0;
    while let Some(next) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            if seen > MOST {
                return total;
            }
            match entry.metadata() {
                Ok(found) if found.is_dir() => todo.push(entry.path()),
                Ok(found) => total += found.len(),
                Err(_) => {}
            }
        }
    }
    total
}
