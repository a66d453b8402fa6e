//! Recovery: reclaims what dead runs left, at start and when it blocks another run.
//!
//! | owner lock | its process | |
//! |---|---|---|
//! | held | alive, or on another host | the run lives: nothing happens |
//! | held | dead | processes of the run are still alive: they are stopped, then as below |
//! | free | | unless a step of another process uses it: its work is saved, then it is removed |
//!
//! Recovery takes the owner lock first, so that two recoveries exclude each other. Entries without Sprag's mark
//! are never changed.

use std::path::PathBuf;

use sprag_process::{Liveness, is_alive, is_held};

use crate::{
    branch::{self, BranchFate, BranchPolicy},
    create::{folder_is_of, remove_folder_of},
    entry::{self, OurEntry},
    error::{Attempt, Error, Kind},
    git::Cancel,
    mark::{Mark, State},
    metrics::{COUNTERS, count},
    owner::OwnerLock,
    read,
    remove::Removed,
    trash::{self, Leftover},
    visit::{self, UsageLock},
    worktrees::Worktrees,
};

/// The result of a recovery.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The removed worktrees of dead runs.
    pub removed: Vec<Removed>,
    /// The number of worktrees whose run died before they were registered.
    pub unfinished: usize,
    /// The paths that could not be reclaimed now, with the reason.
    pub skipped: Vec<(PathBuf, String)>,
    /// Files that could not be deleted.
    pub leftovers: Vec<Leftover>,
    /// The checkouts that were repaired after an interrupted landing.
    pub repaired: Vec<PathBuf>,
}

/// The right to reclaim a worktree: it has no owner, and no process uses it.
struct Claim {
    owner: OwnerLock,
    _alone: Option<UsageLock>,
}

/// A resource that blocks another run.
pub(crate) enum Blocking {
    Branch(String),
    Path(PathBuf),
}

impl Worktrees {
    /// Reclaims what dead runs left. `spare` selects worktrees to leave alone, although they have no owner now.
    pub fn recover(&self, spare: &dyn Fn(&Mark) -> bool) -> Result<Recovered, Error> {
        let recover = || {
            let mut recovered = Recovered::default();
            self.finish_interrupted_moves(&mut recovered);
            for entry in entry::ours(&self.staging())? {
                self.recover_staged(&entry, &mut recovered);
            }
            for entry in entry::ours(&self.repository.entries_dir())? {
                match &entry.mark {
                    Some(mark) if spare(mark) => {}
                    _ => self.recover_entry(&entry, &mut recovered),
                }
            }
            self.sweep_pool();
            self.sweep_owners()?;
            recovered.leftovers.extend(trash::empty(&self.trash()));
            recovered.leftovers.extend(trash::empty(&self.entry_trash()));
            Ok(recovered)
        };
        recover().attempt(|| format!("recover the worktrees of {}", self.repository.common_dir().display()))
    }

    /// Repairs the checkouts of interrupted landings.
    fn finish_interrupted_moves(&self, recovered: &mut Recovered) {
        match self.repository.finish_interrupted_moves(self.settings.git_timeout) {
            Ok(repaired) => recovered.repaired = repaired,
            Err(error) => {
                let path = self.repository.common_dir().to_owned();
                tracing::warn!(run = "", path = %path.display(), %error, "could not repair a checkout after an interrupted landing");
                recovered.skipped.push((path, error.to_string()));
            }
        }
    }

    /// Returns what [`Worktrees::recover`] would delete although it has no entry: files in the trash, and
    /// worktrees that were never registered.
    pub fn debris(&self) -> Result<Vec<PathBuf>, Error> {
        let list = || {
            let mut found = Vec::new();
            for folder in [self.trash(), self.entry_trash()] {
                found.extend(entry::names(&folder)?.into_iter().map(|name| folder.join(name)));
            }
            for entry in entry::ours(&self.staging())? {
                if !is_held(&self.repository.owner_lock_path(&entry.id)).unwrap_or(true) {
                    found.push(entry.path);
                }
            }
            Ok(found)
        };
        list().attempt(|| {
            format!("list the remains of worktrees of {}", self.repository.common_dir().display())
        })
    }

    /// Reclaims a branch or a path from a dead run. Returns whether it reclaimed anything.
    pub(crate) fn reclaim_blocking(&self, blocking: &Blocking) -> bool {
        let is_blocking = |entry: &OurEntry| {
            entry.mark.as_ref().is_some_and(|mark| match blocking {
                Blocking::Branch(branch) => mark.branch.as_ref() == Some(branch),
                Blocking::Path(path) => mark.path == *path,
            })
        };
        let mut recovered = Recovered::default();
        for entry in
            entry::ours(&self.staging()).unwrap_or_default().iter().filter(|entry| is_blocking(entry))
        {
            self.recover_staged(entry, &mut recovered);
        }
        let entries = entry::ours(&self.repository.entries_dir()).unwrap_or_default();
        for entry in entries.iter().filter(|entry| is_blocking(entry)) {
            self.recover_entry(entry, &mut recovered);
        }
        let reclaimed = recovered.unfinished > 0 || !recovered.removed.is_empty();
        // Do this even after a recovery: a branch created by an interrupted run may have no worktree.
        let deleted = matches!(blocking, Blocking::Branch(branch) if self.delete_abandoned_branch(branch));
        reclaimed || deleted
    }

    /// Deletes a branch whose run was killed before it could delete it: no worktree of Sprag has it, and
    /// another ref contains all its commits.
    fn delete_abandoned_branch(&self, branch: &str) -> bool {
        // A branch and its worktree are registered under the same lock, so none can be missing here.
        let Ok(_held) = self.repository.acquire("recover", self.settings.lock_deadline) else { return false };
        let has_it =
            |entry: &OurEntry| entry.mark.as_ref().is_none_or(|mark| mark.branch.as_deref() == Some(branch));
        match entry::ours(&self.repository.entries_dir()) {
            Ok(entries) if !entries.iter().any(has_it) => {
                matches!(self.repository.delete_merged_branch(branch), Ok(BranchFate::Deleted))
            }
            _ => false,
        }
    }

    /// Removes owner locks without a worktree: their process was killed before creating it or after removing
    /// it.
    fn sweep_owners(&self) -> Result<(), Kind> {
        for id in entry::names(&self.repository.sprag_dir().join("owners"))? {
            let Some(id) = id.to_str() else { continue };
            if let Some(owner) = OwnerLock::try_take(&self.repository.owner_lock_path(id))? {
                release_claim(self, id, owner);
            }
        }
        Ok(())
    }

    /// Claims the worktree of a dead run, after its last process is gone. Returns `None` if the run lives.
    fn claim(&self, id: &str, mark: Option<&Mark>) -> Result<Option<Claim>, Kind> {
        let path = self.repository.owner_lock_path(id);
        let entry = self.repository.entries_dir().join(id);
        // A step of another process may use the worktree although its owner is dead.
        let _alone = if entry.exists() {
            match visit::lock_entry(&entry)? {
                Some(alone) => Some(alone),
                None => return Ok(None),
            }
        } else {
            None
        };
        let claimed = |owner: Option<OwnerLock>| Ok(owner.map(|owner| Claim { owner, _alone }));
        let Some(mark) = mark else { return claimed(OwnerLock::take(&path)?) };
        if let Some(owner) = OwnerLock::take(&path)? {
            if !mark.markers.is_empty() {
                self.stop_processes(mark, &path)?;
            }
            return claimed(Some(owner));
        }
        let owner_is_dead = mark.process.as_ref().is_some_and(|process| is_alive(process) == Liveness::Dead);
        if !owner_is_dead {
            return Ok(None);
        }
        tracing::warn!(run = mark.run, path = %mark.path.display(), "stopping processes of a run whose owner died");
        self.stop_processes(mark, &path)?;
        // If it is still held, another process is recovering it.
        claimed(OwnerLock::take(&path)?)
    }

    fn recover_staged(&self, entry: &OurEntry, recovered: &mut Recovered) {
        let Claim { owner, _alone } = match self.claim(&entry.id, entry.mark.as_ref()) {
            Ok(Some(claim)) => claim,
            Ok(None) => return,
            Err(kind) => return recovered.skipped.push((entry.path.clone(), kind.to_string())),
        };
        // It was registered since the list was read: it is an entry now.
        if !entry.path.exists() {
            return release_claim(self, &entry.id, owner);
        }
        if let Some(mark) = &entry.mark {
            if let Some(name) = &mark.branch {
                branch::clear_stale_lock(&self.repository, name, &mark.run);
            }
            let released = branch::release(
                &self.repository_for(mark),
                mark.branch.as_deref(),
                &mark.id,
                BranchPolicy::DeleteIfMerged,
            );
            if let Err(kind) = released {
                return recovered.skipped.push((entry.path.clone(), kind.to_string()));
            }
            remove_folder_of(mark);
        }
        recovered.leftovers.extend(trash::delete(&entry.path).err());
        owner.discard();
        count(&COUNTERS.recovered);
        recovered.unfinished += 1;
    }

    fn recover_entry(&self, found: &OurEntry, recovered: &mut Recovered) {
        let keeps = |mark: &Mark| match mark.state {
            State::Kept => true,
            State::Pooled => mark.path.is_dir() || !mark.root_is_here(),
            State::Making | State::Ready => false,
        };
        if found.mark.as_ref().is_some_and(keeps) {
            return;
        }
        let Claim { owner, _alone } = match self.claim(&found.id, found.mark.as_ref()) {
            Ok(Some(claim)) => claim,
            Ok(None) => return,
            Err(kind) => return recovered.skipped.push((found.path.clone(), kind.to_string())),
        };
        // The mark may have changed before the claim, so read it again.
        let mark = Mark::read(&found.path).filter(|mark| mark.id == found.id);
        if !found.path.exists() {
            return release_claim(self, &found.id, owner);
        }
        let Some(mark) = mark.or_else(|| self.reconstruct_mark(found)) else {
            let reason = format!("its mark cannot be read; inspect it, then: rm -r {}", found.path.display());
            return recovered.skipped.push((found.path.clone(), reason));
        };
        if keeps(&mark) {
            return;
        }
        if !mark.path.exists() && !mark.root_is_here() {
            let reason = format!("the data directory {} is missing", mark.root.display());
            return recovered.skipped.push((mark.path, reason));
        }
        if let Some(name) = &mark.branch {
            branch::clear_stale_lock(&self.repository, name, &mark.run);
        }
        let (run, path) = (mark.run.clone(), mark.path.clone());
        match self.salvage_and_remove(mark, owner, BranchPolicy::Delete, &Cancel::default()) {
            Ok(removed) => {
                count(&COUNTERS.recovered);
                recovered.leftovers.extend(removed.leftovers.iter().cloned());
                recovered.removed.push(removed);
            }
            Err(kind) => {
                count(&COUNTERS.cleanup_failures);
                tracing::warn!(run, path = %path.display(), %kind, "could not reclaim a worktree; the next recovery tries again");
                recovered.skipped.push((path, kind.to_string()));
            }
        }
    }

    /// Reconstructs a mark that the disk lost from git's files in the entry.
    fn reconstruct_mark(&self, found: &OurEntry) -> Option<Mark> {
        let text = read::text(found.path.join("gitdir")).ok()?;
        let path = PathBuf::from(text.strip_suffix('\n').unwrap_or(&text).strip_suffix("/.git")?);
        if path.parent() != Some(&self.root) || !folder_is_of(&path, &found.id) {
            return None;
        }
        let head = read::text(found.path.join("HEAD")).ok()?;
        Some(Mark {
            id: found.id.clone(),
            run: found.id.clone(),
            process: None,
            state: State::Ready,
            path,
            root: self.root.clone(),
            root_identity: self.root_identity,
            branch: head.trim().strip_prefix("ref: refs/heads/").map(str::to_owned),
            base: String::new(),
            setup_key: None,
            cache_key: None,
            has_caches: true,
            sparse: Vec::new(),
            without_hooks: false,
            markers: Vec::new(),
            created_unix_ms: 0,
            reason: None,
            prepared: false,
            shared: crate::mark::Shared::now(self.repository.common_dir()),
        })
    }
}

/// Releases a claim on an entry that has been removed or has changed.
fn release_claim(worktrees: &Worktrees, id: &str, owner: OwnerLock) {
    if worktrees.repository.entries_dir().join(id).exists() || worktrees.staging().join(id).exists() {
        drop(owner);
    } else {
        owner.discard();
    }
}
