//! Creates or moves a branch without a git process: the file of a loose ref, written under git's own lock for it.
//!
//! ```text
//!   refs/heads/NAME.lock (created exclusively) ─▶ no such ref, loose or packed ─▶ reflog ─▶ rename to NAME
//!                                              └▶ or it has the expected object ─┘
//! ```
//!
//! It handles the plain case only. In unusual cases (another ref store, a hook on refs, a shared repository, a
//! conflicting name, a lock that exists) the caller runs git, which also reports the error in its own words.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{clock, read, repository::Repository};

/// The committer in the reflog.
const COMMITTER: &str = "Sprag <sprag@localhost>";

/// Creates `refs/heads/BRANCH`. Returns false if the caller must run git instead.
pub(crate) fn create(repository: &Repository, branch: &str, commit: &str, message: &str) -> bool {
    is_plain(repository) && try_create(repository, branch, commit, message).unwrap_or(false)
}

/// Moves `refs/heads/BRANCH` from one commit to another. Returns false if the caller must run git instead.
pub(crate) fn update(
    repository: &Repository,
    branch: &str,
    after: &str,
    before: &str,
    message: &str,
) -> bool {
    is_plain(repository) && try_update(repository, branch, after, before, message).unwrap_or(false)
}

/// Returns whether refs are plain files without a hook, and files are for this user alone.
pub(crate) fn is_plain(repository: &Repository) -> bool {
    let common = repository.common_dir();
    let Ok(config) = read::text(common.join("config")) else { return false };
    let config = config.to_ascii_lowercase();
    !config.contains("refstorage")
        && !config.contains("sharedrepository")
        && !common.join("reftable").exists()
        && repository.hook("reference-transaction").is_none()
}

/// A lock file that is removed on drop, unless it has become the ref.
struct Lock {
    path: PathBuf,
    held: bool,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.held {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Lock {
    /// Creates git's lock for a branch; `None` if it exists.
    fn acquire(heads: &Path, branch: &str) -> io::Result<Option<(Lock, File)>> {
        let path = heads.join(format!("{branch}.lock"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => Ok(Some((Lock { path, held: true }, file))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the lock file the ref.
    fn become_ref(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.held = false;
        Ok(())
    }
}

fn try_update(
    repository: &Repository,
    branch: &str,
    after: &str,
    before: &str,
    message: &str,
) -> io::Result<bool> {
    let common = repository.common_dir();
    let heads = common.join("refs/heads");
    let path = heads.join(branch);
    fs::create_dir_all(path.parent().unwrap_or(&heads))?;
    let Some((lock, mut file)) = Lock::acquire(&heads, branch)? else { return Ok(false) };
    let is_expected = match fs::symlink_metadata(&path) {
        Ok(found) => found.is_file() && read::text(&path)?.trim_end() == before,
        Err(error) if error.kind() == io::ErrorKind::NotFound => is_packed_at(common, branch, before)?,
        Err(error) => return Err(error),
    };
    if !is_expected {
        return Ok(false);
    }
    file.write_all(format!("{after}\n").as_bytes())?;
    let log = common.join("logs/refs/heads").join(branch);
    fs::create_dir_all(log.parent().unwrap_or(&log))?;
    read::append(&log)?.write_all(log_line(before, after, message).as_bytes())?;
    lock.become_ref(&path)?;
    Ok(true)
}

/// Returns whether this branch is packed with this object.
fn is_packed_at(common: &Path, branch: &str, object: &str) -> io::Result<bool> {
    let wanted = format!("{object} refs/heads/{branch}");
    let packed = read::text_if_there(&common.join("packed-refs"))?.unwrap_or_default();
    Ok(packed.lines().any(|line| line == wanted))
}

fn try_create(repository: &Repository, branch: &str, commit: &str, message: &str) -> io::Result<bool> {
    let common = repository.common_dir();
    let heads = common.join("refs/heads");
    let path = heads.join(branch);
    // A branch whose name is a prefix of this one: git reports the conflict.
    if branch.match_indices('/').any(|(end, _)| heads.join(&branch[..end]).is_file()) {
        return Ok(false);
    }
    fs::create_dir_all(path.parent().unwrap_or(&heads))?;
    let Some((lock, mut file)) = Lock::acquire(&heads, branch)? else { return Ok(false) };
    // Packing or deleting the ref needs the same lock, so this check stays valid.
    if path.symlink_metadata().is_ok() || is_packed(common, branch)? {
        return Ok(false);
    }
    // Not synced, like git's own writes: a branch that a power failure removes has no commits of its own yet.
    file.write_all(format!("{commit}\n").as_bytes())?;
    write_log(&common.join("logs/refs/heads").join(branch), repository, commit, message)?;
    lock.become_ref(&path)?;
    Ok(true)
}

/// Returns whether this branch or a conflicting one is packed.
fn is_packed(common: &Path, branch: &str) -> io::Result<bool> {
    let Some(packed) = read::text_if_there(&common.join("packed-refs"))? else { return Ok(false) };
    let names = packed.lines().filter_map(|line| line.split_once(" refs/heads/")).map(|(_, name)| name);
    let below = format!("{branch}/");
    let in_the_way = |name: &str| {
        name == branch
            || name.starts_with(&below)
            || branch.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
    };
    Ok(names.into_iter().any(in_the_way))
}

/// Writes the log of a new ref, replacing the log of an earlier ref of the same name.
fn write_log(path: &Path, repository: &Repository, commit: &str, message: &str) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    read::replace(path)?.write_all(log_line(repository.null_oid(), commit, message).as_bytes())
}

/// Returns an entry of a log: one line, so line ends in the message are removed.
fn log_line(before: &str, after: &str, message: &str) -> String {
    let seconds = clock::unix_ms() / 1000;
    let message: Vec<&str> = message.split_whitespace().collect();
    format!("{before} {after} {COMMITTER} {seconds} +0000\t{}\n", message.join(" "))
}
