//! Keeping the data directory private to its user: it is created private, and closed again if it was open to other
//! users.

use std::fs::{Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sprag_process::{make_private_folder, open_regular};

/// The bits of a mode that give access to other users.
const OTHERS: u32 = 0o077;
/// The bit of a folder, such as `/tmp`, where all users may create files that other users cannot remove.
const STICKY: u32 = 0o1000;
/// The depth to which folders are searched.
const MAX_DEPTH: usize = 32;
/// The names of the files and folders that Sprag keeps in a data directory.
const OURS: [&str; 7] = ["sprag.db", "runs", "worktrees", "bell", "token", "remote", "ports.json"];

/// A data directory that was open to other users, and is private now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The directory.
    pub folder: PathBuf,
    /// The directory's mode before it was closed.
    pub mode: u32,
    /// The number of files and folders in it that were open as well.
    pub inside: usize,
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (folder, mode) = (self.folder.display(), self.mode & 0o777);
        write!(f, "other users could read {folder} (mode {mode:03o}): its mode is now 700")?;
        if self.inside > 0 {
            write!(f, ", and {} files and folders in it were tightened too", self.inside)?;
        }
        write!(f, ". If they may have read it, replace its tokens and the secrets of its webhooks")
    }
}

/// Creates a data directory that no other user can look into, or closes one that is open. Returns the directory if it
/// was open and held something.
pub fn make_private(folder: &Path) -> io::Result<Option<Closed>> {
    let found = match std::fs::metadata(folder) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_private_folder(folder)?;
            // Several processes may create it at once, or a default ACL may have set other rights.
            std::fs::metadata(folder)?
        }
        Err(error) => return Err(error),
    };
    check_owner(&found)?;
    if found.mode() & OTHERS == 0 {
        return Ok(None);
    }
    check_ours(folder, &found)?;
    let is_empty = std::fs::read_dir(folder)?.next().is_none();
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    if is_empty {
        // A new folder held nothing that others could have read.
        return Ok(None);
    }
    let inside = close_inside(folder);
    Ok(Some(Closed { folder: folder.to_owned(), mode: found.mode(), inside }))
}

/// Returns what is wrong with a data directory's privacy, for `doctor`; nothing if all is well.
pub fn openings(folder: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut look = |path: &Path| {
        if let Ok(found) = std::fs::symlink_metadata(path)
            && !found.is_symlink()
            && found.mode() & OTHERS != 0
        {
            wrong.push(format!("{} has mode {:03o}", path.display(), found.mode() & 0o777));
        }
    };
    look(folder);
    for name in ["sprag.db", "sprag.db-wal", "sprag.db-shm", "token", "runs", "worktrees", "bell", "remote"] {
        look(&folder.join(name));
    }
    wrong
}

fn check_owner(found: &Metadata) -> io::Result<()> {
    let user = rustix::process::geteuid();
    if !found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a directory"));
    }
    if user.is_root() || found.uid() == user.as_raw() {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it belongs to another user (uid {})", found.uid()),
        ))
    }
}

/// Refuses a folder that is also used for other things: Sprag must not close it.
fn check_ours(folder: &Path, found: &Metadata) -> io::Result<()> {
    let mut names = std::fs::read_dir(folder)?.flatten().map(|entry| entry.file_name());
    let is_ours = OURS.iter().any(|name| folder.join(name).symlink_metadata().is_ok());
    let refuse = |why: &str| {
        let mode = found.mode() & 0o7777;
        let text = format!("other users can read it (mode {mode:03o}), and {why}: give Sprag its own folder");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    };
    if found.mode() & STICKY != 0 {
        return refuse("it is a shared folder");
    }
    if is_ours || names.next().is_none() { Ok(()) } else { refuse("it contains other files") }
}

/// Removes other users' rights from all that Sprag keeps in the folder. Returns from how many files and folders.
/// Files in worktrees belong to the steps and stay as they are.
fn close_inside(folder: &Path) -> usize {
    let mut closed = 0;
    let mut todo: Vec<(PathBuf, usize)> = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = todo.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            let path = entry.path();
            closed += usize::from(found.mode() & OTHERS != 0 && close(&path, &found));
            let is_worktrees = depth <= 1 && entry.file_name() == "worktrees";
            if found.is_dir() && !is_worktrees && depth < MAX_DEPTH {
                todo.push((path, depth + 1));
            }
        }
    }
    closed
}

/// Closes one file or folder, but never a link in its place.
fn close(path: &Path, found: &Metadata) -> bool {
    let mode = Permissions::from_mode(found.mode() & 0o777 & !OTHERS);
    if found.is_file() {
        return open_regular(path).and_then(|file| file.set_permissions(mode)).is_ok();
    }
    found.is_dir() && std::fs::set_permissions(path, mode).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").mode() & 0o7777
    }

    fn open(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("its mode");
    }

    #[test]
    fn e05_a_data_directory_is_its_users_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("a/data");
        assert_eq!(make_private(&data).expect("made"), None);
        assert_eq!((mode(&data), openings(&data)), (0o700, Vec::new()));
        // The folder of a former version.
        std::fs::create_dir_all(data.join("runs/r/files")).expect("folders");
        std::fs::create_dir_all(data.join("worktrees/w")).expect("folders");
        for file in ["sprag.db", "runs/r/a.1.log", "runs/r/files/x", "worktrees/w/source"] {
            std::fs::write(data.join(file), "x").expect("a file");
            open(&data.join(file), 0o644);
        }
        open(&data.join("worktrees"), 0o755);
        open(&data.join("worktrees/w"), 0o755);
        open(&data, 0o755);
        std::fs::write(folder.path().join("foreign"), "x").expect("a file");
        open(&folder.path().join("foreign"), 0o644);
        std::os::unix::fs::symlink(folder.path().join("foreign"), data.join("runs/r/link")).expect("a link");
        assert!(!openings(&data).is_empty());
        let closed = make_private(&data).expect("closed").expect("it was open");
        assert!(closed.to_string().contains("mode 755") && closed.inside >= 5, "{closed}");
        assert_eq!((mode(&data), mode(&data.join("worktrees"))), (0o700, 0o700));
        for file in ["sprag.db", "runs/r/a.1.log", "runs/r/files/x"] {
            assert_eq!(mode(&data.join(file)), 0o600, "{file}");
        }
        assert_eq!(mode(&data.join("worktrees/w/source")), 0o644, "what is in a worktree is the run's own");
        assert_eq!(mode(&folder.path().join("foreign")), 0o644, "no link is followed");
        assert_eq!((make_private(&data).expect("made"), openings(&data)), (None, Vec::new()));
    }

    #[test]
    fn e05_a_folder_of_others_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let shared = folder.path().join("shared");
        std::fs::create_dir(&shared).expect("a folder");
        open(&shared, 0o1777);
        assert!(make_private(&shared).expect_err("refused").to_string().contains("a shared folder"));
        open(&shared, 0o755);
        std::fs::write(shared.join("thesis.txt"), "x").expect("a file");
        assert!(make_private(&shared).expect_err("refused").to_string().contains("other files"));
        assert_eq!(mode(&shared), 0o755);
        std::fs::remove_file(shared.join("thesis.txt")).expect("removed");
        // An empty folder is closed too, and held nothing to tell of.
        assert_eq!((make_private(&shared).expect("closed"), mode(&shared)), (None, 0o700));
        assert!(make_private(Path::new("/proc/version")).is_err());
    }
}
