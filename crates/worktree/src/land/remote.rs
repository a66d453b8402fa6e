//! The remote's part of a landing: fetch the current branch, and push without force.
//!
//! Every landing fetches from the remote, into a ref of Sprag. A remote-tracking branch is not reliable,
//! because any fetch of a user moves it.

use std::time::Duration;

use crate::{
    error::{Blocked, Kind, Obstacle},
    git::{Cancel, Git},
    name::ref_component,
    repository::Repository,
    stale_lock,
};

/// Parts of git's messages when the remote's branch has moved since the fetch.
const MOVED_MESSAGES: [&str; 5] = [
    "[rejected]",
    "cannot lock ref",
    "incorrect old value",
    "failed to update ref",
    "reference already exists",
];

/// A branch of a remote.
pub(crate) struct RemoteBranch<'a> {
    pub(crate) repository: &'a Repository,
    pub(crate) remote: &'a str,
    pub(crate) branch: &'a str,
    pub(crate) timeout: Duration,
}

/// The state of the remote's branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RemoteTip {
    /// The branch is at this commit, which has been fetched.
    At(String),
    /// The branch does not exist yet.
    Absent,
    /// The remote did not answer, for this reason.
    Unreachable(String),
}

/// The result of a push.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushResult {
    /// The remote accepted the commit.
    Accepted,
    /// The remote's branch has moved.
    Moved,
    /// The remote refused the commit or did not answer, for this reason.
    Failed(String),
}

impl RemoteBranch<'_> {
    /// Fetches the remote's branch.
    pub(crate) fn fetch(&self, cancel: &Cancel) -> Result<RemoteTip, Kind> {
        let ours = format!("refs/sprag/remote/{}", ref_component(self.branch));
        let refs = format!("+refs/heads/{}:{ours}", self.branch);
        let fetch = || {
            let git = self.git("fetch").args(["--quiet", "--no-tags", "--no-write-fetch-head", "--refmap="]);
            let git = git.args(["--no-recurse-submodules", "--end-of-options", self.remote, &refs]);
            git.long(self.timeout, cancel).run()
        };
        match stale_lock::retry(fetch) {
            Ok(_) => {
                let tip = self.repository.read_ref(&ours)?;
                Ok(tip.map_or(RemoteTip::Absent, RemoteTip::At))
            }
            Err(Kind::Cancelled) => Err(Kind::Cancelled),
            Err(Kind::Git { stderr, .. }) if stderr.contains("couldn't find remote ref") => {
                Ok(RemoteTip::Absent)
            }
            Err(kind) => Ok(RemoteTip::Unreachable(kind.to_string())),
        }
    }

    /// Pushes a commit to the branch, if that is a fast-forward there. `tip` is the state that the commit is based on.
    pub(crate) fn push(&self, commit: &str, tip: &RemoteTip, cancel: &Cancel) -> Result<PushResult, Kind> {
        let what = format!("{commit}:refs/heads/{}", self.branch);
        let push = self.git("push").args([
            "--porcelain",
            "--no-force-with-lease",
            "--end-of-options",
            self.remote,
            &what,
        ]);
        let output = match push.long(self.timeout, cancel).output() {
            Ok(output) if output.status.success() => return Ok(PushResult::Accepted),
            Ok(output) => output,
            Err(Kind::Cancelled) => return Err(Kind::Cancelled),
            Err(kind) => return self.fetch_again(commit, tip, kind.to_string(), cancel),
        };
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if MOVED_MESSAGES.iter().any(|sign| stdout.contains(sign) || output.stderr.contains(sign)) {
            return Ok(PushResult::Moved);
        }
        let reason = match output.failure() {
            Kind::Git { stderr, .. } => stderr,
            other => other.to_string(),
        };
        self.fetch_again(commit, tip, reason, cancel)
    }

    /// Fetches again, because the remote's branch decides what a failed push means. A broken connection does not tell
    /// whether the remote accepted the commit. And git fails without a clear reason if the branch has moved to a
    /// commit whose parents another fetch is still writing to this repository.
    fn fetch_again(
        &self,
        commit: &str,
        before: &RemoteTip,
        reason: String,
        cancel: &Cancel,
    ) -> Result<PushResult, Kind> {
        match self.fetch(cancel)? {
            RemoteTip::At(tip) if self.repository.is_ancestor(commit, &tip)? => Ok(PushResult::Accepted),
            RemoteTip::Unreachable(_) => Ok(PushResult::Failed(reason)),
            now if now == *before => Ok(PushResult::Failed(reason)),
            _ => Ok(PushResult::Moved),
        }
    }

    /// Returns the base of the landing: the local or the remote branch, whichever is ahead.
    pub(crate) fn base(&self, local: &str, tip: &RemoteTip) -> Result<String, Kind> {
        let RemoteTip::At(tip) = tip else { return Ok(local.to_owned()) };
        if local == tip || self.repository.is_ancestor(tip, local)? {
            return Ok(local.to_owned());
        }
        if self.repository.is_ancestor(local, tip)? {
            return Ok(tip.clone());
        }
        let (ours, theirs) = (self.count(local, tip)?, self.count(tip, local)?);
        let obstacle = Obstacle::Diverged { remote: self.remote.to_owned(), ours, theirs };
        let branch = self.branch.to_owned();
        Err(Kind::blocked(Blocked { branch, checkout: None, obstacle, pushed_to: None }))
    }

    /// Counts the commits of `of` that are not in `without`.
    pub(crate) fn count(&self, of: &str, without: &str) -> Result<usize, Kind> {
        let count = self.repository.git("rev-list").args(["--count", of, "--not", without]).line()?;
        Ok(count.parse().unwrap_or(0))
    }

    /// Returns git in the folder that a relative path of a remote refers to.
    fn git(&self, command: &str) -> Git<'_> {
        self.repository
            .git_at(self.repository.main_checkout().unwrap_or(self.repository.common_dir()), command)
    }
}
