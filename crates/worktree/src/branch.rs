//! Sprag's branches: their creation, and their deletion without losing commits.

use std::fs;

use crate::{
    entry,
    error::{Attempt, Error, Kind},
    loose,
    mark::Mark,
    read,
    repository::Repository,
    salvage::is_reachable,
};

/// The reflog of a branch that Sprag created starts with a line that ends with this text, the worktree's id,
/// and the run.
const CREATED_FOR: &str = "sprag: made for ";
/// The text between the id and the run.
const OF_RUN: &str = " of run ";

/// The treatment of a worktree's branch when the worktree is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BranchPolicy {
    /// Keep the branch.
    Keep,
    /// Delete it if Sprag created it and another ref contains all its commits.
    #[default]
    DeleteIfMerged,
    /// Delete it if Sprag created it, after saving commits that no other ref contains.
    Delete,
}

/// The result for a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchFate {
    /// There was no branch.
    None,
    /// The branch was deleted.
    Deleted,
    /// The branch was kept, for this reason.
    Kept(String),
}

/// Creates a branch, and records in its reflog that Sprag created it.
pub(crate) fn create(repository: &Repository, branch: &str, mark: &Mark) -> Result<(), Kind> {
    let name = format!("refs/heads/{branch}");
    let message = format!("{CREATED_FOR}{}{OF_RUN}{}", mark.id, mark.run);
    if loose::create(repository, branch, &mark.base, &message) {
        return Ok(());
    }
    let args = ["-m", &message, "--create-reflog", &name, &mark.base, repository.null_oid()];
    let output = repository.git("update-ref").args(args).output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = &output.stderr;
    if stderr.contains("reference already exists") {
        return Err(Kind::BranchExists { branch: branch.to_owned() });
    }
    // "'refs/heads/feature' exists; cannot create 'refs/heads/feature/x'"
    if stderr.contains("exists; cannot create")
        && let Some(existing) = stderr
            .split('\'')
            .find_map(|part| part.strip_prefix("refs/heads/").filter(|&existing| existing != branch))
    {
        return Err(Kind::BranchConflict { branch: branch.to_owned(), existing: existing.to_owned() });
    }
    Err(output.failure())
}

/// Returns whether Sprag created the branch, for this worktree or for any. A user who recreates it starts a new
/// reflog.
pub(crate) fn is_ours(repository: &Repository, branch: &str, id: Option<&str>) -> bool {
    match (creator(repository, branch), id) {
        (Some((created_for, _)), Some(id)) => created_for == id,
        (found, _) => found.is_some(),
    }
}

/// Returns the worktree and the run for which Sprag created a branch.
fn creator(repository: &Repository, branch: &str) -> Option<(String, String)> {
    let log = repository.common_dir().join("logs/refs/heads").join(branch);
    let text = read::text(log).ok()?;
    let (_, text) = text.lines().next()?.split_once(CREATED_FOR)?;
    let (id, run) = text.split_once(OF_RUN).unwrap_or((text, ""));
    Some((id.to_owned(), run.to_owned()))
}

/// Deletes a worktree's branch if the policy and its commits allow it. Must be called after salvaging.
pub(crate) fn release(
    repository: &Repository,
    branch: Option<&str>,
    id: &str,
    policy: BranchPolicy,
) -> Result<BranchFate, Kind> {
    let Some(branch) = branch else { return Ok(BranchFate::None) };
    let name = format!("refs/heads/{branch}");
    let Some(tip) = repository.read_ref(&name)? else { return Ok(BranchFate::None) };
    if !is_ours(repository, branch, Some(id)) {
        return Ok(BranchFate::Kept("it existed before".to_owned()));
    }
    match policy {
        BranchPolicy::Keep => return Ok(BranchFate::Kept("as requested".to_owned())),
        _ if is_reachable(repository, &tip, Some(branch))? => {}
        _ => return Ok(BranchFate::Kept(format!("its commits up to {tip} are not merged"))),
    }
    delete(repository, &name, &tip)?;
    Ok(BranchFate::Deleted)
}

/// Deletes a branch that is still at this commit. Retries, because git gives up after a second of concurrent
/// deletions.
fn delete(repository: &Repository, name: &str, tip: &str) -> Result<(), Kind> {
    const TRIES: u32 = 4;
    for _ in 1..TRIES {
        match repository.git("update-ref").args(["-d", name, tip]).run() {
            Err(Kind::StaleGitLock { .. }) => {}
            other => return other.map(drop),
        }
    }
    repository.git("update-ref").args(["-d", name, tip]).run().map(drop)
}

/// Removes the lock file that a killed git left on a dead run's branch.
pub(crate) fn clear_stale_lock(repository: &Repository, branch: &str, run: &str) {
    let path = repository.common_dir().join("refs/heads").join(format!("{branch}.lock"));
    if fs::remove_file(&path).is_ok() {
        tracing::warn!(run, path = %path.display(), "removed a lock file that a killed git left behind");
    }
}

impl Repository {
    /// Returns whether a branch was created for a worktree of this run.
    pub fn is_branch_of(&self, branch: &str, run: &str) -> bool {
        creator(self, branch).is_some_and(|(_, created_for)| created_for == run)
    }

    /// Deletes a branch that Sprag created, if no checkout uses it and another ref contains all its commits.
    pub fn delete_merged_branch(&self, branch: &str) -> Result<BranchFate, Error> {
        let delete = || {
            let tip = match self.check_deletable(branch)? {
                Ok(tip) => tip,
                Err(fate) => return Ok(fate),
            };
            delete(self, &format!("refs/heads/{branch}"), &tip)?;
            Ok(BranchFate::Deleted)
        };
        delete().attempt(|| format!("delete the branch {branch} of {}", self.common_dir().display()))
    }

    /// Returns whether [`Repository::delete_merged_branch`] would delete the branch.
    pub fn is_merged_branch(&self, branch: &str) -> Result<bool, Error> {
        let check_deletable = self.check_deletable(branch).map(|found| found.is_ok());
        check_deletable.attempt(|| format!("check the branch {branch} of {}", self.common_dir().display()))
    }

    /// Returns the commit of a branch that may be deleted, or why it is kept.
    fn check_deletable(&self, branch: &str) -> Result<Result<String, BranchFate>, Kind> {
        let Some(tip) = self.read_ref(&format!("refs/heads/{branch}"))? else {
            return Ok(Err(BranchFate::None));
        };
        let kept = if !is_ours(self, branch, None) {
            "it was not made by Sprag".to_owned()
        } else if let Some(checkout) = entry::checkout_of(self, branch)? {
            format!("it is checked out at {}", checkout.path.display())
        } else if !is_reachable(self, &tip, Some(branch))? {
            format!("its commits up to {tip} are not merged")
        } else {
            return Ok(Ok(tip));
        };
        Ok(Err(BranchFate::Kept(kept)))
    }
}
