//! The mark of an entry, `sprag.json`: its run and how to reclaim it. An entry without a mark does not belong
//! to Sprag.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sprag_process::ProcessId;

use crate::{clock, error::Kind, read};

/// The name of the mark's file in an entry.
pub(crate) const MARK: &str = "sprag.json";

/// The state of a worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Being created; no process has worked in it.
    Making,
    /// Ready for its run.
    Ready,
    /// Kept for a person to inspect after its run has ended.
    Kept,
    /// Clean, and waiting in the pool for the next run.
    Pooled,
}

/// The run of a worktree, and what is needed to reclaim it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The name of the entry and of the owner lock.
    pub id: String,
    /// The run that it belongs to, or belonged to.
    pub run: String,
    /// The process that created or adopted it; absent in the pool.
    pub process: Option<ProcessId>,
    /// The state of the worktree.
    pub state: State,
    /// The folder with its files.
    pub path: PathBuf,
    /// The data directory that contains it.
    pub root: PathBuf,
    /// Device and inode of the data directory. A different value at the same path means that the disk is not
    /// mounted.
    pub root_identity: (u64, u64),
    /// The branch; absent if HEAD is detached.
    pub branch: Option<String>,
    /// The commit that the worktree started with.
    pub base: String,
    /// The setup that produced its ignored files; absent if none ran.
    pub setup_key: Option<String>,
    /// The key of its caches. Only runs with the same key may use them.
    #[serde(default)]
    pub cache_key: Option<String>,
    /// Whether it contains caches of its last run while it is in the pool.
    #[serde(default = "caches_by_default")]
    pub has_caches: bool,
    /// The folders to which its files are limited; empty means all.
    pub sparse: Vec<String>,
    /// Whether Sprag's git commands skip the repository's hooks for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_hooks: bool,
    /// The environment variables that identify the processes of its run.
    pub markers: Vec<(String, String)>,
    /// The time of creation, in milliseconds of the wall clock.
    pub created_unix_ms: u64,
    /// The reason why it was kept.
    pub reason: Option<String>,
    /// Whether it is ready for steps: it has the right files and is set up.
    #[serde(default)]
    pub prepared: bool,
    /// The repository's stash and config at the start of the run.
    pub shared: Shared,
}

/// Returns the default for marks of versions that always kept caches.
fn caches_by_default() -> bool {
    true
}

/// State that all worktrees of a repository share, although a run may take it for its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Shared {
    /// The newest stash; absent if there is none.
    pub stash: Option<String>,
    /// The stamp of the repository's config file.
    pub config: Stamp,
}

/// A file's size and modification time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Stamp(u64, i64, i64);

impl Stamp {
    /// Returns the stamp of a file; zero if it does not exist.
    pub(crate) fn of(path: &Path) -> Stamp {
        fs::metadata(path)
            .map(|found| Stamp(found.len(), found.mtime(), found.mtime_nsec()))
            .unwrap_or_default()
    }
}

impl Mark {
    pub(crate) fn read(entry: &Path) -> Option<Mark> {
        serde_json::from_slice(&read::bytes(entry.join(MARK)).ok()?).ok()
    }

    /// Writes the mark atomically: a reader sees the previous mark or this one.
    pub(crate) fn write(&self, entry: &Path) -> Result<(), Kind> {
        let text = serde_json::to_vec(self).map_err(|error| Kind::Io {
            doing: "serialise",
            path: self.path.clone(),
            source: error.into(),
        })?;
        write_atomic(&entry.join(MARK), &text)
    }

    /// Returns whether the data directory is the one in which the worktree was created.
    pub(crate) fn root_is_here(&self) -> bool {
        fs::metadata(&self.root).is_ok_and(|found| (found.dev(), found.ino()) == self.root_identity)
    }
}

impl Shared {
    pub(crate) fn now(common: &Path) -> Shared {
        let stash = read::text(common.join("refs/stash")).ok().map(|text| text.trim().to_owned());
        Shared { stash, config: Stamp::of(&common.join("config")) }
    }

    /// Describes what has changed since `then`.
    pub(crate) fn changes_since(&self, then: &Shared) -> Vec<String> {
        let mut changes = Vec::new();
        if self.stash != then.stash {
            changes.push(
                "refs/stash changed during the run: all worktrees share the stash, and a `git stash pop` \
                 may take another run's work"
                    .to_owned(),
            );
        }
        if self.config != then.config {
            changes.push(
                "the repository's config changed during the run: all worktrees share it, except for \
                 `git config --worktree`"
                    .to_owned(),
            );
        }
        changes
    }
}

/// Writes a file under a temporary name beside its path, and renames it.
pub(crate) fn write_atomic(path: &Path, text: &[u8]) -> Result<(), Kind> {
    let beside = path.with_extension(format!("new-{}", clock::random_hex()));
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.map_err(|source| {
        let _ = fs::remove_file(&beside);
        Kind::Io { doing: "write", path: path.to_owned(), source }
    })
}
