//! Checkouts that are behind their branch. Landed changes show there as staged for removal, and the next commit
//! would undo them.
//!
//! No landing leaves such a checkout. Other programs can: a `git update-ref`, a push into a repository with a
//! checkout, a `git stash pop` that coincides with a landing. A user can also want it, by restoring old files.
//! So Sprag only reports it, with the command that repairs it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use super::changes::{self, Change};
use crate::{
    entry::{self, Checkout},
    error::{Attempt, Error, Kind},
    git::Git,
    read,
    repository::Repository,
};

/// The number of recent landings to check.
const MAX_LANDINGS: usize = 20;
/// The start of the reflog message of a landing.
pub(super) const LANDED_BY: &str = "sprag: landed by run ";

/// A checkout in which the files of an older commit of its branch are staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutdatedCheckout {
    /// The folder of the checkout.
    pub checkout: PathBuf,
    /// The branch of the checkout.
    pub branch: String,
    /// The files that the next commit there would revert.
    pub files: Vec<String>,
    /// The command that updates them to the branch's commit. It overwrites no work of a user, because the files
    /// are as they were before or after the landing.
    pub repair: String,
}

impl Repository {
    /// Returns the checkouts that are behind a branch that was landed on.
    pub fn outdated_checkouts(&self) -> Result<Vec<OutdatedCheckout>, Error> {
        let look = || {
            let mut found = Vec::new();
            for (branch, checkout) in entry::branch_checkouts(self)? {
                found.extend(self.check_outdated(&branch, &checkout)?);
            }
            Ok(found)
        };
        look().attempt(|| format!("check the checkouts of {}", self.common_dir().display()))
    }

    fn check_outdated(&self, branch: &str, checkout: &Checkout) -> Result<Option<OutdatedCheckout>, Kind> {
        let landings = self.landings_on(branch);
        let (path, index) = (&checkout.path, checkout.git_dir.join("index"));
        if landings.is_empty() || !index.exists() || !path.is_dir() || *path == checkout.git_dir {
            return Ok(None);
        }
        let git = |command: &str| {
            Git::new(path, command).git_dir(&checkout.git_dir).env("GIT_WORK_TREE", path).index(&index)
        };
        let staged = changes::staged(git("diff-index"), "HEAD")?;
        let staged: BTreeMap<&[u8], &Change> = staged.iter().map(|change| (&*change.path, change)).collect();
        let mut files = BTreeSet::new();
        for (old, new) in landings.iter().filter(|_| !staged.is_empty()) {
            let landed = changes::between(self, old, new)?;
            // The landing is undone if all its changes that are still current are staged in reverse.
            let undone = |change: &Change| {
                staged
                    .get(&*change.path)
                    .is_some_and(|staged| staged.old == change.new && staged.new == change.old)
            };
            if !landed.is_empty() && landed.iter().all(undone) {
                files.extend(landed.iter().map(Change::name));
            }
        }
        let files: Vec<String> = files.into_iter().collect();
        if files.is_empty() || !self.are_unmodified(path, &files, &landings, &git)? {
            return Ok(None);
        }
        let quoted: Vec<String> = files.iter().map(|file| quote(file)).collect();
        let repair = format!(
            "git -C {} restore --source=HEAD --staged --worktree -- {}",
            quote(&path.display().to_string()),
            quoted.join(" ")
        );
        Ok(Some(OutdatedCheckout { checkout: path.clone(), branch: branch.to_owned(), files, repair }))
    }

    /// Returns whether these files have their content from before or after a landing, so that they contain no
    /// work of a user.
    fn are_unmodified<'g>(
        &self,
        path: &Path,
        files: &[String],
        landings: &[(String, String)],
        git: &impl Fn(&str) -> Git<'g>,
    ) -> Result<bool, Kind> {
        for file in files {
            if fs::symlink_metadata(path.join(file)).is_err() {
                continue;
            }
            let hash = git("hash-object").args(["--path", file, "--", file]).line()?;
            let is_known = |commit: &String| {
                let named = format!("{commit}:{file}");
                self.git("rev-parse")
                    .args(["--verify", "--quiet", &named])
                    .line()
                    .is_ok_and(|oid| oid == hash)
            };
            if !landings.iter().any(|(old, new)| is_known(old) || is_known(new)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the latest landings on a branch, newest first, as pairs of old and new commit.
    fn landings_on(&self, branch: &str) -> Vec<(String, String)> {
        let log = read::bytes(self.common_dir().join("logs/refs/heads").join(branch)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines = log.lines().rev().filter(|line| line.contains(&format!("\t{LANDED_BY}")));
        let moves = lines.filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        });
        moves.take(MAX_LANDINGS).collect()
    }
}

/// Quotes a word for a shell.
fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
