//! Worktrees that are kept ready: cleaned when their run ends, switched to the next run's branch.

use std::path::{Path, PathBuf};

use crate::{
    branch::{self, BranchPolicy},
    create::{Branch, CreateOptions, branch_name, move_to_free_place},
    entry::{self, names, write_head, write_links},
    error::{Attempt, Error, Kind},
    fault,
    git::Cancel,
    lock::{make_folder, me},
    mark::{Mark, Shared, State},
    owner::OwnerLock,
    remove::Removed,
    salvage::{Salvaged, salvage},
    trash,
    worktrees::{Worktree, Worktrees},
};

/// What became of a worktree whose run is over.
#[derive(Debug)]
pub enum Parked {
    /// It waits for the next run.
    Ready {
        /// What was saved of it.
        salvaged: Option<Salvaged>,
        /// What became of its branch.
        branch: branch::BranchFate,
    },
    /// There were enough already, or it could not be cleaned.
    Removed(Removed),
}

impl Worktrees {
    /// Cleans a worktree and keeps it for the next run; `caches` are paths, relative to it, that stay with it
    /// although git ignores them. Removes it if there are enough.
    pub fn park(
        &self,
        worktree: Worktree,
        policy: BranchPolicy,
        caches: &[String],
        cancel: &Cancel,
    ) -> Result<Parked, Error> {
        let attempt = format!("park the worktree {} of run {}", worktree.path().display(), worktree.mark.run);
        let park = || {
            self.end_processes(&worktree.mark, worktree.owner.path())?;
            let has_submodules = worktree.entry().join("modules").exists();
            if has_submodules
                || worktree.mark.root != self.root
                || self.pooled()?.len() >= self.settings.pool_size
            {
                let Worktree { mark, owner, .. } = worktree;
                return self.take_back(mark, owner, policy, cancel).map(Parked::Removed);
            }
            self.clean_and_park(worktree, policy, caches, cancel)
        };
        park().attempt(|| attempt)
    }

    fn clean_and_park(
        &self,
        mut worktree: Worktree,
        policy: BranchPolicy,
        caches: &[String],
        cancel: &Cancel,
    ) -> Result<Parked, Kind> {
        let salvaged = salvage(&self.repository, &worktree.mark, policy, cancel, self.settings.git_timeout)?;
        let branch_before = worktree.mark.branch.clone();
        let cleaned = self.clean(&mut worktree, caches, cancel);
        let branch = branch::release(&self.repository, branch_before.as_deref(), &worktree.mark.id, policy)
            .unwrap_or_else(|kind| branch::BranchFate::Kept(kind.to_string()));
        let moved = cleaned.and_then(|()| self.move_to_pool(&mut worktree));
        match moved {
            Ok(()) => Ok(Parked::Ready { salvaged, branch }),
            Err(kind) => {
                tracing::warn!(run = worktree.mark.run, path = %worktree.path().display(), %kind, "could not be cleaned; removing it");
                let Worktree { mark, owner, .. } = worktree;
                let mut removed = self.take_back(mark, owner, BranchPolicy::Keep, cancel)?;
                removed.salvaged = salvaged.or(removed.salvaged);
                removed.branch = branch;
                Ok(Parked::Removed(removed))
            }
        }
    }

    /// Off its branch, no file that is not its commit's, except for the caches.
    fn clean(&self, worktree: &mut Worktree, caches: &[String], cancel: &Cancel) -> Result<(), Kind> {
        let entry = worktree.entry();
        let head = worktree.head()?.ok_or_else(|| Kind::NoCommits { path: entry.clone() })?;
        crate::checkpoint::forget_unfinished(&entry);
        write_head(&entry, None, &head)?;
        worktree.mark.branch = None;
        worktree.mark.state = State::Pooled;
        worktree.mark.write(&entry)?;
        worktree.switch_to_head(cancel)?;
        let excludes = caches.iter().map(|cache| format!("--exclude=/{}", cache.trim_start_matches('/')));
        let clean = worktree.git("clean").args(["-ffdxq"]).args(excludes);
        worktree.long(clean, cancel).run().map(|_| ())
    }

    fn move_to_pool(&self, worktree: &mut Worktree) -> Result<(), Kind> {
        make_folder(&self.pool_folder())?;
        let (from, to) = (worktree.mark.path.clone(), self.pool_folder().join(&worktree.mark.id));
        let entry = worktree.entry();
        let _held = self.repository.hold(&worktree.mark.run, self.settings.lock_deadline)?;
        move_to_free_place(&from, &to)?;
        fault::point("parked");
        worktree.mark.path = to;
        worktree.mark.process = None;
        worktree.mark.write(&entry)?;
        write_links(&entry, &worktree.mark.path)
    }

    /// The ids of the worktrees that are kept ready.
    pub(crate) fn pooled(&self) -> Result<Vec<String>, Kind> {
        let ids = names(&self.pool_folder())?.into_iter().filter_map(|name| name.into_string().ok());
        Ok(ids.collect())
    }

    fn pool_folder(&self) -> PathBuf {
        self.root.join(".pool").join(self.repository.key())
    }

    /// A ready worktree that fits, and its lock.
    pub(crate) fn take_pooled(&self, options: &CreateOptions) -> Result<Option<(Mark, OwnerLock)>, Kind> {
        let entries = self.repository.entries_dir();
        let fits = |mark: &Mark| {
            mark.state == State::Pooled && mark.sparse == options.sparse && mark.path.join(".git").exists()
        };
        let mut marks: Vec<Mark> =
            self.pooled()?.iter().filter_map(|id| Mark::read(&entries.join(id))).filter(fits).collect();
        marks.sort_by_key(|mark| mark.setup_key != options.setup_key);
        for mark in marks {
            let Some(owner) = OwnerLock::try_take(&self.repository.owner_lock_path(&mark.id))? else {
                continue;
            };
            // Somebody may have had it in between.
            match Mark::read(&entries.join(&mark.id)).filter(fits) {
                Some(mark) => return Ok(Some((mark, owner))),
                None => continue,
            }
        }
        Ok(None)
    }

    /// Gives a ready worktree its new name and branch.
    pub(crate) fn switch_pooled(
        &self,
        mark: Mark,
        owner: OwnerLock,
        options: &CreateOptions,
        (path, base): (&Path, &str),
        cancel: &Cancel,
    ) -> Result<Worktree, Kind> {
        let pooled = mark.clone();
        let new = Mark {
            run: options.run.clone(),
            process: me(),
            state: State::Making,
            path: path.to_owned(),
            branch: branch_name(&options.branch).map(str::to_owned),
            base: base.to_owned(),
            markers: options.markers.clone(),
            prepared: false,
            created_unix_ms: crate::clock::unix_ms(),
            shared: Shared::now(self.repository.common_dir()),
            ..mark
        };
        let entry = self.repository.entries_dir().join(&new.id);
        entry::repair(&entry, &pooled)?;
        new.write(&entry)?;
        fault::point("pool-marked");
        if let Err(kind) = self.publish_pooled((&pooled, &new), &entry, &options.branch, cancel) {
            pooled.write(&entry)?;
            return Err(kind);
        }
        let mut worktree = self.worktree(new, owner);
        worktree.from_pool = true;
        Ok(worktree)
    }

    fn publish_pooled(
        &self,
        (pooled, new): (&Mark, &Mark),
        entry: &Path,
        branch: &Branch,
        cancel: &Cancel,
    ) -> Result<(), Kind> {
        let _held = self.repository.hold_unless(&new.run, self.settings.lock_deadline, Some(cancel))?;
        self.claim_branch(new, branch)?;
        fault::point("pool-branch-made");
        let put = || {
            move_to_free_place(&pooled.path, &new.path)?;
            write_links(entry, &new.path)?;
            write_head(entry, new.branch.as_deref(), &new.base)
        };
        put().inspect_err(|_| self.give_branch_back(new, branch))
    }

    /// Folders in the pool to which no entry belongs: a run died while it took one, or parked it.
    pub(crate) fn sweep_pool(&self) {
        let entries = self.repository.entries_dir();
        for id in self.pooled().unwrap_or_default() {
            let folder = self.pool_folder().join(&id);
            let Ok(Some(owner)) = OwnerLock::try_take(&self.repository.owner_lock_path(&id)) else {
                continue;
            };
            let belongs = Mark::read(&entries.join(&id)).is_some_and(|mark| mark.path == folder);
            match belongs {
                true => drop(owner),
                false => {
                    let _ = trash::delete(&folder);
                    owner.discard();
                }
            }
        }
    }

    /// Removes ready worktrees until at most `most` are left; says how many were removed.
    pub fn trim_pool(&self, most: usize) -> Result<usize, Error> {
        let trim = || {
            let mut removed = 0;
            for id in self.pooled()?.into_iter().skip(most) {
                let Some(owner) = OwnerLock::try_take(&self.repository.owner_lock_path(&id))? else {
                    continue;
                };
                let Some(mark) = Mark::read(&self.repository.entries_dir().join(&id)) else { continue };
                if mark.state == State::Pooled {
                    self.take_back(mark, owner, BranchPolicy::Keep, &Cancel::default())?;
                    removed += 1;
                }
            }
            Ok(removed)
        };
        trim().attempt(|| format!("trim the pool of {}", self.repository.common_dir().display()))
    }
}
