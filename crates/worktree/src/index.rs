//! Git's index: just enough to write the same index for other files with the same content.
//!
//! ```text
//!   "DIRC" version count │ entry … │ extension … │ SHA-1 of all before it
//!   entry: ctime mtime dev ino │ mode │ uid gid size │ object │ flags │ path, padded with zeros to a multiple of 8
//! ```
//!
//! It reads only the plain form of an index that git has just written. An index for copies of the files differs
//! only in the stat data of each file.

use rustix::fs::Stat;
use sha1::{Digest, Sha1};

const HEADER: usize = 12;
const HASH: usize = 20;
/// The offsets of the parts of an entry.
const MODE: usize = 24;
const OWNER: usize = 28;
const OBJECT: usize = 40;
const FLAGS: usize = OBJECT + HASH;
const PATH: usize = FLAGS + 2;
/// The mask of the path's length in the flags, and the value for longer paths.
const LENGTH: u16 = 0xfff;
/// Extensions that depend only on the content: the trees, and offsets into the index.
const CONTENT_EXTENSIONS: [&[u8]; 3] = [TREES, b"EOIE", b"IEOT"];
const TREES: &[u8] = b"TREE";

/// An index with one version of each path, for a worktree with all its files.
#[derive(Debug)]
pub(crate) struct Index {
    bytes: Vec<u8>,
    /// The offset of each entry and the length of its path.
    entries: Vec<(usize, usize)>,
    /// Whether an extension tells git where the entries are: it need not find those that are parsed here.
    has_offsets: bool,
}

/// One path of the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a>(&'a [u8]);

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File {
        executable: bool,
    },
    Link,
    /// The folder of another repository.
    Submodule,
}

/// The stat data of a file in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStat([u8; OBJECT - 4]);

impl FileStat {
    /// Converts stat data. Numbers are cut to 32 bits, as git does.
    pub(crate) fn of(stat: &Stat) -> FileStat {
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
        let mut stat = FileStat([0; OBJECT - 4]);
        for (place, word) in stat.0.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        stat
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

    pub(crate) fn kind(self) -> Option<EntryKind> {
        match word(self.0, MODE) {
            0o100_644 => Some(EntryKind::File { executable: false }),
            0o100_755 => Some(EntryKind::File { executable: true }),
            0o120_000 => Some(EntryKind::Link),
            0o160_000 => Some(EntryKind::Submodule),
            _ => None,
        }
    }

    /// Returns whether the entry has this stat data.
    pub(crate) fn has_stat(self, stat: &FileStat) -> bool {
        self.0[..MODE] == stat.0[..MODE] && self.0[OWNER..OBJECT] == stat.0[MODE..]
    }
}

impl Index {
    /// Parses an index. Returns `None` if it contains anything that depends on one worktree, or that is unknown
    /// here.
    pub(crate) fn parse(bytes: Vec<u8>) -> Option<Index> {
        let end = bytes.len().checked_sub(HASH)?;
        // Versions 2 and 3 differ only in flags that are refused below.
        if bytes.get(..4)? != b"DIRC" || !matches!(word(&bytes, 4), 2 | 3) {
            return None;
        }
        let count = word(&bytes, 8) as usize;
        let mut entries = Vec::with_capacity(count.min(bytes.len() / PATH));
        let mut at = HEADER;
        for _ in 0..count {
            let rest = bytes.get(at..end)?;
            let flags = u16::from_be_bytes([*rest.get(FLAGS)?, *rest.get(FLAGS + 1)?]);
            // Other flags mean a conflict, or a path that is skipped or assumed unchanged.
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
        let mut has_offsets = false;
        while at < end {
            let name = bytes.get(at..at + 4)?;
            has_offsets |= name != TREES;
            if !CONTENT_EXTENSIONS.contains(&name) || at + 8 > end {
                return None;
            }
            at = at.checked_add(8)?.checked_add(word(&bytes, at + 4) as usize)?;
        }
        let (all, hash) = bytes.split_at(end);
        let is_whole = at == end && (is_absent(hash) || Sha1::digest(all)[..] == *hash);
        is_whole.then_some(Index { bytes, entries, has_offsets })
    }

    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.entries.iter().map(|&(at, length)| Entry(&self.bytes[at..at + PATH + length]))
    }

    /// Returns whether git, too, certainly finds files and links alone in it. Git takes any mode whose upper bits say so
    /// for a repository, also one that it never writes itself.
    pub(crate) fn has_files_alone(&self) -> bool {
        let is_file =
            |entry: Entry<'_>| matches!(entry.kind(), Some(EntryKind::File { .. } | EntryKind::Link));
        !self.has_offsets && self.entries().all(is_file)
    }

    /// Returns the same index with this stat data, in the order of the entries.
    pub(crate) fn with_stats(&self, files: &[FileStat]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for (&(at, _), stat) in self.entries.iter().zip(files) {
            stat.write(&mut bytes[at..]);
        }
        let (all, hash) = bytes.split_at_mut(self.bytes.len() - HASH);
        if !is_absent(hash) {
            hash.copy_from_slice(&Sha1::digest(&*all));
        }
        bytes
    }
}

/// Returns whether the hash is absent: all zeros, because of `index.skipHash`.
fn is_absent(hash: &[u8]) -> bool {
    hash.iter().all(|&byte| byte == 0)
}

/// Returns whether these bytes are the content of this object.
pub(crate) fn is_object(object: &[u8], bytes: &[u8]) -> bool {
    let hash = Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes);
    hash.finalize()[..] == *object
}

/// Reads a big-endian number. There must be four bytes.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::git::Git;

    /// Creates a repository with some files, and returns git's index of it.
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
    fn an_index_survives_a_round_trip() {
        for settings in [&[][..], &[("index.skipHash", "true")]] {
            let (folder, bytes) = repository(settings);
            let index = Index::parse(bytes.clone()).expect("a plain index");
            let paths: Vec<_> =
                index.entries().map(|entry| String::from_utf8_lossy(entry.path()).into_owned()).collect();
            assert_eq!(paths, ["inside/one".to_owned(), "link".to_owned(), "x".repeat(200)]);
            let stats: Vec<FileStat> =
                paths.iter().map(|path| FileStat::of(&stat(&folder.path().join(path)))).collect();
            assert!(index.entries().zip(&stats).all(|(entry, stat)| entry.has_stat(stat)));
            assert_eq!(index.with_stats(&stats), bytes);
            let other = FileStat::of(&stat(folder.path()));
            assert!(!index.entries().any(|entry| entry.has_stat(&other)));
            assert_ne!(index.with_stats(&[other; 3]), bytes);
        }
    }

    #[test]
    fn an_object_is_identified_by_its_bytes() {
        let (_folder, bytes) = repository(&[]);
        let index = Index::parse(bytes).expect("a plain index");
        let objects: Vec<&[u8]> = index.entries().map(Entry::object).collect();
        assert!(is_object(objects[0], b"one\n") && is_object(objects[1], b"inside"));
        assert!(!is_object(objects[0], b"One\n"));
    }

    #[test]
    fn an_index_that_is_not_plain_is_refused() {
        let (_folder, version_4) = repository(&[("index.version", "4")]);
        let (_folder, split) = repository(&[("core.splitIndex", "true")]);
        let (_folder, untracked) = repository(&[("core.untrackedCache", "true")]);
        for (name, bytes) in [("version 4", version_4), ("split", split), ("untracked", untracked)] {
            assert!(Index::parse(bytes).is_none(), "{name}");
        }
    }

    #[test]
    fn a_damaged_index_does_not_panic() {
        let (_folder, hashed) = repository(&[]);
        for end in 0..hashed.len() {
            assert!(Index::parse(hashed[..end].to_vec()).is_none(), "{end} of {}", hashed.len());
        }
        // Without a hash, damage cannot be detected.
        let (_folder, bytes) = repository(&[("index.skipHash", "true")]);
        let mut read = 0;
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut broken = bytes.clone();
                broken[at] = value;
                if let Some(index) = Index::parse(broken) {
                    let files = vec![FileStat([0; OBJECT - 4]); index.entries().len()];
                    assert_eq!(index.with_stats(&files).len(), bytes.len());
                    read += 1;
                }
            }
        }
        assert!(read > bytes.len(), "most bytes are about a file, and any value is one");
    }
}
