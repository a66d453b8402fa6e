//! Bringing a worktree's work onto its target branch: one lander at a time, checked, and all or nothing.
//!
//! ```text
//!   landers' lock ─▶ rebase, merge or squash onto the target ─▶ verify ─▶ update-ref { target, fence } ─▶ checkouts, push
//!                      ▲                                                        │ the target moved
//!                      └────────────────────────────────────────────────────────┘ a few times
//! ```
//!
//! Whatever fails before the transaction, the worktree's HEAD and files are as they were.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    entry::checkouts_of,
    error::{Attempt, Error, Kind},
    fault,
    fence::{self, Fence, fenced},
    git::{Cancel, Git},
    lock::DEFAULT_DEADLINE,
    name::check_branch,
    worktrees::Worktree,
};

/// A target that moves more often than this during our attempts is busy with something else than landing.
const DEFAULT_TRIES: u32 = 5;

/// How many uncommitted files are named.
const NAMED_FILES: usize = 20;

/// How the work gets onto the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Its commits, one by one, on top of the target.
    #[default]
    Rebase,
    /// A merge commit.
    Merge,
    /// One commit with all of its changes.
    Squash,
}

/// Looks at a result in the worktree at this path; an error is what is wrong with it.
pub type Verify<'a> = dyn Fn(&Path) -> Result<(), String> + 'a;

/// What to land, and how.
pub struct LandOptions<'a> {
    /// The run that lands.
    pub run: String,
    /// The branch to land on.
    pub into: String,
    /// How.
    pub strategy: Strategy,
    /// The message of a merge or squash commit.
    pub message: String,
    /// A fence, and the number that it must have; None for a run without one.
    pub fence: Option<(String, u64)>,
    /// Looks at the result in the worktree before the target moves; an error is what is wrong with it.
    pub verify: Option<&'a Verify<'a>>,
    /// Whether clean checkouts of the target are brought to its new commit.
    pub update_checkouts: bool,
    /// A remote to push the target to.
    pub push: Option<String>,
    /// How long is waited for other landers.
    pub lock_deadline: Duration,
    /// How often it is tried when the target moves meanwhile.
    pub tries: u32,
}

impl LandOptions<'_> {
    /// A rebase onto a branch, clean checkouts updated, nothing verified or pushed.
    pub fn new(run: &str, into: &str) -> Self {
        LandOptions {
            run: run.to_owned(),
            into: into.to_owned(),
            strategy: Strategy::default(),
            message: format!("Land run {run}"),
            fence: None,
            verify: None,
            update_checkouts: true,
            push: None,
            lock_deadline: DEFAULT_DEADLINE,
            tries: DEFAULT_TRIES,
        }
    }
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landed {
    /// The target's commit now.
    pub commit: String,
    /// The target's commit before.
    pub before: String,
    /// Whether the target moved: not if it held all of it already.
    pub moved: bool,
    /// What became of the target's checkouts.
    pub checkouts: Vec<(PathBuf, CheckoutFate)>,
    /// What became of the push.
    pub push: Option<PushFate>,
}

/// What became of a checkout of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckoutFate {
    /// It has the new files.
    Updated,
    /// It has changes that are not committed, or files in the way: it still has the old files.
    Left(String),
}

/// What became of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushFate {
    /// The remote has it.
    Pushed,
    /// The remote did not take it; it is landed here all the same.
    Refused(String),
}

impl Worktree {
    /// Lands the work of this worktree's HEAD on a branch.
    pub fn land(&mut self, options: &LandOptions<'_>, cancel: &Cancel) -> Result<Landed, Error> {
        let attempt = format!("land {} of run {} on {}", self.path().display(), options.run, options.into);
        self.land_in_turn(options, cancel).attempt(|| attempt)
    }

    fn land_in_turn(&mut self, options: &LandOptions<'_>, cancel: &Cancel) -> Result<Landed, Kind> {
        check_branch(&options.into)?;
        let lock = self.repository.land_lock(&options.into)?;
        let _turn = lock.hold(&options.run, options.lock_deadline)?;
        self.refuse_uncommitted()?;
        let target = format!("refs/heads/{}", options.into);
        for _ in 0..options.tries.max(1) {
            let missing = || Kind::NoSuchBranch { branch: options.into.clone() };
            let before = self.repository.read_ref(&target)?.ok_or_else(missing)?;
            let fence = self.check_fence(options)?;
            let landed_before = fence.as_ref().and_then(|(fence, _)| {
                fence
                    .landed
                    .iter()
                    .rev()
                    .find(|(into, _)| *into == options.into)
                    .map(|(_, commit)| commit.clone())
            });
            let head = self.head()?.ok_or_else(|| Kind::NoCommits { path: self.mark.path.clone() })?;
            if self.is_ancestor(&head, &before)? || landed_before.as_ref() == Some(&head) {
                // Whoever landed it may have been cut off before it was pushed.
                let push =
                    options.push.as_ref().map(|remote| self.push(remote, options, &before, &before, cancel));
                return Ok(Landed {
                    commit: before.clone(),
                    before,
                    moved: false,
                    checkouts: Vec::new(),
                    push,
                });
            }
            let commit = self.prepare_result(options, &head, &before, cancel)?;
            let verified = options.verify.map_or(Ok(()), |verify| verify(self.path()));
            if let Err(message) = verified {
                self.back_to(&head, cancel)?;
                return Err(Kind::VerifyFailed { message });
            }
            fault::point("verified");
            match self.move_target(options, &target, &commit, &before, fence.as_ref()) {
                Ok(()) => {
                    fault::point("landed");
                    let checkouts = self.update_checkouts(options, &before, &commit, cancel)?;
                    let push = options
                        .push
                        .as_ref()
                        .map(|remote| self.push(remote, options, &before, &commit, cancel));
                    tracing::info!(run = options.run, path = %self.path().display(), into = options.into, commit, "landed");
                    return Ok(Landed { commit, before, moved: true, checkouts, push });
                }
                Err(kind) => {
                    self.back_to(&head, cancel)?;
                    self.check_fence(options)?;
                    if self.repository.read_ref(&target)?.as_ref() == Some(&before) {
                        return Err(kind);
                    }
                }
            }
        }
        Err(Kind::TargetMoved { branch: options.into.clone(), tries: options.tries.max(1) })
    }

    fn refuse_uncommitted(&self) -> Result<(), Kind> {
        let status = self
            .git("status")
            .args(["--porcelain=v1", "-z", "--untracked-files=no", "--no-renames"])
            .run()?;
        let files: Vec<String> = status
            .fields()
            .into_iter()
            .take(NAMED_FILES)
            .filter_map(|line| line.get(3..).map(str::to_owned))
            .collect();
        if files.is_empty() { Ok(()) } else { Err(Kind::Uncommitted { files }) }
    }

    /// The fence and its object, if the run has one and it is ours.
    fn check_fence(&self, options: &LandOptions<'_>) -> Result<Option<(Fence, String)>, Kind> {
        let Some((name, expected)) = &options.fence else { return Ok(None) };
        let (expected, read) = (*expected, self.repository.read_fence_ref(name)?);
        match read.fence {
            Some(fence) if fence.number == expected => Ok(Some((fence, read.object))),
            found => Err(fenced(expected, found.map(|fence| fence.number))),
        }
    }

    /// The commit that the target shall be at, checked out here.
    fn prepare_result(
        &self,
        options: &LandOptions<'_>,
        head: &str,
        before: &str,
        cancel: &Cancel,
    ) -> Result<String, Kind> {
        if options.strategy == Strategy::Rebase {
            return self.rebase(head, before, cancel);
        }
        let tree = self.merged_tree(before, head)?;
        let mut commit = self.by_somebody(self.git("commit-tree"))?.args(["-p", before]);
        if options.strategy == Strategy::Merge {
            commit = commit.args(["-p", head]);
        }
        let commit = commit.arg(&tree).input(format!("{}\n", options.message.trim_end())).line()?;
        self.back_to(&commit, cancel)?;
        Ok(commit)
    }

    fn rebase(&self, head: &str, before: &str, cancel: &Cancel) -> Result<String, Kind> {
        let git = self.by_somebody(Git::new(self.path(), "rebase"))?.setting("core.hooksPath", "/dev/null");
        let git = git.args(["--quiet", "--no-autostash", "--no-stat", before]);
        let output = match self.long(git, cancel).output() {
            Ok(output) if output.status.success() => {
                return self.head()?.ok_or_else(|| output.failure());
            }
            other => other,
        };
        let conflict = output.as_ref().ok().map(|_| self.unmerged()).transpose()?;
        let restored = self.git("rebase").arg("--abort").output();
        if !restored.is_ok_and(|output| output.status.success()) {
            crate::checkpoint::forget_unfinished(&self.entry());
        }
        self.return_to_branch(head)?;
        self.back_to(head, &Cancel::default())?;
        match (output?, conflict) {
            (_, Some((files, hunks))) if !files.is_empty() => Err(Kind::Conflict { files, hunks }),
            (output, _) => Err(output.failure()),
        }
    }

    /// A broken-off rebase leaves HEAD detached.
    fn return_to_branch(&self, head: &str) -> Result<(), Kind> {
        crate::entry::write_head(&self.entry(), self.mark.branch.as_deref(), head)
    }

    fn unmerged(&self) -> Result<(Vec<String>, String), Kind> {
        let files = self.git("diff").args(["--name-only", "--diff-filter=U", "-z"]).run()?.fields();
        let hunks = self.git("diff").args(["--no-color", "--no-ext-diff", "--diff-filter=U"]).run()?.stdout;
        Ok((files, String::from_utf8_lossy(&hunks).into_owned()))
    }

    /// Both sides together, without touching any file.
    fn merged_tree(&self, before: &str, head: &str) -> Result<String, Kind> {
        let args = ["--write-tree", "-z", "--name-only", "--no-messages", before, head];
        let output = self.repository.git("merge-tree").args(args).output()?;
        let mut fields = output.fields().into_iter();
        let tree = fields.next();
        match (output.status.code(), tree) {
            (Some(0), Some(tree)) => Ok(tree),
            (Some(1), Some(tree)) => {
                let files: Vec<String> = fields.collect();
                // The tree holds the files with markers in them.
                let diff =
                    self.repository.git("diff").args(["--no-color", "--no-ext-diff", before, &tree, "--"]);
                let hunks = diff.args(&files).run()?.stdout;
                Err(Kind::Conflict { files, hunks: String::from_utf8_lossy(&hunks).into_owned() })
            }
            _ => Err(output.failure()),
        }
    }

    /// Branch, index and files to a commit; files that git does not know stay.
    fn back_to(&self, commit: &str, cancel: &Cancel) -> Result<(), Kind> {
        let reset =
            self.git("reset").args(["--hard", "--quiet", commit]).setting("core.hooksPath", "/dev/null");
        self.long(reset, cancel).run().map(|_| ())
    }

    fn is_ancestor(&self, commit: &str, of: &str) -> Result<bool, Kind> {
        let output = self.repository.git("merge-base").args(["--is-ancestor", commit, of]).output()?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(output.failure()),
        }
    }

    /// The person's name where there is one, else ours.
    pub(crate) fn by_somebody<'a>(&self, git: Git<'a>) -> Result<Git<'a>, Kind> {
        let known = self.git("var").arg("GIT_COMMITTER_IDENT").output()?.status.success();
        Ok(if known { git } else { git.by_sprag() })
    }

    /// Target and fence, together or not at all.
    fn move_target(
        &self,
        options: &LandOptions<'_>,
        target: &str,
        commit: &str,
        before: &str,
        fence: Option<&(Fence, String)>,
    ) -> Result<(), Kind> {
        let mut changes = format!("update {target} {commit} {before}\n");
        if let (Some((name, _)), Some((fence, object))) = (&options.fence, fence) {
            let mut fence = fence.clone();
            fence.landed.push((options.into.clone(), commit.to_owned()));
            let new = self.repository.write_fence(&fence)?;
            changes.push_str(&format!("update {} {new} {object}\n", fence::name(name)));
        }
        self.repository.update_refs(&format!("sprag: landed by run {}", options.run), &changes)
    }

    /// Whoever has the target checked out gets the new files, if nothing of theirs is in the way.
    fn update_checkouts(
        &self,
        options: &LandOptions<'_>,
        before: &str,
        commit: &str,
        cancel: &Cancel,
    ) -> Result<Vec<(PathBuf, CheckoutFate)>, Kind> {
        let mut fates = Vec::new();
        for checkout in checkouts_of(&self.repository, &options.into)? {
            if checkout.path == self.path() || !options.update_checkouts {
                continue;
            }
            let fate = update_checkout(&checkout.path, before, commit, self.timeout, cancel)
                .unwrap_or_else(|kind| CheckoutFate::Left(kind.to_string()));
            fates.push((checkout.path, fate));
        }
        Ok(fates)
    }

    fn push(
        &self,
        remote: &str,
        options: &LandOptions<'_>,
        before: &str,
        commit: &str,
        cancel: &Cancel,
    ) -> PushFate {
        let into = &options.into;
        // What we last saw there, or what the target was before.
        let seen = self.repository.read_ref(&format!("refs/remotes/{remote}/{into}")).ok().flatten();
        let lease = format!("--force-with-lease=refs/heads/{into}:{}", seen.as_deref().unwrap_or(before));
        let what = format!("{commit}:refs/heads/{into}");
        // A remote may be a path that is meant from the main checkout.
        let from = self.repository.main_checkout().unwrap_or(self.repository.common_dir());
        let push = Git::new(from, "push").args(["--quiet", &lease, "--end-of-options", remote, &what]);
        match push.long(self.timeout, cancel).run() {
            Ok(_) => PushFate::Pushed,
            Err(kind) => PushFate::Refused(kind.to_string()),
        }
    }
}

fn update_checkout(
    path: &Path,
    before: &str,
    commit: &str,
    timeout: Duration,
    cancel: &Cancel,
) -> Result<CheckoutFate, Kind> {
    Git::new(path, "update-index").args(["-q", "--refresh"]).output()?;
    // Its HEAD has moved with the branch: it is clean if it is what the branch was before.
    for args in [["diff-index", "--cached"], ["diff-index", "--quiet"]] {
        let differs = Git::new(path, args[0]).args([args[1], "--quiet", before, "--"]).output()?;
        if !differs.status.success() {
            let why = "it has changes that are not committed; `git stash`, then `git reset --hard`, brings it up to date";
            return Ok(CheckoutFate::Left(why.to_owned()));
        }
    }
    let update = Git::new(path, "read-tree").args(["-m", "-u", before, commit]);
    let output = update.long(timeout, cancel).output()?;
    match output.status.success() {
        true => Ok(CheckoutFate::Updated),
        false => Ok(CheckoutFate::Left(output.failure().to_string())),
    }
}
