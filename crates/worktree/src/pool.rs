//! The pool of clean worktrees: cleaned when their run ends, and switched to the branch of the next run.

use std::path::{Path, PathBuf};

use crate::{
    branch::{self, BranchPolicy},
    create::{Branch, CreateOptions, branch_name, rename_no_replace},
    entry::{self, names, write_head, write_links},
    error::{Attempt, Error, Kind},
    fault,
    git::Cancel,
    lock::{create_folder, current_process},
    mark::{Mark, Shared, State},
    modules::SavedModule,
    owner::OwnerLock,
    remove::Removed,
    salvage::{Salvaged, salvage},
    trash,
    worktrees::{Worktree, Worktrees},
};

/// The result of [`Worktrees::park`].
#[derive(Debug)]
pub enum Parked {
    /// The worktree is in the pool.
    Ready {
        /// The saved work; absent if there was none.
        salvaged: Option<Salvaged>,
        /// The saved work of its submodules.
        modules: Vec<SavedModule>,
        /// The result for its branch.
        branch: branch::BranchFate,
    },
    /// The worktree was removed, because the pool is full or it could not be cleaned.
    Removed(Removed),
}

impl Worktrees {
    /// Cleans a worktree and moves it to the pool, or removes it if the pool is full. `caches` are paths
    /// relative to the worktree that stay in it, although git ignores them.
    pub fn park(
        &self,
        worktree: Worktree,
        policy: BranchPolicy,
        caches: &[String],
        cancel: &Cancel,
    ) -> Result<Parked, Error> {
        let attempt = format!("park the worktree {} of run {}", worktree.path().display(), worktree.mark.run);
        let park = || {
            self.check_ours(&worktree.mark)?;
            self.stop_processes(&worktree.mark, worktree.owner.path())?;
            let has_submodules = worktree.entry().join("modules").exists();
            // A step may have put anything in the place of `.git`; the next run must not get it.
            let is_usable = has_own_git_file(&worktree.mark, &worktree.entry());
            if has_submodules || !is_usable || self.pooled()?.len() >= self.settings.pool_size {
                let Worktree { mark, owner, .. } = worktree;
                return self.salvage_and_remove(mark, owner, policy, cancel).map(Parked::Removed);
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
        let saved = salvage(&worktree.repository, &worktree.mark, policy, cancel, self.settings.git_timeout)?;
        let (salvaged, mut modules) = (saved.work, saved.modules);
        let branch_before = worktree.mark.branch.clone();
        let cleaned = self.clean(&mut worktree, caches, cancel);
        let branch =
            branch::release(&worktree.repository, branch_before.as_deref(), &worktree.mark.id, policy)
                .unwrap_or_else(|kind| branch::BranchFate::Kept(kind.to_string()));
        let moved = cleaned.and_then(|()| self.move_to_pool(&mut worktree));
        match moved {
            Ok(()) => Ok(Parked::Ready { salvaged, modules, branch }),
            Err(kind) => {
                tracing::warn!(run = worktree.mark.run, path = %worktree.path().display(), %kind, "could not clean a worktree: removing it");
                let Worktree { mark, owner, .. } = worktree;
                let mut removed = self.salvage_and_remove(mark, owner, BranchPolicy::Keep, cancel)?;
                removed.salvaged = salvaged.or(removed.salvaged);
                modules.append(&mut removed.modules);
                removed.modules = modules;
                removed.branch = branch;
                Ok(Parked::Removed(removed))
            }
        }
    }

    /// Detaches the worktree from its branch, and removes all files but those of its commit and the caches.
    fn clean(&self, worktree: &mut Worktree, caches: &[String], cancel: &Cancel) -> Result<(), Kind> {
        let entry = worktree.entry();
        let head = worktree.head()?.ok_or_else(|| Kind::NoCommits { path: entry.clone() })?;
        crate::checkpoint::forget_unfinished(&entry);
        write_head(&entry, None, &head)?;
        worktree.mark.branch = None;
        worktree.mark.state = State::Pooled;
        worktree.mark.has_caches = !caches.is_empty();
        worktree.mark.write(&entry)?;
        worktree.switch_to_head(cancel)?;
        worktree.remove_all_but(caches, cancel)
    }

    fn move_to_pool(&self, worktree: &mut Worktree) -> Result<(), Kind> {
        create_folder(&self.pool_folder())?;
        let (from, to) = (worktree.mark.path.clone(), self.pool_folder().join(&worktree.mark.id));
        let entry = worktree.entry();
        let _held = self.repository.acquire(&worktree.mark.run, self.settings.lock_deadline)?;
        rename_no_replace(&from, &to)?;
        fault::point("parked");
        worktree.mark.path = to;
        worktree.mark.process = None;
        worktree.mark.write(&entry)?;
        write_links(&entry, &worktree.mark.path)
    }

    /// Returns the ids of the worktrees in the pool.
    pub(crate) fn pooled(&self) -> Result<Vec<String>, Kind> {
        let ids = names(&self.pool_folder())?.into_iter().filter_map(|name| name.into_string().ok());
        Ok(ids.collect())
    }

    fn pool_folder(&self) -> PathBuf {
        self.root.join(".pool").join(self.repository.key())
    }

    /// Takes a matching worktree from the pool, with its owner lock.
    pub(crate) fn take_pooled(&self, options: &CreateOptions) -> Result<Option<(Mark, OwnerLock)>, Kind> {
        let entries = self.repository.entries_dir();
        let fits = |mark: &Mark| {
            mark.state == State::Pooled
                && mark.sparse == options.sparse
                && has_own_git_file(mark, &entries.join(&mark.id))
        };
        let mut marks: Vec<Mark> =
            self.pooled()?.iter().filter_map(|id| Mark::read(&entries.join(id))).filter(fits).collect();
        marks.sort_by_key(|mark| (has_foreign_caches(mark, options), mark.setup_key != options.setup_key));
        for mark in marks {
            let Some(owner) = OwnerLock::try_take(&self.repository.owner_lock_path(&mark.id))? else {
                continue;
            };
            // Another process may have used it in between.
            match Mark::read(&entries.join(&mark.id)).filter(fits) {
                Some(mark) => return Ok(Some((mark, owner))),
                None => continue,
            }
        }
        Ok(None)
    }

    /// Gives a pooled worktree its new path and branch.
    pub(crate) fn switch_pooled(
        &self,
        mark: Mark,
        owner: OwnerLock,
        options: &CreateOptions,
        (path, base): (&Path, &str),
        cancel: &Cancel,
    ) -> Result<Worktree, Kind> {
        let pooled = mark.clone();
        let foreign = has_foreign_caches(&mark, options);
        let new = Mark {
            // The setup must run again if its caches are removed.
            setup_key: mark.setup_key.clone().filter(|_| !foreign),
            cache_key: options.cache_key.clone(),
            run: options.run.clone(),
            process: current_process(),
            state: State::Making,
            path: path.to_owned(),
            branch: branch_name(&options.branch).map(str::to_owned),
            base: base.to_owned(),
            markers: options.markers.clone(),
            without_hooks: !options.hooks,
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
        worktree.has_foreign_caches = foreign;
        Ok(worktree)
    }

    fn publish_pooled(
        &self,
        (pooled, new): (&Mark, &Mark),
        entry: &Path,
        branch: &Branch,
        cancel: &Cancel,
    ) -> Result<(), Kind> {
        let _held =
            self.repository.acquire_unless_cancelled(&new.run, self.settings.lock_deadline, Some(cancel))?;
        self.claim_branch(new, branch)?;
        fault::point("pool-branch-made");
        let put = || {
            rename_no_replace(&pooled.path, &new.path)?;
            write_links(entry, &new.path)?;
            write_head(entry, new.branch.as_deref(), &new.base)
        };
        put().inspect_err(|_| self.release_branch(new, branch))
    }

    /// Deletes folders in the pool without an entry: a process died while it took or parked a worktree.
    pub(crate) fn sweep_pool(&self) {
        let entries = self.repository.entries_dir();
        for id in self.pooled().unwrap_or_default() {
            let folder = self.pool_folder().join(&id);
            let Ok(Some(owner)) = OwnerLock::try_take(&self.repository.owner_lock_path(&id)) else {
                continue;
            };
            let belongs = Mark::read(&entries.join(&id)).is_some_and(|mark| mark.path == folder);
            if belongs {
                drop(owner);
            } else {
                let _ = trash::delete(&folder);
                owner.discard();
            }
        }
    }

    /// Removes pooled worktrees until at most `most` are left. Returns the number of removed ones.
    pub fn trim_pool(&self, most: usize) -> Result<usize, Error> {
        let trim = || {
            let mut removed = 0;
            for id in self.pooled()?.into_iter().skip(most) {
                let Some(owner) = OwnerLock::try_take(&self.repository.owner_lock_path(&id))? else {
                    continue;
                };
                let Some(mark) = Mark::read(&self.repository.entries_dir().join(&id)) else { continue };
                if mark.state == State::Pooled {
                    self.salvage_and_remove(mark, owner, BranchPolicy::Keep, &Cancel::default())?;
                    removed += 1;
                }
            }
            Ok(removed)
        };
        trim().attempt(|| format!("trim the pool of {}", self.repository.common_dir().display()))
    }
}

impl Worktree {
    /// Removes every file that is not in its commit, including ignored ones.
    pub(crate) fn remove_all_but_its_commit(&self, cancel: &Cancel) -> Result<(), Kind> {
        self.remove_all_but(&[], cancel)
    }

    /// Removes every file that is not in its commit, except for the caches.
    fn remove_all_but(&self, caches: &[String], cancel: &Cancel) -> Result<(), Kind> {
        let excludes = caches.iter().map(|cache| format!("--exclude=/{}", cache.trim_start_matches('/')));
        let clean = self.git("clean").args(["-ffdxq"]).args(excludes);
        self.long(clean, cancel).run().map(|_| ())
    }
}

/// Returns whether the `.git` of a worktree is a regular file that leads to the worktree's own entry.
fn has_own_git_file(mark: &Mark, entry: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let text = crate::read::text(mark.path.join(".git")).unwrap_or_default();
    text.strip_prefix("gitdir: ")
        .is_some_and(|named| canonical(&mark.path.join(named.trim_end())) == canonical(entry))
}

/// Returns whether a pooled worktree contains caches that this run must not see, because a pipeline could leave
/// manipulated files for another.
fn has_foreign_caches(mark: &Mark, options: &CreateOptions) -> bool {
    mark.has_caches && mark.cache_key != options.cache_key
}
