//! Repositories inside a worktree: submodules, and others that a commit names. Their work is saved before the
//! worktree is removed.
//!
//! ```text
//!   WORKTREE/sub ── its git directory ── COMMON/worktrees/ID/modules/sub      removed with the worktree
//!                                             │ push what only it has
//!                                             ▼
//!   main checkout/sub ───────────────── COMMON/modules/sub                    kept: refs/sprag/salvage/RUN-sub
//!                                        or COMMON, if the main checkout lacks the submodule
//! ```

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    clock,
    error::Kind,
    git::{Cancel, Git, RECURSE},
    mark::Mark,
    name::ref_component,
    quarantine::{is_fixed, is_guarded},
    repository::Repository,
    salvage::NOT_IN_REFS,
    worktrees::git_in,
};

/// The depth to which submodules of submodules are searched.
const MAX_DEPTH: usize = 16;
/// The most salvage refs of one submodule and run; each of the run's worktrees may need one.
const MAX_REFS_PER_RUN: u32 = 1000;

/// The saved work of a repository inside a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedModule {
    /// The path in the worktree.
    pub path: PathBuf,
    /// The ref with the saved work.
    pub name: String,
    /// The git directory with the ref.
    pub git_dir: PathBuf,
    /// The saved commit.
    pub commit: String,
}

/// A repository inside a worktree.
struct Module {
    /// The path in the worktree.
    path: PathBuf,
    /// The folder with its files.
    folder: PathBuf,
    git_dir: PathBuf,
    /// The number of repositories around it, without the worktree.
    depth: usize,
}

/// Saves the commits and files of all repositories inside a worktree that would be lost with it.
pub(crate) fn salvage(
    repository: &Repository,
    mark: &Mark,
    cancel: &Cancel,
    timeout: Duration,
) -> Result<Vec<SavedModule>, Kind> {
    let mut saved = Vec::new();
    for module in modules_of(repository, mark, Untrusted::Refuse)? {
        let target = module.stays_in(repository, mark);
        for (label, commit) in module.tips(mark, cancel, timeout)? {
            if module.is_elsewhere(&target, &commit)? {
                continue;
            }
            let of = format!("{}{label}", module.path.display());
            saved.push(module.save(&target, mark, &of, &commit, cancel, timeout)?);
        }
    }
    Ok(saved)
}

/// Checks out the commits that the index names in the checked-out submodules. Uncommitted changes in them stay.
pub(crate) fn restore(
    repository: &Repository,
    mark: &Mark,
    cancel: &Cancel,
    timeout: Duration,
) -> Result<(), Kind> {
    for module in modules_of(repository, mark, Untrusted::Skip)?.iter().filter(|module| module.is_direct()) {
        let listed =
            git_in(repository, mark, "ls-files").args(["--stage", "-z", "--"]).arg(&module.path).line()?;
        let Some(wanted) = listed.split(' ').nth(1).map(str::to_owned) else { continue };
        let head = module.git("rev-parse").args(["--verify", "--quiet", "HEAD"]).output()?.line();
        if head == wanted {
            continue;
        }
        let target = module.stays_in(repository, mark);
        let named = format!("{wanted}^{{commit}}");
        if !module.git("cat-file").args(["-e", &named]).output()?.status.success() {
            let fetch = module.git("fetch").args(["--quiet", "--no-tags", "--no-write-fetch-head"]);
            let fetch = fetch.arg("--no-recurse-submodules");
            fetch.arg("--end-of-options").arg(&target).arg(&wanted).long(timeout, cancel).run()?;
        }
        module.git("checkout").args(["--quiet", "--detach", &wanted]).long(timeout, cancel).run()?;
    }
    Ok(())
}

/// The treatment of a repository that a sandboxed step may have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Untrusted {
    /// Leave it alone.
    Skip,
    /// Fail: a person has to decide about its work.
    Refuse,
}

/// Returns all checked-out repositories inside a worktree, including nested ones.
fn modules_of(repository: &Repository, mark: &Mark, untrusted: Untrusted) -> Result<Vec<Module>, Kind> {
    let guarded = is_guarded(repository, mark);
    let mut found = Vec::new();
    let mut open = vec![(PathBuf::new(), known_to(repository, mark)?, 0)];
    while let Some((above, paths, depth)) = open.pop() {
        for path in paths {
            let path = above.join(path);
            let folder = mark.path.join(&path);
            if !folder.join(".git").exists() {
                continue;
            }
            let git_dir = PathBuf::from(Git::new(&folder, "rev-parse").arg("--absolute-git-dir").line()?);
            // The `.git` is not a repository, so git found the worktree around it.
            if git_dir == repository.entries_dir().join(&mark.id) {
                continue;
            }
            // Its settings can name commands.
            if guarded && !is_fixed(repository, mark, &git_dir) {
                if untrusted == Untrusted::Skip {
                    continue;
                }
                return Err(Kind::NestedRepository { path: folder });
            }
            let module = Module { path: path.clone(), folder, git_dir, depth };
            if depth < MAX_DEPTH {
                open.push((path, gitlinks(module.git("ls-files"))?, depth + 1));
            }
            found.push(module);
        }
    }
    Ok(found)
}

/// Returns the paths of repositories inside a worktree that its index names.
pub(crate) fn known_to(repository: &Repository, mark: &Mark) -> Result<Vec<PathBuf>, Kind> {
    match gitlinks(git_in(repository, mark, "ls-files")) {
        // A killed git or a full disk left a broken index: use the commit at HEAD instead.
        Err(Kind::Git { stderr, .. }) if stderr.contains("index file") => {
            committed_gitlinks(repository, mark)
        }
        other => other,
    }
}

/// Returns the paths at which the commit at HEAD names commits of other repositories.
fn committed_gitlinks(repository: &Repository, mark: &Mark) -> Result<Vec<PathBuf>, Kind> {
    let listed = git_in(repository, mark, "ls-tree").args(["-r", "-z", "--full-tree", "HEAD"]).output()?;
    Ok(if listed.status.success() { paths_of_gitlinks(&listed.stdout) } else { Vec::new() })
}

/// Returns the paths at which an index names commits of other repositories.
pub(crate) fn gitlinks(git: Git<'_>) -> Result<Vec<PathBuf>, Kind> {
    Ok(paths_of_gitlinks(&git.args(["--stage", "-z"]).run()?.stdout))
}

/// Parses the list of an index or a tree: mode, object and stage, a tab, then the path.
fn paths_of_gitlinks(listed: &[u8]) -> Vec<PathBuf> {
    let entries = listed.split(|&byte| byte == 0).filter(|entry| is_gitlink(entry));
    let path = |entry: &[u8]| {
        let at = entry.iter().position(|&byte| byte == b'\t')?;
        Some(PathBuf::from(OsString::from_vec(entry[at + 1..].to_vec())))
    };
    entries.filter_map(path).collect()
}

/// Returns whether an entry names a commit of another repository. Git looks at the upper bits of its mode alone.
fn is_gitlink(entry: &[u8]) -> bool {
    const KIND: u32 = 0o170_000;
    const GITLINK: u32 = 0o160_000;
    let mode = entry.split(|&byte| byte == b' ').next().and_then(|mode| std::str::from_utf8(mode).ok());
    let mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok());
    mode.is_some_and(|mode| mode & KIND == GITLINK)
}

impl Module {
    fn git<'a>(&self, subcommand: &str) -> Git<'a> {
        let git = Git::new(&self.folder, subcommand).setting(RECURSE, "false");
        git.git_dir(&self.git_dir).env("GIT_WORK_TREE", &self.folder)
    }

    /// Returns whether the worktree itself names it, and not another submodule.
    fn is_direct(&self) -> bool {
        self.depth == 0
    }

    /// Returns the git directory for saved work: the submodule's in the main checkout, or the repository's.
    fn stays_in(&self, repository: &Repository, mark: &Mark) -> PathBuf {
        let own = repository.entries_dir().join(&mark.id).join("modules");
        let shared = self
            .git_dir
            .strip_prefix(&own)
            .ok()
            .map(|name| repository.common_dir().join("modules").join(name));
        shared.filter(|path| path.join("HEAD").exists()).unwrap_or_else(|| repository.common_dir().to_owned())
    }

    /// Returns the commits that contain all its work: HEAD with uncommitted changes, branches, stash.
    fn tips(&self, mark: &Mark, cancel: &Cancel, timeout: Duration) -> Result<Vec<(String, String)>, Kind> {
        let mut tips = vec![(String::new(), self.snapshot(mark, cancel, timeout)?)];
        let format = "--format=%(objectname) %(refname)";
        let listed = self.git("for-each-ref").args([format, "refs/heads/", "refs/stash"]).line()?;
        for (commit, name) in listed.lines().filter_map(|line| line.split_once(' ')) {
            if !tips.iter().any(|(_, tip)| tip == commit) {
                tips.push((format!("-{}", name.trim_start_matches("refs/")), commit.to_owned()));
            }
        }
        tips.retain(|(_, commit)| !commit.is_empty());
        Ok(tips)
    }

    /// Returns its HEAD, or a commit on top of it with the uncommitted changes.
    fn snapshot(&self, mark: &Mark, cancel: &Cancel, timeout: Duration) -> Result<String, Kind> {
        let index = self.git_dir.join(format!("sprag-index-{}", clock::random_hex()));
        let _ = crate::read::copy(&self.git_dir.join("index"), &index);
        let taken = (|| {
            self.git("add").index(&index).args(["--all", "--", "."]).long(timeout, cancel).run()?;
            let tree = self.git("write-tree").index(&index).line()?;
            let asked = ["--quiet", "--revs-only", "HEAD", "HEAD^{tree}", "--"];
            let head = self.git("rev-parse").args(asked).output()?.line();
            match head.split_once('\n') {
                Some((head, of_head)) if of_head == tree => Ok(head.to_owned()),
                Some((head, _)) => self.commit(&tree, Some(head), mark),
                None => self.commit(&tree, None, mark),
            }
        })();
        let _ = fs::remove_file(&index);
        let _ = fs::remove_file(index.with_extension("lock"));
        taken
    }

    fn commit(&self, tree: &str, parent: Option<&str>, mark: &Mark) -> Result<String, Kind> {
        let message = format!("sprag: what run {} had not committed in {}\n", mark.run, self.path.display());
        let git = self.git("commit-tree").by_sprag().arg("--no-gpg-sign");
        let git = parent.into_iter().fold(git, |git, parent| git.args(["-p", parent]));
        git.arg(tree).input(message).line()
    }

    /// Returns whether a commit is in a remote branch, or in a ref of the target repository.
    fn is_elsewhere(&self, target: &Path, commit: &str) -> Result<bool, Kind> {
        let fetched = self.git("rev-list").args(["--max-count=1", commit]).args(NOT_IN_REFS).arg("--remotes");
        if fetched.line()?.is_empty() {
            return Ok(true);
        }
        let kept = in_git_dir(target, "rev-list").args(["--max-count=1", commit]).args(NOT_IN_REFS);
        let kept =
            kept.args(["--branches", "--tags", "--remotes", "--glob=refs/sprag/salvage/*"]).output()?;
        // The command fails if the target does not know the commit.
        Ok(kept.status.success() && kept.line().is_empty())
    }

    /// Pushes a commit to a new ref in the target repository.
    fn save(
        &self,
        target: &Path,
        mark: &Mark,
        of: &str,
        commit: &str,
        cancel: &Cancel,
        timeout: Duration,
    ) -> Result<SavedModule, Kind> {
        let (run, of) = (ref_component(&mark.run), ref_component(of));
        for number in 1..=MAX_REFS_PER_RUN {
            let name = match number {
                1 => format!("refs/sprag/salvage/{run}-{of}"),
                _ => format!("refs/sprag/salvage/{run}-{of}-{number}"),
            };
            let there = in_git_dir(target, "rev-parse").args(["--verify", "--quiet", &name]).output()?;
            if there.status.success() && there.line() != commit {
                continue;
            }
            let push = self.git("push").args(["--quiet", "--no-verify", "--end-of-options"]).arg(target);
            push.arg(format!("{commit}:{name}")).long(timeout, cancel).run()?;
            tracing::info!(run = mark.run, path = %self.folder.display(), salvage = name, "work saved");
            let (path, git_dir, commit) = (self.path.clone(), target.to_owned(), commit.to_owned());
            return Ok(SavedModule { path, name, git_dir, commit });
        }
        Err(Kind::BranchExists { branch: format!("refs/sprag/salvage/{run}-{of}-{MAX_REFS_PER_RUN}") })
    }
}

/// Returns git for the refs and objects of a git directory.
pub(crate) fn in_git_dir<'a>(git_dir: &Path, subcommand: &str) -> Git<'a> {
    Git::new(git_dir, subcommand).git_dir(git_dir)
}

/// Returns the git directories of all submodules of the main checkout, including nested ones.
pub(crate) fn shared_git_dirs(repository: &Repository) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![(repository.common_dir().join("modules"), 0)];
    while let Some((folder, depth)) = open.pop() {
        for name in crate::entry::names(&folder).unwrap_or_default() {
            let path = folder.join(name);
            if path.join("HEAD").is_file() && path.join("objects").is_dir() {
                open.push((path.join("modules"), depth + 1));
                found.push(path);
            } else if path.is_dir() && depth < MAX_DEPTH {
                // A submodule's name may be a path.
                open.push((path, depth + 1));
            }
        }
    }
    found
}
