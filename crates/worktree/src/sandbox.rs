//! The repository of a sandboxed step: commits work, and nothing that belongs to others can be changed.
//!
//! ```text
//!   .git                        a folder of this step alone, with copies of the branches and the packed refs
//!   .git/hooks, config, …       read-only
//!   .git/objects                writable, its packs read-only
//!   .git/worktrees/ID           writable: HEAD, index; read-only: its links, its mark, its config
//!   WORKTREE/.git               read-only
//! ```
//!
//! After the step, the branch of the worktree moves to the commit that the copy has, in one compare-and-set. Other
//! branches of the copy are dropped: a step cannot move them. The records of landings, the locks of other runs and their
//! entries are not there at all.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sprag_process::{Mount, make_private_folder};

use crate::{
    SharedWorktree,
    entry::write_head,
    error::{Attempt, Error, Kind},
    mark::MARK,
    name::check_branch,
    read,
    repository::Repository,
    visit::VISITS,
};

/// The most branches that are copied. A repository with more should pack them.
const MAX_BRANCHES: usize = 20_000;
/// The most packs that are protected one by one.
const MAX_PACKS: usize = 100;
/// The depth of the folders of branch names.
const MAX_DEPTH: u32 = 32;
/// The longest content of a ref or HEAD.
const MAX_REF_BYTES: usize = 4096;

/// The file with the refs that are not files of their own.
const PACKED: &str = "packed-refs";
/// The parts of a repository of which a step has its own, or none.
const PRIVATE: [&str; 11] = [
    "objects",
    "refs",
    "logs",
    PACKED,
    "worktrees",
    "sprag",
    "index",
    "gc.pid",
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "ORIG_HEAD",
];
/// The most parts of a repository that are mounted one by one; a usual one has ten.
const MAX_PARTS: usize = 100;

/// The files of an entry that a step must not change: they lead git, or Sprag, elsewhere.
const FIXED: [&str; 4] = ["commondir", "gitdir", MARK, VISITS];

impl SharedWorktree {
    /// Prepares the refs of a sandboxed step in a folder of its own, and returns the parts of the repository that the
    /// step sees. The mounts belong after that of the worktree.
    pub fn open_sandbox(&self, folder: &Path) -> Result<Vec<Mount>, Error> {
        let open = || {
            let common = self.repository().common_dir();
            let own = folder.join("git");
            for part in ["refs/heads", "refs/tags", "refs/remotes", "logs"] {
                make(&own.join(part))?;
            }
            let mut left = MAX_BRANCHES;
            copy_refs(&common.join("refs/heads"), &own.join("refs/heads"), MAX_DEPTH, &mut left)?;
            if let Ok(packed) = read::bytes(common.join(PACKED)) {
                write(&own.join(PACKED), &packed)?;
            }
            if let Some(branch) = &self.mark().branch {
                let before = value_of(self.repository(), branch)?.unwrap_or_default();
                write(&folder.join("before"), before.as_bytes())?;
            }
            self.mounts(Some(&own))
        };
        open().attempt(|| format!("prepare the sandbox of {}", self.path().display()))
    }

    /// Returns the parts of the repository that a sandboxed command sees if it commits nothing.
    pub fn read_only_sandbox(&self) -> Result<Vec<Mount>, Error> {
        self.mounts(None).attempt(|| format!("prepare the sandbox of {}", self.path().display()))
    }

    /// Moves the branch to the commit that a sandboxed step has left in its folder. Returns a warning if the step left
    /// HEAD on a branch that only it had.
    pub fn close_sandbox(&self, folder: &Path) -> Result<Option<String>, Error> {
        let own = folder.join("git");
        let close = || {
            let Some(branch) = &self.mark().branch else { return self.settle_head(&own, None) };
            let before = read::text_if_there(&folder.join("before")).unwrap_or_default().unwrap_or_default();
            if let Some(after) = branch_in(&own, branch).filter(|after| *after != before) {
                let name = format!("refs/heads/{branch}");
                let change = if before.is_empty() {
                    format!("create {name} {after}\n")
                } else {
                    format!("update {name} {after} {before}\n")
                };
                self.repository().update_refs("sprag: commits of a sandboxed step", &change)?;
            }
            self.settle_head(&own, Some(branch))
        };
        close().attempt(|| format!("take over the commits of a sandboxed step in {}", self.path().display()))
    }

    /// Makes HEAD name something that exists outside of the sandbox.
    fn settle_head(&self, git: &Path, own: Option<&str>) -> Result<Option<String>, Kind> {
        let head = read::text(self.entry().join("HEAD")).unwrap_or_default();
        let head = head.trim_end();
        if is_object(head) || own.is_some_and(|own| head == format!("ref: refs/heads/{own}")) {
            return Ok(None);
        }
        let other = head.strip_prefix("ref: refs/heads/").filter(|other| check_branch(other).is_ok());
        let object = other.and_then(|other| branch_in(git, other));
        let found = object.filter(|object| self.repository().commit(object).is_ok());
        match (other, found) {
            (Some(other), Some(object)) => {
                write_head(&self.entry(), None, &object)?;
                Ok(Some(format!(
                    "the branch `{other}` was only in the sandbox: its commit {} is checked out without it",
                    &object[..10.min(object.len())]
                )))
            }
            _ => {
                write_head(&self.entry(), own, &self.mark().base)?;
                Ok(Some("HEAD named no commit, and names the branch of the worktree again".to_owned()))
            }
        }
    }

    fn mounts(&self, own: Option<&Path>) -> Result<Vec<Mount>, Kind> {
        let common = self.repository().common_dir();
        let (entries, entry) = (self.repository().entries_dir(), self.entry());
        let mut mounts = Vec::new();
        match own {
            Some(own) => {
                mounts.push(Mount::WritableAt { from: own.to_owned(), to: common.to_owned() });
                mounts.extend(shared_parts(common)?.into_iter().map(Mount::ReadOnly));
                mounts.extend(objects(common));
                let others = ["refs/tags", "refs/remotes"].map(|part| common.join(part));
                mounts.extend(others.into_iter().filter(|path| path.is_dir()).map(Mount::ReadOnly));
                // Git reads it if the repository says so, and it can name programs to run.
                let config = entry.join("config.worktree");
                if !config.exists() {
                    write(&config, b"")?;
                }
                mounts.push(Mount::Writable(entry.clone()));
                let fixed =
                    FIXED.map(|name| entry.join(name)).into_iter().chain([config, entry.join("modules")]);
                mounts.extend(fixed.filter(|path| path.exists()).map(Mount::ReadOnly));
            }
            None => {
                mounts.push(Mount::ReadOnly(common.to_owned()));
                let hidden = [common.join("sprag"), entries];
                mounts.extend(hidden.into_iter().filter(|path| path.is_dir()).map(Mount::Empty));
                mounts.push(Mount::ReadOnly(entry));
            }
        }
        let link = self.path().join(".git");
        if fs::symlink_metadata(&link).is_ok_and(|found| found.is_file()) {
            mounts.push(Mount::ReadOnly(link));
        }
        Ok(mounts)
    }
}

/// Returns the parts of a repository that a step sees as they are: config, hooks and whatever else is there.
fn shared_parts(common: &Path) -> Result<Vec<PathBuf>, Kind> {
    let failed = |source| Kind::Io { doing: "read the folder", path: common.to_owned(), source };
    let mut parts: Vec<PathBuf> = fs::read_dir(common)
        .map_err(failed)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !PRIVATE.contains(&&*name) && !name.ends_with(".lock")
        })
        .filter(|path| path.is_file() || path.is_dir())
        .collect();
    parts.sort();
    parts.truncate(MAX_PARTS);
    Ok(parts)
}

/// Returns the objects: new ones can be written, and what is packed cannot be changed or removed.
fn objects(common: &Path) -> Vec<Mount> {
    let objects = common.join("objects");
    let mut packs: Vec<PathBuf> = fs::read_dir(objects.join("pack"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    packs.sort();
    packs.truncate(MAX_PACKS);
    let mut mounts = vec![Mount::Writable(objects.clone())];
    let info = objects.join("info");
    mounts.extend(packs.into_iter().chain([info]).filter(|path| path.exists()).map(Mount::ReadOnly));
    mounts
}

/// Copies the branches that are files of their own.
fn copy_refs(from: &Path, to: &Path, depth: u32, left: &mut usize) -> Result<(), Kind> {
    let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            make(&target)?;
            copy_refs(&source, &target, depth, left)?;
        } else if source.extension().is_none_or(|ending| ending != "lock") {
            *left = left.checked_sub(1).ok_or_else(|| Kind::Io {
                doing: "copy the branches of",
                path: from.to_owned(),
                source: io::Error::other(format!(
                    "it has more than {MAX_BRANCHES}: run `git pack-refs --all`"
                )),
            })?;
            if let Ok(content) = read::bytes(&source) {
                write(&target, &content[..content.len().min(MAX_REF_BYTES)])?;
            }
        }
    }
    Ok(())
}

/// Returns the object that a branch points at; `None` if there is no such branch.
fn value_of(repository: &Repository, branch: &str) -> Result<Option<String>, Kind> {
    let loose = repository.common_dir().join("refs/heads").join(branch);
    match object_in(&loose) {
        Some(object) => Ok(Some(object)),
        None => repository.read_ref(&format!("refs/heads/{branch}")),
    }
}

/// Returns the object that a branch of a step's own git folder points at.
fn branch_in(git: &Path, branch: &str) -> Option<String> {
    let packed = || {
        let text = read::text(git.join(PACKED)).ok()?;
        let name = format!("refs/heads/{branch}");
        let found =
            text.lines().filter_map(|line| line.split_once(' ')).find(|(_, ref_name)| *ref_name == name);
        found.map(|(object, _)| object.to_owned()).filter(|object| is_object(object))
    };
    object_in(&git.join("refs/heads").join(branch)).or_else(packed)
}

/// Returns the object in the file of a ref.
fn object_in(file: &Path) -> Option<String> {
    let text = read::text(file).ok()?;
    Some(text.trim_end().to_owned()).filter(|text| is_object(text))
}

fn is_object(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn make(folder: &Path) -> Result<(), Kind> {
    let made = if folder.is_dir() { Ok(()) } else { make_private_folder(folder) };
    made.map_err(|source| Kind::Io { doing: "create", path: folder.to_owned(), source })
}

fn write(path: &Path, content: &[u8]) -> Result<(), Kind> {
    fs::write(path, content).map_err(|source| Kind::Io { doing: "write", path: path.to_owned(), source })
}
