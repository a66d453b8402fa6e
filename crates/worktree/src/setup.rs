//! Which setup a worktree needs: a hash of the files that the setup names.

use std::path::{Component, Path};

use crate::{
    error::{Attempt, Error, Kind},
    git::Git,
    worktrees::Worktree,
};

impl Worktree {
    /// The hash of these files' names and contents in this worktree. A file that is not there counts as such.
    ///
    /// Equal to the mark's `setup_key`: what the setup makes is there already.
    pub fn setup_key(&self, files: &[String]) -> Result<String, Error> {
        let key = || {
            let mut text = String::new();
            for file in files {
                let path = Path::new(file);
                if path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
                    let reason = "it lies outside the worktree".to_owned();
                    return Err(Kind::IncludeRefused { pattern: file.clone(), reason });
                }
                let hash = match self.path().join(path).is_file() {
                    true => Git::new(self.path(), "hash-object").args(["--no-filters", "--", file]).line()?,
                    false => "none".to_owned(),
                };
                text.push_str(&format!("{} {file} {hash}\n", file.len()));
            }
            Git::new(self.path(), "hash-object").arg("--stdin").input(text).line()
        };
        key().attempt(|| format!("find the setup key of {}", self.path().display()))
    }
}
