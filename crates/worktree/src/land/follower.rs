//! A checkout of the target branch: finds the user's changes in it, and makes its index and files follow the
//! branch.
//!
//! The index lock is git's own lock for everything that a user does in a checkout, so Sprag takes it in git's
//! own way: the file `index.lock`. During a landing there are two more files beside the index:
//!
//! ```text
//!   index.sprag-before   the previous index: a hard link to the same file
//!   index.sprag-after    the next index, and later a hard link to the index itself
//! ```
//!
//! Git never writes to an index in place, so the file behind `index` shows the progress of the landing.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, Metadata, OpenOptions},
    io::{ErrorKind, Write},
    os::{fd::BorrowedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use super::changes::{self, Change, Content};
use crate::{
    clock,
    error::{Blocked, Kind, Obstacle},
    git::{Cancel, Git, HOOKS_PATH, NO_HOOKS, Output},
    read,
};

/// The most files named in a message.
const NAMED_FILES: usize = 20;

/// The longest wait for a git command that holds the index lock, and the interval of attempts.
const LOCK_WAIT_MS: u64 = 10_000;
const LOCK_POLL_MS: u64 = 10;

/// The files in the git directory that show an unfinished operation.
const UNFINISHED: [(&str, &str); 9] = [
    ("MERGE_HEAD", "merge"),
    ("rebase-merge", "rebase"),
    ("rebase-apply/applying", "git am"),
    ("rebase-apply", "rebase"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("sequencer", "cherry-pick or revert"),
    ("BISECT_START", "bisect"),
    ("BISECT_LOG", "bisect"),
];

/// A planned move of the branch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BranchUpdate<'a> {
    pub(crate) branch: &'a str,
    pub(crate) before: &'a str,
    pub(crate) after: &'a str,
    pub(crate) changes: &'a [Change],
    /// A checkout whose submodules contain the landed commits.
    pub(crate) source: Option<&'a Path>,
}

/// A checkout of the target branch that follows it.
pub(crate) struct Follower<'a> {
    pub(crate) path: PathBuf,
    pub(crate) git_dir: PathBuf,
    /// The landing lock, which every process in the checkout inherits, so that recovery waits for all of them.
    pub(crate) lock: BorrowedFd<'a>,
    pub(crate) timeout: Duration,
    pub(crate) no_cancel: &'a Cancel,
}

impl<'a> Follower<'a> {
    pub(crate) fn lock_path(&self) -> PathBuf {
        self.git_dir.join("index.lock")
    }

    fn index(&self) -> PathBuf {
        self.git_dir.join("index")
    }

    /// Returns the path of the previous index.
    fn saved(&self) -> PathBuf {
        self.git_dir.join("index.sprag-before")
    }

    /// Returns the path of the next index.
    fn next(&self) -> PathBuf {
        self.git_dir.join("index.sprag-after")
    }

    /// Returns the path of an index for checks.
    fn scratch(&self) -> PathBuf {
        self.git_dir.join("index.sprag-look")
    }

    fn git(&self, subcommand: &str, index: &Path) -> Git<'a> {
        self.git_at(&self.path, subcommand)
            .git_dir(&self.git_dir)
            .env("GIT_WORK_TREE", &self.path)
            .index(index)
    }

    fn git_at(&self, folder: &Path, subcommand: &str) -> Git<'a> {
        let git = Git::new(folder, subcommand).setting(HOOKS_PATH, NO_HOOKS);
        git.long(self.timeout, self.no_cancel).owned_by(Some(self.lock))
    }

    fn blocked(&self, branch: &str, obstacle: Obstacle) -> Kind {
        Kind::blocked(Blocked {
            branch: branch.to_owned(),
            checkout: Some(self.path.clone()),
            obstacle,
            pushed_to: None,
        })
    }

    /// Fails if an operation of a user is unfinished.
    pub(crate) fn refuse_unfinished(&self, branch: &str) -> Result<(), Kind> {
        let unfinished = UNFINISHED.iter().find(|(file, _)| self.git_dir.join(file).exists());
        match unfinished {
            Some((_, what)) => Err(self.blocked(branch, Obstacle::InProgress { what })),
            None => Ok(()),
        }
    }

    /// Fails if a change of a user is in the way. Changes nothing.
    pub(crate) fn check(&self, update: &BranchUpdate<'_>) -> Result<(), Kind> {
        self.refuse_unfinished(update.branch)?;
        let scratch = TemporaryIndex(self.scratch());
        relink(&self.index(), &scratch.0)?;
        self.refresh(&scratch.0)?;
        self.find_identical(update, &scratch.0).map(drop)
    }

    /// Takes the index lock and writes this text into it. Waits for a git command that holds it.
    pub(crate) fn lock(&self, branch: &str, token: &str) -> Result<(), Kind> {
        let path = self.lock_path();
        let deadline_ms = clock::now_ms() + LOCK_WAIT_MS;
        loop {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    return file.write_all(token.as_bytes()).map_err(|source| {
                        let _ = fs::remove_file(&path);
                        Kind::Io { doing: "write", path, source }
                    });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(Kind::Io { doing: "create", path, source }),
            }
            if clock::now_ms() >= deadline_ms {
                return Err(self.blocked(branch, Obstacle::Locked { lock: path }));
            }
            clock::pause_ms(LOCK_POLL_MS);
        }
    }

    /// Returns whether the index lock contains this text.
    pub(crate) fn is_locked_with(&self, token: &str) -> bool {
        read::bytes(self.lock_path()).is_ok_and(|text| text == token.as_bytes())
    }

    /// Releases the index lock, and removes both saved indexes.
    pub(crate) fn release(&self, token: &str) {
        for path in [self.next(), self.scratch(), self.saved()] {
            remove_index(&path);
        }
        if self.is_locked_with(token) {
            let _ = fs::remove_file(self.lock_path());
        }
    }

    /// Saves the current index. From here on there may be changes to undo.
    pub(crate) fn save_index(&self) -> Result<(), Kind> {
        relink(&self.index(), &self.saved())
    }

    /// Updates the files to the new commit, and builds the index for them. A user's changes stay.
    pub(crate) fn update_files(&self, update: &BranchUpdate<'_>) -> Result<(), Kind> {
        let next = self.next();
        relink(&self.index(), &next)?;
        self.refresh(&next)?;
        let same = self.find_identical(update, &next)?;
        if !same.is_empty() {
            self.set_entries(&next, &same)?;
            self.refresh(&next)?;
        }
        let output = self.git("read-tree", &next).args(["-m", "-u", update.before, update.after]).output()?;
        if !output.status.success() {
            return Err(self.refusal(update.branch, &output));
        }
        for change in update.changes {
            if let Some((old, new)) = change.submodule() {
                self.update_submodule(update, change, old, new)?;
            }
        }
        Ok(())
    }

    /// Replaces the index by the new one.
    pub(crate) fn replace_index(&self) -> Result<(), Kind> {
        replace(&self.next(), &self.index())
    }

    /// Returns whether there may be changes to undo.
    pub(crate) fn is_started(&self) -> bool {
        self.saved().exists() && self.path.exists()
    }

    /// Completes the update of index and files from any intermediate state. Returns false without a change if a
    /// user has written the index since.
    pub(crate) fn complete(&self, update: &BranchUpdate<'_>) -> Result<bool, Kind> {
        let index = self.index();
        if is_same_file(&index, &self.next()) {
            return Ok(true);
        }
        if !is_same_file(&index, &self.saved()) {
            return Ok(false);
        }
        self.update_files(update)?;
        self.replace_index().map(|()| true)
    }

    /// Reverts [`Follower::update_files`] and [`Follower::replace_index`] from any intermediate state, including
    /// files that a killed git wrote partially. Files that a user has changed since stay as they are. Returns
    /// false without a change if a user has written the index since.
    pub(crate) fn undo(&self, update: &BranchUpdate<'_>) -> Result<bool, Kind> {
        let (index, saved) = (self.index(), self.saved());
        if !saved.exists() {
            return Ok(true);
        }
        if !is_same_file(&index, &saved) {
            if !is_same_file(&index, &self.next()) {
                return Ok(false);
            }
            replace(&saved, &index)?;
        }
        let scratch = TemporaryIndex(self.scratch());
        relink(&self.saved(), &scratch.0)?;
        let mut written = self.already_updated(&scratch.0, update.changes.iter().collect())?;
        written.extend(self.partially_written(&scratch.0, update.changes)?);
        let (back, gone): (Vec<&Change>, Vec<&Change>) = written
            .into_iter()
            .filter(|change| change.submodule().is_none())
            .partition(|change| change.old.is_some());
        for change in gone {
            let _ = fs::remove_file(self.path.join(change.path()));
            self.remove_empty_folders(change.path());
        }
        let mut names = Vec::new();
        for change in back {
            names.extend_from_slice(&change.path);
            names.push(0);
        }
        relink(&self.saved(), &scratch.0)?;
        if !names.is_empty() {
            self.git("checkout-index", &scratch.0)
                .args(["--force", "--quiet", "-z", "--stdin"])
                .input(names)
                .run()?;
        }
        for change in update.changes {
            if let Some((old, new)) = change.submodule()
                && self.submodule_head(change).as_deref() == Some(new)
            {
                self.check_out_submodule(change, old)?;
            }
        }
        Ok(true)
    }

    /// Returns the changes that the checkout already contains, byte for byte. Fails if one of the other paths
    /// has a different content.
    fn find_identical<'c>(&self, update: &BranchUpdate<'c>, index: &Path) -> Result<Vec<&'c Change>, Kind> {
        let staged = changes::staged(self.git("diff-index", index), update.before)?;
        let conflicts: Vec<String> = staged.iter().filter(|one| one.unmerged).map(Change::name).collect();
        if !conflicts.is_empty() {
            return Err(self.blocked(update.branch, Obstacle::Conflicts { files: first(conflicts) }));
        }
        let staged: BTreeMap<&[u8], &Change> = staged.iter().map(|one| (&*one.path, one)).collect();
        let unstaged = self.unstaged(index)?;
        let (mut in_the_way, mut doubtful) = (Vec::new(), Vec::new());
        for change in update.changes {
            let is_unstaged = unstaged.contains(&change.path);
            match staged.get(&*change.path) {
                Some(staged) if staged.new != change.new => in_the_way.push(change.name()),
                Some(_) if is_unstaged => doubtful.push(change),
                Some(_) => {}
                None if is_unstaged => doubtful.push(change),
                None if change.old.is_none() => match self.untracked_at(change, update.changes) {
                    Some(path) if path == change.path() => doubtful.push(change),
                    Some(path) => in_the_way.push(path.display().to_string()),
                    None => {}
                },
                None => {}
            }
        }
        let same = self.already_updated(index, doubtful.clone())?;
        let differs = |change: &&&Change| !same.iter().any(|one| one.path == change.path);
        in_the_way.extend(doubtful.iter().filter(differs).map(|change| change.name()));
        if in_the_way.is_empty() {
            Ok(same)
        } else {
            Err(self.blocked(update.branch, Obstacle::Changes { files: first(in_the_way) }))
        }
    }

    /// Returns the path of an untracked file in the place of a new file, or of a folder for it.
    fn untracked_at(&self, change: &Change, all: &[Change]) -> Option<PathBuf> {
        let here = |path: &Path| fs::symlink_metadata(self.path.join(path)).ok();
        let goes = |path: &Path| all.iter().any(|one| one.new.is_none() && one.path().starts_with(path));
        for folder in change.path().ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()) {
            if here(folder).is_some_and(|found| !found.is_dir()) && !goes(folder) {
                return Some(folder.to_owned());
            }
        }
        let found = here(change.path())?;
        // A folder whose files are all removed by this landing is not in the way.
        (!(found.is_dir() && goes(change.path()))).then(|| change.path().to_owned())
    }

    /// Returns the changes whose new content the files already have.
    fn already_updated<'c>(&self, index: &Path, changes: Vec<&'c Change>) -> Result<Vec<&'c Change>, Kind> {
        if changes.is_empty() {
            return Ok(changes);
        }
        let scratch = TemporaryIndex(self.git_dir.join("index.sprag-compare"));
        relink(index, &scratch.0)?;
        self.set_entries(&scratch.0, &changes)?;
        self.refresh(&scratch.0)?;
        let differing = self.unstaged(&scratch.0)?;
        let is_there = |change: &Change| match change.new {
            Some(_) => !differing.contains(&change.path),
            None => fs::symlink_metadata(self.path.join(change.path())).is_err(),
        };
        Ok(changes.into_iter().filter(|change| is_there(change)).collect())
    }

    /// Returns the changes that a killed git started to write. It removes the old file and then writes the new
    /// one in pieces. A file that is missing, or contains only the start of the new content, is not a user's
    /// work: before the landing there was none, or the old one.
    fn partially_written<'c>(&self, saved: &Path, changes: &'c [Change]) -> Result<Vec<&'c Change>, Kind> {
        let differing = self.unstaged(saved)?;
        let mut partially_written = Vec::new();
        for change in changes {
            let is_submodule = change.old.as_ref().is_some_and(Content::is_gitlink);
            let Some(new) = change.new.as_ref().filter(|new| new.is_file() && !is_submodule) else {
                continue;
            };
            if change.old.is_some() && !differing.contains(&change.path) {
                continue;
            }
            let path = self.path.join(change.path());
            let is_partial = match fs::symlink_metadata(&path) {
                Ok(found) if found.is_file() => self.is_start_of(&path, &found, change, new)?,
                Ok(_) => false,
                Err(_) => change.old.is_some(),
            };
            partially_written.extend(is_partial.then_some(change));
        }
        Ok(partially_written)
    }

    /// Returns whether a file contains only the start of the content that git would write.
    fn is_start_of(
        &self,
        file: &Path,
        found: &Metadata,
        change: &Change,
        new: &Content,
    ) -> Result<bool, Kind> {
        let mut named = OsString::from("--path=");
        named.push(change.path());
        let whole =
            self.git("cat-file", &self.saved()).arg("--filters").arg(named).arg(&new.oid).run()?.stdout;
        if found.len() >= whole.len() as u64 {
            return Ok(false);
        }
        let bytes = read::bytes(file).map_err(Kind::io("read", file))?;
        Ok(bytes.len() < whole.len() && whole.starts_with(&bytes))
    }

    /// Returns the paths whose files differ from an index.
    fn unstaged(&self, index: &Path) -> Result<BTreeSet<Vec<u8>>, Kind> {
        let args = ["-z", "--name-only", "--no-ext-diff", "--ignore-submodules=untracked"];
        let output = self.git("diff-files", index).args(args).run()?;
        Ok(output
            .stdout
            .split(|&byte| byte == 0)
            .filter(|path| !path.is_empty())
            .map(<[u8]>::to_vec)
            .collect())
    }

    /// Sets the index entries of these paths to the new content, whatever the files contain.
    fn set_entries(&self, index: &Path, changes: &[&Change]) -> Result<(), Kind> {
        let mut input = Vec::new();
        for change in changes {
            let null = change.old.as_ref().map_or_else(String::new, |old| "0".repeat(old.oid.len()));
            let (mode, oid) = change.new.as_ref().map_or(("0", &null), |new| (new.mode.as_str(), &new.oid));
            input.extend_from_slice(format!("{mode} {oid}\t").as_bytes());
            input.extend_from_slice(&change.path);
            input.push(0);
        }
        let update = self.git("update-index", index).args(["--replace", "-z", "--index-info"]);
        update.input(input).run().map(drop)
    }

    /// Refreshes the stat data of all files, including those marked as unchanged, so that files that were only
    /// touched do not count as changed. Git's exit code only tells whether some are changed.
    fn refresh(&self, index: &Path) -> Result<(), Kind> {
        self.git("update-index", index).args(["-q", "--unmerged", "--really-refresh"]).output().map(drop)
    }

    /// Converts git's refusal because of an obstacle that the checks did not find.
    fn refusal(&self, branch: &str, output: &Output) -> Kind {
        let signs = [
            "not uptodate",
            "would be overwritten",
            "would be removed",
            "would lose untracked",
            "overlaps with",
        ];
        match output.failure() {
            Kind::Git { stderr, .. } if signs.iter().any(|sign| stderr.contains(sign)) => {
                let reasons = stderr.lines().map(|line| line.trim_start_matches("error: ").to_owned());
                self.blocked(branch, Obstacle::Changes { files: reasons.take(NAMED_FILES).collect() })
            }
            other => other,
        }
    }

    /// Updates a checked-out submodule to its new commit.
    fn update_submodule(
        &self,
        update: &BranchUpdate<'_>,
        change: &Change,
        old: &str,
        new: &str,
    ) -> Result<(), Kind> {
        match self.submodule_head(change) {
            Some(head) if head == old => {}
            // Not checked out there, or already at its target.
            _ => return Ok(()),
        }
        let folder = self.path.join(change.path());
        if !self.has_commit(&folder, new)? && !self.fetch_commit(update, change, new)? {
            let (path, commit) = (change.name(), new.to_owned());
            return Err(self.blocked(update.branch, Obstacle::SubmoduleCommit { path, commit }));
        }
        self.check_out_submodule(change, new)
    }

    fn check_out_submodule(&self, change: &Change, commit: &str) -> Result<(), Kind> {
        let folder = self.path.join(change.path());
        self.git_at(&folder, "checkout").args(["--quiet", "--detach", commit]).run().map(drop)
    }

    fn submodule_head(&self, change: &Change) -> Option<String> {
        let folder = self.path.join(change.path());
        folder.join(".git").exists().then_some(())?;
        self.git_at(&folder, "rev-parse").args(["--verify", "--quiet", "HEAD"]).line().ok()
    }

    fn has_commit(&self, folder: &Path, commit: &str) -> Result<bool, Kind> {
        let named = format!("{commit}^{{commit}}");
        Ok(self.git_at(folder, "cat-file").args(["-e", &named]).output()?.status.success())
    }

    /// Fetches a submodule's commit from the landing checkout or from the submodule's origin. Returns whether
    /// it was found.
    fn fetch_commit(&self, update: &BranchUpdate<'_>, change: &Change, commit: &str) -> Result<bool, Kind> {
        let folder = self.path.join(change.path());
        let mut from: Vec<PathBuf> = vec!["origin".into()];
        if let Some(source) = update.source {
            from.insert(0, source.join(change.path()));
        }
        for from in from {
            let fetch = self.git_at(&folder, "fetch").args(["--quiet", "--no-tags", "--no-write-fetch-head"]);
            let fetched = fetch.arg("--end-of-options").arg(&from).arg(commit).output()?.status.success();
            if fetched && self.has_commit(&folder, commit)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn remove_empty_folders(&self, path: &Path) {
        for folder in path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
            if fs::remove_dir(self.path.join(folder)).is_err() {
                return;
            }
        }
    }
}

/// A temporary index that is removed on drop.
struct TemporaryIndex(PathBuf);

impl Drop for TemporaryIndex {
    fn drop(&mut self) {
        remove_index(&self.0);
    }
}

/// Removes a temporary index, and the lock that a killed git left on it.
fn remove_index(path: &Path) {
    let _ = fs::remove_file(path);
    let mut lock = path.to_owned().into_os_string();
    lock.push(".lock");
    let _ = fs::remove_file(lock);
}

fn first(mut files: Vec<String>) -> Vec<String> {
    files.truncate(NAMED_FILES);
    files
}

/// Links a file to a second name, replacing what has that name.
fn relink(file: &Path, name: &Path) -> Result<(), Kind> {
    match fs::remove_file(name) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Kind::Io { doing: "replace", path: name.to_owned(), source: error });
        }
        _ => {}
    }
    match fs::hard_link(file, name) {
        Ok(()) => Ok(()),
        // File systems without hard links: a copy serves as well.
        Err(error) if error.kind() != ErrorKind::NotFound => {
            read::copy(file, name).map_err(Kind::io("copy", file))
        }
        Err(source) => Err(Kind::Io { doing: "copy", path: file.to_owned(), source }),
    }
}

/// Replaces a file by another one, which keeps its own name too.
fn replace(file: &Path, place: &Path) -> Result<(), Kind> {
    let beside = place.with_extension("sprag-put");
    relink(file, &beside)?;
    fs::rename(&beside, place).map_err(Kind::io("replace", place))
}

/// Returns whether two paths lead to the same file, or to files with the same content.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let (Some(first), Some(second)) = (identity(one), identity(other)) else { return false };
    first == second
        || read::bytes(one).is_ok_and(|bytes| read::bytes(other).is_ok_and(|others| bytes == others))
}
