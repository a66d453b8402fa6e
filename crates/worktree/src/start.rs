//! The start of a run: a checkpoint that a person chose, stored as a ref until a step has started from it.

use crate::{
    checkpoint::Checkpoint,
    error::{Attempt, Error, Kind},
    git::Cancel,
    name::ref_component,
    repository::Repository,
    stale_lock,
    worktrees::Worktree,
};

fn start_ref(run: &str) -> String {
    format!("refs/sprag/start/{}", ref_component(run))
}

impl Repository {
    /// Makes the run's next step start from this checkpoint.
    pub fn set_start(&self, run: &str, from: &Checkpoint) -> Result<(), Error> {
        let stored = self.git("update-ref").args([&start_ref(run), &from.commit]).run().map(|_| ());
        stored.attempt(|| format!("make run {run} start from {}", from.name))
    }

    /// Returns the checkpoint that the run's next step starts from, if one was chosen.
    pub fn start_checkpoint(&self, run: &str) -> Result<Option<Checkpoint>, Error> {
        let name = start_ref(run);
        let found = self.read_ref(&name).attempt(|| format!("find the start of run {run}"))?;
        Ok(found.map(|commit| Checkpoint { name, commit }))
    }

    /// Returns whether a branch of this name exists, packed or not.
    pub fn has_branch(&self, branch: &str) -> bool {
        self.read_ref(&format!("refs/heads/{branch}")).is_ok_and(|found| found.is_some())
    }

    /// Removes the choice.
    pub fn clear_start(&self, run: &str) -> Result<(), Error> {
        let name = start_ref(run);
        let clear = || match self.read_ref(&name)? {
            Some(_) => self.git("update-ref").args(["-d", &name]).run().map(|_| ()),
            None => Ok(()),
        };
        stale_lock::retry(clear).attempt(|| format!("clear the start of run {run}"))
    }
}

impl Worktree {
    /// Restores files and HEAD from a checkpoint of any run, on this worktree's own branch.
    pub fn start_from(&mut self, state: &Checkpoint, cancel: &Cancel) -> Result<(), Error> {
        self.restore(state, cancel)?;
        let attempt = format!("start {} from {}", self.path().display(), state.name);
        let point = || -> Result<(), Kind> {
            let branch = self.mark.branch.clone();
            match (branch, self.head()?) {
                (Some(branch), Some(head)) => self.point_head(Some(&branch), &head),
                _ => Ok(()),
            }
        };
        point().attempt(|| attempt)
    }

    /// Commits all changes that git does not ignore. Returns false if there are none.
    pub fn commit_all(&mut self, message: &str, cancel: &Cancel) -> Result<bool, Error> {
        let attempt = format!("commit the changes in {}", self.path().display());
        let commit = || {
            self.settle_landing()?;
            self.long(self.add_all()?, cancel).run()?;
            if self.git("diff").args(["--cached", "--quiet"]).output()?.status.success() {
                return Ok(false);
            }
            let git = self.with_identity(self.git("commit"))?;
            self.long(git.args(["--quiet", "--no-verify", "--message", message]), cancel).run()?;
            Ok(true)
        };
        commit().attempt(|| attempt)
    }
}
