//! Branches that we make, and when they may go: never with commits that nothing else holds.

use std::fs;

use crate::{
    entry,
    error::{Attempt, Error, Kind},
    loose,
    mark::Mark,
    repository::Repository,
    salvage::is_reachable,
};

/// The first line of the reflog of a branch that we made ends with this, the worktree's id, and the run.
const MADE_FOR: &str = "sprag: made for ";
/// What is between the id and the run.
const OF_RUN: &str = " of run ";

/// What becomes of a worktree's branch when the worktree goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BranchPolicy {
    /// It stays.
    Keep,
    /// It goes if we made it and something else holds all of its commits.
    #[default]
    DeleteIfMerged,
    /// It goes if we made it; what nothing else holds is saved first.
    Delete,
}

/// What became of a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchFate {
    /// There was none.
    None,
    /// It is gone.
    Deleted,
    /// It is still there, and why.
    Kept(String),
}

/// Makes a branch, in a way that shows later who made it.
pub(crate) fn make(repository: &Repository, branch: &str, mark: &Mark) -> Result<(), Kind> {
    let name = format!("refs/heads/{branch}");
    let message = format!("{MADE_FOR}{}{OF_RUN}{}", mark.id, mark.run);
    if loose::make(repository, branch, &mark.base, &message) {
        return Ok(());
    }
    let args = ["-m", &message, "--create-reflog", &name, &mark.base, repository.null_oid()];
    let output = repository.git("update-ref").args(args).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = &output.stderr;
    if said.contains("reference already exists") {
        return Err(Kind::BranchExists { branch: branch.to_owned() });
    }
    // "'refs/heads/feature' exists; cannot create 'refs/heads/feature/x'"
    if said.contains("exists; cannot create")
        && let Some(existing) = said
            .split('\'')
            .find_map(|part| part.strip_prefix("refs/heads/").filter(|&existing| existing != branch))
    {
        return Err(Kind::BranchConflict { branch: branch.to_owned(), existing: existing.to_owned() });
    }
    Err(output.failure())
}

/// Whether we made the branch: for one worktree, or for any. Whoever makes it anew begins a new reflog.
pub(crate) fn made_by_us(repository: &Repository, branch: &str, id: Option<&str>) -> bool {
    match (maker(repository, branch), id) {
        (Some((made_for, _)), Some(id)) => made_for == id,
        (found, _) => found.is_some(),
    }
}

/// The worktree and the run for which we made a branch.
fn maker(repository: &Repository, branch: &str) -> Option<(String, String)> {
    let log = repository.common_dir().join("logs/refs/heads").join(branch);
    let text = fs::read_to_string(log).ok()?;
    let (_, told) = text.lines().next()?.split_once(MADE_FOR)?;
    let (id, run) = told.split_once(OF_RUN).unwrap_or((told, ""));
    Some((id.to_owned(), run.to_owned()))
}

/// Deletes a worktree's branch if its policy and its commits allow it. Call it after salvaging.
pub(crate) fn release(
    repository: &Repository,
    branch: Option<&str>,
    id: &str,
    policy: BranchPolicy,
) -> Result<BranchFate, Kind> {
    let Some(branch) = branch else { return Ok(BranchFate::None) };
    let name = format!("refs/heads/{branch}");
    let Some(tip) = repository.read_ref(&name)? else { return Ok(BranchFate::None) };
    if !made_by_us(repository, branch, Some(id)) {
        return Ok(BranchFate::Kept("it was there before".to_owned()));
    }
    match policy {
        BranchPolicy::Keep => return Ok(BranchFate::Kept("as asked".to_owned())),
        _ if is_reachable(repository, &tip, Some(branch))? => {}
        _ => return Ok(BranchFate::Kept(format!("its commits up to {tip} are not merged"))),
    }
    delete(repository, &name, &tip)?;
    Ok(BranchFate::Deleted)
}

/// Deletes a branch that is still at this commit. Git gives up after a second if others delete theirs all the while.
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
    /// Whether a branch was made for a worktree of this run.
    pub fn is_branch_of(&self, branch: &str, run: &str) -> bool {
        maker(self, branch).is_some_and(|(_, made_for)| made_for == run)
    }

    /// Deletes a branch that we made, if no checkout uses it and something else holds all of its commits.
    pub fn delete_merged_branch(&self, branch: &str) -> Result<BranchFate, Error> {
        let delete = || {
            let tip = match self.may_go(branch)? {
                Ok(tip) => tip,
                Err(fate) => return Ok(fate),
            };
            delete(self, &format!("refs/heads/{branch}"), &tip)?;
            Ok(BranchFate::Deleted)
        };
        delete().attempt(|| format!("delete the branch {branch} of {}", self.common_dir().display()))
    }

    /// Whether [`Repository::delete_merged_branch`] would delete it.
    pub fn is_merged_branch(&self, branch: &str) -> Result<bool, Error> {
        let may_go = self.may_go(branch).map(|found| found.is_ok());
        may_go.attempt(|| format!("look at the branch {branch} of {}", self.common_dir().display()))
    }

    /// The commit of a branch that nobody needs any more, or what keeps it.
    fn may_go(&self, branch: &str) -> Result<Result<String, BranchFate>, Kind> {
        let Some(tip) = self.read_ref(&format!("refs/heads/{branch}"))? else {
            return Ok(Err(BranchFate::None));
        };
        let kept = if !made_by_us(self, branch, None) {
            "it was not made by Sprag".to_owned()
        } else if let Some(checkout) = entry::holder_of(self, branch)? {
            format!("it is checked out at {}", checkout.path.display())
        } else if !is_reachable(self, &tip, Some(branch))? {
            format!("its commits up to {tip} are not merged")
        } else {
            return Ok(Ok(tip));
        };
        Ok(Err(BranchFate::Kept(kept)))
    }
}
