//! Uncommitted changes in the checkout where a run is started: counted, and recorded for a run that starts with
//! them.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    checkpoint::{self, Checkpoint},
    clock,
    error::{Attempt, Error, Kind},
    git::{Cancel, Git},
    prune::{StagedObjects, Written, write_despite_prunes},
    repository::Repository,
    snapshot,
};

/// The name of the checkpoint with these changes. No checkpoint of a step has it: a step's id does not start
/// with `_`, and the state before a step starts with a single one.
const CHECKOUT_STATE: &str = "__checkout";

/// The most files named in a message.
const NAMED_FILES: usize = 5;

/// The uncommitted changes of a checkout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uncommitted {
    /// The checkout's folder.
    pub checkout: PathBuf,
    /// The number of changed, staged and untracked files. Git counts an untracked folder as one.
    pub count: usize,
    /// The first few of these files.
    pub files: Vec<String>,
    /// Whether there are unresolved conflicts.
    unmerged: bool,
}

impl std::fmt::Display for Uncommitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let changes = if self.count == 1 { "change" } else { "changes" };
        let more = if self.count > self.files.len() { ", …" } else { "" };
        let (count, checkout) = (self.count, self.checkout.display());
        write!(f, "{count} uncommitted {changes} in {checkout} ({}{more})", self.files.join(", "))
    }
}

/// A checkout of a user.
struct Checkout {
    path: PathBuf,
    git_dir: PathBuf,
}

impl Uncommitted {
    /// Returns the uncommitted changes of the checkout around a folder; `None` if there is no checkout or no
    /// change.
    pub fn of(folder: &Path, cancel: &Cancel, timeout: Duration) -> Result<Option<Self>, Error> {
        let look = || match Checkout::around(folder)? {
            Some(checkout) => checkout.uncommitted(cancel, timeout),
            None => Ok(None),
        };
        look().attempt(|| format!("look for uncommitted changes in {}", folder.display()))
    }

    /// Returns the error for a run that must not start with these changes.
    pub fn refused(self, why: &str) -> Error {
        let attempt = format!("start in {}", self.checkout.display());
        Error { attempt, kind: Kind::UncommittedChanges { found: Box::new(self), why: why.to_owned() } }
    }
}

impl Repository {
    /// Returns the uncommitted changes that a run started with; `None` if it started without.
    pub fn recorded_uncommitted(&self, run: &str) -> Result<Option<Checkpoint>, Error> {
        let name = checkpoint::name_of(run, CHECKOUT_STATE);
        let found =
            self.read_ref(&name).attempt(|| format!("find the changes that run {run} starts with"))?;
        Ok(found.map(|commit| Checkpoint { name, commit }))
    }

    /// Records the uncommitted changes of the checkout around a folder, for a run that starts with them at
    /// `base`. All worktrees of a run start with the changes that were recorded first. Returns `None` if there
    /// are none.
    pub fn record_uncommitted(
        &self,
        run: &str,
        folder: &Path,
        base: &str,
        cancel: &Cancel,
        timeout: Duration,
    ) -> Result<Option<Checkpoint>, Error> {
        let record = || {
            let name = checkpoint::name_of(run, CHECKOUT_STATE);
            if let Some(commit) = self.read_ref(&name)? {
                return Ok(Some(Checkpoint { name, commit }));
            }
            let Some(checkout) = Checkout::around(folder)? else { return Ok(None) };
            let Some(found) = checkout.uncommitted(cancel, timeout)? else { return Ok(None) };
            let refused = |why: String| Kind::UncommittedChanges { found: Box::new(found.clone()), why };
            if found.unmerged {
                return Err(refused("it has unresolved conflicts".into()));
            }
            let base_commit = self.commit(base)?;
            let at_ms = clock::unix_ms();
            let write = |staged: Option<&StagedObjects>| {
                let taken = checkout.snapshot(staged, cancel, timeout)?;
                if taken.head.as_deref() != Some(&base_commit) {
                    return Err(refused(format!("the checkout is not at the base `{base}`")));
                }
                let nested = snapshot::added_repositories(self, &base_commit, &taken.tree, staged)?;
                if let Some(nested) = nested.first() {
                    return Err(Kind::NestedRepository { path: checkout.path.join(nested) });
                }
                let message = format!("sprag: uncommitted changes that run {run} begins with\n");
                let known = vec![base_commit.clone()];
                let commit = snapshot::commit(self, &taken.tree, &[&base_commit], &message, at_ms, staged)?;
                Ok(Written { commit, known })
            };
            // Several steps may do this at once; git creates the ref for only one of them.
            let point = |commit: &str| {
                let created = self.git("update-ref").args([&name, commit, self.null_oid()]).output()?;
                let commit = self.read_ref(&name)?.ok_or_else(|| created.failure())?;
                Ok(Checkpoint { name: name.clone(), commit })
            };
            write_despite_prunes(self, write, point).map(Some)
        };
        record().attempt(|| format!("record the uncommitted changes of {}", folder.display()))
    }
}

impl Checkout {
    /// Finds the checkout around a folder.
    fn around(folder: &Path) -> Result<Option<Checkout>, Kind> {
        let asked = ["--is-inside-work-tree", "--show-toplevel", "--absolute-git-dir"];
        let told = Git::new(folder, "rev-parse").args(asked).output()?.line();
        let lines: Vec<&str> = told.lines().collect();
        Ok(match lines.as_slice() {
            ["true", path, git_dir] => Some(Checkout { path: path.into(), git_dir: git_dir.into() }),
            _ => None,
        })
    }

    fn git<'a>(&self, subcommand: &str) -> Git<'a> {
        Git::new(&self.path, subcommand).git_dir(&self.git_dir).env("GIT_WORK_TREE", &self.path)
    }

    fn uncommitted(&self, cancel: &Cancel, timeout: Duration) -> Result<Option<Uncommitted>, Kind> {
        let status = self.git("status").args(["--porcelain=v1", "-z", "--no-renames"]);
        let changed = status.long(timeout, cancel).run()?.fields();
        if changed.is_empty() {
            return Ok(None);
        }
        let files = changed.iter().take(NAMED_FILES).filter_map(|line| line.get(3..).map(str::to_owned));
        let is_unmerged = |line: &String| {
            line.get(..2).is_some_and(|signs| signs == "AA" || signs == "DD" || signs.contains('U'))
        };
        Ok(Some(Uncommitted {
            checkout: self.path.clone(),
            count: changed.len(),
            files: files.collect(),
            unmerged: changed.iter().any(is_unmerged),
        }))
    }

    /// Takes a snapshot of all files that git does not ignore, with a temporary index. The user's index does
    /// not change.
    fn snapshot(
        &self,
        staged: Option<&StagedObjects>,
        cancel: &Cancel,
        timeout: Duration,
    ) -> Result<snapshot::Snapshot, Kind> {
        snapshot::take_of(
            &self.git_dir,
            &self.path,
            &|subcommand| self.git(subcommand),
            staged,
            None,
            cancel,
            timeout,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_outside_of_any_checkout_has_nothing_uncommitted() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("inside")).expect("a folder");
        let found =
            Uncommitted::of(&folder.path().join("inside"), &Cancel::default(), Duration::from_secs(60));
        assert_eq!(found.expect("looked"), None);
    }
}
