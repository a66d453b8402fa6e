//! The token in a server's data directory: the programs of the server's own user read it there and show it.
//!
//! It allows everything, because every program that can read the data directory can do everything anyway. It is not
//! in the store: a server accepts the token of its own data directory. To replace it, remove the file and restart the
//! server.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use sprag_app::tokens::draw_token;
use sprag_app::{fill_random, hex};

/// The file's name in the data directory.
const FILE: &str = "token";
/// The most bytes of the file: no token is longer.
const MAX_BYTES: u64 = 4_096;
/// The fewest characters of a token: a shorter one could be guessed.
const MIN_CHARS: usize = 32;

/// Returns the path of the token in this data directory.
pub fn local_token_file(data: &Path) -> PathBuf {
    data.join(FILE)
}

/// Reads the token of this data directory; none if there is none yet. Refuses a file that other users could have read
/// or written.
pub fn read_local_token(data: &Path) -> io::Result<Option<String>> {
    let path = local_token_file(data);
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(named(&path, &error.to_string())),
    };
    read_from(&path, file).map(Some)
}

fn read_from(path: &Path, file: File) -> io::Result<String> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(named(path, "it is not a file"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(named(path, "it belongs to another user"));
    }
    if found.mode() & 0o077 != 0 {
        return Err(named(path, "other users can read or write it"));
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    let token = text.trim();
    if token.len() < MIN_CHARS || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(named(path, "it does not contain a token"));
    }
    Ok(token.to_owned())
}

/// Returns an error that names the file and says what to do about it.
fn named(path: &Path, reason: &str) -> io::Error {
    io::Error::other(format!(
        "{}: {reason}; remove it, and `sprag serve` creates another one",
        path.display()
    ))
}

/// Reads the token of this data directory, or draws one and writes it there, readable by this user alone. If several
/// processes do this at once, all get the same token.
pub(crate) fn ensure_local_token(data: &Path) -> io::Result<String> {
    if let Some(token) = read_local_token(data)? {
        return Ok(token);
    }
    let path = local_token_file(data);
    let secret = draw_token();
    let mut bits = [0u8; 8];
    fill_random(&mut bits);
    let beside = data.join(format!(".{FILE}-{}", hex(&bits)));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(format!("{secret}\n").as_bytes())?;
        file.sync_all()?;
        // Unlike a rename, a link does not replace a file that another server has written in the meantime.
        std::fs::hard_link(&beside, &path)
    };
    let written = write();
    let _ = std::fs::remove_file(&beside);
    match written {
        Ok(()) => Ok(secret),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            read_local_token(data)?.ok_or_else(|| named(&path, "another process removes it"))
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn e05_a_token_is_made_once_and_only_its_user_can_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path();
        assert_eq!(read_local_token(data).expect("no file"), None);
        let all: Vec<String> = std::thread::scope(|scope| {
            let made: Vec<_> =
                (0..8).map(|_| scope.spawn(|| ensure_local_token(data).expect("a token"))).collect();
            made.into_iter().map(|one| one.join().expect("a thread")).collect()
        });
        assert!(all.iter().all(|token| *token == all[0]) && all[0].starts_with("sprag_"), "{all:?}");
        assert_eq!(ensure_local_token(data).expect("a token"), all[0], "it is used again");
        let mode = local_token_file(data).metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(data).expect("a folder").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn e05_a_token_that_others_could_read_is_not_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path();
        ensure_local_token(data).expect("a token");
        let path = local_token_file(data);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("its mode");
        let told = ensure_local_token(data).expect_err("refused").to_string();
        assert!(told.contains("other users can read") && told.contains("remove it"), "{told}");
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/etc/hostname", &path).expect("a link");
        assert!(ensure_local_token(data).is_err(), "a link is not followed");
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, "short").expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
        assert!(
            ensure_local_token(data).expect_err("refused").to_string().contains("does not contain a token")
        );
    }
}
