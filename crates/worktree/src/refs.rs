//! What is kept in a repository for runs: recorded states, chosen starts, fences, saved work. All are refs under
//! `refs/sprag/`, and all stay until somebody deletes them.

use crate::{
    error::{Attempt, Error, Kind},
    repository::Repository,
    salvage::NOT_IN_REFS,
};

/// What a ref of ours is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keeps {
    /// The state before or after a step.
    Checkpoint,
    /// Where a run is to begin.
    Start,
    /// Who may land.
    Fence,
    /// Work that was not committed when its worktree went.
    Salvage,
}

/// A ref that is kept for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRef {
    /// Its name.
    pub name: String,
    /// What it points at.
    pub object: String,
    /// The run, as far as the name tells: up to the first `-`.
    pub run: String,
    /// What it is for.
    pub keeps: Keeps,
}

impl Repository {
    /// All refs that are kept for runs, in the order of their names.
    pub fn run_refs(&self) -> Result<Vec<RunRef>, Error> {
        let list = || {
            let format = "--format=%(objectname) %(refname)";
            let listed = self.git("for-each-ref").args([format, "refs/sprag/"]).run()?.line();
            Ok(listed.lines().filter_map(parse).collect())
        };
        list().attempt(|| format!("list what is kept for runs in {}", self.common_dir().display()))
    }

    /// Deletes refs that are still what they were, all or none.
    pub fn delete_run_refs(&self, refs: &[RunRef]) -> Result<(), Error> {
        let delete = || {
            let lines = refs.iter().map(|kept| format!("delete {} {}\n", kept.name, kept.object));
            match refs.is_empty() {
                true => Ok(()),
                false => self.update_refs("sprag: not needed any more", &lines.collect::<String>()),
            }
        };
        delete().attempt(|| format!("delete {} refs in {}", refs.len(), self.common_dir().display()))
    }

    /// Whether a branch, a tag or a remote branch holds all of what was saved.
    pub fn is_merged_salvage(&self, saved: &RunRef) -> Result<bool, Error> {
        let look = || -> Result<bool, Kind> {
            let git = self.git("rev-list").args(["--max-count=1", &saved.object]).args(NOT_IN_REFS);
            Ok(git.args(["--branches", "--tags", "--remotes"]).line()?.is_empty())
        };
        look().attempt(|| format!("look for {} in the branches", saved.name))
    }
}

fn parse(line: &str) -> Option<RunRef> {
    let (object, name) = line.split_once(' ')?;
    let (kind, rest) = name.strip_prefix("refs/sprag/")?.split_once('/')?;
    let keeps = match kind {
        "runs" => Keeps::Checkpoint,
        "start" => Keeps::Start,
        "fence" => Keeps::Fence,
        "salvage" => Keeps::Salvage,
        _ => return None,
    };
    let run = rest.split(['/', '-']).next()?.to_owned();
    Some(RunRef { name: name.to_owned(), object: object.to_owned(), run, keeps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_run_and_what_is_kept() {
        for (name, keeps) in [
            ("refs/sprag/runs/k3x9/_build", Keeps::Checkpoint),
            ("refs/sprag/start/k3x9", Keeps::Start),
            ("refs/sprag/fence/k3x9-s2", Keeps::Fence),
            ("refs/sprag/salvage/k3x9", Keeps::Salvage),
            ("refs/sprag/salvage/k3x9-2", Keeps::Salvage),
        ] {
            let found = parse(&format!("0123 {name}")).expect("it is one of ours");
            assert_eq!((found.run.as_str(), found.keeps), ("k3x9", keeps), "{name}");
        }
        assert_eq!(parse("0123 refs/sprag/other/k3x9"), None);
    }
}
