//! A new branch without a process of git's: the file of a loose ref, made under git's own lock for it.
//!
//! ```text
//!   refs/heads/NAME.lock (only if it is not there) ─▶ no such ref, loose or packed ─▶ reflog ─▶ rename to NAME
//! ```
//!
//! Only the plain case: for whatever is unusual (another kind of ref store, a hook on refs, a shared repository, a name that
//! is in the way, a lock that somebody has) git is asked, and tells what is wrong in its own words.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{clock, repository::Repository};

/// Who made it, as a reflog tells.
const WHO: &str = "Sprag <sprag@localhost>";

/// Makes `refs/heads/BRANCH`; false if that is for git to do.
pub(crate) fn make(repository: &Repository, branch: &str, commit: &str, message: &str) -> bool {
    is_plain(repository) && try_make(repository, branch, commit, message).unwrap_or(false)
}

/// Whether refs are files, and nobody has a say in them but who writes them.
fn is_plain(repository: &Repository) -> bool {
    let common = repository.common_dir();
    let Ok(config) = fs::read_to_string(common.join("config")) else { return false };
    let config = config.to_ascii_lowercase();
    !config.contains("refstorage")
        && !config.contains("sharedrepository")
        && !common.join("reftable").exists()
        && repository.hook("reference-transaction").is_none()
}

/// A lock file that goes unless it becomes the ref.
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

fn try_make(repository: &Repository, branch: &str, commit: &str, message: &str) -> io::Result<bool> {
    let common = repository.common_dir();
    let heads = common.join("refs/heads");
    let path = heads.join(branch);
    // A branch whose name is the beginning of this one: git says so.
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
    // Whoever packs or deletes it needs the lock that we have: what is looked at now stays so.
    if path.symlink_metadata().is_ok() || is_packed(common, branch)? {
        return Ok(false);
    }
    // Not synced, as git does not either: a branch that a power cut takes has nothing on it yet.
    file.write_all(format!("{commit}\n").as_bytes())?;
    write_log(&common.join("logs/refs/heads").join(branch), repository, commit, message)?;
    fs::rename(&lock.path, &path)?;
    lock.held = false;
    Ok(true)
}

/// Whether a branch of this name is packed, or one that is in its way.
fn is_packed(common: &Path, branch: &str) -> io::Result<bool> {
    let packed = match fs::read_to_string(common.join("packed-refs")) {
        Ok(packed) => packed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let names = packed.lines().filter_map(|line| line.split_once(" refs/heads/")).map(|(_, name)| name);
    let below = format!("{branch}/");
    let in_the_way = |name: &str| {
        name == branch
            || name.starts_with(&below)
            || branch.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
    };
    Ok(names.into_iter().any(in_the_way))
}

/// The log of a ref that is new: what another one of its name has left is not its own. An entry is a line, whatever
/// a run is called.
fn write_log(path: &Path, repository: &Repository, commit: &str, message: &str) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let (null, seconds) = (repository.null_oid(), clock::unix_ms() / 1000);
    let message: Vec<&str> = message.split_whitespace().collect();
    let line = format!("{null} {commit} {WHO} {seconds} +0000\t{}\n", message.join(" "));
    File::create(path)?.write_all(line.as_bytes())
}
