//! Taking a worktree away: its processes end, its work is saved, it goes aside under the lock, and is deleted without it.

use std::{fs, path::Path};

use sprag_process::end_orphans;

use crate::{
    branch::{self, BranchFate, BranchPolicy},
    error::{Attempt, Error, Kind},
    fault,
    git::Cancel,
    mark::{Mark, Shared},
    metrics::{COUNTERS, count},
    owner::OwnerLock,
    salvage::{Salvaged, salvage},
    trash::{self, Leftover},
    worktrees::{Worktree, Worktrees},
};

/// How a worktree went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The run it belonged to.
    pub run: String,
    /// Where it was.
    pub path: std::path::PathBuf,
    /// What was saved of it.
    pub salvaged: Option<Salvaged>,
    /// What became of its branch.
    pub branch: BranchFate,
    /// What could not be deleted; [`Worktrees::recover`] tries again.
    pub leftovers: Vec<Leftover>,
    /// What the run did to things that all worktrees share.
    pub warnings: Vec<String>,
}

impl Worktrees {
    /// Takes a worktree away. Its branch is free then, even if a file cannot be deleted.
    ///
    /// An error means that nothing was removed: processes would not end, or the work could not be saved.
    pub fn remove(
        &self,
        worktree: Worktree,
        policy: BranchPolicy,
        cancel: &Cancel,
    ) -> Result<Removed, Error> {
        let Worktree { mark, owner, .. } = worktree;
        let attempt = format!("remove the worktree {} of run {}", mark.path.display(), mark.run);
        self.end_processes(&mark, owner.path())
            .and_then(|()| self.take_back(mark, owner, policy, cancel))
            .inspect(|_| count(&COUNTERS.removes))
            .attempt(|| attempt)
    }

    /// Ends all processes that hold the owner lock or carry the run's markers, and sees that they are gone.
    pub(crate) fn end_processes(&self, mark: &Mark, owner_lock: &Path) -> Result<(), Kind> {
        let remain = |error: sprag_process::Error| Kind::ProcessesRemain { message: error.to_string() };
        let grace = self.settings.grace;
        let deadline = grace * 2 + std::time::Duration::from_secs(5);
        end_orphans(&[], Some(owner_lock), grace, deadline).map_err(remain)?;
        if !mark.markers.is_empty() {
            let markers: Vec<(&str, &str)> =
                mark.markers.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            end_orphans(&markers, None, grace, deadline).map_err(remain)?;
        }
        Ok(())
    }

    /// Saves, releases the branch, moves aside, deletes. The caller owns the worktree, and nobody works in it.
    pub(crate) fn take_back(
        &self,
        mark: Mark,
        owner: OwnerLock,
        policy: BranchPolicy,
        cancel: &Cancel,
    ) -> Result<Removed, Kind> {
        let warnings = Shared::now(self.repository.common_dir()).changes_since(&mark.shared);
        // What was asked for is rolled back whether or not somebody still wants it.
        let cancel = if cancel.is_cancelled() { &Cancel::default() } else { cancel };
        let salvaged = salvage(&self.repository, &mark, policy, cancel, self.settings.git_timeout)?;
        fault::point("salvaged");
        let branch = branch::release(&self.repository, mark.branch.as_deref(), &mark.id, policy)
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
        Ok(Removed { run, path, salvaged, branch, leftovers, warnings })
    }

    /// Folder first: killed in between, the entry still tells what is to be done.
    fn move_aside(&self, mark: &Mark) -> Result<(Vec<std::path::PathBuf>, Vec<Leftover>), Kind> {
        let folder = trash::place(&mark.root.join(".trash"), &mark.id);
        let entry = trash::place(&self.entry_trash(), &mark.id)?;
        let mut leftovers = Vec::new();
        let mut aside = Vec::new();
        let _held = self.repository.hold(&mark.run, self.settings.lock_deadline)?;
        match folder.and_then(|place| {
            fs::rename(&mark.path, &place).map(|()| place).map_err(Kind::io("move", &mark.path))
        }) {
            Ok(place) => aside.push(place),
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
            Ok(()) => aside.push(entry),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Kind::Io { doing: "unregister", path: registered, source }),
        }
        if !leftovers.is_empty() {
            count(&COUNTERS.cleanup_failures);
        }
        Ok((aside, leftovers))
    }
}
