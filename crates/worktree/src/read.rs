//! Reads and replaces files in a repository, where a step can put anything: only regular files, without blocking.
//! Follows links, because some tools store parts of a `.git` folder elsewhere.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::fs::OFlags;
use sprag_process::regular;

/// The largest file that is read. The indexes of the largest repositories are half of this.
const MOST_BYTES: u64 = 1 << 30;

/// Whatever is at the path, opening it does not wait.
const CAREFUL: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

fn open(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(CAREFUL.bits() as i32).open(path)?)
}

/// Opens a file to write it anew.
pub(crate) fn replace(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(CAREFUL.bits() as i32);
    regular(options.open(path)?)
}

/// Opens a file to write at its end.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).custom_flags(CAREFUL.bits() as i32);
    regular(options.open(path)?)
}

/// Reads the bytes of a file.
pub(crate) fn bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let file = open(path.as_ref())?;
    let mut bytes = Vec::with_capacity(file.metadata()?.len().min(MOST_BYTES) as usize);
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the text of a file.
pub(crate) fn text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(bytes(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Copies a file with its mode, as [`std::fs::copy`] does.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = open(from)?;
    let mut target = replace(to)?;
    io::copy(&mut source, &mut target)?;
    target.set_permissions(source.metadata()?.permissions())
}

/// Reads the text of a file; `None` if it does not exist.
pub(crate) fn text_if_there(path: &Path) -> io::Result<Option<String>> {
    match text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e03_reading_a_pipe_does_not_block() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), 0o600.into()).expect("a pipe");
        std::fs::write(at("file"), "text").expect("a file");
        std::os::unix::fs::symlink("file", at("link")).expect("a link");
        assert!(bytes(at("pipe")).is_err() && copy(&at("pipe"), &at("copy")).is_err());
        assert!(replace(&at("pipe")).is_err() && copy(&at("file"), &at("pipe")).is_err());
        assert_eq!(text(at("link")).expect("a text"), "text");
        assert_eq!(text_if_there(&at("none")).expect("no file"), None);
        copy(&at("file"), &at("copy")).expect("copied");
        assert_eq!(text(at("copy")).expect("a text"), "text");
    }
}
