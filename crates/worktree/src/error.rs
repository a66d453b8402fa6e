//! The errors of this crate: the attempt, the reason, and the remedy.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{dirty::Uncommitted, lock::LockHolder};

/// An error, with the operation that failed.
#[derive(Debug)]
pub struct Error {
    /// The operation and its object: `create the worktree /data/w1 of run r1`.
    pub attempt: String,
    /// The reason.
    pub kind: Kind,
}

/// The reason of an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Kind {
    /// The path is not in a repository.
    #[error("{} is not in a git repository", path.display())]
    NotARepository {
        /// The path that was searched.
        path: PathBuf,
    },
    /// Git does not trust the repository, because it belongs to another user.
    #[error("the repository at {} belongs to another user (dubious ownership)", path.display())]
    DubiousOwnership {
        /// The repository.
        path: PathBuf,
    },
    /// The git program is missing or too old.
    #[error("{message}")]
    GitUnusable {
        /// The problem that was found.
        message: String,
    },
    /// The repository stores its refs in a format for which entries cannot be built in staging.
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
    /// The base does not exist.
    #[error("the base `{base}` names no commit")]
    UnknownBase {
        /// The base, as given.
        base: String,
    },
    /// The name is not a valid branch name.
    #[error("`{name}` is not a branch name: {reason}")]
    BadBranchName {
        /// The name, as given.
        name: String,
        /// The rule that it violates.
        reason: String,
    },
    /// The new branch already exists.
    #[error("branch `{branch}` exists already")]
    BranchExists {
        /// The branch.
        branch: String,
    },
    /// The existing branch does not exist.
    #[error("there is no branch `{branch}`")]
    NoSuchBranch {
        /// The branch.
        branch: String,
    },
    /// The branch is checked out elsewhere.
    #[error("branch `{branch}` is already checked out by {holder} at {}", path.display())]
    BranchInUse {
        /// The branch.
        branch: String,
        /// The run, or a user.
        holder: String,
        /// The checkout.
        path: PathBuf,
    },
    /// The names conflict: `feature` and `feature/x` cannot both exist.
    #[error("branch `{branch}` cannot exist beside branch `{existing}`")]
    BranchConflict {
        /// The requested branch.
        branch: String,
        /// The existing branch.
        existing: String,
    },
    /// A lock file of git exists, stale or in use.
    #[error("git's lock file {} exists", path.display())]
    StaleGitLock {
        /// The lock file.
        path: PathBuf,
    },
    /// The path exists.
    #[error("{} exists already", path.display())]
    PathExists {
        /// The path.
        path: PathBuf,
    },
    /// The path is not in the data directory.
    #[error("{} is not directly inside the data directory {}", path.display(), root.display())]
    PathOutside {
        /// The requested path.
        path: PathBuf,
        /// The data directory.
        root: PathBuf,
    },
    /// The lock was not free before the deadline.
    #[error("waited {waited_ms} ms for the lock of {what}, held by {}", describe(.holder.as_deref()))]
    LockTimeout {
        /// A description of what it locks.
        what: String,
        /// The holder at the deadline, if known.
        holder: Option<Box<LockHolder>>,
        /// The time waited, in milliseconds.
        waited_ms: u64,
    },
    /// This thread already holds the lock.
    #[error("this thread already holds the lock of {what}")]
    LockReentered {
        /// A description of what it locks.
        what: String,
    },
    /// A git command failed.
    #[error("`git {command}` failed ({status}): {stderr}")]
    Git {
        /// The command and its arguments.
        command: String,
        /// The exit status.
        status: String,
        /// The error output.
        stderr: String,
    },
    /// A git command exceeded its timeout and was stopped with its processes.
    #[error("`git {command}` did not end within {} s", after.as_secs())]
    TimedOut {
        /// The command and its arguments.
        command: String,
        /// The timeout.
        after: Duration,
    },
    /// A git command printed more than the caller accepts, and was stopped.
    #[error("`git {command}` printed more than {} MB", most >> 20)]
    TooMuchOutput {
        /// The command and its arguments.
        command: String,
        /// The most bytes.
        most: usize,
    },
    /// The caller cancelled the operation.
    #[error("it was cancelled")]
    Cancelled,
    /// The caller gave up the wait for other landings before this one had its turn. Nothing has changed.
    #[error("it gave up waiting for its turn")]
    GaveUpTurn,
    /// A hook of the repository failed.
    #[error("the repository's {hook} hook failed: {output}")]
    Hook {
        /// The name of the hook.
        hook: &'static str,
        /// Its output and exit status.
        output: String,
    },
    /// A file operation failed.
    #[error("could not {doing} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Processes of the run could not be stopped.
    #[error("processes that work in it are still alive: {message}")]
    ProcessesRemain {
        /// The processes.
        message: String,
    },
    /// The worktree belongs to a live run or to an unknown owner.
    #[error("{} is in use by {holder}", path.display())]
    InUse {
        /// The worktree.
        path: PathBuf,
        /// The user of the worktree.
        holder: String,
    },
    /// The worktree contains a repository whose files no commit of Sprag can contain.
    #[error("{} is a separate repository, and its content cannot be saved", path.display())]
    NestedRepository {
        /// The inner repository.
        path: PathBuf,
    },
    /// A `git prune` keeps deleting new objects.
    #[error("`git prune` in {} deletes objects that are being written", path.display())]
    Pruned {
        /// The common git directory.
        path: PathBuf,
    },
    /// Uncommitted changes in the checkout where a run is started are in its way.
    #[error("{found}: {why}")]
    UncommittedChanges {
        /// The changes.
        found: Box<Uncommitted>,
        /// The reason why the run cannot start with them.
        why: String,
    },
    /// A bare repository inside a checkout: its settings and hooks come from the checked-out branch.
    #[error("{} is a bare repository inside a checkout of another one", path.display())]
    EmbeddedRepository {
        /// The repository.
        path: PathBuf,
    },
    /// A worktree of another run or data directory, or one whose mark contradicts the disk.
    #[error("{} is not removed: {reason}", path.display())]
    NotOurs {
        /// The worktree's folder, according to its mark.
        path: PathBuf,
        /// The contradiction.
        reason: String,
    },
    /// Sprag has no such worktree.
    #[error("Sprag has no worktree named `{name}`")]
    NoSuchWorktree {
        /// The id or path.
        name: String,
    },
    /// The checkpoint does not exist.
    #[error("there is no checkpoint `{name}`")]
    NoSuchCheckpoint {
        /// The checkpoint's ref.
        name: String,
    },
    /// The work conflicts with the target.
    #[error("{} conflicting file(s): {}", files.len(), files.join(", "))]
    Conflict {
        /// The files, as git names them.
        files: Vec<String>,
        /// The conflicting hunks, with markers.
        hunks: String,
    },
    /// The worktree has uncommitted changes.
    #[error("{} uncommitted file(s): {}", files.len(), files.join(", "))]
    Uncommitted {
        /// The first files with changes.
        files: Vec<String>,
    },
    /// Another attempt has taken over the run.
    #[error("the run was fenced off: expected fence {expected}, found {found}")]
    Fenced {
        /// The fence of the landing attempt.
        expected: u64,
        /// The fence in the repository.
        found: String,
    },
    /// The target moved during each attempt.
    #[error("branch `{branch}` moved during each of {tries} attempts")]
    TargetMoved {
        /// The target, with its remote if it is a remote branch.
        branch: String,
        /// The number of attempts.
        tries: u32,
    },
    /// An obstacle that only a person can remove keeps the target from moving.
    #[error("{0}")]
    Blocked(Box<Blocked>),
    /// A required remote is unreachable or refuses the work. No branch has moved.
    #[error("the required push to {remote} failed: {reason}")]
    PushFailed {
        /// The remote, as given.
        remote: String,
        /// Git's message.
        reason: String,
    },
    /// The verification before the landing failed.
    #[error("verify failed: {message}")]
    VerifyFailed {
        /// The message of the verification.
        message: String,
    },
    /// A file to copy, or a pattern for it, is outside the repository.
    #[error("`{pattern}` must not be copied: {reason}")]
    IncludeRefused {
        /// The pattern, as given.
        pattern: String,
        /// The reason.
        reason: String,
    },
    /// No free port was found.
    #[error("no free port was found for `{name}` in {tries} tries")]
    NoFreePort {
        /// The name of the port.
        name: String,
        /// The number of ports tried.
        tries: u32,
    },
}

/// The reason why a branch cannot move. Neither a retry nor other work helps: a person must remove the
/// obstacle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The branch.
    pub branch: String,
    /// The checkout with the obstacle; absent if the obstacle is not in a checkout.
    pub checkout: Option<PathBuf>,
    /// The obstacle.
    pub obstacle: Obstacle,
    /// The remote that already has the work; absent if it was not pushed.
    pub pushed_to: Option<String>,
}

/// An obstacle that only a person can remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// Changes in files that the landing changes too.
    Changes {
        /// The first files with changes.
        files: Vec<String>,
    },
    /// Unresolved conflicts.
    Conflicts {
        /// The first files with conflicts.
        files: Vec<String>,
    },
    /// An unfinished merge, rebase or similar operation.
    InProgress {
        /// The name of the operation.
        what: &'static str,
    },
    /// The index lock, held for a long time.
    Locked {
        /// The lock file.
        lock: PathBuf,
    },
    /// A checkout that is registered and locked, but whose files are missing.
    Missing,
    /// A checkout whose folder git does not know.
    Unknown,
    /// A submodule's new commit that cannot be fetched.
    SubmoduleCommit {
        /// The path of the submodule.
        path: String,
        /// The commit.
        commit: String,
    },
    /// The local and the remote branch each have commits that the other lacks.
    Diverged {
        /// The remote.
        remote: String,
        /// The number of commits that only the local branch has.
        ours: usize,
        /// The number of commits that only the remote branch has.
        theirs: usize,
    },
}

impl Blocked {
    /// Returns the first files in the way; empty for other obstacles.
    pub fn files(&self) -> &[String] {
        match &self.obstacle {
            Obstacle::Changes { files } | Obstacle::Conflicts { files } => files,
            _ => &[],
        }
    }

    /// Returns what a person must do before the branch can move.
    pub fn remedy(&self) -> String {
        let place = self.checkout.as_deref().unwrap_or(Path::new(".")).display();
        match &self.obstacle {
            Obstacle::Changes { .. } => "commit or stash them there".into(),
            Obstacle::Conflicts { .. } => "resolve them there, and commit".into(),
            Obstacle::InProgress { what } => format!("finish the {what} there, or abort it"),
            Obstacle::Locked { lock } => {
                format!("wait for the git command that has it; if none is running, delete {}", lock.display())
            }
            Obstacle::Missing => format!("bring it back, or: git worktree remove --force --force {place}"),
            Obstacle::Unknown => "tell git where it is: git config core.worktree PATH".into(),
            Obstacle::SubmoduleCommit { path, .. } => format!("fetch the commit in {path} there"),
            Obstacle::Diverged { remote, .. } => {
                format!("bring them together: git pull --rebase {remote} {}", self.branch)
            }
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(remote) = &self.pushed_to {
            write!(f, "it was pushed to {remote}, but ")?;
        }
        write!(f, "branch `{}` was not moved: ", self.branch)?;
        if let Some(checkout) = &self.checkout {
            write!(f, "the checkout {} ", checkout.display())?;
        }
        let commits = |n: usize| format!("{n} commit{}", if n == 1 { "" } else { "s" });
        match &self.obstacle {
            Obstacle::Changes { files } => write!(f, "has changes in {}", files.join(", ")),
            Obstacle::Conflicts { files } => write!(f, "has conflicts in {}", files.join(", ")),
            Obstacle::InProgress { what } => write!(f, "has a {what} in progress"),
            Obstacle::Locked { lock } => write!(f, "is locked by git's {}", lock.display()),
            Obstacle::Missing => write!(f, "is missing"),
            Obstacle::Unknown => write!(f, "has it, and git does not know where its files are"),
            Obstacle::SubmoduleCommit { path, commit } => {
                write!(f, "cannot get commit {commit} of submodule {path}")
            }
            Obstacle::Diverged { remote, ours, theirs } => write!(
                f,
                "it has {} that {remote} lacks, and {remote} has {} that it lacks",
                commits(*ours),
                commits(*theirs)
            ),
        }
    }
}

fn describe(holder: Option<&LockHolder>) -> String {
    holder.map_or_else(|| "an unknown process".to_owned(), LockHolder::to_string)
}

impl Kind {
    /// Returns what the user can do about it, if anything.
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
            Kind::BranchConflict { .. } => "choose a name that does not contain the other as a folder".into(),
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
            Kind::Pruned { .. } => "prune with git's usual expiry (two weeks), not with `now`".into(),
            Kind::UncommittedChanges { .. } => "commit or stash them".into(),
            Kind::EmbeddedRepository { .. } => {
                "name the checkout that contains it, or a clone outside of any checkout".into()
            }
            Kind::NotOurs { .. } => {
                "inspect it, then remove it with git in the repository that created it".into()
            }
            Kind::NestedRepository { path } => format!("move {} elsewhere, or delete it", path.display()),
            Kind::NoSuchCheckpoint { .. } => {
                "it was deleted or never recorded: rewind to an earlier step, or start a new run".into()
            }
            Kind::Fenced { .. } => "nothing to do: another attempt owns the run".into(),
            Kind::TargetMoved { .. } => "land again when fewer other landings run".into(),
            Kind::Blocked(blocked) => blocked.remedy(),
            Kind::NoFreePort { .. } => "stop programs that listen on this machine's ports".into(),
            _ => return None,
        })
    }

    pub(crate) fn blocked(blocked: Blocked) -> Kind {
        Kind::Blocked(Box::new(blocked))
    }

    /// Returns whether a retry may succeed: git found a lock file of another command, or objects that another
    /// command was moving. The failed operation has changed nothing.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Kind::Git { .. } | Kind::StaleGitLock { .. })
    }

    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Kind {
        let path = path.into();
        move |source| Kind::Io { doing, path, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            // The attempt names the same path.
            Kind::NotARepository { .. } => write!(f, "{}", self.kind)?,
            _ => write!(f, "could not {}: {}", self.attempt, self.kind)?,
        }
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

/// Adds the attempted operation to an error.
pub(crate) trait Attempt<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Attempt<T> for Result<T, Kind> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|kind| Error { attempt: what(), kind })
    }
}
