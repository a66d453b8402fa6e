//! The setup key of a worktree: a hash of the files that the setup names.

use std::path::{Component, Path};

use crate::{
    error::{Attempt, Error, Kind},
    git::Git,
    repository::Repository,
    worktrees::Worktree,
};

impl Worktree {
    /// Returns the hash of these files' names and contents in this worktree. A missing file is part of the
    /// hash.
    ///
    /// If it equals the mark's `setup_key`, the setup need not run again.
    pub fn setup_key(&self, files: &[String]) -> Result<String, Error> {
        let hash = |file: &String| {
            if !self.path().join(file).is_file() {
                return Ok(None);
            }
            Git::new(self.path(), "hash-object").args(["--no-filters", "--", file]).line().map(Some)
        };
        let key = key(self.path(), files, hash);
        key.attempt(|| format!("find the setup key of {}", self.path().display()))
    }
}

impl Repository {
    /// Returns the expected [`Worktree::setup_key`] of a worktree at this revision. It can differ for files
    /// that git ignores or converts.
    pub fn setup_key(&self, base: &str, files: &[String]) -> Result<String, Error> {
        let find = || {
            let commit = self.commit(base)?;
            let hash = |file: &String| {
                let file = file.strip_prefix("./").unwrap_or(file);
                self.read_ref(&format!("{commit}:{file}"))
            };
            key(self.common_dir(), files, hash)
        };
        find().attempt(|| format!("find the setup key of {base}"))
    }
}

/// Hashes the text of all names and hashes.
fn key(
    directory: &Path,
    files: &[String],
    hash: impl Fn(&String) -> Result<Option<String>, Kind>,
) -> Result<String, Kind> {
    let mut text = String::new();
    for file in files {
        let outside = |part| !matches!(part, Component::Normal(_) | Component::CurDir);
        if Path::new(file).components().any(outside) {
            let reason = "it is outside the worktree".to_owned();
            return Err(Kind::IncludeRefused { pattern: file.clone(), reason });
        }
        let hash = hash(file)?.unwrap_or_else(|| "none".to_owned());
        text.push_str(&format!("{} {file} {hash}\n", file.len()));
    }
    Git::new(directory, "hash-object").arg("--stdin").input(text).line()
}
