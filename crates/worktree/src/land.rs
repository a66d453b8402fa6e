//! Landing: brings a worktree's work onto its target branch, one landing at a time, verified, all or nothing.
//!
//! ```text
//!   landing lock ─▶ fetch ─▶ rebase, merge or squash ─▶ verify ─▶ push ─▶ { checkouts, target, fence }
//!                     ▲                                             │           │
//!                     ├──── the remote's branch has moved ──────────┘           │
//!                     └──── the target has moved ───────────────────────────────┘
//! ```
//!
//! With a required remote, the remote decides: work that it refuses does not land here either. After any
//! failure, the worktree's HEAD and files are as before, and so are the target and its checkouts. Only a commit that
//! the remote has accepted stays: the next landing brings it onto the target here.

mod behind;
mod changes;
mod follower;
mod integrate;
mod moving;
mod remote;
mod unfinished;

use std::{cell::RefCell, path::PathBuf, time::Duration};

use self::{
    behind::LANDED_BY,
    moving::{BranchMove, finish_move},
    remote::{PushResult, RemoteBranch, RemoteTip},
};
use crate::{
    clock,
    error::{Attempt, Error, Kind},
    fault,
    fence::{self, Fence, fenced},
    git::Cancel,
    lock::{DEFAULT_DEADLINE, LockGuard},
    name::check_branch,
    worktrees::Worktree,
};

pub use self::{behind::OutdatedCheckout, integrate::Verify, moving::InterruptedMove};

/// The most retries after transient failures of git.
const MAX_FAILURES: u32 = 4;

/// The bounds of the pause between two attempts, which doubles each time.
const MIN_PAUSE_MS: u64 = 20;
const MAX_PAUSE_MS: u64 = 1_000;

/// The most attempts to push while the remote's branch keeps moving.
const MAX_PUSHES: u32 = 30;

/// The most uncommitted files named in an error.
const NAMED_FILES: usize = 20;

/// The way in which the work is added to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Each commit, rebased onto the target.
    #[default]
    Rebase,
    /// A merge commit.
    Merge,
    /// One commit with all changes.
    Squash,
}

/// A remote to which the target is pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The name or URL of the remote.
    pub remote: String,
    /// Whether the work lands only if the remote accepts it.
    pub required: bool,
}

/// The options of a landing.
pub struct LandOptions<'a> {
    /// The run that lands.
    pub run: String,
    /// The target branch.
    pub into: String,
    /// The way in which the work is added.
    pub strategy: Strategy,
    /// The message of a merge or squash commit.
    pub message: String,
    /// The name of a fence and its expected number; absent for a run without one.
    pub fence: Option<(String, u64)>,
    /// A check of the result in the worktree before the target moves; its error describes what is wrong.
    pub verify: Option<&'a Verify<'a>>,
    /// The remote to push to; absent if the landing is local.
    pub push: Option<Push>,
    /// The longest wait for other landings, and the time limit of retries when the target moves.
    pub patience: Duration,
    /// Ends the wait for other landings with [`Kind::GaveUpTurn`]. A landing that has its turn is not affected.
    pub give_up_turn: Cancel,
    /// Called with messages for the user about waits and retries.
    pub on_progress: Option<&'a dyn Fn(String)>,
}

impl LandOptions<'_> {
    /// Creates options for a rebase onto a branch, without verification and push.
    pub fn new(run: &str, into: &str) -> Self {
        LandOptions {
            run: run.to_owned(),
            into: into.to_owned(),
            strategy: Strategy::default(),
            message: format!("Land run {run}"),
            fence: None,
            verify: None,
            push: None,
            patience: DEFAULT_DEADLINE,
            give_up_turn: Cancel::default(),
            on_progress: None,
        }
    }

    fn report(&self, what: impl FnOnce() -> String) {
        if let Some(report) = self.on_progress {
            report(what());
        }
    }
}

/// The result of a landing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landed {
    /// The target's commit after the landing.
    pub commit: String,
    /// The target's commit before the landing.
    pub before: String,
    /// Whether the target moved; false if it already contained the work.
    pub moved: bool,
    /// The checkouts of the target that were updated.
    pub checkouts: Vec<PathBuf>,
    /// The result of the push; absent without a remote.
    pub push: Option<PushFate>,
}

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushFate {
    /// The remote accepted the work.
    Pushed,
    /// The remote was unreachable or refused the work, which landed locally anyway.
    NotPushed {
        /// Git's message.
        reason: String,
        /// The number of the target's commits that the remote lacks; absent if unknown.
        commits: Option<usize>,
    },
}

/// A landing in progress.
struct Landing<'l> {
    options: &'l LandOptions<'l>,
    /// The commit to land: the worktree's HEAD at the start.
    head: String,
    lock: &'l LockGuard<'l>,
    /// The base and the tree that were verified.
    verified: RefCell<Option<(String, String)>>,
    /// The commit that the remote has accepted. From then on the landing cannot be cancelled, and lands this commit.
    pushed: RefCell<Option<String>>,
}

impl Worktree {
    /// Lands the work of this worktree's HEAD on a branch.
    pub fn land(&mut self, options: &LandOptions<'_>, cancel: &Cancel) -> Result<Landed, Error> {
        let attempt = format!("land {} of run {} on {}", self.path().display(), options.run, options.into);
        self.land_locked(options, cancel).attempt(|| attempt)
    }

    fn land_locked(&mut self, options: &LandOptions<'_>, cancel: &Cancel) -> Result<Landed, Kind> {
        check_branch(&options.into)?;
        let deadline_ms = clock::now_ms().saturating_add(options.patience.as_millis() as u64);
        let lock = self.repository.land_lock(&options.into)?;
        if let Some(holder) = lock.holder() {
            options.report(|| format!("waiting for {holder}, which lands on {}", options.into));
        }
        let lock_guard =
            lock.acquire_in_turn(&options.run, options.patience, cancel, &options.give_up_turn)?;
        let repaired = finish_move(&self.repository, &options.into, &lock_guard, self.timeout)?;
        for path in repaired {
            options.report(|| format!("repaired after an interrupted landing: {}", path.display()));
        }
        self.settle_landing()?;
        self.refuse_uncommitted()?;
        let head = self.head()?.ok_or_else(|| Kind::NoCommits { path: self.mark.path.clone() })?;
        let landing = Landing {
            options,
            head,
            lock: &lock_guard,
            verified: RefCell::default(),
            pushed: RefCell::default(),
        };
        let landed = self.land_until_done(&landing, deadline_ms, cancel);
        // After a failure the record stays if the worktree could not be reset.
        if landed.is_ok() || self.head().is_ok_and(|now| now == Some(landing.work())) {
            self.forget_landing();
        }
        landed
    }

    /// Retries while the target moves, and a few times after transient failures of git.
    fn land_until_done(
        &self,
        landing: &Landing<'_>,
        deadline_ms: u64,
        cancel: &Cancel,
    ) -> Result<Landed, Kind> {
        let options = landing.options;
        let (mut moves, mut failures, no_cancel) = (0, 0, Cancel::default());
        loop {
            // Work that the remote has accepted must land, even if it is cancelled now.
            let cancel = if landing.is_pushed() { &no_cancel } else { cancel };
            let kind = match self.try_land(landing, cancel) {
                Ok(landed) => return Ok(landed),
                Err(kind) => kind,
            };
            self.reset_worktree(landing)?;
            self.check_fence(options)?;
            match kind {
                Kind::TargetMoved { branch, .. } => {
                    moves += 1;
                    let is_remote = branch != options.into;
                    if clock::now_ms() >= deadline_ms || (is_remote && moves >= MAX_PUSHES) {
                        return Err(Kind::TargetMoved { branch, tries: moves });
                    }
                    options.report(|| format!("{branch} has moved: retrying on top of it"));
                }
                kind if kind.is_transient() && failures < MAX_FAILURES => {
                    failures += 1;
                    options.report(|| format!("git failed, retrying: {kind}"));
                }
                kind => return Err(kind),
            }
            if cancel.is_cancelled() && !landing.is_pushed() {
                return Err(Kind::Cancelled);
            }
            // Random, so that two hosts that land on the same remote do not collide each time.
            let max_ms = MAX_PAUSE_MS.min(MIN_PAUSE_MS << (moves + failures).min(16));
            clock::pause_ms(max_ms / 2 + clock::random_below(max_ms / 2 + 1));
        }
    }

    /// Resets files and HEAD, with retries if another git command is in the way.
    fn reset_worktree(&self, landing: &Landing<'_>) -> Result<(), Kind> {
        for failed in 1.. {
            match self.reset_to(&landing.work(), &Cancel::default()) {
                Err(kind) if kind.is_transient() && failed < MAX_FAILURES => {
                    clock::pause_ms(MIN_PAUSE_MS << failed)
                }
                other => return other,
            }
        }
        Ok(())
    }

    fn try_land(&self, landing: &Landing<'_>, cancel: &Cancel) -> Result<Landed, Kind> {
        let (options, head) = (landing.options, &landing.work());
        let missing = || Kind::NoSuchBranch { branch: options.into.clone() };
        let local = self.repository.read_ref(&format!("refs/heads/{}", options.into))?.ok_or_else(missing)?;
        let fence = self.check_fence(options)?;
        let remote = options.push.as_ref().map(|push| self.remote_branch(push, options));
        let tip = match &remote {
            Some(remote) => Some(remote.fetch(cancel)?),
            None => None,
        };
        if let (Some(RemoteTip::Unreachable(reason)), Some(push)) = (&tip, &options.push)
            && push.required
        {
            return Err(Kind::PushFailed { remote: push.remote.clone(), reason: reason.clone() });
        }
        let base = match (&remote, &tip) {
            (Some(remote), Some(tip)) => remote.base(&local, tip).map_err(|kind| landing.with_push(kind))?,
            _ => local.clone(),
        };
        let landed_before = fence.as_ref().and_then(|(fence, _)| fence.last_landed_on(&options.into));
        if landed_before == Some(head.as_str()) || self.repository.is_ancestor(head, &local)? {
            // The process that landed it may have been killed before the push.
            let push = self.push_to(landing, remote.as_ref().zip(tip.as_ref()), &local, cancel)?;
            return Ok(Landed {
                commit: local.clone(),
                before: local,
                moved: false,
                checkouts: Vec::new(),
                push,
            });
        }
        let commit = if self.repository.is_ancestor(head, &base)? {
            // The remote already has it, but the local branch does not.
            base.clone()
        } else {
            self.record_landing(head)?;
            let commit = self.integrate(options, head, &base, cancel)?;
            self.record_landing(&commit)?;
            commit
        };
        let moves = BranchMove {
            repository: &self.repository,
            run: &options.run,
            branch: &options.into,
            before: &local,
            after: &commit,
            own: self.path(),
            lock: landing.lock,
            timeout: self.timeout,
        };
        if commit != base {
            moves.check()?;
            self.verify(landing, &commit, &base)?;
            fault::point("verified");
        }
        let push = self.push_to(landing, remote.as_ref().zip(tip.as_ref()), &commit, cancel)?;
        fault::point("pushed");
        if commit == local {
            return Ok(Landed { commit, before: local, moved: false, checkouts: Vec::new(), push });
        }
        let checkouts = moves.execute(|| self.move_target(options, &commit, &local, fence.as_ref()));
        let checkouts = checkouts.map_err(|kind| landing.with_push(kind))?;
        tracing::info!(run = options.run, path = %self.path().display(), into = options.into, commit, "landed");
        Ok(Landed { commit, before: local, moved: true, checkouts, push })
    }

    /// Verifies the result, unless the same result was verified before.
    fn verify(&self, landing: &Landing<'_>, commit: &str, base: &str) -> Result<(), Kind> {
        let Some(verify) = landing.options.verify else { return Ok(()) };
        let result = (base.to_owned(), self.tree_of(commit)?);
        if landing.verified.borrow().as_ref() == Some(&result) {
            return Ok(());
        }
        verify(self.path()).map_err(|message| Kind::VerifyFailed { message })?;
        landing.verified.replace(Some(result));
        Ok(())
    }

    /// Pushes a commit, if there is a remote that lacks it.
    fn push_to(
        &self,
        landing: &Landing<'_>,
        remote: Option<(&RemoteBranch<'_>, &RemoteTip)>,
        commit: &str,
        cancel: &Cancel,
    ) -> Result<Option<PushFate>, Kind> {
        let Some((remote, tip)) = remote else { return Ok(None) };
        let not_pushed = |reason: String| {
            let commits = match tip {
                RemoteTip::At(tip) => remote.count(commit, tip).ok(),
                RemoteTip::Absent | RemoteTip::Unreachable(_) => None,
            };
            Ok(Some(PushFate::NotPushed { reason, commits }))
        };
        match tip {
            RemoteTip::Unreachable(reason) => return not_pushed(reason.clone()),
            RemoteTip::At(tip) if self.repository.is_ancestor(commit, tip)? => {
                return Ok(Some(PushFate::Pushed));
            }
            RemoteTip::At(_) | RemoteTip::Absent => {}
        }
        // The remote does not know the fence, so check it right before the push.
        self.check_fence(landing.options)?;
        match remote.push(commit, tip, cancel)? {
            PushResult::Accepted => {
                landing.pushed.replace(Some(commit.to_owned()));
                Ok(Some(PushFate::Pushed))
            }
            PushResult::Moved => {
                let branch = format!("{} of {}", remote.branch, remote.remote);
                Err(Kind::TargetMoved { branch, tries: 1 })
            }
            PushResult::Failed(reason) if landing.options.push.as_ref().is_some_and(|push| push.required) => {
                Err(Kind::PushFailed { remote: remote.remote.to_owned(), reason })
            }
            PushResult::Failed(reason) => not_pushed(reason),
        }
    }

    fn remote_branch<'a>(&'a self, push: &'a Push, options: &'a LandOptions<'_>) -> RemoteBranch<'a> {
        let (repository, timeout) = (&self.repository, self.timeout);
        RemoteBranch { repository, remote: &push.remote, branch: &options.into, timeout }
    }

    fn refuse_uncommitted(&self) -> Result<(), Kind> {
        // Git would start another git in each repository inside, with the settings there.
        let guarded = crate::quarantine::is_guarded(&self.repository, &self.mark);
        let ignored = guarded.then_some("--ignore-submodules=dirty");
        let status = self
            .git("status")
            .args(["--porcelain=v1", "-z", "--untracked-files=no", "--no-renames"])
            .args(ignored)
            .run()?;
        let files: Vec<String> = status
            .fields()
            .into_iter()
            .take(NAMED_FILES)
            .filter_map(|line| line.get(3..).map(str::to_owned))
            .collect();
        if files.is_empty() { Ok(()) } else { Err(Kind::Uncommitted { files }) }
    }

    /// Returns the fence and its object. Fails if the fence does not have the expected number.
    fn check_fence(&self, options: &LandOptions<'_>) -> Result<Option<(Fence, String)>, Kind> {
        let Some((name, expected)) = &options.fence else { return Ok(None) };
        let (expected, read) = (*expected, self.repository.read_fence_ref(name)?);
        match read.fence {
            Some(fence) if fence.number == expected => Ok(Some((fence, read.object))),
            found => Err(fenced(expected, found.map(|fence| fence.number))),
        }
    }

    /// Updates target and fence, both or neither.
    fn move_target(
        &self,
        options: &LandOptions<'_>,
        commit: &str,
        before: &str,
        fence: Option<&(Fence, String)>,
    ) -> Result<(), Kind> {
        let target = format!("refs/heads/{}", options.into);
        let mut changes = format!("update {target} {commit} {before}\n");
        let mut moved = None;
        if let (Some((name, _)), Some((fence, object))) = (&options.fence, fence) {
            let mut fence = fence.clone();
            fence.landed.push((options.into.clone(), commit.to_owned()));
            let new = self.repository.write_fence(&fence)?;
            changes.push_str(&format!("update {} {new} {object}\n", fence::name(name)));
            moved = Some(fence);
        }
        self.repository.update_refs(&format!("{LANDED_BY}{}", options.run), &changes)?;
        if let Some(fence) = moved {
            self.repository.confirm_fence(&fence)?;
        }
        Ok(())
    }
}

impl Landing<'_> {
    /// Returns the commit to land.
    fn work(&self) -> String {
        self.pushed.borrow().as_ref().unwrap_or(&self.head).clone()
    }

    fn is_pushed(&self) -> bool {
        self.pushed.borrow().is_some()
    }

    /// Adds to a blocked landing that the remote already has the work.
    fn with_push(&self, kind: Kind) -> Kind {
        match (kind, &self.options.push) {
            (Kind::Blocked(mut blocked), Some(push)) if self.is_pushed() => {
                blocked.pushed_to = Some(push.remote.clone());
                Kind::Blocked(blocked)
            }
            (kind, _) => kind,
        }
    }
}
