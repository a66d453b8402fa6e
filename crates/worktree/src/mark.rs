//! Our mark in an entry, `sprag.json`: whose worktree it is and how to take it back. Without it, an entry is not ours.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sprag_process::ProcessId;

use crate::{clock, error::Kind};

/// The mark's file in an entry.
pub(crate) const MARK: &str = "sprag.json";

/// How far a worktree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is being made: nobody has worked in it.
    Making,
    /// A run may work in it.
    Ready,
    /// Its run is over, and somebody wants to look at it.
    Kept,
    /// It is clean and waits for the next run.
    Pooled,
}

/// Whose worktree it is and how to take it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The entry's name, and that of its owner lock.
    pub id: String,
    /// The run it belongs to, or belonged to.
    pub run: String,
    /// The process that made it or took it over.
    pub process: Option<ProcessId>,
    /// How far it is.
    pub state: State,
    /// Where its files are.
    pub path: PathBuf,
    /// The data directory they are in.
    pub root: PathBuf,
    /// Device and inode of that directory: another one at the same path means a disk that is not there now.
    pub root_identity: (u64, u64),
    /// Its branch; none if it is detached.
    pub branch: Option<String>,
    /// The commit it began with.
    pub base: String,
    /// Which setup its ignored files are the result of.
    pub setup_key: Option<String>,
    /// Folders to which its files are limited; all if there are none.
    pub sparse: Vec<String>,
    /// Environment variables by which the processes of its run are known.
    pub markers: Vec<(String, String)>,
    /// When it was made, on the wall clock.
    pub created_unix_ms: u64,
    /// Why it was kept.
    pub reason: Option<String>,
    /// Its owner has made it ready for steps: with the right files, and set up.
    #[serde(default)]
    pub prepared: bool,
    /// What the repository's stash and settings were when the run began.
    pub shared: Shared,
}

/// What all worktrees of a repository share although a run may believe it its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Shared {
    /// The newest stash.
    pub stash: Option<String>,
    /// Size and time of change of the repository's settings.
    pub config: Stamp,
}

/// A file's size, and when it was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Stamp(u64, i64, i64);

impl Stamp {
    /// Zero if there is none.
    pub(crate) fn of(path: &Path) -> Stamp {
        fs::metadata(path)
            .map(|found| Stamp(found.len(), found.mtime(), found.mtime_nsec()))
            .unwrap_or_default()
    }
}

impl Mark {
    pub(crate) fn read(entry: &Path) -> Option<Mark> {
        serde_json::from_slice(&fs::read(entry.join(MARK)).ok()?).ok()
    }

    /// In one step: a reader sees the former mark or this one.
    pub(crate) fn write(&self, entry: &Path) -> Result<(), Kind> {
        let text = serde_json::to_vec(self).map_err(|error| Kind::Io {
            doing: "describe",
            path: self.path.clone(),
            source: error.into(),
        })?;
        write_whole(&entry.join(MARK), &text)
    }

    /// Whether the data directory is the one in which the worktree was made.
    pub(crate) fn root_is_here(&self) -> bool {
        fs::metadata(&self.root).is_ok_and(|found| (found.dev(), found.ino()) == self.root_identity)
    }
}

impl Shared {
    pub(crate) fn now(common: &Path) -> Shared {
        let stash = fs::read_to_string(common.join("refs/stash")).ok().map(|text| text.trim().to_owned());
        Shared { stash, config: Stamp::of(&common.join("config")) }
    }

    /// What has changed since, in words.
    pub(crate) fn changes_since(&self, then: &Shared) -> Vec<String> {
        let mut changes = Vec::new();
        if self.stash != then.stash {
            changes.push(
                "refs/stash changed while the run was at work: all worktrees share the stash, and a `git stash pop` \
                 may take another run's work"
                    .to_owned(),
            );
        }
        if self.config != then.config {
            changes.push(
                "the repository's config changed while the run was at work: all worktrees share it, except for \
                 `git config --worktree`"
                    .to_owned(),
            );
        }
        changes
    }
}

/// Writes a file beside its place and moves it there.
pub(crate) fn write_whole(path: &Path, text: &[u8]) -> Result<(), Kind> {
    let beside = path.with_extension(format!("new-{}", clock::random_hex()));
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.map_err(|source| {
        let _ = fs::remove_file(&beside);
        Kind::Io { doing: "write", path: path.to_owned(), source }
    })
}
