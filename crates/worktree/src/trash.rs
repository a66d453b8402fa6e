//! Deletion: files are moved to a trash folder under the lock, and deleted without it, with retries.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    clock,
    entry::names,
    error::Kind,
    lock::create_folder,
    metrics::{COUNTERS, count},
    name::ID_PREFIX,
};

/// The pauses between attempts to delete: a process that was just killed, or a slow network disk, may still
/// write.
const PAUSES_MS: [u64; 5] = [1, 10, 50, 100, 200];

/// The depth to which folders are made writable; git's own paths are much shorter.
const MAX_DEPTH: u32 = 512;

/// A file or folder that could not be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// The run that it belongs to; empty if unknown.
    pub run: String,
    /// Its path.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
    /// The action for a person.
    pub remedy: String,
}

/// Returns an unused path in a trash folder, which is created if necessary.
pub(crate) fn new_path(folder: &Path, name: &str) -> Result<PathBuf, Kind> {
    create_folder(folder)?;
    Ok(folder.join(format!("{name}-{}", clock::random_hex())))
}

/// Deletes a file, or a folder with its content.
pub(crate) fn delete(path: &Path) -> Result<(), Leftover> {
    let mut failure = None;
    for pause_ms in [0].into_iter().chain(PAUSES_MS) {
        clock::pause_ms(pause_ms);
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => return Ok(()),
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    make_writable(path, 0);
                }
                failure = Some(error);
            }
        }
    }
    count(&COUNTERS.cleanup_failures);
    let first = first_file(path, 0).unwrap_or_else(|| path.to_owned());
    let reason = failure.map_or_else(String::new, |error| format!("{}: {error}", first.display()));
    tracing::warn!(run = run_of(path), path = %path.display(), reason, "could not delete it; the next recovery tries again");
    let remedy = format!(
        "see why {} cannot be deleted (lsattr, mount), then: rm -rf {}",
        first.display(),
        path.display()
    );
    Err(Leftover { run: run_of(path), path: path.to_owned(), reason, remedy })
}

/// Returns the run from the name of something in the trash or staging folder.
fn run_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let run = name.strip_prefix(ID_PREFIX).and_then(|rest| rest.split('-').next());
    run.unwrap_or_default().to_owned()
}

/// Deletes everything in a folder of ours. Returns what could not be deleted.
pub(crate) fn empty(folder: &Path) -> Vec<Leftover> {
    let all = names(folder).unwrap_or_default();
    all.into_iter().filter_map(|name| delete(&folder.join(name)).err()).collect()
}

fn make_writable(path: &Path, depth: u32) {
    let Ok(found) = fs::symlink_metadata(path) else { return };
    if !found.is_dir() || depth > MAX_DEPTH {
        return;
    }
    let mut mode = found.permissions();
    mode.set_mode(mode.mode() | 0o700);
    let _ = fs::set_permissions(path, mode);
    for name in names(path).unwrap_or_default() {
        make_writable(&path.join(name), depth + 1);
    }
}

/// Returns a file that still exists: most likely the one that could not be deleted.
fn first_file(path: &Path, depth: u32) -> Option<PathBuf> {
    if depth > MAX_DEPTH || !fs::symlink_metadata(path).ok()?.is_dir() {
        return Some(path.to_owned());
    }
    let inside = names(path).ok()?;
    inside
        .into_iter()
        .find_map(|name| first_file(&path.join(name), depth + 1))
        .or_else(|| Some(path.to_owned()))
}
