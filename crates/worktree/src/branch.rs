//! Sprag's branches: their creation, and their deletion without losing commits.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    path::Path,
    time::Duration,
};

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

/// The time after which the lock of a branch without a checkout is a dead git's.
const LOCK_HELD_AT_MOST: Duration = Duration::from_secs(10);

/// The refs that keep the commits of a branch which is deleted.
const HOLDERS: [&str; 4] = ["refs/heads/", "refs/tags/", "refs/remotes/", "refs/sprag/salvage/"];

/// The commits that the main branch does not contain, and their parents.
#[derive(Default)]
struct Outside {
    commits: HashSet<String>,
    parents: HashSet<String>,
}

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
    let deleted = repository.git("update-ref").args(["-d", name, tip]).run().map(drop);
    match deleted {
        Err(Kind::StaleGitLock { path }) if is_abandoned_lock(repository, name, &path) => {
            let run = creator(repository, name.trim_start_matches("refs/heads/")).map(|(_, run)| run);
            tracing::warn!(run, path = %path.display(), "removed a lock file that a killed git left behind");
            fs::remove_file(&path).map_err(Kind::io("remove", &path))?;
            repository.git("update-ref").args(["-d", name, tip]).run().map(drop)
        }
        other => other,
    }
}

/// Returns whether this is the lock of the ref, and too old for a git that still works. No checkout has the branch, so a
/// git that locks it does so for an instant.
fn is_abandoned_lock(repository: &Repository, name: &str, path: &Path) -> bool {
    let age = fs::metadata(path).and_then(|found| found.modified()).map(|at| at.elapsed());
    path == repository.common_dir().join(format!("{name}.lock"))
        && age.is_ok_and(|age| age.is_ok_and(|age| age >= LOCK_HELD_AT_MOST))
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

    /// Returns those branches that [`Repository::delete_merged_branch`] would delete now. A few git processes answer for
    /// any number of branches.
    pub fn merged_branches(&self, branches: BTreeSet<String>) -> Result<BTreeSet<String>, Error> {
        let find = || self.find_merged(branches);
        find().attempt(|| format!("look for merged branches in {}", self.common_dir().display()))
    }

    fn find_merged(&self, branches: BTreeSet<String>) -> Result<BTreeSet<String>, Kind> {
        let ours: Vec<String> = branches.into_iter().filter(|branch| is_ours(self, branch, None)).collect();
        if ours.is_empty() {
            return Ok(BTreeSet::new());
        }
        let listed = self.git("for-each-ref").args(["--format=%(objectname) %(*objectname) %(refname)"]);
        let listed = listed.args(HOLDERS).run()?.line();
        let mut tips: BTreeMap<&str, &str> = BTreeMap::new();
        let mut refs_at: BTreeMap<&str, usize> = BTreeMap::new();
        for line in listed.lines() {
            let mut fields = line.splitn(3, ' ');
            let (Some(object), Some(tagged), Some(name)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let commit = if tagged.is_empty() { object } else { tagged };
            *refs_at.entry(commit).or_default() += 1;
            if let Some(branch) = name.strip_prefix("refs/heads/") {
                tips.insert(branch, commit);
            }
        }
        let main = entry::branch_at(self.common_dir()).filter(|main| tips.contains_key(main.as_str()));
        let outside = self.commits_outside(main.as_deref())?;
        let mut merged = BTreeSet::new();
        for branch in ours.into_iter().filter(|branch| main.as_ref() != Some(branch)) {
            let Some(&tip) = tips.get(branch.as_str()) else { continue };
            let is_in_main = main.is_some() && !outside.commits.contains(tip);
            let is_held = is_in_main || outside.parents.contains(tip) || refs_at[tip] > 1;
            if is_held && entry::checkout_of(self, &branch)?.is_none() {
                merged.insert(branch);
            }
        }
        Ok(merged)
    }

    /// Returns the commits of all refs that the main branch does not contain.
    fn commits_outside(&self, main: Option<&str>) -> Result<Outside, Kind> {
        let globs = HOLDERS.map(|holder| format!("--glob={holder}*"));
        let mut git = self.git("rev-list").args(["--parents", "--ignore-missing"]).args(&globs);
        if let Some(main) = main {
            git = git.args(["--not", &format!("refs/heads/{main}")]);
        }
        let mut outside = Outside::default();
        for line in git.run()?.line().lines() {
            let mut commits = line.split(' ').map(str::to_owned);
            outside.commits.extend(commits.next());
            outside.parents.extend(commits);
        }
        Ok(outside)
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
