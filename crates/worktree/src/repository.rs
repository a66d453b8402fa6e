//! A git repository: one identity, however it is reached, and where in it our things lie.
//!
//! ```text
//!   COMMON/worktrees/ID/     an entry of ours: what git keeps, and our mark `sprag.json`
//!   COMMON/sprag/lock        the repository's lock
//!   COMMON/sprag/staging/ID/ an entry that is being built; git does not look here
//!   COMMON/sprag/owners/ID   the owner lock of a worktree
//!   COMMON/sprag/trash/      entries to be deleted
//!   COMMON/sprag/land/       the landers' locks, by target branch
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
    git::{Cancel, Git},
    lock::{Held, Holder, SharedLock, make_folder},
    name::ref_component,
};

/// The oldest git with all that is used here (`merge-tree --write-tree`).
const OLDEST_GIT: (u32, u32) = (2, 38);

/// Device and inode of the common git directory: the same for every path that leads to the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The file system.
    pub device: u64,
    /// The directory on it.
    pub inode: u64,
}

/// A repository of which worktrees can be made.
#[derive(Debug, Clone)]
pub struct Repository {
    identity: Identity,
    common: PathBuf,
    is_bare: bool,
    null_oid: String,
    hooks: PathBuf,
    lock: SharedLock,
}

impl Repository {
    /// The repository in which `path` lies: a checkout, a folder of it, a linked worktree, or a bare repository.
    pub fn discover(path: &Path) -> Result<Repository, Error> {
        find(path).attempt(|| format!("find the git repository of {}", path.display()))
    }

    /// What makes it this repository and no other.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The directory that all its worktrees share, in canonical form.
    pub fn common_dir(&self) -> &Path {
        &self.common
    }

    /// Whether it has no checkout of its own.
    pub fn is_bare(&self) -> bool {
        self.is_bare
    }

    /// Its main checkout, where it has one in the usual place.
    pub fn main_checkout(&self) -> Option<&Path> {
        if self.is_bare || self.common.file_name()? != ".git" { None } else { self.common.parent() }
    }

    /// Waits for the repository's lock. It covers registration only; never run anything long under it.
    pub fn lock(&self, run: &str, deadline: Duration) -> Result<Held<'_>, Error> {
        self.hold(run, deadline).attempt(|| format!("lock the repository {}", self.common.display()))
    }

    /// Who holds the repository's lock, and since when, without taking it.
    pub fn lock_holder(&self) -> Option<Holder> {
        self.lock.holder()
    }

    /// Lets git tidy up its objects, under the repository's lock: it races the deletion of branches.
    pub fn maintain(&self, run: &str, deadline: Duration) -> Result<(), Error> {
        let tidy = || {
            let _held = self.hold(run, deadline)?;
            self.git("gc").args(["--auto", "--quiet"]).run().map(|_| ())
        };
        tidy().attempt(|| format!("maintain the repository {}", self.common.display()))
    }

    pub(crate) fn hold(&self, run: &str, deadline: Duration) -> Result<Held<'_>, Kind> {
        self.hold_unless(run, deadline, None)
    }

    pub(crate) fn hold_unless(
        &self,
        run: &str,
        deadline: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<Held<'_>, Kind> {
        make_folder(&self.sprag_dir())?;
        let held = self.lock.hold_unless(run, deadline, cancel);
        crate::fault::point("locked");
        held
    }

    /// Git in the common directory: for refs and objects, not for files.
    pub(crate) fn git<'a>(&self, subcommand: &str) -> Git<'a> {
        Git::new(&self.common, subcommand).git_dir(&self.common)
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

    /// A short name for folders that hold things of several repositories.
    pub(crate) fn key(&self) -> String {
        format!("{:x}-{:x}", self.identity.device, self.identity.inode)
    }

    /// The hook's file, if the repository has one.
    pub(crate) fn hook(&self, name: &str) -> Option<PathBuf> {
        let path = self.hooks.join(name);
        let mode = fs::metadata(&path).ok()?.mode();
        (mode & 0o111 != 0).then_some(path)
    }

    /// The lock of all who land on a branch.
    pub(crate) fn land_lock(&self, branch: &str) -> Result<SharedLock, Kind> {
        let folder = self.sprag_dir().join("land");
        make_folder(&folder)?;
        let what = format!("landing on `{branch}` of {}", self.common.display());
        Ok(SharedLock::at(folder.join(ref_component(branch)), what))
    }

    /// The commit that a revision names.
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
        match output.status.success() {
            true => Ok(output.line()),
            false if !output.stderr.is_empty() => Err(output.failure()),
            false if self.is_empty()? => Err(Kind::NoCommits { path: self.common.clone() }),
            false => Err(unknown()),
        }
    }

    /// What a full ref name points at, if it exists.
    pub(crate) fn read_ref(&self, name: &str) -> Result<Option<String>, Kind> {
        let output =
            self.git("rev-parse").args(["--verify", "--quiet", "--end-of-options", name]).output()?;
        Ok(output.status.success().then(|| output.line()))
    }

    /// Several changes to refs, all or none.
    pub(crate) fn update_refs(&self, message: &str, changes: &str) -> Result<(), Kind> {
        let input = format!("start\n{changes}prepare\ncommit\n");
        self.git("update-ref")
            .args(["-m", message, "--create-reflog", "--stdin"])
            .input(input)
            .run()
            .map(|_| ())
    }

    fn is_empty(&self) -> Result<bool, Kind> {
        Ok(self.git("rev-list").args(["--ignore-missing", "--all", "--max-count=1"]).line()?.is_empty())
    }
}

fn find(path: &Path) -> Result<Repository, Kind> {
    git_version()?;
    let asked = Git::new(path, "rev-parse").args([
        "--path-format=absolute",
        "--git-common-dir",
        "--is-bare-repository",
        "--show-object-format",
        "--git-path",
        "hooks",
    ]);
    let output = match asked.output() {
        Err(Kind::Io { doing: "work in", .. }) => return Err(Kind::NotARepository { path: path.to_owned() }),
        other => other?,
    };
    if !output.status.success() {
        return Err(match output.failure() {
            Kind::Git { stderr, .. } if stderr.contains("not a git repository") => {
                Kind::NotARepository { path: path.to_owned() }
            }
            other => other,
        });
    }
    let unexpected = || Kind::GitUnusable { message: format!("git rev-parse said {:?}", output.line()) };
    // Paths may hold line ends; the words between them do not.
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
    let found = fs::metadata(&common).map_err(Kind::io("look at", &common))?;
    if common.join("reftable").is_dir() {
        return Err(Kind::RefFormat { path: common });
    }
    let what = format!("the repository {}", common.display());
    let lock = SharedLock::at(common.join("sprag").join("lock"), what);
    let identity = Identity { device: found.dev(), inode: found.ino() };
    Ok(Repository { identity, common, is_bare, null_oid, hooks, lock })
}

fn find_bytes(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// Git's version, asked for once.
fn git_version() -> Result<(u32, u32), Kind> {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    if let Some(&version) = VERSION.get() {
        return Ok(version);
    }
    let said = Git::new(Path::new("/"), "version").line()?;
    let unusable = || Kind::GitUnusable { message: format!("{said} is not supported") };
    let mut numbers = said.split(' ').nth(2).unwrap_or_default().split('.');
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    let version = next().zip(next()).filter(|&version| version >= OLDEST_GIT).ok_or_else(unusable)?;
    Ok(*VERSION.get_or_init(|| version))
}
