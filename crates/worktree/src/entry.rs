//! What lies under `worktrees/`: our entries, other people's, and who has which branch checked out.
//!
//! Files are read, never git's list: it fails on a single broken entry, and grows slower with each.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use crate::{
    error::Kind,
    mark::{MARK, Mark, write_whole},
    name::ID_PREFIX,
    repository::Repository,
};

/// How often a folder is made again that somebody removes under our hands.
const RENAME_TRIES: u32 = 100;

/// An entry that carries our mark.
#[derive(Debug, Clone)]
pub(crate) struct OurEntry {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// None if it cannot be read: the machine stopped before it was on the disk.
    pub(crate) mark: Option<Mark>,
}

/// A checkout that has a branch.
#[derive(Debug)]
pub(crate) struct Checkout {
    pub(crate) path: PathBuf,
    pub(crate) mark: Option<Mark>,
}

/// Our entries in a folder (`worktrees/` or our staging), in the order of their names.
pub(crate) fn ours(folder: &Path) -> Result<Vec<OurEntry>, Kind> {
    let mut found: Vec<OurEntry> = names(folder)?
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|id| id.starts_with(ID_PREFIX))
        .map(|id| (folder.join(&id), id))
        // A staging folder is ours from its first moment on, before there is a mark.
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

/// Who has a branch checked out, or is in the middle of rebasing it.
pub(crate) fn holder_of(repository: &Repository, branch: &str) -> Result<Option<Checkout>, Kind> {
    Ok(checkouts_of(repository, branch)?.into_iter().next())
}

/// All checkouts of a branch: more than one only if somebody forced it.
pub(crate) fn checkouts_of(repository: &Repository, branch: &str) -> Result<Vec<Checkout>, Kind> {
    let mut found = Vec::new();
    if main_has(repository, branch) {
        let path = repository.main_checkout().unwrap_or(repository.common_dir()).to_owned();
        found.push(Checkout { path, mark: None });
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
                .unwrap_or(entry);
            found.push(Checkout { path, mark });
        }
    }
    Ok(found)
}

/// Whether the main checkout has a branch; the HEAD of a bare repository is nobody's checkout.
pub(crate) fn main_has(repository: &Repository, branch: &str) -> bool {
    !repository.is_bare() && uses(repository.common_dir(), branch)
}

fn uses(git_dir: &Path, branch: &str) -> bool {
    let name = format!("refs/heads/{branch}");
    let says = |file: &str, prefix: &str| {
        fs::read_to_string(git_dir.join(file)).is_ok_and(|text| {
            text.trim_end().strip_prefix(prefix).is_some_and(|rest| rest.trim_start() == name)
        })
    };
    says("HEAD", "ref:") || says("rebase-merge/head-name", "") || says("rebase-apply/head-name", "")
}

/// Where an entry's files are, by its `gitdir`.
fn checkout_path(entry: &Path) -> Option<PathBuf> {
    let text = fs::read(entry.join("gitdir")).ok()?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let path = text.strip_suffix(b"/.git")?;
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// Writes what git needs to know a worktree by.
pub(crate) fn write_links(entry: &Path, worktree: &Path) -> Result<(), Kind> {
    let mut gitdir = worktree.join(".git").into_os_string().into_vec();
    gitdir.push(b'\n');
    write_whole(&entry.join("gitdir"), &gitdir)?;
    write_whole(&entry.join("commondir"), b"../..\n")
}

/// HEAD on a branch, or at a commit.
pub(crate) fn write_head(entry: &Path, branch: Option<&str>, commit: &str) -> Result<(), Kind> {
    let head = match branch {
        Some(branch) => format!("ref: refs/heads/{branch}\n"),
        None => format!("{commit}\n"),
    };
    write_whole(&entry.join("HEAD"), head.as_bytes())
}

/// Files that a killed git, or a full disk, left empty are written again from the mark.
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

/// Moves a finished folder to its place. Who prunes may remove `worktrees/` when it is empty.
pub(crate) fn put_in_place(staged: &Path, place: &Path) -> Result<(), Kind> {
    let failed = |source| Kind::Io { doing: "make", path: place.to_owned(), source };
    for _ in 0..RENAME_TRIES {
        match fs::rename(staged, place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && staged.exists() => {
                fs::create_dir_all(place.parent().unwrap_or(place)).map_err(failed)?;
            }
            other => return other.map_err(failed),
        }
    }
    Err(failed(io::Error::other("its folder is removed again and again")))
}
