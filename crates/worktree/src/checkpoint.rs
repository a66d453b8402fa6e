//! The state of a worktree after a step, as a commit under `refs/sprag/runs/RUN/STEP`, and the way back to it.

use std::{fs, path::Path, time::Duration};

use crate::{
    entry::write_head,
    error::{Attempt, Error, Kind},
    git::{Cancel, Git},
    mark::Mark,
    name::ref_component,
    repository::Repository,
    snapshot,
    worktrees::{Worktree, git_in},
};

/// The line of a checkpoint's message that names the branch.
const BRANCH_LINE: &str = "Sprag-Branch: ";
/// The line that names the step as it is called.
const STEP_LINE: &str = "Sprag-Step: ";

/// A state that was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its ref.
    pub name: String,
    /// The commit that holds it; its parent is what HEAD was.
    pub commit: String,
}

impl Worktree {
    /// Records the present state: tracked and untracked files, not ignored ones. Branch, index and stash stay as
    /// they are. Recording the same step again replaces what was recorded.
    pub fn checkpoint(&self, run: &str, step: &str, cancel: &Cancel) -> Result<Checkpoint, Error> {
        record(&self.repository, &self.mark, self.timeout, run, step, cancel)
    }

    /// Brings all files that git does not ignore, HEAD and branch back to a recorded state. What was staged is not.
    pub fn restore(&mut self, checkpoint: &Checkpoint, cancel: &Cancel) -> Result<(), Error> {
        let attempt = format!("restore {} to {}", self.path().display(), checkpoint.name);
        let restore = || {
            let commit = &checkpoint.commit;
            let shown =
                self.repository.git("show").args(["--no-patch", "--format=%P%n%B", commit]).output()?;
            if !shown.status.success() {
                return Err(Kind::NoSuchCheckpoint { name: checkpoint.name.clone() });
            }
            let shown = shown.line();
            let (head, message) = shown.split_once('\n').unwrap_or((&shown, ""));
            let branch =
                message.lines().rev().find_map(|line| line.strip_prefix(BRANCH_LINE)).unwrap_or_default();
            let entry = self.entry();
            for lock in ["index.lock", "HEAD.lock"] {
                let _ = fs::remove_file(entry.join(lock));
            }
            forget_unfinished(&entry);
            // All that is there becomes known, so that what the state does not hold is removed.
            self.long(self.git("add").args(["--all", "--sparse", "--", "."]), cancel).run()?;
            self.long(self.git("read-tree").args(["--reset", "-u", commit]), cancel).run()?;
            self.point_head(branch.strip_prefix("refs/heads/"), head)?;
            match head.is_empty() {
                true => self.git("read-tree").arg("--empty").run()?,
                false => self.git("read-tree").arg(head).run()?,
            };
            // It only says that files differ from HEAD, which may well be.
            self.git("update-index").args(["-q", "--refresh"]).output()?;
            Ok(())
        };
        restore().attempt(|| attempt)
    }

    /// HEAD onto the recorded branch if it is this worktree's, else detached; and there to the recorded commit.
    pub(crate) fn point_head(&self, branch: Option<&str>, commit: &str) -> Result<(), Kind> {
        let ours = branch.filter(|&branch| self.mark.branch.as_deref() == Some(branch));
        match (ours, commit.is_empty()) {
            (Some(branch), true) => write_head(&self.entry(), Some(branch), commit),
            (Some(branch), false) => {
                write_head(&self.entry(), Some(branch), commit)?;
                let message = "sprag: back to a checkpoint";
                self.git("update-ref").args(["-m", message, "HEAD", commit]).run().map(|_| ())
            }
            (None, false) => write_head(&self.entry(), None, commit),
            (None, true) => Ok(()),
        }
    }
}

/// Records the present state of a worktree's files. It needs no ownership: nothing of the worktree is changed.
pub(crate) fn record(
    repository: &Repository,
    mark: &Mark,
    timeout: Duration,
    run: &str,
    step: &str,
    cancel: &Cancel,
) -> Result<Checkpoint, Error> {
    let record = || {
        let found = snapshot::take(repository, mark, cancel, timeout)?;
        let branch = git_in(repository, mark, "symbolic-ref").args(["--quiet", "HEAD"]).output()?.line();
        let message =
            format!("sprag: run {run} after step {step}\n\n{STEP_LINE}{step}\n{BRANCH_LINE}{branch}\n");
        let parents: Vec<&str> = found.head.as_deref().into_iter().collect();
        let commit = snapshot::commit(repository, &found.tree, &parents, &message)?;
        let name = format!("{}{}", runs_prefix(run), ref_component(step));
        repository.git("update-ref").args([&name, &commit]).run()?;
        Ok(Checkpoint { name, commit })
    };
    record().attempt(|| format!("record {} of run {run} after step {step}", mark.path.display()))
}

impl Repository {
    /// All recorded states of a run.
    pub fn checkpoints(&self, run: &str) -> Result<Vec<Checkpoint>, Error> {
        self.refs_of(run).attempt(|| format!("list the checkpoints of run {run}"))
    }

    /// The recorded state of a run after a step.
    pub fn find_checkpoint(&self, run: &str, step: &str) -> Result<Checkpoint, Error> {
        let find = || {
            let name = format!("{}{}", runs_prefix(run), ref_component(step));
            match self.read_ref(&name)? {
                Some(commit) => Ok(Checkpoint { name, commit }),
                None => Err(Kind::NoSuchCheckpoint { name }),
            }
        };
        find().attempt(|| format!("find the checkpoint of run {run} after step {step}"))
    }

    /// Sends recorded states to a remote, where a repository on another host finds them.
    pub fn send(
        &self,
        remote: &str,
        states: &[Checkpoint],
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let refs = states.iter().map(|state| format!("+{0}:{0}", state.name));
        let push = self.at_main("push").args(["--quiet", "--no-verify", "--end-of-options", remote]);
        let sent = push.args(refs).long(timeout, cancel).run().map(|_| ());
        sent.attempt(|| format!("send what was recorded to {remote}"))
    }

    /// Fetches the recorded states of a run from a remote.
    pub fn fetch_checkpoints(
        &self,
        remote: &str,
        run: &str,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let refs = format!("+{0}*:{0}*", runs_prefix(run));
        let fetch = self.at_main("fetch").args(["--quiet", "--no-tags", "--no-write-fetch-head"]);
        let fetch = fetch.args(["--end-of-options", remote, &refs]);
        let fetched = fetch.long(timeout, cancel).run().map(|_| ());
        fetched.attempt(|| format!("fetch the checkpoints of run {run} from {remote}"))
    }

    /// Git where a remote that is a path is meant from.
    fn at_main(&self, command: &'static str) -> Git<'_> {
        Git::new(self.main_checkout().unwrap_or(self.common_dir()), command)
    }

    /// What changed between two states, as a patch: anything that names a commit.
    pub fn diff(&self, from: &str, to: &str) -> Result<String, Error> {
        let diff = || {
            let (from, to) = (self.commit(from)?, self.commit(to)?);
            let args = ["--no-color", "--no-ext-diff", "--binary", "--find-renames", &from, &to, "--"];
            let output = self.git("diff").args(args).run()?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        diff().attempt(|| format!("compare {from} and {to}"))
    }

    /// Forgets all recorded states of a run; says how many there were.
    pub fn delete_checkpoints(&self, run: &str) -> Result<usize, Error> {
        let delete = || {
            let found = self.refs_of(run)?;
            if !found.is_empty() {
                let lines = found.iter().map(|checkpoint| format!("delete {}\n", checkpoint.name));
                self.update_refs("sprag: checkpoints deleted", &lines.collect::<String>())?;
            }
            Ok(found.len())
        };
        delete().attempt(|| format!("delete the checkpoints of run {run}"))
    }

    fn refs_of(&self, run: &str) -> Result<Vec<Checkpoint>, Kind> {
        let format = "--format=%(refname) %(objectname)";
        let output =
            self.git("for-each-ref").args([format, "--sort=creatordate", &runs_prefix(run)]).line()?;
        let lines = output.lines().filter_map(|line| line.split_once(' '));
        Ok(lines
            .map(|(name, commit)| Checkpoint { name: name.to_owned(), commit: commit.to_owned() })
            .collect())
    }
}

fn runs_prefix(run: &str) -> String {
    format!("refs/sprag/runs/{}/", ref_component(run))
}

/// Whatever a rebase, merge or cherry-pick was in the middle of.
pub(crate) fn forget_unfinished(entry: &Path) {
    for folder in ["rebase-merge", "rebase-apply", "sequencer"] {
        let _ = fs::remove_dir_all(entry.join(folder));
    }
    for file in [
        "MERGE_HEAD",
        "MERGE_MODE",
        "MERGE_MSG",
        "SQUASH_MSG",
        "CHERRY_PICK_HEAD",
        "REVERT_HEAD",
        "AUTO_MERGE",
    ] {
        let _ = fs::remove_file(entry.join(file));
    }
}
