//! Removal of a worktree: stop its processes, save its work, move it to the trash under the lock, delete it
//! without the lock.

use std::{
    fs,
    path::{Component, Path},
};

use sprag_process::kill_orphans;

use crate::{
    branch::{self, BranchFate, BranchPolicy},
    entry,
    error::{Attempt, Error, Kind},
    fault,
    git::Cancel,
    mark::{Mark, Shared},
    metrics::{COUNTERS, count},
    modules::SavedModule,
    owner::OwnerLock,
    salvage::{Salvaged, salvage},
    trash::{self, Leftover},
    worktrees::{Worktree, Worktrees},
};

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The run that it belonged to.
    pub run: String,
    /// The folder that was removed.
    pub path: std::path::PathBuf,
    /// The saved work; absent if there was none.
    pub salvaged: Option<Salvaged>,
    /// The saved work of its submodules.
    pub modules: Vec<SavedModule>,
    /// The result for its branch.
    pub branch: BranchFate,
    /// Files that could not be deleted; [`Worktrees::recover`] tries again.
    pub leftovers: Vec<Leftover>,
    /// Warnings about changes of the run to state that all worktrees share.
    pub warnings: Vec<String>,
}

impl Worktrees {
    /// Removes a worktree. Its branch is free afterwards, even if a file cannot be deleted.
    ///
    /// An error means that nothing was removed, because processes could not be stopped or the work could not be
    /// saved.
    pub fn remove(
        &self,
        worktree: Worktree,
        policy: BranchPolicy,
        cancel: &Cancel,
    ) -> Result<Removed, Error> {
        let Worktree { mark, owner, .. } = worktree;
        let attempt = format!("remove the worktree {} of run {}", mark.path.display(), mark.run);
        self.check_ours(&mark)
            .and_then(|()| self.stop_processes(&mark, owner.path()))
            .and_then(|()| self.salvage_and_remove(mark, owner, policy, cancel))
            .inspect(|_| count(&COUNTERS.removes))
            .attempt(|| attempt)
    }

    /// Refuses a mark unless it names a folder in this data directory with a link to the mark's own entry. A
    /// mark alone must not make Sprag remove a folder or run git in it.
    pub(crate) fn check_ours(&self, mark: &Mark) -> Result<(), Kind> {
        let refuse = |reason: String| Err(Kind::NotOurs { path: mark.path.clone(), reason });
        if mark.root != self.root {
            return refuse(format!("it belongs to the data directory {}", mark.root.display()));
        }
        let below = mark.path.strip_prefix(&self.root).unwrap_or(Path::new(""));
        let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || below.as_os_str().is_empty() {
            return refuse(format!("it is not below {}", self.root.display()));
        }
        let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        if mark.path.ancestors().take_while(|path| *path != self.root).any(is_link) {
            return refuse("a symbolic link is in its place".to_owned());
        }
        // A step may have removed the link to the entry. A link to another entry belongs to another worktree.
        let entry = self.repository.entries_dir().join(&mark.id);
        match entry::linked_from(&mark.path) {
            Some(linked) if fs::canonicalize(&linked).ok() != fs::canonicalize(&entry).ok() => {
                refuse(format!("its `.git` leads to {}", linked.display()))
            }
            _ => Ok(()),
        }
    }

    /// Stops all processes that hold the owner lock or carry the run's markers, and waits until they are gone.
    pub(crate) fn stop_processes(&self, mark: &Mark, owner_lock: &Path) -> Result<(), Kind> {
        let remain = |error: sprag_process::Error| Kind::ProcessesRemain { message: error.to_string() };
        let grace = self.settings.grace;
        let deadline = grace * 2 + std::time::Duration::from_secs(5);
        kill_orphans(&[], Some(owner_lock), grace, deadline).map_err(remain)?;
        if !mark.markers.is_empty() {
            let markers: Vec<(&str, &str)> =
                mark.markers.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            kill_orphans(&markers, None, grace, deadline).map_err(remain)?;
        }
        Ok(())
    }

    /// Saves the work, releases the branch, moves the worktree to the trash and deletes it. The caller must own
    /// the worktree, and no process may work in it.
    pub(crate) fn salvage_and_remove(
        &self,
        mark: Mark,
        owner: OwnerLock,
        policy: BranchPolicy,
        cancel: &Cancel,
    ) -> Result<Removed, Kind> {
        self.check_ours(&mark)?;
        let warnings = Shared::now(self.repository.common_dir()).changes_since(&mark.shared);
        // A cancelled creation must still be rolled back.
        let cancel = if cancel.is_cancelled() { &Cancel::default() } else { cancel };
        let repository = self.repository_for(&mark);
        let saved = salvage(&repository, &mark, policy, cancel, self.settings.git_timeout)?;
        fault::point("salvaged");
        let branch = branch::release(&repository, mark.branch.as_deref(), &mark.id, policy)
            .unwrap_or_else(|kind| BranchFate::Kept(kind.to_string()));
        fault::point("branch-released");
        let (folder, mut leftovers) = self.move_aside(&mark)?;
        fault::point("moved-aside");
        owner.discard();
        for path in folder {
            leftovers.extend(trash::delete(&path).err());
        }
        let (run, path) = (mark.run, mark.path);
        tracing::info!(run, path = %path.display(), leftovers = leftovers.len(), "worktree removed");
        let (salvaged, modules) = (saved.work, saved.modules);
        Ok(Removed { run, path, salvaged, modules, branch, leftovers, warnings })
    }

    /// Moves folder and entry to the trash. The folder goes first, so that the entry still describes the rest
    /// after a crash.
    fn move_aside(&self, mark: &Mark) -> Result<(Vec<std::path::PathBuf>, Vec<Leftover>), Kind> {
        let folder = trash::new_path(&mark.root.join(".trash"), &mark.id);
        let entry = trash::new_path(&self.entry_trash(), &mark.id)?;
        let mut leftovers = Vec::new();
        let mut in_trash = Vec::new();
        let _held = self.repository.acquire(&mark.run, self.settings.lock_deadline)?;
        match folder.and_then(|place| {
            fs::rename(&mark.path, &place).map(|()| place).map_err(Kind::io("move", &mark.path))
        }) {
            Ok(place) => in_trash.push(place),
            Err(Kind::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(kind) => leftovers.push(Leftover {
                run: mark.run.clone(),
                path: mark.path.clone(),
                reason: kind.to_string(),
                remedy: format!(
                    "see why it cannot be moved (lsattr, mount), then: rm -rf {}",
                    mark.path.display()
                ),
            }),
        }
        fault::point("folder-moved");
        let registered = self.repository.entries_dir().join(&mark.id);
        match fs::rename(&registered, &entry) {
            Ok(()) => in_trash.push(entry),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Kind::Io { doing: "unregister", path: registered, source }),
        }
        if !leftovers.is_empty() {
            count(&COUNTERS.cleanup_failures);
        }
        Ok((in_trash, leftovers))
    }
}
