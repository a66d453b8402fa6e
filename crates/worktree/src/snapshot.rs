//! Snapshots: the state of a worktree as a commit, with tracked and untracked files, without ignored ones.
//! Branch, index and stash do not change.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    clock,
    error::Kind,
    git::{Cancel, Git},
    mark::Mark,
    prune::StagedObjects,
    quarantine::{add_all, is_guarded, may_name_repositories},
    repository::Repository,
    worktrees::git_in,
};

/// The files of a worktree.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) tree: String,
    /// The commit at HEAD; absent before the first commit.
    pub(crate) head: Option<String>,
    head_tree: Option<String>,
}

impl Snapshot {
    /// Returns whether there are uncommitted changes.
    pub(crate) fn is_dirty(&self) -> bool {
        match &self.head_tree {
            Some(tree) => *tree != self.tree,
            None => true,
        }
    }
}

/// A temporary index that is removed on drop.
struct PrivateIndex(PathBuf);

impl Drop for PrivateIndex {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_file(self.0.with_extension("lock"));
    }
}

/// Takes a snapshot of all files of a worktree. With `staged`, new objects go to the staging folder, and git
/// reads every file again.
pub(crate) fn take(
    repository: &Repository,
    mark: &Mark,
    staged: Option<&StagedObjects>,
    cancel: &Cancel,
    timeout: Duration,
) -> Result<Snapshot, Kind> {
    let entry = repository.entries_dir().join(&mark.id);
    let git = |subcommand: &str| git_in(repository, mark, subcommand);
    // Sandboxed steps cannot write there.
    let guard = is_guarded(repository, mark).then(|| repository.sprag_dir());
    take_of(&entry, &mark.path, &git, staged, guard.as_deref(), cancel, timeout)
}

/// Takes a snapshot of all files of a checkout, given its git directory, its folder and git in it. `guard` is a folder for
/// the temporary index, if a sandboxed step may have written what is in the checkout.
pub(crate) fn take_of<'a>(
    git_dir: &Path,
    folder: &Path,
    git: &dyn Fn(&str) -> Git<'a>,
    staged: Option<&StagedObjects>,
    guard: Option<&Path>,
    cancel: &'a Cancel,
    timeout: Duration,
) -> Result<Snapshot, Kind> {
    // Beside the real index, so that git finds the files that it shares with it (a split index).
    let index_dir = guard.unwrap_or(git_dir);
    let index = PrivateIndex(index_dir.join(format!("sprag-index-{}", clock::random_hex())));
    let git = |subcommand: &str| match staged {
        Some(staged) => staged.write_here(git(subcommand)),
        None => git(subcommand),
    };
    if staged.is_some() {
        // Git does not write objects of files that the index marks as unchanged, so start from HEAD. This fails
        // before the first commit, when all files are new.
        git("read-tree").index(&index.0).args(["-m", "HEAD"]).output()?;
    } else {
        match crate::read::copy(&git_dir.join("index"), &index.0) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(Kind::Io { doing: "copy the index of", path: folder.to_owned(), source });
            }
        }
    }
    let git = |subcommand: &str| git(subcommand).index(&index.0);
    let guarded = guard.map(|_| index.0.as_path());
    if guarded.is_some_and(may_name_repositories) {
        // From here on, the index has all its entries in the one file that no other process can write.
        git("update-index").arg("--no-split-index").output()?;
    }
    let add = || add_all(&git, guarded)?.long(timeout, cancel).run();
    let add = || retry_during_writes(|| retry_during_gc(add));
    // A killed git or a full disk left a broken index: start again without one, which reads all files.
    match add() {
        Err(Kind::Git { stderr, .. }) if stderr.contains("index file") => {
            let _ = fs::remove_file(&index.0);
            add()?
        }
        Err(Kind::Git { stderr, .. }) if stderr.contains("does not have a commit checked out") => {
            let inside = stderr.split('\'').nth(1).unwrap_or_default();
            return Err(Kind::NestedRepository { path: folder.join(inside) });
        }
        other => other?,
    };
    let tree = retry_during_gc(|| git("write-tree").line())?;
    let output = git("rev-parse").args(["--quiet", "--revs-only", "HEAD", "HEAD^{tree}", "--"]).output()?;
    let lines = output.line();
    let (head, head_tree) =
        lines.split_once('\n').map(|(head, tree)| (head.to_owned(), tree.to_owned())).unzip();
    Ok(Snapshot { tree, head, head_tree })
}

/// Returns the paths of repositories that a tree names and the commit `head` does not. Git records their
/// commits, not their files.
pub(crate) fn added_repositories(
    repository: &Repository,
    head: &str,
    tree: &str,
    staged: Option<&StagedObjects>,
) -> Result<Vec<String>, Kind> {
    let added = ["-r", "-z", "--no-renames", "--diff-filter=A", head, tree];
    let mut git = repository.git("diff-tree").args(added);
    if let Some(staged) = staged {
        git = staged.write_here(git);
    }
    let fields = git.run()?.fields();
    // Alternating records `:000000 160000 0… 1… A` and paths.
    let pairs = fields.chunks_exact(2).filter(|pair| pair[0].split(' ').nth(1) == Some("160000"));
    Ok(pairs.map(|pair| pair[1].clone()).collect())
}

/// Creates a commit of a tree, with Sprag's identity. The same tree, parents, message and time give the same
/// commit.
pub(crate) fn commit(
    repository: &Repository,
    tree: &str,
    parents: &[&str],
    message: &str,
    at_ms: u64,
    staged: Option<&StagedObjects>,
) -> Result<String, Kind> {
    let date = format!("@{} +0000", at_ms / 1000);
    retry_during_gc(|| {
        let mut git = repository.git("commit-tree").by_sprag().arg("--no-gpg-sign");
        git = git.env("GIT_AUTHOR_DATE", &date).env("GIT_COMMITTER_DATE", &date);
        if let Some(staged) = staged {
            git = staged.write_here(git);
        }
        for parent in parents {
            git = git.args(["-p", parent]);
        }
        git.arg(tree).input(message).line()
    })
}

/// Retries a write of objects that fails because a concurrent `git gc` or `git prune` removed the object's
/// folder.
pub(crate) fn retry_during_gc<T>(write: impl Fn() -> Result<T, Kind>) -> Result<T, Kind> {
    const TRIES: u32 = 50;
    for _ in 1..TRIES {
        match write() {
            Err(Kind::Git { stderr, .. }) if lost_folder(&stderr) => {}
            other => return other,
        }
    }
    write()
}

/// Retries while other processes change files that git is reading. Several steps may share a worktree, and git stops at a
/// file that shrinks or disappears before it has read all of it.
fn retry_during_writes<T>(add: impl Fn() -> Result<T, Kind>) -> Result<T, Kind> {
    const TRIES: u32 = 60;
    const MAX_PAUSE_MS: u64 = 100;
    for pause_ms in (1..TRIES).map(|tried| u64::from(tried * tried).min(MAX_PAUSE_MS)) {
        match add() {
            Err(Kind::Git { stderr, .. }) if changed_while_read(&stderr) => {
                clock::pause_ms(pause_ms);
            }
            other => return other,
        }
    }
    add()
}

/// Returns whether git stopped because a file changed or disappeared while it was read.
fn changed_while_read(stderr: &str) -> bool {
    let is_gone = stderr.contains("No such file or directory") || stderr.contains("Not a directory");
    stderr.contains("short read while indexing")
        || is_gone && (stderr.contains("unable to stat '") || stderr.contains("unable to index file '"))
}

/// Returns whether git failed because the folder of a new object was removed while it was written.
fn lost_folder(stderr: &str) -> bool {
    stderr.contains("unable to create temporary file: No such file or directory")
        || stderr.contains("unable to write file") && stderr.contains("No such file or directory")
}
