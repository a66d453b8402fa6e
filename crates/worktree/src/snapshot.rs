//! The state of a worktree as a commit: tracked and untracked, not ignored. Branch, index and stash stay as they are.

use std::{fs, path::PathBuf};

use crate::{
    clock,
    error::Kind,
    git::{Cancel, Git},
    mark::Mark,
    repository::Repository,
    worktrees::git_in,
};

/// What a worktree holds.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) tree: String,
    /// The commit at HEAD, and its tree.
    pub(crate) head: Option<String>,
    head_tree: Option<String>,
}

impl Snapshot {
    /// Whether there is something that no commit holds.
    pub(crate) fn is_dirty(&self) -> bool {
        match &self.head_tree {
            Some(tree) => *tree != self.tree,
            None => true,
        }
    }
}

/// An index of our own that goes away with this value.
struct PrivateIndex(PathBuf);

impl Drop for PrivateIndex {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_file(self.0.with_extension("lock"));
    }
}

/// Looks at all files of a worktree.
pub(crate) fn take(
    repository: &Repository,
    mark: &Mark,
    cancel: &Cancel,
    timeout: std::time::Duration,
) -> Result<Snapshot, Kind> {
    let entry = repository.entries_dir().join(&mark.id);
    // Beside the real one, so that git finds what it shares with it (a split index).
    let index = PrivateIndex(entry.join(format!("sprag-index-{}", clock::random_hex())));
    match fs::copy(entry.join("index"), &index.0) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Kind::Io { doing: "copy the index of", path: mark.path.clone(), source }),
    }
    let git = |subcommand: &str| -> Git<'_> { git_in(repository, mark, subcommand).index(&index.0) };
    let add = || beside_gc(|| git("add").args(["--all", "--sparse", "--", "."]).long(timeout, cancel).run());
    // An index that a killed git or a full disk left broken: without one, all files are looked at.
    match add() {
        Err(Kind::Git { stderr, .. }) if stderr.contains("index file") => {
            let _ = fs::remove_file(&index.0);
            add()?
        }
        Err(Kind::Git { stderr, .. }) if stderr.contains("does not have a commit checked out") => {
            let inside = stderr.split('\'').nth(1).unwrap_or_default();
            return Err(Kind::NestedRepository { path: mark.path.join(inside) });
        }
        other => other?,
    };
    let tree = beside_gc(|| git("write-tree").line())?;
    let output = git("rev-parse").args(["--quiet", "--revs-only", "HEAD", "HEAD^{tree}", "--"]).output()?;
    let lines = output.line();
    let (head, head_tree) =
        lines.split_once('\n').map(|(head, tree)| (head.to_owned(), tree.to_owned())).unzip();
    Ok(Snapshot { tree, head, head_tree })
}

/// A commit of a tree, under our name.
pub(crate) fn commit(
    repository: &Repository,
    tree: &str,
    parents: &[&str],
    message: &str,
) -> Result<String, Kind> {
    beside_gc(|| {
        let mut git = repository.git("commit-tree").by_sprag().arg("--no-gpg-sign");
        for parent in parents {
            git = git.args(["-p", parent]);
        }
        git.arg(tree).input(message).line()
    })
}

/// Writes objects while somebody's `git gc` may remove the folder that the next one goes to: git itself stops then.
fn beside_gc<T>(write: impl Fn() -> Result<T, Kind>) -> Result<T, Kind> {
    const TRIES: u32 = 5;
    for _ in 1..TRIES {
        match write() {
            Err(Kind::Git { stderr, .. })
                if stderr.contains("unable to create temporary file: No such file or directory") => {}
            other => return other,
        }
    }
    write()
}
