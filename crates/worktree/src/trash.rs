//! Deleting: things are moved aside under the lock, and deleted without it, as often as it takes.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    clock,
    entry::names,
    error::Kind,
    lock::make_folder,
    metrics::{COUNTERS, count},
    name::ID_PREFIX,
};

/// A process that was just ended, or a slow network disk, may still be about to write.
const PAUSES_MS: [u64; 5] = [1, 10, 50, 100, 200];

/// How deep folders are made writable; git's own paths end long before.
const DEEPEST: u32 = 512;

/// Something that could not be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// The run that it is of, as far as that is known.
    pub run: String,
    /// Where it is.
    pub path: PathBuf,
    /// Why it is still there.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

/// A new place in a folder of things to be deleted.
pub(crate) fn place(folder: &Path, name: &str) -> Result<PathBuf, Kind> {
    make_folder(folder)?;
    Ok(folder.join(format!("{name}-{}", clock::random_hex())))
}

/// Deletes a folder or file with all that is in it.
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
    tracing::warn!(run = run_of(path), path = %path.display(), reason, "could not be deleted; it will be tried again");
    let remedy = format!(
        "see why {} cannot be deleted (lsattr, mount), then: rm -rf {}",
        first.display(),
        path.display()
    );
    Err(Leftover { run: run_of(path), path: path.to_owned(), reason, remedy })
}

/// The run of which something was moved aside, or built: its name tells.
fn run_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let run = name.strip_prefix(ID_PREFIX).and_then(|rest| rest.split('-').next());
    run.unwrap_or_default().to_owned()
}

/// Tries again to delete everything in a folder of ours.
pub(crate) fn empty(folder: &Path) -> Vec<Leftover> {
    let all = names(folder).unwrap_or_default();
    all.into_iter().filter_map(|name| delete(&folder.join(name)).err()).collect()
}

fn make_writable(path: &Path, depth: u32) {
    let Ok(found) = fs::symlink_metadata(path) else { return };
    if !found.is_dir() || depth > DEEPEST {
        return;
    }
    let mut mode = found.permissions();
    mode.set_mode(mode.mode() | 0o700);
    let _ = fs::set_permissions(path, mode);
    for name in names(path).unwrap_or_default() {
        make_writable(&path.join(name), depth + 1);
    }
}

/// A file that is still there: most likely the one that could not be deleted.
fn first_file(path: &Path, depth: u32) -> Option<PathBuf> {
    if depth > DEEPEST || !fs::symlink_metadata(path).ok()?.is_dir() {
        return Some(path.to_owned());
    }
    let inside = names(path).ok()?;
    inside
        .into_iter()
        .find_map(|name| first_file(&path.join(name), depth + 1))
        .or_else(|| Some(path.to_owned()))
}
