//! Removes the worktree of a dead run whose branch a live run needs, after saving the dead run's work.
//!
//! The store decides whether a run is dead, in the same transaction that starts the removal, so that no process
//! resumes the run meanwhile. A run that waits for an answer, a timer or a worker is not dead.

use std::path::{Path, PathBuf};

use sprag_store::Lease;
use sprag_worktree::{BranchPolicy, Cancel, Removed, State, Worktrees};

use crate::environment::{Environments, host};
use crate::records::Taken;

impl Environments {
    /// Removes worktrees of dead runs that have this branch. Returns whether there was one.
    pub(crate) async fn make_way(
        &self,
        lease: Lease,
        worktrees: &Worktrees,
        branch: &str,
    ) -> Result<bool, String> {
        let listed = worktrees.list().map_err(|error| error.to_string())?;
        let in_the_way = listed.into_iter().filter(|listed| {
            let mark = &listed.mark;
            mark.branch.as_deref() == Some(branch)
                && mark.root == worktrees.root()
                && mark.state == State::Kept
                && !listed.is_held
        });
        let mut made = false;
        for listed in in_the_way {
            let path = listed.mark.path.display().to_string();
            let taken = self.0.records.take_from_dead(lease, self.0.worker, host(), path.clone()).await?;
            if let Some(taken) = taken {
                made |= self.remove_taken(lease, worktrees, taken, path).await?;
            }
        }
        Ok(made)
    }

    async fn remove_taken(
        &self,
        lease: Lease,
        worktrees: &Worktrees,
        taken: Taken,
        path: String,
    ) -> Result<bool, String> {
        let Taken { id, run, attempt } = taken;
        let (worktrees, place, name) = (worktrees.clone(), path.clone(), run.to_string());
        let removed = tokio::task::spawn_blocking(move || {
            let worktree = worktrees.adopt_to_remove(Path::new(&place), &name)?;
            worktrees.remove(worktree, BranchPolicy::Delete, &Cancel::default())
        });
        let removed = removed.await.map_err(|error| error.to_string())?;
        let wrong = match &removed {
            Ok(Removed { leftovers, .. }) => leftovers.first().map(|left| left.reason.clone()),
            Err(error) => Some(error.to_string()),
        };
        self.0.records.removed(lease, id, attempt, wrong).await?;
        let path = PathBuf::from(path);
        match removed {
            Ok(removed) => {
                let saved = removed.salvaged.map(|saved| saved.name);
                tracing::info!(%run, path = %path.display(), saved, "reclaimed the branch of a dead run");
                Ok(true)
            }
            Err(error) => {
                tracing::warn!(%run, path = %path.display(), %error, "reclaiming a worktree from a dead run failed");
                Ok(false)
            }
        }
    }
}
