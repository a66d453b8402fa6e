//! The differences between two trees.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use crate::{error::Kind, git::Git, repository::Repository};

/// The mode of a submodule's entry.
const GITLINK: &str = "160000";

/// The content of a tree or an index at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) mode: String,
    pub(crate) oid: String,
}

impl Content {
    /// Returns whether it is the commit of a submodule.
    pub(crate) fn is_gitlink(&self) -> bool {
        self.mode == GITLINK
    }

    /// Returns whether it is a regular file.
    pub(crate) fn is_file(&self) -> bool {
        self.mode.starts_with("100")
    }
}

/// One path with a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) path: Vec<u8>,
    /// The old content; absent if the path is new.
    pub(crate) old: Option<Content>,
    /// The new content; absent if the path was removed.
    pub(crate) new: Option<Content>,
    /// Whether the index contains an unresolved conflict of the path.
    pub(crate) unmerged: bool,
}

impl Change {
    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Returns the path as text, for people.
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    /// Returns the old and the new commit of a submodule that exists on both sides.
    pub(crate) fn submodule(&self) -> Option<(&str, &str)> {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) if old.is_gitlink() && new.is_gitlink() => Some((&old.oid, &new.oid)),
            _ => None,
        }
    }
}

/// Returns all differences between two commits.
pub(crate) fn between(repository: &Repository, before: &str, after: &str) -> Result<Vec<Change>, Kind> {
    let args = ["-r", "-z", "--raw", "--no-renames", "--no-ext-diff", before, after, "--"];
    Ok(parse(&repository.git("diff-tree").args(args).run()?.stdout))
}

/// Returns all differences between a commit and an index: the staged changes.
pub(crate) fn staged(git: Git<'_>, commit: &str) -> Result<Vec<Change>, Kind> {
    let args = [
        "--cached",
        "-z",
        "--raw",
        "--no-renames",
        "--no-ext-diff",
        "--ignore-submodules=none",
        commit,
        "--",
    ];
    Ok(parse(&git.args(args).run()?.stdout))
}

/// Parses alternating records `:100644 100644 OLD NEW M` and paths.
fn parse(raw: &[u8]) -> Vec<Change> {
    let mut fields = raw.split(|&byte| byte == 0);
    let mut changes = Vec::new();
    while let (Some(head), Some(path)) = (fields.next(), fields.next()) {
        let head = String::from_utf8_lossy(head);
        let words: Vec<&str> = head.trim_start_matches(':').split(' ').collect();
        let [old_mode, new_mode, old, new, status] = words.as_slice() else { continue };
        let content = |mode: &str, oid: &str| {
            (mode != "000000").then(|| Content { mode: mode.to_owned(), oid: oid.to_owned() })
        };
        changes.push(Change {
            path: path.to_vec(),
            old: content(old_mode, old),
            new: content(new_mode, new),
            unmerged: status.starts_with('U'),
        });
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_differences_are_read_path_by_path() {
        let raw =
            b":100644 100644 aa bb M\0a b\xff\0:000000 160000 00 cc A\0sub\0:100644 000000 aa 00 D\0gone\0";
        let changes = parse(raw);
        assert_eq!(changes.len(), 3);
        assert_eq!(changes[0].path, b"a b\xff");
        assert_eq!(changes[0].new.as_ref().map(|new| new.oid.as_str()), Some("bb"));
        assert!(changes[1].old.is_none() && changes[1].new.as_ref().is_some_and(Content::is_gitlink));
        assert!(changes[2].new.is_none() && !changes[2].unmerged);
    }
}
