//! A git repository: its identity, and the paths of Sprag's files in it.
//!
//! ```text
//!   COMMON/worktrees/ID/     an entry of Sprag: git's files, and the mark `sprag.json`
//!   COMMON/sprag/lock        the repository's lock
//!   COMMON/sprag/staging/ID/ an entry under construction, which git does not see
//!   COMMON/sprag/owners/ID   the owner lock of a worktree
//!   COMMON/sprag/trash/      entries to delete
//!   COMMON/sprag/land/       landing locks by target branch, and records of landings in progress
//! ```

use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use crate::{
    error::{Attempt, Error, Kind},
    git::{Cancel, Git, HOOKS_PATH, NO_HOOKS},
    lock::{LockGuard, LockHolder, SharedLock, create_folder},
    name::ref_component,
    read, stale_lock,
};

/// The oldest supported git: the first with `merge-tree --write-tree`.
const MIN_GIT_VERSION: (u32, u32) = (2, 38);

/// Device and inode of the common git directory: the same for every path to the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The device number of the file system.
    pub device: u64,
    /// The inode of the directory.
    pub inode: u64,
}

/// A repository with worktrees of Sprag.
#[derive(Debug, Clone)]
pub struct Repository {
    identity: Identity,
    common: PathBuf,
    is_bare: bool,
    null_oid: String,
    hooks: PathBuf,
    /// Whether git runs the repository's hooks. False for worktrees created with `hooks: false`.
    runs_hooks: bool,
    lock: SharedLock,
}

impl Repository {
    /// Finds the repository of `path`: a checkout, a folder in it, a linked worktree, or a bare repository.
    pub fn discover(path: &Path) -> Result<Repository, Error> {
        find(path).attempt(|| format!("find the git repository of {}", path.display()))
    }

    /// Finds a repository for an operation on one of its worktrees: without hooks if the worktree was created
    /// so.
    pub fn discover_for(path: &Path, worktree: &Path) -> Result<Repository, Error> {
        let repository = Repository::discover(path)?;
        Ok(if is_without_hooks(worktree) { repository.without_hooks() } else { repository })
    }

    /// Returns the identity of the repository.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the canonical path of the directory that all worktrees share.
    pub fn common_dir(&self) -> &Path {
        &self.common
    }

    /// Returns whether the repository has no main checkout.
    pub fn is_bare(&self) -> bool {
        self.is_bare
    }

    /// Returns the main checkout, if it is in the usual place.
    pub fn main_checkout(&self) -> Option<&Path> {
        if self.is_bare || self.common.file_name()? != ".git" { None } else { self.common.parent() }
    }

    /// Returns the main checkout, also if `core.worktree` sets its place. Returns `None` if there is none or
    /// git does not know its place.
    pub(crate) fn find_main_checkout(&self) -> Result<Option<PathBuf>, Kind> {
        if let Some(path) = self.main_checkout() {
            return Ok(Some(path.to_owned()));
        }
        let configured = self.git("config").args(["--get", "core.worktree"]).output()?;
        let path = self.common.join(configured.line());
        Ok((configured.status.success() && path.is_dir()).then_some(path))
    }

    /// Waits for the repository's lock. It covers registration only; never run anything long under it.
    pub fn lock(&self, run: &str, deadline: Duration) -> Result<LockGuard<'_>, Error> {
        self.acquire(run, deadline).attempt(|| format!("lock the repository {}", self.common.display()))
    }

    /// Returns the holder of the repository's lock, without taking it.
    pub fn lock_holder(&self) -> Option<LockHolder> {
        self.lock.holder()
    }

    /// Runs git's maintenance under the repository's lock, because it races with the deletion of branches.
    pub fn maintain(&self, run: &str, deadline: Duration) -> Result<(), Error> {
        let tidy = || {
            let _held = self.acquire(run, deadline)?;
            self.git("gc").args(["--auto", "--quiet"]).run().map(|_| ())
        };
        tidy().attempt(|| format!("maintain the repository {}", self.common.display()))
    }

    pub(crate) fn acquire(&self, run: &str, deadline: Duration) -> Result<LockGuard<'_>, Kind> {
        self.acquire_unless_cancelled(run, deadline, None)
    }

    pub(crate) fn acquire_unless_cancelled(
        &self,
        run: &str,
        deadline: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<LockGuard<'_>, Kind> {
        create_folder(&self.sprag_dir())?;
        let held = self.lock.acquire_unless_cancelled(run, deadline, cancel);
        crate::fault::point("locked");
        held
    }

    /// Returns git in the common directory: for refs and objects, not for files.
    pub(crate) fn git<'a>(&self, subcommand: &str) -> Git<'a> {
        self.git_at(&self.common, subcommand).git_dir(&self.common)
    }

    /// Returns git in a folder, with the repository's hooks or without.
    pub(crate) fn git_at<'a>(&self, directory: &Path, subcommand: &str) -> Git<'a> {
        let git = Git::new(directory, subcommand);
        if self.runs_hooks { git } else { git.setting(HOOKS_PATH, NO_HOOKS) }
    }

    /// Returns whether Sprag's git commands run the repository's hooks.
    pub(crate) fn runs_hooks(&self) -> bool {
        self.runs_hooks
    }

    /// Returns the same repository with hooks disabled.
    pub(crate) fn without_hooks(&self) -> Repository {
        Repository { runs_hooks: false, ..self.clone() }
    }

    pub(crate) fn null_oid(&self) -> &str {
        &self.null_oid
    }

    pub(crate) fn entries_dir(&self) -> PathBuf {
        self.common.join("worktrees")
    }

    pub(crate) fn sprag_dir(&self) -> PathBuf {
        self.common.join("sprag")
    }

    pub(crate) fn owner_lock_path(&self, id: &str) -> PathBuf {
        self.sprag_dir().join("owners").join(id)
    }

    /// Returns a short name for folders that contain files of several repositories.
    pub(crate) fn key(&self) -> String {
        format!("{:x}-{:x}", self.identity.device, self.identity.inode)
    }

    /// Returns the hook's file, if the repository has the hook and runs hooks.
    pub(crate) fn hook(&self, name: &str) -> Option<PathBuf> {
        if !self.runs_hooks {
            return None;
        }
        let path = self.hooks.join(name);
        let mode = fs::metadata(&path).ok()?.mode();
        (mode & 0o111 != 0).then_some(path)
    }

    /// Returns the folder of landing locks and of records of landings in progress.
    pub(crate) fn land_dir(&self) -> PathBuf {
        self.sprag_dir().join("land")
    }

    /// Returns whether `commit` is `of` or one of its ancestors.
    pub(crate) fn is_ancestor(&self, commit: &str, of: &str) -> Result<bool, Kind> {
        let output = self.git("merge-base").args(["--is-ancestor", commit, of]).output()?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(output.failure()),
        }
    }

    /// Returns the lock of all landings on a branch.
    pub(crate) fn land_lock(&self, branch: &str) -> Result<SharedLock, Kind> {
        let folder = self.land_dir();
        create_folder(&folder)?;
        let what = format!("landing on `{branch}` of {}", self.common.display());
        Ok(SharedLock::at(folder.join(ref_component(branch)), what))
    }

    /// Returns the run that is landing on a branch at this moment, with its process and since when.
    pub fn landing_on(&self, branch: &str) -> Option<crate::lock::LockHolder> {
        crate::lock::holder_at(&self.land_dir().join(ref_component(branch)))
    }

    /// Checks that worktrees can start from a base: the repository has commits, and the base names one of them. Returns
    /// that commit.
    pub fn check_base(&self, base: &str) -> Result<String, Error> {
        self.commit(base).attempt(|| format!("use the repository {}", self.common.display()))
    }

    /// Returns the commit that a revision names.
    pub(crate) fn commit(&self, revision: &str) -> Result<String, Kind> {
        let unknown = || Kind::UnknownBase { base: revision.to_owned() };
        if revision.is_empty() || revision.starts_with('-') {
            return Err(unknown());
        }
        if let Some(tip) = crate::tip::of_branch(&self.common, revision) {
            return Ok(tip);
        }
        let named = format!("{revision}^{{commit}}");
        let output =
            self.git("rev-parse").args(["--verify", "--quiet", "--end-of-options", &named]).output()?;
        if output.status.success() {
            Ok(output.line())
        } else if !output.stderr.is_empty() {
            Err(output.failure())
        } else if self.is_empty()? {
            Err(Kind::NoCommits { path: self.common.clone() })
        } else {
            Err(unknown())
        }
    }

    /// Returns the object of a ref, given its full name; `None` if the ref does not exist.
    pub(crate) fn read_ref(&self, name: &str) -> Result<Option<String>, Kind> {
        let output =
            self.git("rev-parse").args(["--verify", "--quiet", "--end-of-options", name]).output()?;
        match output.status.code() {
            Some(0) => Ok(Some(output.line())),
            Some(1) => Ok(None),
            _ => Err(output.failure()),
        }
    }

    /// Applies several changes to refs, all or none.
    pub(crate) fn update_refs(&self, message: &str, changes: &str) -> Result<(), Kind> {
        stale_lock::retry(|| update_refs(self.git("update-ref"), message, changes))
    }

    fn is_empty(&self) -> Result<bool, Kind> {
        Ok(self.git("rev-list").args(["--ignore-missing", "--all", "--max-count=1"]).line()?.is_empty())
    }
}

/// Returns `path` if it is itself a bare repository and not inside a checkout; `None` if it is something else.
///
/// Sprag's settings make git ignore implicit bare repositories, so an intended one must be named.
fn named_bare(path: &Path) -> Result<Option<PathBuf>, Kind> {
    let is_bare = path.join("HEAD").is_file() && path.join("objects").is_dir() && path.join("refs").is_dir();
    if !is_bare {
        return Ok(None);
    }
    let path = fs::canonicalize(path).map_err(Kind::io("find", path))?;
    let Some(above) = path.parent() else { return Ok(Some(path)) };
    // No branch contains a folder of this name, because git refuses to check it out.
    if path.ends_with(".git") {
        return Ok(Some(path));
    }
    match Git::new(above, "rev-parse").arg("--is-inside-work-tree").output()?.line().as_str() {
        "true" => Err(Kind::EmbeddedRepository { path }),
        _ => Ok(Some(path)),
    }
}

/// Applies several changes to refs of a git directory, all or none.
pub(crate) fn update_refs_in(git_dir: &Path, message: &str, changes: &str) -> Result<(), Kind> {
    stale_lock::retry(|| update_refs(Git::new(git_dir, "update-ref").git_dir(git_dir), message, changes))
}

fn update_refs(git: Git<'_>, message: &str, changes: &str) -> Result<(), Kind> {
    let input = format!("start\n{changes}prepare\ncommit\n");
    git.args(["-m", message, "--create-reflog", "--stdin"]).input(input).run().map(|_| ())
}

fn find(path: &Path) -> Result<Repository, Kind> {
    git_version()?;
    let bare = named_bare(path)?;
    let asked = Git::new(path, "rev-parse").args([
        "--path-format=absolute",
        "--git-common-dir",
        "--is-bare-repository",
        "--show-object-format",
        "--git-path",
        "hooks",
    ]);
    let asked = bare.iter().fold(asked, |git, bare| git.git_dir(bare));
    let output = match asked.output() {
        Err(Kind::Io { doing: "work in", .. }) => return Err(Kind::NotARepository { path: path.to_owned() }),
        other => other?,
    };
    if !output.status.success() {
        return Err(match output.failure() {
            Kind::Git { stderr, .. } if stderr.contains("cannot use bare repository") => {
                Kind::EmbeddedRepository { path: path.to_owned() }
            }
            Kind::Git { stderr, .. } if stderr.contains("not a git repository") => {
                Kind::NotARepository { path: path.to_owned() }
            }
            other => other,
        });
    }
    let unexpected = || Kind::GitUnusable { message: format!("git rev-parse said {:?}", output.line()) };
    // Paths may contain line ends; the words between them do not.
    let text = &output.stdout;
    let end = [("\nfalse\n", false), ("\ntrue\n", true)].into_iter().find_map(|(mark, is_bare)| {
        find_bytes(text, mark.as_bytes()).map(|at| (at, at + mark.len(), is_bare))
    });
    let (common_end, rest, is_bare) = end.ok_or_else(unexpected)?;
    let format_end = rest + find_bytes(&text[rest..], b"\n").ok_or_else(unexpected)?;
    let null_oid = "0".repeat(if &text[rest..format_end] == b"sha256" { 64 } else { 40 });
    let path_of = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
    let hooks = path_of(text[format_end + 1..].strip_suffix(b"\n").unwrap_or(&text[format_end + 1..]));
    let common = path_of(&text[..common_end]);
    let common = fs::canonicalize(&common).map_err(Kind::io("find", &common))?;
    let found = fs::metadata(&common).map_err(Kind::io("inspect", &common))?;
    if common.join("reftable").is_dir() {
        return Err(Kind::RefFormat { path: common });
    }
    let what = format!("the repository {}", common.display());
    let lock = SharedLock::at(common.join("sprag").join("lock"), what);
    let identity = Identity { device: found.dev(), inode: found.ino() };
    let runs_hooks = !is_without_hooks(path);
    Ok(Repository { identity, common, is_bare, null_oid, hooks, runs_hooks, lock })
}

/// Returns whether a path is a worktree of Sprag created with `hooks: false`.
fn is_without_hooks(path: &Path) -> bool {
    let Ok(link) = read::text(path.join(".git")) else { return false };
    let entry = link.strip_prefix("gitdir: ").map(|entry| PathBuf::from(entry.trim_end()));
    entry.and_then(|entry| crate::mark::Mark::read(&entry)).is_some_and(|mark| mark.without_hooks)
}

fn find_bytes(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// Returns git's version, determined once.
fn git_version() -> Result<(u32, u32), Kind> {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    if let Some(&version) = VERSION.get() {
        return Ok(version);
    }
    let said = Git::new(Path::new("/"), "version").line()?;
    let unusable = || Kind::GitUnusable { message: format!("{said} is not supported") };
    let mut numbers = said.split(' ').nth(2).unwrap_or_default().split('.');
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    let version = next().zip(next()).filter(|&version| version >= MIN_GIT_VERSION).ok_or_else(unusable)?;
    Ok(*VERSION.get_or_init(|| version))
}
