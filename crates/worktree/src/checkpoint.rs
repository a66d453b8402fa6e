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

/// The start of a message in the log of a checkpoint's ref; the attempt's number follows.
const ATTEMPT: &str = "sprag: attempt ";

/// The options of `git diff` whose output does not depend on a user's settings.
const PLAIN_DIFF: [&str; 4] = ["--no-color", "--no-ext-diff", "--no-textconv", "--find-renames"];

/// A file that differs between two revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedFile {
    /// The path in the second revision, or in the first one if the file was deleted.
    pub path: String,
    /// The path in the first revision, if the file was renamed.
    pub old_path: Option<String>,
    /// The numbers of added and removed lines; absent if the file is not text.
    pub lines: Option<(usize, usize)>,
}

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
        record(&self.repository, &self.mark, self.timeout, (run, step, None), cancel)
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
            self.long(self.add_all()?, cancel).run()?;
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

/// Records the current state of a worktree's files, as that of a step of a run and of one attempt at it. The caller need
/// not own the worktree, because nothing in it changes.
pub(crate) fn record(
    repository: &Repository,
    mark: &Mark,
    timeout: Duration,
    (run, step, attempt): (&str, &str, Option<u32>),
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
        let update = repository.git("update-ref");
        let update = match attempt {
            // The ref's log keeps the states of earlier attempts.
            Some(attempt) => update.args(["--create-reflog", "-m", &format!("{ATTEMPT}{attempt}")]),
            None => update,
        };
        update.args([&name, commit]).run()?;
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

    /// Returns the state that one attempt at a step has left, as long as git keeps it: the log of a ref is shortened
    /// by `git gc`, by default after 30 days.
    pub fn find_attempt(&self, run: &str, step: &str, attempt: u32) -> Result<Checkpoint, Error> {
        let name = name_of(run, step);
        let log = crate::read::bytes(self.common_dir().join("logs").join(&name)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let wanted = format!("{ATTEMPT}{attempt}");
        let is_wanted = |line: &&str| line.split_once('\t').is_some_and(|(_, message)| message == wanted);
        let commit = log.lines().rfind(is_wanted).and_then(|line| line.split(' ').nth(1));
        match commit {
            Some(commit) => Ok(Checkpoint { commit: commit.to_owned(), name }),
            None => Err(Kind::NoSuchCheckpoint { name: format!("{name}, attempt {attempt}") }),
        }
        .attempt(|| format!("find the checkpoint of run {run} after attempt {attempt} at step {step}"))
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
    /// With paths, only those of these files.
    pub fn diff(&self, from: &str, to: &str, paths: &[&str], most: usize) -> Result<String, Error> {
        let diff = || {
            let (from, to) = (self.known_commit(from)?, self.known_commit(to)?);
            let diff = self.git("diff").args(PLAIN_DIFF).args(["--binary", &from, &to, "--"]);
            let paths = paths.iter().map(|path| format!(":(top,literal){path}"));
            let output = diff.args(paths).at_most(most).run()?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        diff().attempt(|| format!("compare {from} and {to}"))
    }

    /// Returns the files that differ between two revisions, with the number of changed lines.
    pub fn changed_files(&self, from: &str, to: &str, most: usize) -> Result<Vec<ChangedFile>, Error> {
        let list = || {
            let (from, to) = (self.known_commit(from)?, self.known_commit(to)?);
            let diff = self.git("diff").args(PLAIN_DIFF).args(["--numstat", "-z", &from, &to, "--"]);
            let output = diff.at_most(most).run()?;
            Ok(parse_numstat(&String::from_utf8_lossy(&output.stdout)))
        };
        list().attempt(|| format!("compare {from} and {to}"))
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

    /// Returns the commit of a revision; a full id is taken as it is, because the comparison that follows looks it up itself.
    fn known_commit(&self, revision: &str) -> Result<String, Kind> {
        let is_id =
            matches!(revision.len(), 40 | 64) && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id { Ok(revision.to_owned()) } else { self.commit(revision) }
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

/// Parses the output of `git diff --numstat -z`: `ADDED TAB REMOVED TAB PATH NUL`, and for a renamed file an empty path
/// that is followed by `OLD NUL NEW NUL`. The numbers of a file that is not text are `-`.
fn parse_numstat(output: &str) -> Vec<ChangedFile> {
    let mut fields = output.split('\0');
    let mut files = Vec::new();
    while let Some(field) = fields.next() {
        let mut parts = field.splitn(3, '\t');
        let (Some(added), Some(removed), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let lines = added.parse().ok().zip(removed.parse().ok());
        let (path, old_path) = if path.is_empty() {
            let (Some(old), Some(new)) = (fields.next(), fields.next()) else { break };
            (new.to_owned(), Some(old.to_owned()))
        } else {
            (path.to_owned(), None)
        };
        files.push(ChangedFile { path, old_path, lines });
    }
    files
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
