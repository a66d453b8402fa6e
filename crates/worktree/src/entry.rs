//! The entries under `worktrees/`: Sprag's and others, and the branch that each has checked out.
//!
//! It reads files instead of running `git worktree list`, which fails on a single broken entry and slows down
//! with their number.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use crate::{
    error::Kind,
    mark::{MARK, Mark, write_atomic},
    name::ID_PREFIX,
    read,
    repository::Repository,
};

/// The attempts to create a folder that other processes keep removing.
const RENAME_TRIES: u32 = 100;

/// An entry with Sprag's mark.
#[derive(Debug, Clone)]
pub(crate) struct OurEntry {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// The mark; absent if it cannot be read because the machine stopped before it was on disk.
    pub(crate) mark: Option<Mark>,
}

/// A checkout of a branch.
#[derive(Debug)]
pub(crate) struct Checkout {
    /// The folder with its files; the git directory itself if the folder is unknown.
    pub(crate) path: PathBuf,
    /// The folder with its HEAD and index.
    pub(crate) git_dir: PathBuf,
    pub(crate) mark: Option<Mark>,
}

/// Returns Sprag's entries in a folder (`worktrees/` or the staging folder), sorted by name.
pub(crate) fn ours(folder: &Path) -> Result<Vec<OurEntry>, Kind> {
    let mut found: Vec<OurEntry> = names(folder)?
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|id| id.starts_with(ID_PREFIX))
        .map(|id| (folder.join(&id), id))
        // A folder in staging belongs to Sprag even before it has a mark.
        .filter(|(path, _)| path.join(MARK).exists() || folder.ends_with("sprag/staging"))
        .map(|(path, id)| OurEntry { mark: Mark::read(&path).filter(|mark| mark.id == id), path, id })
        .collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

pub(crate) fn names(folder: &Path) -> Result<Vec<std::ffi::OsString>, Kind> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.file_name()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(Kind::Io { doing: "read the folder", path: folder.to_owned(), source }),
    }
}

/// Returns the checkout that has a branch checked out or is rebasing it.
pub(crate) fn checkout_of(repository: &Repository, branch: &str) -> Result<Option<Checkout>, Kind> {
    Ok(checkouts_of(repository, branch)?.into_iter().next())
}

/// Returns all checkouts of a branch. There is more than one only if a user forced it.
pub(crate) fn checkouts_of(repository: &Repository, branch: &str) -> Result<Vec<Checkout>, Kind> {
    let mut found = Vec::new();
    if main_has(repository, branch) {
        let git_dir = repository.common_dir().to_owned();
        let path = repository.find_main_checkout()?.unwrap_or_else(|| git_dir.clone());
        found.push(Checkout { path, git_dir, mark: None });
    }
    let folder = repository.entries_dir();
    for name in names(&folder)? {
        let entry = folder.join(&name);
        if uses(&entry, branch) {
            let mark = Mark::read(&entry).filter(|mark| OsStr::new(&mark.id) == name);
            let path = mark
                .as_ref()
                .map(|mark| mark.path.clone())
                .or_else(|| checkout_path(&entry))
                .unwrap_or_else(|| entry.clone());
            found.push(Checkout { path, git_dir: entry, mark });
        }
    }
    Ok(found)
}

/// Returns all checkouts on a branch, with the branch.
pub(crate) fn branch_checkouts(repository: &Repository) -> Result<Vec<(String, Checkout)>, Kind> {
    let folder = repository.entries_dir();
    let mut git_dirs: Vec<PathBuf> = names(&folder)?.into_iter().map(|name| folder.join(name)).collect();
    if !repository.is_bare() {
        git_dirs.push(repository.common_dir().to_owned());
    }
    let branches: BTreeSet<String> = git_dirs.iter().filter_map(|git_dir| branch_at(git_dir)).collect();
    let mut found = Vec::new();
    for branch in branches {
        let checkouts = checkouts_of(repository, &branch)?.into_iter();
        let on_it = checkouts.filter(|checkout| branch_at(&checkout.git_dir).as_ref() == Some(&branch));
        found.extend(on_it.map(|checkout| (branch.clone(), checkout)));
    }
    Ok(found)
}

/// Returns the branch of a HEAD.
pub(crate) fn branch_at(git_dir: &Path) -> Option<String> {
    let head = read::text(git_dir.join("HEAD")).ok()?;
    Some(head.trim_end().strip_prefix("ref: refs/heads/")?.to_owned())
}

/// Returns whether the main checkout has the branch. The HEAD of a bare repository is not a checkout.
pub(crate) fn main_has(repository: &Repository, branch: &str) -> bool {
    !repository.is_bare() && uses(repository.common_dir(), branch)
}

fn uses(git_dir: &Path, branch: &str) -> bool {
    let name = format!("refs/heads/{branch}");
    let says = |file: &str, prefix: &str| {
        read::text(git_dir.join(file)).is_ok_and(|text| {
            text.trim_end().strip_prefix(prefix).is_some_and(|rest| rest.trim_start() == name)
        })
    };
    // A bisect stores the short name of the branch.
    let bisects = || read::text(git_dir.join("BISECT_START")).is_ok_and(|text| text.trim_end() == branch);
    says("HEAD", "ref:")
        || says("rebase-merge/head-name", "")
        || says("rebase-apply/head-name", "")
        || bisects()
}

/// Returns the folder of an entry's files, from its `gitdir`.
pub(crate) fn checkout_path(entry: &Path) -> Option<PathBuf> {
    let text = read::bytes(entry.join("gitdir")).ok()?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let path = text.strip_suffix(b"/.git")?;
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// Returns the entry that a worktree's `.git` file names; `None` if there is no such file.
pub(crate) fn linked_from(worktree: &Path) -> Option<PathBuf> {
    let text = read::bytes(worktree.join(".git")).ok()?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    text.strip_prefix(b"gitdir: ").map(|entry| worktree.join(OsStr::from_bytes(entry)))
}

/// Writes the files that link an entry to its worktree.
pub(crate) fn write_links(entry: &Path, worktree: &Path) -> Result<(), Kind> {
    let mut gitdir = worktree.join(".git").into_os_string().into_vec();
    gitdir.push(b'\n');
    write_atomic(&entry.join("gitdir"), &gitdir)?;
    write_atomic(&entry.join("commondir"), b"../..\n")
}

/// Writes HEAD: on a branch, or at a commit.
pub(crate) fn write_head(entry: &Path, branch: Option<&str>, commit: &str) -> Result<(), Kind> {
    let head = match branch {
        Some(branch) => format!("ref: refs/heads/{branch}\n"),
        None => format!("{commit}\n"),
    };
    write_atomic(&entry.join("HEAD"), head.as_bytes())
}

/// Restores files from the mark that a killed git or a full disk left empty.
pub(crate) fn repair(entry: &Path, mark: &Mark) -> Result<(), Kind> {
    let is_empty = |name: &str| fs::metadata(entry.join(name)).map_or(true, |found| found.len() == 0);
    if is_empty("gitdir") || is_empty("commondir") {
        write_links(entry, &mark.path)?;
    }
    if is_empty("HEAD") {
        write_head(entry, mark.branch.as_deref(), &mark.base)?;
    }
    for lock in ["index.lock", "HEAD.lock"] {
        let _ = fs::remove_file(entry.join(lock));
    }
    Ok(())
}

/// Renames a finished entry into `worktrees/`, which a concurrent prune may remove while it is empty.
pub(crate) fn move_into_place(staged: &Path, place: &Path) -> Result<(), Kind> {
    let failed = |source| Kind::Io { doing: "create", path: place.to_owned(), source };
    for _ in 0..RENAME_TRIES {
        match fs::rename(staged, place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && staged.exists() => {
                fs::create_dir_all(place.parent().unwrap_or(place)).map_err(failed)?;
            }
            other => return other.map_err(failed),
        }
    }
    Err(failed(io::Error::other("another process keeps removing its folder")))
}
