//! What can go wrong with a worktree: what was attempted, why it failed, and what to do about it.

use std::{fmt, io, path::PathBuf, time::Duration};

use crate::lock::Holder;

/// A failure, with what was attempted and on what.
#[derive(Debug)]
pub struct Error {
    /// What was attempted, and where: `create the worktree /data/w1 of run r1`.
    pub attempt: String,
    /// Why it failed.
    pub kind: Kind,
}

/// Why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Kind {
    /// There is no repository at the path.
    #[error("{} is not in a git repository", path.display())]
    NotARepository {
        /// Where one was looked for.
        path: PathBuf,
    },
    /// Git does not trust a repository that belongs to somebody else.
    #[error("the repository at {} belongs to another user (dubious ownership)", path.display())]
    DubiousOwnership {
        /// The repository.
        path: PathBuf,
    },
    /// The git program is not there, or too old.
    #[error("{message}")]
    GitUnusable {
        /// What was found.
        message: String,
    },
    /// The repository keeps its refs in a format whose worktrees cannot be built aside.
    #[error("{} keeps its refs in the format `reftable`", path.display())]
    RefFormat {
        /// The common git directory.
        path: PathBuf,
    },
    /// The repository has no commit yet.
    #[error("the repository {} has no commits yet", path.display())]
    NoCommits {
        /// The common git directory.
        path: PathBuf,
    },
    /// What to start from does not exist.
    #[error("the base `{base}` names no commit")]
    UnknownBase {
        /// As it was given.
        base: String,
    },
    /// Git refuses such a name.
    #[error("`{name}` is no branch name: {reason}")]
    BadBranchName {
        /// As it was given.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The branch to be made is there already.
    #[error("branch `{branch}` exists already")]
    BranchExists {
        /// Its name.
        branch: String,
    },
    /// The branch to be used is not there.
    #[error("there is no branch `{branch}`")]
    NoSuchBranch {
        /// Its name.
        branch: String,
    },
    /// Another checkout uses the branch.
    #[error("branch `{branch}` is already checked out by {holder} at {}", path.display())]
    BranchInUse {
        /// Its name.
        branch: String,
        /// A run, or somebody else.
        holder: String,
        /// The checkout.
        path: PathBuf,
    },
    /// `feature` and `feature/x` cannot both exist.
    #[error("branch `{branch}` cannot exist beside branch `{existing}`")]
    BranchConflict {
        /// What was asked for.
        branch: String,
        /// What is there.
        existing: String,
    },
    /// Somebody left a lock file of git behind, or is using it.
    #[error("git's lock file {} exists", path.display())]
    StaleGitLock {
        /// The lock file.
        path: PathBuf,
    },
    /// The path is taken.
    #[error("{} exists already", path.display())]
    PathExists {
        /// The path.
        path: PathBuf,
    },
    /// Worktrees live in the data directory only.
    #[error("{} is not directly inside the data directory {}", path.display(), root.display())]
    PathOutside {
        /// What was asked for.
        path: PathBuf,
        /// Where worktrees live.
        root: PathBuf,
    },
    /// The lock was not free before the deadline.
    #[error("waited {waited_ms} ms for the lock of {what}, held by {}", describe(.holder.as_deref()))]
    LockTimeout {
        /// What the lock is of.
        what: String,
        /// Who had it.
        holder: Option<Box<Holder>>,
        /// How long was waited.
        waited_ms: u64,
    },
    /// This thread has the lock already.
    #[error("this thread already holds the lock of {what}")]
    LockReentered {
        /// What the lock is of.
        what: String,
    },
    /// Git said no.
    #[error("`git {command}` failed ({status}): {stderr}")]
    Git {
        /// The command and its arguments.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        stderr: String,
    },
    /// Git took too long; it was ended with its process group.
    #[error("`git {command}` did not end within {} s", after.as_secs())]
    TimedOut {
        /// The command and its arguments.
        command: String,
        /// The bound.
        after: Duration,
    },
    /// The caller changed its mind.
    #[error("it was cancelled")]
    Cancelled,
    /// A hook of the repository failed.
    #[error("the repository's {hook} hook failed: {output}")]
    Hook {
        /// Its name.
        hook: &'static str,
        /// What it said.
        output: String,
    },
    /// A file could not be used.
    #[error("could not {doing} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Processes of the run would not end.
    #[error("processes that work in it are still alive: {message}")]
    ProcessesRemain {
        /// Which.
        message: String,
    },
    /// It belongs to a run that is alive, or to nobody we know.
    #[error("{} is in use by {holder}", path.display())]
    InUse {
        /// The worktree.
        path: PathBuf,
        /// Who uses it.
        holder: String,
    },
    /// A repository inside the worktree, whose files no commit of ours can hold.
    #[error("{} is a repository of its own, and what is in it cannot be saved", path.display())]
    NestedRepository {
        /// Where it is.
        path: PathBuf,
    },
    /// There is no such worktree of ours.
    #[error("there is no worktree of ours named `{name}`")]
    NoSuchWorktree {
        /// Its id or path.
        name: String,
    },
    /// The checkpoint does not exist.
    #[error("there is no checkpoint `{name}`")]
    NoSuchCheckpoint {
        /// Its ref.
        name: String,
    },
    /// The work does not fit onto the target.
    #[error("{} conflicting file(s): {}", files.len(), files.join(", "))]
    Conflict {
        /// The files, as git names them.
        files: Vec<String>,
        /// The conflicting hunks, with markers.
        hunks: String,
    },
    /// There are changes that no commit holds.
    #[error("{} uncommitted file(s): {}", files.len(), files.join(", "))]
    Uncommitted {
        /// The first of them.
        files: Vec<String>,
    },
    /// Somebody took the run over.
    #[error("the run was fenced off: expected fence {expected}, found {found}")]
    Fenced {
        /// What the lander believed.
        expected: u64,
        /// What the repository says.
        found: String,
    },
    /// The target moved at each attempt.
    #[error("branch `{branch}` moved during each of {tries} attempts")]
    TargetMoved {
        /// The target.
        branch: String,
        /// How often it was tried.
        tries: u32,
    },
    /// The check before landing failed.
    #[error("verify failed: {message}")]
    VerifyFailed {
        /// What it said.
        message: String,
    },
    /// A file to be copied lies outside, or the pattern leads out.
    #[error("`{pattern}` must not be copied: {reason}")]
    IncludeRefused {
        /// As it was given.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No port is free.
    #[error("no free port was found for `{name}` in {tries} tries")]
    NoFreePort {
        /// The port's name.
        name: String,
        /// How many were looked at.
        tries: u32,
    },
}

fn describe(holder: Option<&Holder>) -> String {
    holder.map_or_else(|| "somebody who left no name".to_owned(), Holder::to_string)
}

impl Kind {
    /// What to do about it, where that can be said.
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Kind::NotARepository { .. } => "run `git init` there, or name another folder".into(),
            Kind::DubiousOwnership { path } => {
                format!("if you trust it: git config --global --add safe.directory {}", path.display())
            }
            Kind::GitUnusable { .. } => "install git 2.38 or newer".into(),
            Kind::RefFormat { .. } => "convert it: git refs migrate --ref-format=files".into(),
            Kind::NoCommits { .. } => "make a first commit".into(),
            Kind::UnknownBase { .. } => "name a branch, tag or commit that exists, or fetch it first".into(),
            Kind::BranchExists { .. } => "use the existing branch, or choose another name".into(),
            Kind::NoSuchBranch { .. } => "create it, or choose another".into(),
            Kind::BranchInUse { .. } => "wait for it to end, or choose another branch".into(),
            Kind::BranchConflict { .. } => "choose a name that is no folder of the other".into(),
            Kind::StaleGitLock { path } => {
                format!("if no git process is running, delete {}", path.display())
            }
            Kind::PathExists { .. } => "choose a new path; a leftover is never reused".into(),
            Kind::PathOutside { .. } => "choose a name inside it".into(),
            Kind::LockTimeout { .. } => "wait for the holder, or allow a longer wait".into(),
            Kind::TimedOut { .. } => "look for a slow filter or hook, or allow more time".into(),
            Kind::Io { path, source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    format!("free some space on the disk of {}", path.display())
                }
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    format!("make {} writable", path.display())
                }
                _ => return None,
            },
            Kind::Git { stderr, .. } if stderr.contains("No space left") => {
                "free some space on the disk".into()
            }
            Kind::Conflict { .. } => "resolve the conflicts in the worktree, commit, and land again".into(),
            Kind::Uncommitted { .. } => "commit them in the worktree, then land again".into(),
            Kind::NestedRepository { path } => format!("move {} elsewhere, or delete it", path.display()),
            Kind::Fenced { .. } => "nothing: another attempt owns the run now".into(),
            Kind::TargetMoved { .. } => "land again when fewer others do".into(),
            Kind::NoFreePort { .. } => "end what listens on this machine's ports".into(),
            _ => return None,
        })
    }

    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Kind {
        let path = path.into();
        move |source| Kind::Io { doing, path, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}: {}", self.attempt, self.kind)?;
        match self.kind.remedy() {
            Some(remedy) => write!(f, " ({remedy})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.kind)
    }
}

/// Says what was attempted when a part of it failed.
pub(crate) trait Attempt<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Attempt<T> for Result<T, Kind> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|kind| Error { attempt: what(), kind })
    }
}
