//! Where a run is to begin: a recorded state that a person chose, kept as a ref until somebody has begun there.

use crate::{
    checkpoint::Checkpoint,
    error::{Attempt, Error, Kind},
    git::Cancel,
    name::ref_component,
    repository::Repository,
    worktrees::Worktree,
};

fn start_ref(run: &str) -> String {
    format!("refs/sprag/start/{}", ref_component(run))
}

impl Repository {
    /// Has the run's next step begin with this state.
    pub fn choose_start(&self, run: &str, from: &Checkpoint) -> Result<(), Error> {
        let chosen = self.git("update-ref").args([&start_ref(run), &from.commit]).run().map(|_| ());
        chosen.attempt(|| format!("have run {run} begin with {}", from.name))
    }

    /// The state that the run's next step is to begin with, if one was chosen.
    pub fn chosen_start(&self, run: &str) -> Result<Option<Checkpoint>, Error> {
        let name = start_ref(run);
        let found = self.read_ref(&name).attempt(|| format!("find where run {run} begins"))?;
        Ok(found.map(|commit| Checkpoint { name, commit }))
    }

    /// Whether there is a branch of this name, packed or not.
    pub fn has_branch(&self, branch: &str) -> bool {
        self.read_ref(&format!("refs/heads/{branch}")).is_ok_and(|found| found.is_some())
    }

    /// Forgets the choice.
    pub fn forget_start(&self, run: &str) -> Result<(), Error> {
        let name = start_ref(run);
        let forget = || match self.read_ref(&name)? {
            Some(_) => self.git("update-ref").args(["-d", &name]).run().map(|_| ()),
            None => Ok(()),
        };
        forget().attempt(|| format!("forget where run {run} begins"))
    }
}

impl Worktree {
    /// Brings files and HEAD to a recorded state, on this worktree's own branch, whoever recorded it.
    pub fn begin_with(&mut self, state: &Checkpoint, cancel: &Cancel) -> Result<(), Error> {
        self.restore(state, cancel)?;
        let attempt = format!("begin {} with {}", self.path().display(), state.name);
        let point = || -> Result<(), Kind> {
            let branch = self.mark.branch.clone();
            match (branch, self.head()?) {
                (Some(branch), Some(head)) => self.point_head(Some(&branch), &head),
                _ => Ok(()),
            }
        };
        point().attempt(|| attempt)
    }

    /// Commits all that git does not ignore and that is not committed; says whether there was anything.
    pub fn commit_all(&mut self, message: &str, cancel: &Cancel) -> Result<bool, Error> {
        let attempt = format!("commit what is in {}", self.path().display());
        let commit = || {
            self.long(self.git("add").args(["--all", "--sparse", "--", "."]), cancel).run()?;
            if self.git("diff").args(["--cached", "--quiet"]).output()?.status.success() {
                return Ok(false);
            }
            let git = self.by_somebody(self.git("commit"))?;
            self.long(git.args(["--quiet", "--no-verify", "--message", message]), cancel).run()?;
            Ok(true)
        };
        commit().attempt(|| attempt)
    }
}
