//! Saves work before a worktree is removed: what no ref contains goes to `refs/sprag/salvage/RUN`, and the work
//! in submodules to separate refs.

use std::{cell::Cell, path::Path};

use crate::{
    branch::BranchPolicy,
    clock, entry,
    error::Kind,
    git::Cancel,
    mark::{Mark, State},
    modules::{self, SavedModule},
    name::ref_component,
    prune::{StagedObjects, Written, misses_object, write_despite_prunes},
    repository::Repository,
    snapshot,
};

/// Arguments of `rev-list` between the commit and the refs that may contain it. Git fails with "bad object" at
/// a ref that is deleted meanwhile, so missing refs are ignored. It must still fail if the commit itself is
/// missing, so the arguments follow the commit.
pub(crate) const NOT_IN_REFS: [&str; 2] = ["--not", "--ignore-missing"];
/// The most salvage refs of one run; each of its worktrees may need one.
const MAX_REFS_PER_RUN: u32 = 1000;

/// The saved work of a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// The ref with the work.
    pub name: String,
    /// The saved commit.
    pub commit: String,
    /// Whether it contains uncommitted files.
    pub was_dirty: bool,
}

/// Everything that was saved of a worktree.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    pub(crate) work: Option<Salvaged>,
    pub(crate) modules: Vec<SavedModule>,
}

/// Saves the work that would be lost with the worktree and with its branch.
pub(crate) fn salvage(
    repository: &Repository,
    mark: &Mark,
    policy: BranchPolicy,
    cancel: &Cancel,
    timeout: std::time::Duration,
) -> Result<Saved, Kind> {
    // A branch that is kept contains its commits itself.
    let leaving = mark.branch.as_deref().filter(|_| policy == BranchPolicy::Delete);
    // No process has worked in one that is unfinished or pooled.
    if matches!(mark.state, State::Making | State::Pooled) || !mark.path.is_dir() {
        return Ok(Saved { work: salvage_branch(repository, mark, leaving)?, modules: Vec::new() });
    }
    let entry = repository.entries_dir().join(&mark.id);
    entry::repair(&entry, mark)?;
    // Submodules first, so that no salvage ref names a submodule's commit that does not exist.
    let modules = modules::salvage(repository, mark, cancel, timeout)?;
    let found = match snapshot::take(repository, mark, None, cancel, timeout) {
        // The files contain something that no commit has; it is written again below.
        Err(kind) if misses_object(&kind) => None,
        other => Some(other?),
    };
    let found = match found {
        Some(found) if !found.is_dirty() => found,
        dirty => {
            let work = save_uncommitted(repository, mark, dirty, cancel, timeout)?;
            return Ok(Saved { work: Some(work), modules });
        }
    };
    let work = match found.head {
        Some(head) if head != mark.base && !is_reachable(repository, &head, leaving)? => {
            Some(save(repository, mark, &head, false)?)
        }
        _ => None,
    };
    Ok(Saved { work, modules })
}

/// Saves the files of a worktree as a commit on top of its HEAD. `found` is an earlier snapshot, if it
/// succeeded.
fn save_uncommitted(
    repository: &Repository,
    mark: &Mark,
    found: Option<snapshot::Snapshot>,
    cancel: &Cancel,
    timeout: std::time::Duration,
) -> Result<Salvaged, Kind> {
    let (at_ms, message) = (clock::unix_ms(), format!("sprag: what run {} had not committed\n", mark.run));
    let found = Cell::new(found);
    let write = |staged: Option<&StagedObjects>| {
        let found = match found.take() {
            Some(found) => found,
            None => snapshot::take(repository, mark, staged, cancel, timeout)?,
        };
        refuse_nested(repository, mark, &found, staged)?;
        let known: Vec<String> = found.head.into_iter().collect();
        let parents: Vec<&str> = known.iter().map(String::as_str).collect();
        let commit = snapshot::commit(repository, &found.tree, &parents, &message, at_ms, staged)?;
        Ok(Written { commit, known })
    };
    write_despite_prunes(repository, write, |commit| save(repository, mark, commit, true))
}

/// Fails for a repository inside the worktree that is not in the index. Git records only its commit, so its
/// files would be lost. Those in the index have been saved; the others need a person's decision.
fn refuse_nested(
    repository: &Repository,
    mark: &Mark,
    found: &snapshot::Snapshot,
    staged: Option<&StagedObjects>,
) -> Result<(), Kind> {
    let Some(head) = &found.head else { return Ok(()) };
    let known = modules::known_to(repository, mark)?;
    let mut added = snapshot::added_repositories(repository, head, &found.tree, staged)?.into_iter();
    match added.find(|path| !known.iter().any(|known| known == Path::new(path))) {
        Some(path) => Err(Kind::NestedRepository { path: mark.path.join(path) }),
        None => Ok(()),
    }
}

/// Saves the commits of the branch when the files are gone.
fn salvage_branch(
    repository: &Repository,
    mark: &Mark,
    leaving: Option<&str>,
) -> Result<Option<Salvaged>, Kind> {
    let Some(branch) = leaving else { return Ok(None) };
    match repository.read_ref(&format!("refs/heads/{branch}"))? {
        Some(tip) if tip != mark.base && !is_reachable(repository, &tip, Some(branch))? => {
            save(repository, mark, &tip, false).map(Some)
        }
        _ => Ok(None),
    }
}

/// Returns whether a branch other than `except`, a tag, a remote branch or a salvage ref contains the commit.
pub(crate) fn is_reachable(
    repository: &Repository,
    commit: &str,
    except: Option<&str>,
) -> Result<bool, Kind> {
    let mut git = repository.git("rev-list").args(["--max-count=1", commit]).args(NOT_IN_REFS);
    if let Some(branch) = except {
        git = git.arg(format!("--exclude=refs/heads/{}", escape_glob(branch)));
    }
    // An exclusion applies to the next option only.
    let all = git.args(["--glob=refs/heads/*", "--tags", "--remotes", "--glob=refs/sprag/salvage/*"]);
    Ok(all.line()?.is_empty())
}

fn escape_glob(text: &str) -> String {
    text.chars()
        .flat_map(|c| matches!(c, '*' | '?' | '[' | '\\').then_some('\\').into_iter().chain([c]))
        .collect()
}

/// Creates the next free salvage ref of the worktree's run.
pub(crate) fn save(
    repository: &Repository,
    mark: &Mark,
    commit: &str,
    was_dirty: bool,
) -> Result<Salvaged, Kind> {
    let run = ref_component(&mark.run);
    for number in 1..=MAX_REFS_PER_RUN {
        let name = match number {
            1 => format!("refs/sprag/salvage/{run}"),
            _ => format!("refs/sprag/salvage/{run}-{number}"),
        };
        let create = repository.git("update-ref").args([&name, commit, repository.null_oid()]).output()?;
        if create.status.success() || repository.read_ref(&name)?.as_deref() == Some(commit) {
            tracing::info!(run = mark.run, path = %mark.path.display(), salvage = name, "work saved");
            return Ok(Salvaged { name, commit: commit.to_owned(), was_dirty });
        }
        if repository.read_ref(&name)?.is_none() {
            return Err(create.failure());
        }
    }
    Err(Kind::BranchExists { branch: format!("refs/sprag/salvage/{run}-{MAX_REFS_PER_RUN}") })
}
