//! Taking back what dead runs left: at start, and when something of theirs is in the way.
//!
//! | owner lock | its process | |
//! |---|---|---|
//! | held | alive, or elsewhere | it lives: hands off |
//! | held | dead | processes of the run go on without it: they are ended, then as below |
//! | free | | unless a step of another process is in it: work is saved, then it is removed |
//!
//! Whoever recovers takes the owner lock first, so that two who do it at once do not meet. Entries without
//! our mark are never touched.

use std::{fs, path::PathBuf};

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
    remove::Removed,
    trash::{self, Leftover},
    visit::{self, Visit},
    worktrees::Worktrees,
};

/// What a recovery did.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Worktrees of dead runs that were removed.
    pub removed: Vec<Removed>,
    /// Worktrees that were not yet published when their run died.
    pub unfinished: usize,
    /// What could not be taken back now, by path, and why.
    pub skipped: Vec<(PathBuf, String)>,
    /// What could not be deleted.
    pub leftovers: Vec<Leftover>,
}

/// The right to take something back: nobody owns it, and nobody is in it.
struct Claim {
    owner: OwnerLock,
    _alone: Option<Visit>,
}

/// What somebody wants and does not get.
pub(crate) enum Way {
    Branch(String),
    Path(PathBuf),
}

impl Worktrees {
    /// Takes back what dead runs left. `spare` says which to leave alone although nobody owns them now.
    pub fn recover(&self, spare: &dyn Fn(&Mark) -> bool) -> Result<Recovered, Error> {
        let recover = || {
            let mut recovered = Recovered::default();
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

    /// What [`Worktrees::recover`] would delete although no entry tells of it: what was moved aside and could not
    /// be deleted, and what was never published.
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
            format!("list what is left of worktrees of {}", self.repository.common_dir().display())
        })
    }

    /// Takes back what a dead run has of a branch or a path; says whether there was something.
    pub(crate) fn clear_the_way(&self, way: &Way) -> bool {
        let in_the_way = |entry: &OurEntry| {
            entry.mark.as_ref().is_some_and(|mark| match way {
                Way::Branch(branch) => mark.branch.as_ref() == Some(branch),
                Way::Path(path) => mark.path == *path,
            })
        };
        let mut recovered = Recovered::default();
        for entry in entry::ours(&self.staging()).unwrap_or_default().iter().filter(|entry| in_the_way(entry))
        {
            self.recover_staged(entry, &mut recovered);
        }
        let entries = entry::ours(&self.repository.entries_dir()).unwrap_or_default();
        for entry in entries.iter().filter(|entry| in_the_way(entry)) {
            self.recover_entry(entry, &mut recovered);
        }
        let taken_back = recovered.unfinished > 0 || !recovered.removed.is_empty();
        // Also after that: what was half made of a branch does not show for whom it was.
        let dropped = matches!(way, Way::Branch(branch) if self.drop_forgotten(branch));
        taken_back || dropped
    }

    /// Deletes a branch that a run was killed before it could delete: no worktree of ours has it any more, and
    /// something else holds all of its commits.
    fn drop_forgotten(&self, branch: &str) -> bool {
        // Whoever makes a branch registers its worktree under the same hold.
        let Ok(_held) = self.repository.hold("recover", self.settings.lock_deadline) else { return false };
        let has_it =
            |entry: &OurEntry| entry.mark.as_ref().is_none_or(|mark| mark.branch.as_deref() == Some(branch));
        match entry::ours(&self.repository.entries_dir()) {
            Ok(entries) if !entries.iter().any(has_it) => {
                matches!(self.repository.delete_merged_branch(branch), Ok(BranchFate::Deleted))
            }
            _ => false,
        }
    }

    /// Owner locks of which nothing else is left: somebody was killed just before, or just after.
    fn sweep_owners(&self) -> Result<(), Kind> {
        for id in entry::names(&self.repository.sprag_dir().join("owners"))? {
            let Some(id) = id.to_str() else { continue };
            if let Some(owner) = OwnerLock::try_take(&self.repository.owner_lock_path(id))? {
                drop_claim(self, id, owner);
            }
        }
        Ok(())
    }

    /// What a dead run has, after its last process is gone; None if it lives.
    fn claim(&self, id: &str, mark: Option<&Mark>) -> Result<Option<Claim>, Kind> {
        let path = self.repository.owner_lock_path(id);
        let entry = self.repository.entries_dir().join(id);
        // Its owner may be dead, and a step that another process serves be in it all the same.
        let _alone = match entry.exists() {
            true => match visit::entry_alone(&entry)? {
                Some(alone) => Some(alone),
                None => return Ok(None),
            },
            false => None,
        };
        let claimed = |owner: Option<OwnerLock>| Ok(owner.map(|owner| Claim { owner, _alone }));
        let Some(mark) = mark else { return claimed(OwnerLock::take(&path)?) };
        if let Some(owner) = OwnerLock::take(&path)? {
            if !mark.markers.is_empty() {
                self.end_processes(mark, &path)?;
            }
            return claimed(Some(owner));
        }
        let owner_is_dead = mark.process.as_ref().is_some_and(|process| is_alive(process) == Liveness::Dead);
        if !owner_is_dead {
            return Ok(None);
        }
        tracing::warn!(run = mark.run, path = %mark.path.display(), "its owner died and its processes go on: ending them");
        self.end_processes(mark, &path)?;
        // Still held: somebody else recovers it.
        claimed(OwnerLock::take(&path)?)
    }

    fn recover_staged(&self, entry: &OurEntry, recovered: &mut Recovered) {
        let Claim { owner, _alone } = match self.claim(&entry.id, entry.mark.as_ref()) {
            Ok(Some(claim)) => claim,
            Ok(None) => return,
            Err(kind) => return recovered.skipped.push((entry.path.clone(), kind.to_string())),
        };
        // Published since we looked: it is an entry now.
        if !entry.path.exists() {
            return drop_claim(self, &entry.id, owner);
        }
        if let Some(mark) = &entry.mark {
            if let Some(name) = &mark.branch {
                branch::clear_stale_lock(&self.repository, name, &mark.run);
            }
            let released = branch::release(
                &self.repository,
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
        let spared = |mark: &Mark| match mark.state {
            State::Kept => true,
            State::Pooled => mark.path.is_dir() || !mark.root_is_here(),
            State::Making | State::Ready => false,
        };
        if found.mark.as_ref().is_some_and(spared) {
            return;
        }
        let Claim { owner, _alone } = match self.claim(&found.id, found.mark.as_ref()) {
            Ok(Some(claim)) => claim,
            Ok(None) => return,
            Err(kind) => return recovered.skipped.push((found.path.clone(), kind.to_string())),
        };
        // What was read before the claim may have been the state of another owner.
        let mark = Mark::read(&found.path).filter(|mark| mark.id == found.id);
        if !found.path.exists() {
            return drop_claim(self, &found.id, owner);
        }
        let Some(mark) = mark.or_else(|| self.guess(found)) else {
            let reason = format!("its mark cannot be read; look at it, then: rm -r {}", found.path.display());
            return recovered.skipped.push((found.path.clone(), reason));
        };
        if spared(&mark) {
            return;
        }
        if !mark.path.exists() && !mark.root_is_here() {
            let reason = format!("the data directory {} is not there now", mark.root.display());
            return recovered.skipped.push((mark.path, reason));
        }
        if let Some(name) = &mark.branch {
            branch::clear_stale_lock(&self.repository, name, &mark.run);
        }
        let (run, path) = (mark.run.clone(), mark.path.clone());
        match self.take_back(mark, owner, BranchPolicy::Delete, &Cancel::default()) {
            Ok(removed) => {
                count(&COUNTERS.recovered);
                recovered.leftovers.extend(removed.leftovers.iter().cloned());
                recovered.removed.push(removed);
            }
            Err(kind) => {
                count(&COUNTERS.cleanup_failures);
                tracing::warn!(run, path = %path.display(), %kind, "could not be taken back; it will be tried again");
                recovered.skipped.push((path, kind.to_string()));
            }
        }
    }

    /// A mark that the disk lost, from what git needs of the entry. Its work is looked at like anybody's.
    fn guess(&self, found: &OurEntry) -> Option<Mark> {
        let text = fs::read_to_string(found.path.join("gitdir")).ok()?;
        let path = PathBuf::from(text.strip_suffix('\n').unwrap_or(&text).strip_suffix("/.git")?);
        if path.parent() != Some(&self.root) || !folder_is_of(&path, &found.id) {
            return None;
        }
        let head = fs::read_to_string(found.path.join("HEAD")).ok()?;
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
            sparse: Vec::new(),
            markers: Vec::new(),
            created_unix_ms: 0,
            reason: None,
            prepared: false,
            shared: crate::mark::Shared::now(self.repository.common_dir()),
        })
    }
}

/// The entry is gone or has become another thing: so has the reason for holding its lock.
fn drop_claim(worktrees: &Worktrees, id: &str, owner: OwnerLock) {
    if worktrees.repository.entries_dir().join(id).exists() || worktrees.staging().join(id).exists() {
        drop(owner);
    } else {
        owner.discard();
    }
}
