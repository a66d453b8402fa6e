//! Nothing is lost: what a worktree holds and no ref leads to is saved under `refs/sprag/salvage/RUN`.

use crate::{
    branch::BranchPolicy,
    entry,
    error::Kind,
    git::Cancel,
    mark::{Mark, State},
    name::ref_component,
    repository::Repository,
    snapshot,
};

/// For `rev-list`, after the commit it is asked about: refs follow that may hold it. Git gives up with "bad object" at a
/// ref that somebody deletes while it looks; such a ref holds nothing. It must still give up if the commit is missing,
/// so this comes after it.
pub(crate) const NOT_IN_REFS: [&str; 2] = ["--not", "--ignore-missing"];
/// Several worktrees of one run may leave something.
const MOST_OF_A_RUN: u32 = 1000;

/// What was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// The ref that holds it.
    pub name: String,
    /// The commit.
    pub commit: String,
    /// Whether it holds files that were not committed.
    pub was_dirty: bool,
}

/// Saves what would be lost with the worktree, and with its branch.
pub(crate) fn salvage(
    repository: &Repository,
    mark: &Mark,
    policy: BranchPolicy,
    cancel: &Cancel,
    timeout: std::time::Duration,
) -> Result<Option<Salvaged>, Kind> {
    // A branch that stays holds its commits itself.
    let leaving = mark.branch.as_deref().filter(|_| policy == BranchPolicy::Delete);
    // Nobody has worked in one that was never finished, nor in one that was cleaned.
    if matches!(mark.state, State::Making | State::Pooled) || !mark.path.is_dir() {
        return salvage_branch(repository, mark, leaving);
    }
    let entry = repository.entries_dir().join(&mark.id);
    entry::repair(&entry, mark)?;
    let found = snapshot::take(repository, mark, cancel, timeout)?;
    if found.is_dirty() {
        refuse_nested(repository, mark, &found)?;
        let message = format!("sprag: what run {} had not committed\n", mark.run);
        let parents: Vec<&str> = found.head.as_deref().into_iter().collect();
        let commit = snapshot::commit(repository, &found.tree, &parents, &message)?;
        return save(repository, mark, &commit, true).map(Some);
    }
    match found.head {
        Some(head) if head != mark.base && !is_reachable(repository, &head, leaving)? => {
            save(repository, mark, &head, false).map(Some)
        }
        _ => Ok(None),
    }
}

/// Git records a repository inside of another by its commit alone: its files would be lost.
fn refuse_nested(repository: &Repository, mark: &Mark, found: &snapshot::Snapshot) -> Result<(), Kind> {
    let Some(head) = &found.head else { return Ok(()) };
    let added = ["-r", "-z", "--no-renames", "--diff-filter=A", head, &found.tree];
    let fields = repository.git("diff-tree").args(added).run()?.fields();
    // By turns: `:000000 160000 0… 1… A`, and the path.
    let nested = fields.chunks_exact(2).find(|pair| pair[0].split(' ').nth(1) == Some("160000"));
    match nested {
        Some(pair) => Err(Kind::NestedRepository { path: mark.path.join(&pair[1]) }),
        None => Ok(()),
    }
}

/// The files are gone; commits may still be there.
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

/// Whether a commit is part of some branch, tag, remote branch or salvage other than the given branch.
pub(crate) fn is_reachable(
    repository: &Repository,
    commit: &str,
    except: Option<&str>,
) -> Result<bool, Kind> {
    let mut git = repository.git("rev-list").args(["--max-count=1", commit]).args(NOT_IN_REFS);
    if let Some(branch) = except {
        git = git.arg(format!("--exclude=refs/heads/{}", escape_glob(branch)));
    }
    // An exclusion holds for the next option only.
    let all = git.args(["--glob=refs/heads/*", "--tags", "--remotes", "--glob=refs/sprag/salvage/*"]);
    Ok(all.line()?.is_empty())
}

fn escape_glob(text: &str) -> String {
    text.chars()
        .flat_map(|c| matches!(c, '*' | '?' | '[' | '\\').then_some('\\').into_iter().chain([c]))
        .collect()
}

fn save(repository: &Repository, mark: &Mark, commit: &str, was_dirty: bool) -> Result<Salvaged, Kind> {
    let run = ref_component(&mark.run);
    for number in 1..=MOST_OF_A_RUN {
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
    Err(Kind::BranchExists { branch: format!("refs/sprag/salvage/{run}-{MOST_OF_A_RUN}") })
}
