//! Moves a branch together with all its checkouts. If one of them cannot follow, the branch stays where it is.
//!
//! ```text
//!   record ─▶ lock every index ─▶ files ─▶ indexes ─▶ the branch ─▶ unlock every index ─▶ remove the record
//!                     │ fails           │ fails   │ fails
//!                     └─────────────────┴─────────┴──▶ restore files and indexes, unlock, remove the record
//! ```
//!
//! The branch moves last, and its move decides. A process that is killed before it leaves a checkout with
//! uncommitted changes: those that were to land. Committing or discarding them reverts nothing on the branch. A
//! process that is killed after it leaves only lock files. In both cases the index locks keep git from
//! committing there until the record is processed: by the next landing, by a worker's sweep, or by a person.

use std::{
    collections::BTreeSet,
    fs,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sprag_process::{Liveness, ProcessId, is_alive};

use super::{
    changes::{self, Change},
    follower::{BranchUpdate, Follower},
};
use crate::{
    clock,
    entry::{self, checkouts_of},
    error::{Attempt, Blocked, Error, Kind, Obstacle},
    fault,
    foreign_git::{self, Processes},
    git::Cancel,
    lock::{LockGuard, current_process},
    mark::{MARK, write_atomic},
    name::ref_component,
    read,
    repository::Repository,
};

/// The longest wait for a user's git commands in the checkouts. After it, git's own checks decide.
const IDLE_WAIT_MS: u64 = 2_000;
/// The most times that the set of checkouts may change during a landing.
const TRIES: u32 = 5;

/// A move in progress, written before any checkout is changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct MoveRecord {
    run: String,
    process: Option<ProcessId>,
    branch: String,
    before: String,
    after: String,
    /// The content of the index locks, which identifies them as those of this move.
    token: String,
    checkouts: Vec<MovedCheckout>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct MovedCheckout {
    path: PathBuf,
    git_dir: PathBuf,
}

/// A move of a branch whose process was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptedMove {
    /// The branch that was moving.
    pub branch: String,
    /// The run that was landing on it.
    pub run: String,
    /// The checkouts that stay locked until the move is finished.
    pub checkouts: Vec<PathBuf>,
}

/// The position of a branch after an attempt to move it.
enum BranchPosition {
    Before,
    /// At the new commit, or beyond it.
    After,
    Elsewhere,
}

/// A branch to move, with its checkouts.
pub(crate) struct BranchMove<'a> {
    pub(crate) repository: &'a Repository,
    pub(crate) run: &'a str,
    pub(crate) branch: &'a str,
    pub(crate) before: &'a str,
    pub(crate) after: &'a str,
    /// The worktree that lands, which does not follow the branch.
    pub(crate) own: &'a Path,
    pub(crate) lock: &'a LockGuard<'a>,
    pub(crate) timeout: Duration,
}

impl BranchMove<'_> {
    /// Fails if a user's change is in the way in any checkout. Changes nothing.
    pub(crate) fn check(&self) -> Result<(), Kind> {
        let (no_cancel, changes) = (Cancel::default(), self.changes()?);
        for follower in self.followers(&no_cancel)? {
            follower.check(&self.update(&changes))?;
        }
        Ok(())
    }

    /// Moves the branch with `move_ref`, and its checkouts with it. Returns the checkouts that followed.
    pub(crate) fn execute(&self, move_ref: impl FnOnce() -> Result<(), Kind>) -> Result<Vec<PathBuf>, Kind> {
        let (no_cancel, changes) = (Cancel::default(), self.changes()?);
        let (followers, record, known) = self.lock_all(&no_cancel)?;
        let update = self.update(&changes);
        if let Err(kind) = self.update_all(&followers, &update) {
            self.undo_all(&followers, &update, &record);
            return Err(kind);
        }
        if let Err(kind) = move_ref() {
            // A git command that failed may have moved the branch anyway, so the branch itself decides. If it
            // cannot be read, record and locks stay.
            match self.position()? {
                BranchPosition::After => {}
                BranchPosition::Before => {
                    self.undo_all(&followers, &update, &record);
                    return Err(kind);
                }
                BranchPosition::Elsewhere => {
                    self.undo_all(&followers, &update, &record);
                    return Err(Kind::TargetMoved { branch: self.branch.to_owned(), tries: 1 });
                }
            }
        }
        fault::point("landed");
        // A command that started meanwhile with the old commit fails at the lock.
        let folders: Vec<&Path> = followers.iter().map(|follower| &*follower.path).collect();
        foreign_git::wait_until_idle(&folders, &known, IDLE_WAIT_MS / 2);
        self.finish(&followers, &record);
        fault::point("unlocked");
        self.catch_up(&followers, &update, &no_cancel);
        Ok(followers.into_iter().map(|follower| follower.path).collect())
    }

    /// Reads the position of the branch, with retries.
    fn position(&self) -> Result<BranchPosition, Kind> {
        let read = || match self.repository.read_ref(&format!("refs/heads/{}", self.branch))? {
            Some(now) if now == self.before => Ok(BranchPosition::Before),
            Some(now) if now == self.after || self.repository.is_ancestor(self.after, &now)? => {
                Ok(BranchPosition::After)
            }
            _ => Ok(BranchPosition::Elsewhere),
        };
        (1..TRIES).find_map(|_| read().ok()).map_or_else(read, Ok)
    }

    fn changes(&self) -> Result<Vec<Change>, Kind> {
        changes::between(self.repository, self.before, self.after)
    }

    fn update<'c>(&'c self, changes: &'c [Change]) -> BranchUpdate<'c> {
        let (branch, before, after) = (self.branch, self.before, self.after);
        BranchUpdate { branch, before, after, changes, source: Some(self.own) }
    }

    /// Returns the checkouts that must follow the branch.
    fn followers<'a>(&'a self, no_cancel: &'a Cancel) -> Result<Vec<Follower<'a>>, Kind> {
        let mut followers = Vec::new();
        for checkout in checkouts_of(self.repository, self.branch)? {
            let (path, git_dir) = (checkout.path, checkout.git_dir);
            // Without an index nothing is checked out there.
            if path == self.own || !git_dir.join("index").exists() {
                continue;
            }
            let obstacle = if path == git_dir {
                Obstacle::Unknown
            } else if path.exists() {
                let (lock, timeout) = (self.lock.as_fd(), self.timeout);
                followers.push(Follower { path, git_dir, lock, timeout, no_cancel });
                continue;
            } else if git_dir.join("locked").exists() {
                Obstacle::Missing
            } else {
                // Its folder was deleted; the next `git worktree prune` removes it.
                continue;
            };
            let branch = self.branch.to_owned();
            return Err(Kind::blocked(Blocked { branch, checkout: Some(path), obstacle, pushed_to: None }));
        }
        Ok(followers)
    }

    /// Locks the index of every checkout while no git command of a user is running in any of them. Returns the
    /// checkouts, the record of the move, and the git commands that did not end in time.
    fn lock_all<'a>(
        &'a self,
        no_cancel: &'a Cancel,
    ) -> Result<(Vec<Follower<'a>>, MoveRecord, Processes), Kind> {
        let idle_by_ms = clock::now_ms() + IDLE_WAIT_MS;
        for last in (0..TRIES).map(|n| n + 1 == TRIES) {
            let followers = self.followers(no_cancel)?;
            let record = self.record(&followers);
            if followers.is_empty() {
                return Ok((followers, record, Processes::new()));
            }
            let watched = self.watched(&followers);
            let watched: Vec<&Path> = watched.iter().map(PathBuf::as_path).collect();
            let wait_ms = idle_by_ms.saturating_sub(clock::now_ms());
            foreign_git::wait_until_idle(&watched, &Processes::new(), wait_ms);
            self.write(&record)?;
            fault::point("recorded");
            let locked = followers.iter().try_for_each(|follower| {
                follower.refuse_unfinished(self.branch)?;
                follower.lock(self.branch, &record.token)?;
                fault::point("locked-index");
                follower.refuse_unfinished(self.branch)
            });
            if let Err(kind) = locked {
                self.finish(&followers, &record);
                return Err(kind);
            }
            let running = foreign_git::writers(&watched);
            let is_idle = running.is_empty() || clock::now_ms() >= idle_by_ms;
            let is_unchanged = self.followers(no_cancel).is_ok_and(|now| same_checkouts(&now, &followers));
            if is_unchanged && (is_idle || last) {
                return Ok((followers, record, running));
            }
            self.finish(&followers, &record);
        }
        Err(Kind::TargetMoved { branch: self.branch.to_owned(), tries: TRIES })
    }

    /// Returns the folders in which a git command may be about to check out the branch or work on it: those of
    /// the checkouts, and of every worktree that is not Sprag's.
    fn watched(&self, followers: &[Follower<'_>]) -> BTreeSet<PathBuf> {
        let mut watched: BTreeSet<PathBuf> = followers.iter().map(|follower| follower.path.clone()).collect();
        watched.extend(self.repository.main_checkout().map(Path::to_owned));
        let folder = self.repository.entries_dir();
        for name in entry::names(&folder).unwrap_or_default() {
            let entry = folder.join(name);
            if !entry.join(MARK).exists() {
                watched.extend(entry::checkout_path(&entry));
            }
        }
        watched
    }

    fn update_all(&self, followers: &[Follower<'_>], update: &BranchUpdate<'_>) -> Result<(), Kind> {
        for follower in followers {
            follower.save_index()?;
            fault::point("saved-index");
            follower.update_files(update)?;
            fault::point("updated-files");
        }
        for follower in followers {
            follower.replace_index()?;
            fault::point("put-index");
        }
        Ok(())
    }

    /// Restores the checkouts. One that cannot be restored now stays recorded and locked.
    fn undo_all(&self, followers: &[Follower<'_>], update: &BranchUpdate<'_>, record: &MoveRecord) {
        let mut undone = true;
        for follower in followers {
            match follower.undo(update) {
                Ok(_) => follower.release(&record.token),
                Err(kind) => {
                    let path = follower.path.display();
                    tracing::warn!(run = self.run, %path, %kind, "could not restore a checkout; the next landing or sweep tries again");
                    undone = false;
                }
            }
        }
        fault::point("undone");
        if undone {
            self.finish(followers, record);
        }
    }

    /// Updates a checkout that switched to the branch while it moved and still has the old files.
    fn catch_up(&self, followers: &[Follower<'_>], update: &BranchUpdate<'_>, no_cancel: &Cancel) {
        let Ok(now) = self.followers(no_cancel) else { return };
        for late in now.iter().filter(|one| !followers.iter().any(|other| other.git_dir == one.git_dir)) {
            let record = self.record(std::slice::from_ref(late));
            let caught_up = self.write(&record).and_then(|()| {
                late.refuse_unfinished(self.branch)?;
                late.lock(self.branch, &record.token)?;
                late.save_index()?;
                late.update_files(update).and_then(|()| late.replace_index())
            });
            if let Err(kind) = caught_up {
                let path = late.path.display();
                tracing::warn!(run = self.run, %path, %kind, "a checkout switched to the branch while it moved; it is behind");
                let _ = late.undo(update);
            }
            self.finish(std::slice::from_ref(late), &record);
        }
    }

    fn record(&self, followers: &[Follower<'_>]) -> MoveRecord {
        let place = |follower: &Follower<'_>| MovedCheckout {
            path: follower.path.clone(),
            git_dir: follower.git_dir.clone(),
        };
        MoveRecord {
            run: self.run.to_owned(),
            process: current_process(),
            branch: self.branch.to_owned(),
            before: self.before.to_owned(),
            after: self.after.to_owned(),
            token: format!("sprag is landing run {} here: {}\n", self.run, clock::random_hex()),
            checkouts: followers.iter().map(place).collect(),
        }
    }

    fn write(&self, record: &MoveRecord) -> Result<(), Kind> {
        write_record(self.repository, record)
    }

    fn finish(&self, followers: &[Follower<'_>], record: &MoveRecord) {
        finish(self.repository, followers, record);
    }
}

fn same_checkouts(some: &[Follower<'_>], others: &[Follower<'_>]) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| one.git_dir == other.git_dir)
}

fn record_path(repository: &Repository, branch: &str) -> PathBuf {
    repository.land_dir().join(format!("{}.json", ref_component(branch)))
}

fn write_record(repository: &Repository, record: &MoveRecord) -> Result<(), Kind> {
    let path = record_path(repository, &record.branch);
    let text = serde_json::to_vec(record).map_err(|error| Kind::Io {
        doing: "serialise",
        path: path.clone(),
        source: error.into(),
    })?;
    write_atomic(&path, &text)
}

/// Unlocks the checkouts, then removes the record. In this order, a crash leaves no lock without a record.
fn finish(repository: &Repository, followers: &[Follower<'_>], record: &MoveRecord) {
    for follower in followers {
        follower.release(&record.token);
        fault::point("released");
    }
    let _ = fs::remove_file(record_path(repository, &record.branch));
}

impl Repository {
    /// Returns moves whose process was killed. Their checkouts are locked.
    pub fn interrupted_moves(&self) -> Vec<InterruptedMove> {
        let records = self.records().into_iter();
        let dead = |record: &MoveRecord| {
            record.process.as_ref().is_none_or(|process| is_alive(process) == Liveness::Dead)
        };
        let interrupted = |record: MoveRecord| InterruptedMove {
            checkouts: record.checkouts.into_iter().map(|place| place.path).collect(),
            branch: record.branch,
            run: record.run,
        };
        records.filter(dead).map(interrupted).collect()
    }

    /// Completes or reverts the moves whose process was killed. Returns the repaired checkouts.
    pub fn finish_interrupted_moves(&self, timeout: Duration) -> Result<Vec<PathBuf>, Error> {
        let mut repaired = Vec::new();
        for record in self.records() {
            let finish = || {
                let lock = self.land_lock(&record.branch)?;
                match lock.acquire(&record.run, Duration::ZERO) {
                    Ok(lock) => finish_move(self, &record.branch, &lock, timeout),
                    // A landing on this branch is running, and finishes the move itself.
                    Err(Kind::LockTimeout { .. } | Kind::LockReentered { .. }) => Ok(Vec::new()),
                    Err(kind) => Err(kind),
                }
            };
            repaired.extend(finish().attempt(|| format!("repair the checkouts of {}", record.branch))?);
        }
        Ok(repaired)
    }

    fn records(&self) -> Vec<MoveRecord> {
        let folder = self.land_dir();
        let names = entry::names(&folder).unwrap_or_default().into_iter();
        let files = names
            .map(|name| folder.join(name))
            .filter(|path| path.extension().is_some_and(|it| it == "json"));
        files.filter_map(|path| serde_json::from_slice(&read::bytes(path).ok()?).ok()).collect()
    }
}

/// Completes or reverts a move whose process was killed. The caller holds the landing lock of the branch.
pub(crate) fn finish_move(
    repository: &Repository,
    branch: &str,
    lock: &LockGuard<'_>,
    timeout: Duration,
) -> Result<Vec<PathBuf>, Kind> {
    let path = record_path(repository, branch);
    let Some(record) =
        read::bytes(&path).ok().and_then(|text| serde_json::from_slice::<MoveRecord>(&text).ok())
    else {
        return Ok(Vec::new());
    };
    let no_cancel = Cancel::default();
    let checkouts = record.checkouts.iter().filter(|place| place.git_dir.exists());
    let followers: Vec<Follower<'_>> = checkouts
        .map(|place| Follower {
            path: place.path.clone(),
            git_dir: place.git_dir.clone(),
            lock: lock.as_fd(),
            timeout,
            no_cancel: &no_cancel,
        })
        .collect();
    let now = repository.read_ref(&format!("refs/heads/{branch}"))?;
    let landed = match &now {
        Some(now) => *now == record.after || repository.is_ancestor(&record.after, now)?,
        None => false,
    };
    let changes = changes::between(repository, &record.before, &record.after)?;
    let update = BranchUpdate {
        branch,
        before: &record.before,
        after: &record.after,
        changes: &changes,
        source: None,
    };
    for follower in followers.iter().filter(|follower| follower.is_started()) {
        // A user may have removed the lock; take it again to exclude other git commands.
        if !follower.is_locked_with(&record.token) {
            follower.lock(branch, &record.token)?;
        }
        let in_order = if landed { follower.complete(&update)? } else { follower.undo(&update)? };
        if !in_order {
            let path = follower.path.display();
            tracing::warn!(run = record.run, %path, "a user has used the checkout since a landing was interrupted: left as it is");
        }
    }
    finish(repository, &followers, &record);
    tracing::info!(run = record.run, path = %path.display(), landed, "finished an interrupted landing");
    Ok(followers.into_iter().map(|follower| follower.path).collect())
}
