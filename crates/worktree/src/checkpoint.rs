//! Checkpoints: the state of a worktree after a step, as a commit under `refs/sprag/runs/RUN/STEP`, and its
//! restoration.

use std::{fs, path::Path, time::Duration};

use crate::{
    clock,
    entry::write_head,
    error::{Attempt, Error, Kind},
    git::{Cancel, Git},
    mark::Mark,
    modules,
    name::ref_component,
    prune::{StagedObjects, Written, write_despite_prunes},
    repository::Repository,
    snapshot,
    worktrees::{Worktree, git_in},
};

/// The line of a checkpoint's message with the branch.
const BRANCH_LINE: &str = "Sprag-Branch: ";
/// The line with the step's name.
const STEP_LINE: &str = "Sprag-Step: ";
/// The line with the time of recording, in milliseconds of the wall clock.
const TIME_LINE: &str = "Sprag-Recorded: ";

/// A recorded state of a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The full name of its ref.
    pub name: String,
    /// The commit with the state; its parent is the HEAD of that time.
    pub commit: String,
}

impl Worktree {
    /// Records the current state: tracked and untracked files, not ignored ones. Branch, index and stash do not
    /// change. Recording a step again replaces its checkpoint.
    pub fn checkpoint(&self, run: &str, step: &str, cancel: &Cancel) -> Result<Checkpoint, Error> {
        record(&self.repository, &self.mark, self.timeout, run, step, cancel)
    }

    /// Restores all files that git does not ignore, HEAD and the branch from a checkpoint. The index is not
    /// restored.
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
            // Add everything to the index, so that read-tree removes the files that the checkpoint lacks.
            self.long(self.git("add").args(["--all", "--sparse", "--", "."]), cancel).run()?;
            self.long(self.git("read-tree").args(["--reset", "-u", commit]), cancel).run()?;
            // Now, while the index contains the submodules' commits of the checkpoint.
            modules::restore(&self.repository, &self.mark, cancel, self.timeout)?;
            self.point_head(branch.strip_prefix("refs/heads/"), head)?;
            let index = self.git("read-tree");
            if head.is_empty() { index.arg("--empty") } else { index.arg(head) }.run()?;
            // The command fails if files differ from HEAD, which is expected.
            self.git("update-index").args(["-q", "--refresh"]).output()?;
            self.forget_landing();
            Ok(())
        };
        restore().attempt(|| attempt)
    }

    /// Sets HEAD to the recorded branch if it is this worktree's, else detached, at the recorded commit.
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

/// Records the current state of a worktree's files. The caller need not own the worktree, because nothing in it
/// changes.
pub(crate) fn record(
    repository: &Repository,
    mark: &Mark,
    timeout: Duration,
    run: &str,
    step: &str,
    cancel: &Cancel,
) -> Result<Checkpoint, Error> {
    let at_ms = clock::unix_ms();
    let name = name_of(run, step);
    let write = |staged: Option<&StagedObjects>| {
        let found = snapshot::take(repository, mark, staged, cancel, timeout)?;
        let branch = git_in(repository, mark, "symbolic-ref").args(["--quiet", "HEAD"]).output()?.line();
        let message = format!(
            "sprag: run {run} after step {step}\n\n{STEP_LINE}{step}\n{TIME_LINE}{at_ms}\n{BRANCH_LINE}{branch}\n"
        );
        let known: Vec<String> = found.head.into_iter().collect();
        let parents: Vec<&str> = known.iter().map(String::as_str).collect();
        let commit = snapshot::commit(repository, &found.tree, &parents, &message, at_ms, staged)?;
        Ok(Written { commit, known })
    };
    let point = |commit: &str| {
        repository.git("update-ref").args([&name, commit]).run()?;
        Ok(Checkpoint { name: name.clone(), commit: commit.to_owned() })
    };
    let record = || write_despite_prunes(repository, write, point);
    record().attempt(|| format!("record {} of run {run} after step {step}", mark.path.display()))
}

impl Repository {
    /// Returns all checkpoints of a run.
    pub fn checkpoints(&self, run: &str) -> Result<Vec<Checkpoint>, Error> {
        self.refs_of(run).attempt(|| format!("list the checkpoints of run {run}"))
    }

    /// Returns the checkpoint of a run after a step.
    pub fn find_checkpoint(&self, run: &str, step: &str) -> Result<Checkpoint, Error> {
        let find = || {
            let name = name_of(run, step);
            match self.read_ref(&name)? {
                Some(commit) => Ok(Checkpoint { name, commit }),
                None => Err(Kind::NoSuchCheckpoint { name }),
            }
        };
        find().attempt(|| format!("find the checkpoint of run {run} after step {step}"))
    }

    /// Returns the time of recording, in milliseconds of the wall clock.
    pub fn recorded_at(&self, state: &Checkpoint) -> Result<u64, Error> {
        let read = || {
            let shown = self.git("show").args(["--no-patch", "--format=%ct%n%B", &state.commit]).line()?;
            let exact = shown.lines().find_map(|line| line.strip_prefix(TIME_LINE)?.parse().ok());
            let seconds = || shown.lines().next().and_then(|line| line.parse::<u64>().ok()).unwrap_or(0);
            Ok(exact.unwrap_or_else(|| seconds() * 1000))
        };
        read().attempt(|| format!("read the time of {}", state.name))
    }

    /// Pushes checkpoints to a remote, for repositories on other hosts.
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
        sent.attempt(|| format!("push checkpoints to {remote}"))
    }

    /// Fetches the checkpoints of a run from a remote.
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

    /// Returns git in the folder that a relative path of a remote refers to.
    fn at_main(&self, command: &'static str) -> Git<'_> {
        self.git_at(self.main_checkout().unwrap_or(self.common_dir()), command)
    }

    /// Returns the differences between two revisions, as a patch of at most `most` bytes. A longer one is an error.
    pub fn diff(&self, from: &str, to: &str, most: usize) -> Result<String, Error> {
        let diff = || {
            let (from, to) = (self.commit(from)?, self.commit(to)?);
            let args = [
                "--no-color",
                "--no-ext-diff",
                "--no-textconv",
                "--binary",
                "--find-renames",
                &from,
                &to,
                "--",
            ];
            let output = self.git("diff").args(args).at_most(most).run()?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        diff().attempt(|| format!("compare {from} and {to}"))
    }

    /// Deletes all checkpoints of a run, and returns their number.
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

/// Returns the ref of a run's checkpoint after a step.
pub(crate) fn name_of(run: &str, step: &str) -> String {
    format!("{}{}", runs_prefix(run), ref_component(step))
}

fn runs_prefix(run: &str) -> String {
    format!("refs/sprag/runs/{}/", ref_component(run))
}

/// Removes the state of an unfinished rebase, merge or cherry-pick.
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
