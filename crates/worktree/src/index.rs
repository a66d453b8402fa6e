//! Git's index, as far as it takes to write one like another's for files of the same content.
//!
//! ```text
//!   "DIRC" version count │ entry … │ extension … │ SHA-1 of all before it
//!   entry: ctime mtime dev ino │ mode │ uid gid size │ object │ flags │ path, filled up with zeros to a multiple of 8
//! ```
//!
//! Only what git itself has just written is read, and only its plain form. An index for other files differs in what it says
//! about each file's place on the disk, and in nothing else.

use rustix::fs::Stat;
use sha1::{Digest, Sha1};

const HEADER: usize = 12;
const HASH: usize = 20;
/// Where in an entry its parts begin.
const MODE: usize = 24;
const OWNER: usize = 28;
const OBJECT: usize = 40;
const FLAGS: usize = OBJECT + HASH;
const PATH: usize = FLAGS + 2;
/// The bits of the flags that hold the length of a path, or this value if it is longer.
const LENGTH: u16 = 0xfff;
/// Extensions that hold for any files of the same content: the trees, and where in the index what begins.
const ABOUT_CONTENT: [&[u8]; 3] = [b"TREE", b"EOIE", b"IEOT"];

/// An index with one version of each path, about a worktree with all of its files.
#[derive(Debug)]
pub(crate) struct Index {
    bytes: Vec<u8>,
    /// Where each entry begins, and how long its path is.
    entries: Vec<(usize, usize)>,
}

/// One path of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a>(&'a [u8]);

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    File {
        executable: bool,
    },
    Link,
    /// The folder of another repository.
    Submodule,
}

/// What an index says of a file's place on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known([u8; OBJECT - 4]);

impl Known {
    /// Numbers are cut to 32 bits, as git does.
    pub(crate) fn of(stat: &Stat) -> Known {
        let words = [
            stat.st_ctime as u32,
            stat.st_ctime_nsec as u32,
            stat.st_mtime as u32,
            stat.st_mtime_nsec as u32,
            stat.st_dev as u32,
            stat.st_ino as u32,
            stat.st_uid,
            stat.st_gid,
            stat.st_size as u32,
        ];
        let mut known = Known([0; OBJECT - 4]);
        for (place, word) in known.0.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        known
    }

    fn write(&self, entry: &mut [u8]) {
        entry[..MODE].copy_from_slice(&self.0[..MODE]);
        entry[OWNER..OBJECT].copy_from_slice(&self.0[MODE..]);
    }
}

impl<'a> Entry<'a> {
    pub(crate) fn path(self) -> &'a [u8] {
        &self.0[PATH..]
    }

    pub(crate) fn object(self) -> &'a [u8] {
        &self.0[OBJECT..FLAGS]
    }

    pub(crate) fn size(self) -> usize {
        word(self.0, OBJECT - 4) as usize
    }

    pub(crate) fn what(self) -> Option<What> {
        match word(self.0, MODE) {
            0o100_644 => Some(What::File { executable: false }),
            0o100_755 => Some(What::File { executable: true }),
            0o120_000 => Some(What::Link),
            0o160_000 => Some(What::Submodule),
            _ => None,
        }
    }

    /// Whether this is what the entry says.
    pub(crate) fn knows(self, known: &Known) -> bool {
        self.0[..MODE] == known.0[..MODE] && self.0[OWNER..OBJECT] == known.0[MODE..]
    }
}

impl Index {
    /// None where it says anything that holds for one worktree alone, or that is not known here.
    pub(crate) fn parse(bytes: Vec<u8>) -> Option<Index> {
        let end = bytes.len().checked_sub(HASH)?;
        // Two and three differ in flags that are refused below.
        if bytes.get(..4)? != b"DIRC" || !matches!(word(&bytes, 4), 2 | 3) {
            return None;
        }
        let count = word(&bytes, 8) as usize;
        let mut entries = Vec::with_capacity(count.min(bytes.len() / PATH));
        let mut at = HEADER;
        for _ in 0..count {
            let rest = bytes.get(at..end)?;
            let flags = u16::from_be_bytes([*rest.get(FLAGS)?, *rest.get(FLAGS + 1)?]);
            // Anything but a length: a conflict, or a path that is left out or taken for unchanged.
            if flags & !LENGTH != 0 {
                return None;
            }
            let path = rest.get(PATH..)?;
            let length = match flags {
                LENGTH => path.iter().position(|&byte| byte == 0)?,
                length => usize::from(length),
            };
            if length == 0 || path.get(..length)?.contains(&0) || *path.get(length)? != 0 {
                return None;
            }
            entries.push((at, length));
            at += (PATH + length + 8) & !7;
        }
        while at < end {
            let name = bytes.get(at..at + 4)?;
            if !ABOUT_CONTENT.contains(&name) || at + 8 > end {
                return None;
            }
            at = at.checked_add(8)?.checked_add(word(&bytes, at + 4) as usize)?;
        }
        let (all, hash) = bytes.split_at(end);
        let is_whole = at == end && (has_none(hash) || Sha1::digest(all)[..] == *hash);
        is_whole.then_some(Index { bytes, entries })
    }

    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.entries.iter().map(|&(at, length)| Entry(&self.bytes[at..at + PATH + length]))
    }

    /// The index of a worktree whose files, in the order of the entries, are these.
    pub(crate) fn about(&self, files: &[Known]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for (&(at, _), known) in self.entries.iter().zip(files) {
            known.write(&mut bytes[at..]);
        }
        let (all, hash) = bytes.split_at_mut(self.bytes.len() - HASH);
        if !has_none(hash) {
            hash.copy_from_slice(&Sha1::digest(&*all));
        }
        bytes
    }
}

/// A repository may do without a hash (`index.skipHash`): it is all zeros then.
fn has_none(hash: &[u8]) -> bool {
    hash.iter().all(|&byte| byte == 0)
}

/// Whether git keeps these bytes as this object.
pub(crate) fn is_object(object: &[u8], bytes: &[u8]) -> bool {
    let hash = Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes);
    hash.finalize()[..] == *object
}

/// Only where there are four bytes.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::git::Git;

    /// A repository with some files, and the index that git wrote of it.
    fn repository(settings: &[(&str, &str)]) -> (tempfile::TempDir, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let git = |subcommand: &str, args: &[&str]| {
            let git = Git::new(folder.path(), subcommand).args(args);
            settings.iter().fold(git, |git, (key, value)| git.setting(key, value)).run().unwrap();
        };
        git("init", &["--quiet"]);
        fs::create_dir(folder.path().join("inside")).unwrap();
        fs::write(folder.path().join("inside/one"), "one\n").unwrap();
        fs::write(folder.path().join("x".repeat(200)), "two\n").unwrap();
        std::os::unix::fs::symlink("inside", folder.path().join("link")).unwrap();
        git("add", &["--all"]);
        git("write-tree", &[]);
        let index = fs::read(folder.path().join(".git/index")).unwrap();
        (folder, index)
    }

    fn stat(path: &Path) -> Stat {
        rustix::fs::lstat(path).unwrap()
    }

    #[test]
    fn an_index_that_git_wrote_is_read_and_written_as_it_was() {
        for settings in [&[][..], &[("index.skipHash", "true")]] {
            let (folder, bytes) = repository(settings);
            let index = Index::parse(bytes.clone()).expect("a plain index");
            let paths: Vec<_> =
                index.entries().map(|entry| String::from_utf8_lossy(entry.path()).into_owned()).collect();
            assert_eq!(paths, ["inside/one".to_owned(), "link".to_owned(), "x".repeat(200)]);
            let known: Vec<Known> =
                paths.iter().map(|path| Known::of(&stat(&folder.path().join(path)))).collect();
            assert!(index.entries().zip(&known).all(|(entry, known)| entry.knows(known)));
            assert_eq!(index.about(&known), bytes);
            let other = Known::of(&stat(folder.path()));
            assert!(!index.entries().any(|entry| entry.knows(&other)));
            assert_ne!(index.about(&[other; 3]), bytes);
        }
    }

    #[test]
    fn an_object_is_known_by_its_bytes() {
        let (_folder, bytes) = repository(&[]);
        let index = Index::parse(bytes).expect("a plain index");
        let objects: Vec<&[u8]> = index.entries().map(Entry::object).collect();
        assert!(is_object(objects[0], b"one\n") && is_object(objects[1], b"inside"));
        assert!(!is_object(objects[0], b"One\n"));
    }

    #[test]
    fn what_is_not_plain_is_refused() {
        let (_folder, version_4) = repository(&[("index.version", "4")]);
        let (_folder, split) = repository(&[("core.splitIndex", "true")]);
        let (_folder, untracked) = repository(&[("core.untrackedCache", "true")]);
        for (name, bytes) in [("version 4", version_4), ("split", split), ("untracked", untracked)] {
            assert!(Index::parse(bytes).is_none(), "{name}");
        }
    }

    #[test]
    fn whatever_is_cut_off_or_overwritten_is_no_panic() {
        let (_folder, hashed) = repository(&[]);
        for end in 0..hashed.len() {
            assert!(Index::parse(hashed[..end].to_vec()).is_none(), "{end} of {}", hashed.len());
        }
        // Without a hash nobody can tell that it is broken.
        let (_folder, bytes) = repository(&[("index.skipHash", "true")]);
        let mut read = 0;
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut broken = bytes.clone();
                broken[at] = value;
                if let Some(index) = Index::parse(broken) {
                    let files = vec![Known([0; OBJECT - 4]); index.entries().len()];
                    assert_eq!(index.about(&files).len(), bytes.len());
                    read += 1;
                }
            }
        }
        assert!(read > bytes.len(), "most bytes are about a file, and any value is one");
    }
}
