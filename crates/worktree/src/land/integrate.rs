//! The commit to land: the work, rebased, merged or squashed onto its base.

use std::path::Path;

use super::{LandOptions, Strategy};
use crate::{
    checkpoint::forget_unfinished,
    entry::write_head,
    error::Kind,
    git::{Cancel, Git, HOOKS_PATH, NO_HOOKS, RECURSE},
    worktrees::Worktree,
};

impl Worktree {
    /// Creates the commit to land, and checks it out here. Returns `base` itself if that already contains all
    /// the work.
    pub(super) fn integrate(
        &self,
        options: &LandOptions<'_>,
        head: &str,
        base: &str,
        cancel: &Cancel,
    ) -> Result<String, Kind> {
        let commit = match options.strategy {
            Strategy::Rebase => self.rebase(head, base, cancel)?,
            Strategy::Merge | Strategy::Squash => {
                let tree = self.merged_tree(base, head)?;
                if tree == self.tree_of(base)? {
                    base.to_owned()
                } else {
                    self.commit_tree(options, head, base, &tree)?
                }
            }
        };
        self.reset_to(&commit, cancel)?;
        self.refuse_incomplete(&commit, base)?;
        Ok(commit)
    }

    fn commit_tree(
        &self,
        options: &LandOptions<'_>,
        head: &str,
        base: &str,
        tree: &str,
    ) -> Result<String, Kind> {
        let mut commit = self.with_identity(self.git("commit-tree"))?.args(["-p", base]);
        if options.strategy == Strategy::Merge {
            commit = commit.args(["-p", head]);
        }
        commit.arg(tree).input(format!("{}\n", options.message.trim_end())).line()
    }

    fn rebase(&self, head: &str, base: &str, cancel: &Cancel) -> Result<String, Kind> {
        let git = self.with_identity(Git::new(self.path(), "rebase"))?.setting(HOOKS_PATH, NO_HOOKS);
        let git = git.setting(RECURSE, "false");
        let git = git.args(["--quiet", "--no-autostash", "--no-stat", base]);
        let output = match self.long(git, cancel).output() {
            Ok(output) if output.status.success() => {
                return self.head()?.ok_or_else(|| output.failure());
            }
            other => other,
        };
        let conflict = output.as_ref().ok().map(|_| self.unmerged()).transpose()?;
        let aborted = self.git("rebase").arg("--abort").output();
        if !aborted.is_ok_and(|output| output.status.success()) {
            forget_unfinished(&self.entry());
        }
        // An aborted rebase leaves HEAD detached.
        write_head(&self.entry(), self.mark.branch.as_deref(), head)?;
        self.reset_to(head, &Cancel::default())?;
        match (output?, conflict) {
            (_, Some((files, hunks))) if !files.is_empty() => Err(Kind::Conflict { files, hunks }),
            (output, _) => Err(output.failure()),
        }
    }

    fn unmerged(&self) -> Result<(Vec<String>, String), Kind> {
        // Without a look into the repositories inside, whose settings can name commands.
        let diff =
            || self.git("diff").args(["--diff-filter=U", "--ignore-submodules=dirty", "--submodule=short"]);
        let files = diff().args(["--name-only", "-z"]).run()?.fields();
        let hunks = diff().args(["--no-color", "--no-ext-diff"]).run()?.stdout;
        Ok((files, String::from_utf8_lossy(&hunks).into_owned()))
    }

    /// Merges both sides without changing any file.
    fn merged_tree(&self, base: &str, head: &str) -> Result<String, Kind> {
        let args = ["--write-tree", "-z", "--name-only", "--no-messages", base, head];
        let output = self.repository.git("merge-tree").args(args).output()?;
        let mut fields = output.fields().into_iter();
        let tree = fields.next();
        match (output.status.code(), tree) {
            (Some(0), Some(tree)) => Ok(tree),
            (Some(1), Some(tree)) => {
                let files: Vec<String> = fields.collect();
                // The tree contains the files with conflict markers.
                let diff =
                    self.repository.git("diff").args(["--no-color", "--no-ext-diff", base, &tree, "--"]);
                let hunks = diff.args(&files).run()?.stdout;
                Err(Kind::Conflict { files, hunks: String::from_utf8_lossy(&hunks).into_owned() })
            }
            _ => Err(output.failure()),
        }
    }

    pub(super) fn tree_of(&self, commit: &str) -> Result<String, Kind> {
        self.repository.git("rev-parse").args(["--verify", &format!("{commit}^{{tree}}")]).line()
    }

    /// Resets branch, index and files to a commit. Untracked files stay.
    pub(super) fn reset_to(&self, commit: &str, cancel: &Cancel) -> Result<(), Kind> {
        let reset = self.git("reset").args(["--hard", "--quiet", commit]).setting(HOOKS_PATH, NO_HOOKS);
        self.long(reset, cancel).run().map(|_| ())
    }

    /// Fails if an object of the commit is missing: `git prune` may have deleted it before a ref led to it.
    fn refuse_incomplete(&self, commit: &str, base: &str) -> Result<(), Kind> {
        self.repository.wait_for_prunes();
        self.repository.git("rev-list").args(["--objects", "--quiet", commit, "--not", base]).run().map(drop)
    }

    /// Uses the user's identity if git has one, else Sprag's.
    pub(crate) fn with_identity<'a>(&self, git: Git<'a>) -> Result<Git<'a>, Kind> {
        let known = self.git("var").arg("GIT_COMMITTER_IDENT").output()?.status.success();
        Ok(if known { git } else { git.by_sprag() })
    }
}

/// Checks a result in the worktree at this path; an error describes what is wrong.
pub type Verify<'a> = dyn Fn(&Path) -> Result<(), String> + 'a;
