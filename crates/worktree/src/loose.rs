//! Creates a branch without a git process: the file of a loose ref, written under git's own lock for it.
//!
//! ```text
//!   refs/heads/NAME.lock (created exclusively) ─▶ no such ref, loose or packed ─▶ reflog ─▶ rename to NAME
//! ```
//!
//! It handles the plain case only. In unusual cases (another ref store, a hook on refs, a shared repository, a
//! conflicting name, a lock that exists) the caller runs git, which also reports the error in its own words.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{clock, read, repository::Repository};

/// The committer in the reflog.
const COMMITTER: &str = "Sprag <sprag@localhost>";

/// Creates `refs/heads/BRANCH`. Returns false if the caller must run git instead.
pub(crate) fn create(repository: &Repository, branch: &str, commit: &str, message: &str) -> bool {
    is_plain(repository) && try_create(repository, branch, commit, message).unwrap_or(false)
}

/// Returns whether refs are plain files without a hook.
fn is_plain(repository: &Repository) -> bool {
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

fn try_create(repository: &Repository, branch: &str, commit: &str, message: &str) -> io::Result<bool> {
    let common = repository.common_dir();
    let heads = common.join("refs/heads");
    let path = heads.join(branch);
    // A branch whose name is a prefix of this one: git reports the conflict.
    if branch.match_indices('/').any(|(end, _)| heads.join(&branch[..end]).is_file()) {
        return Ok(false);
    }
    fs::create_dir_all(path.parent().unwrap_or(&heads))?;
    let mut lock = Lock { path: heads.join(format!("{branch}.lock")), held: false };
    let mut file = match OpenOptions::new().write(true).create_new(true).open(&lock.path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(error),
    };
    lock.held = true;
    // Packing or deleting the ref needs the same lock, so this check stays valid.
    if path.symlink_metadata().is_ok() || is_packed(common, branch)? {
        return Ok(false);
    }
    // Not synced, like git's own writes: a branch that a power failure removes has no commits of its own yet.
    file.write_all(format!("{commit}\n").as_bytes())?;
    write_log(&common.join("logs/refs/heads").join(branch), repository, commit, message)?;
    fs::rename(&lock.path, &path)?;
    lock.held = false;
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

/// Writes the log of a new ref, replacing the log of an earlier ref of the same name. An entry is one line, so
/// line ends in a run's name are removed.
fn write_log(path: &Path, repository: &Repository, commit: &str, message: &str) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let (null, seconds) = (repository.null_oid(), clock::unix_ms() / 1000);
    let message: Vec<&str> = message.split_whitespace().collect();
    let line = format!("{null} {commit} {COMMITTER} {seconds} +0000\t{}\n", message.join(" "));
    read::replace(path)?.write_all(line.as_bytes())
}
