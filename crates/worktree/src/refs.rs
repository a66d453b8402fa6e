//! The refs of runs in a repository: checkpoints, chosen starts, fences and saved work. All are under
//! `refs/sprag/` and stay until they are deleted explicitly.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{
    error::{Attempt, Error, Kind},
    modules::{in_git_dir, shared_git_dirs},
    repository::{Repository, update_refs_in},
    salvage::NOT_IN_REFS,
};

/// The purpose of a run's ref.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefPurpose {
    /// The state before or after a step.
    Checkpoint,
    /// The chosen start of a run.
    Start,
    /// The fence that decides which attempt may land.
    Fence,
    /// The uncommitted work of a removed worktree.
    Salvage,
}

/// A ref of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRef {
    /// The full name of the ref.
    pub name: String,
    /// The object that it points at.
    pub object: String,
    /// The run's id: the name up to the first `-`.
    pub run: String,
    /// The purpose of the ref.
    pub purpose: RefPurpose,
    /// The git directory with the ref: that of the repository or of one of its submodules.
    pub git_dir: PathBuf,
}

impl Repository {
    /// Returns all refs of runs, sorted by name.
    pub fn run_refs(&self) -> Result<Vec<RunRef>, Error> {
        let list = || {
            let format = "--format=%(objectname) %(refname)";
            let mut found = Vec::new();
            for git_dir in [self.common_dir().to_owned()].into_iter().chain(shared_git_dirs(self)) {
                let listed = in_git_dir(&git_dir, "for-each-ref").args([format, "refs/sprag/"]).run()?.line();
                found.extend(listed.lines().filter_map(|line| parse(line, &git_dir)));
            }
            Ok(found)
        };
        list().attempt(|| format!("list the refs of runs in {}", self.common_dir().display()))
    }

    /// Deletes refs that have not changed, all or none per git directory.
    pub fn delete_run_refs(&self, refs: &[RunRef]) -> Result<(), Error> {
        let delete = || {
            let git_dirs: BTreeSet<&Path> = refs.iter().map(|kept| &*kept.git_dir).collect();
            for git_dir in git_dirs {
                let here = refs.iter().filter(|kept| kept.git_dir == git_dir);
                let lines = here.map(|kept| format!("delete {} {}\n", kept.name, kept.object));
                update_refs_in(git_dir, "sprag: not needed any more", &lines.collect::<String>())?;
            }
            Ok(())
        };
        delete().attempt(|| format!("delete {} refs in {}", refs.len(), self.common_dir().display()))
    }

    /// Returns whether a branch, a tag or a remote branch contains all the saved work.
    pub fn is_merged_salvage(&self, saved: &RunRef) -> Result<bool, Error> {
        let look = || -> Result<bool, Kind> {
            let git = in_git_dir(&saved.git_dir, "rev-list").args(["--max-count=1", &saved.object]);
            let git = git.args(NOT_IN_REFS);
            Ok(git.args(["--branches", "--tags", "--remotes"]).line()?.is_empty())
        };
        look().attempt(|| format!("search the branches for {}", saved.name))
    }
}

fn parse(line: &str, git_dir: &Path) -> Option<RunRef> {
    let (object, name) = line.split_once(' ')?;
    let (kind, rest) = name.strip_prefix("refs/sprag/")?.split_once('/')?;
    let purpose = match kind {
        "runs" => RefPurpose::Checkpoint,
        "start" => RefPurpose::Start,
        "fence" => RefPurpose::Fence,
        "salvage" => RefPurpose::Salvage,
        _ => return None,
    };
    let run = rest.split(['/', '-']).next()?.to_owned();
    let git_dir = git_dir.to_owned();
    Some(RunRef { name: name.to_owned(), object: object.to_owned(), run, purpose, git_dir })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_name_contains_the_run_and_the_purpose() {
        for (name, purpose) in [
            ("refs/sprag/runs/k3x9/_build", RefPurpose::Checkpoint),
            ("refs/sprag/start/k3x9", RefPurpose::Start),
            ("refs/sprag/fence/k3x9-s2", RefPurpose::Fence),
            ("refs/sprag/salvage/k3x9", RefPurpose::Salvage),
            ("refs/sprag/salvage/k3x9-2", RefPurpose::Salvage),
        ] {
            let found = parse(&format!("0123 {name}"), Path::new("/x")).expect("it is one of ours");
            assert_eq!((found.run.as_str(), found.purpose), ("k3x9", purpose), "{name}");
        }
        assert_eq!(parse("0123 refs/sprag/other/k3x9", Path::new("/x")), None);
    }
}
