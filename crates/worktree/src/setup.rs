//! Which setup a worktree needs: a hash of the files that the setup names.

use std::path::{Component, Path};

use crate::{
    error::{Attempt, Error, Kind},
    git::Git,
    repository::Repository,
    worktrees::Worktree,
};

impl Worktree {
    /// The hash of these files' names and contents in this worktree. A file that is not there counts as such.
    ///
    /// Equal to the mark's `setup_key`: what the setup makes is there already.
    pub fn setup_key(&self, files: &[String]) -> Result<String, Error> {
        let hash = |file: &String| match self.path().join(file).is_file() {
            true => Git::new(self.path(), "hash-object").args(["--no-filters", "--", file]).line().map(Some),
            false => Ok(None),
        };
        let key = key(self.path(), files, hash);
        key.attempt(|| format!("find the setup key of {}", self.path().display()))
    }
}

impl Repository {
    /// What [`Worktree::setup_key`] will most likely be in a worktree that begins with this revision: files that
    /// git ignores, or writes otherwise than it keeps them, are only known there.
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

/// One text of all names and hashes, hashed.
fn key(
    directory: &Path,
    files: &[String],
    hash: impl Fn(&String) -> Result<Option<String>, Kind>,
) -> Result<String, Kind> {
    let mut text = String::new();
    for file in files {
        let outside = |part| !matches!(part, Component::Normal(_) | Component::CurDir);
        if Path::new(file).components().any(outside) {
            let reason = "it lies outside the worktree".to_owned();
            return Err(Kind::IncludeRefused { pattern: file.clone(), reason });
        }
        let hash = hash(file)?.unwrap_or_else(|| "none".to_owned());
        text.push_str(&format!("{} {file} {hash}\n", file.len()));
    }
    Git::new(directory, "hash-object").arg("--stdin").input(text).line()
}
