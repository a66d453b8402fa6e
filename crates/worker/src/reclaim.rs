//! A branch that a dead run has is wanted by a live one: the dead one's work is saved, and its worktree goes.
//!
//! Whether a run is dead is decided in the store, in the same transaction that begins the removal, so that nobody
//! resumes it meanwhile. A run that waits for an answer, a moment or a worker is not dead.

use std::path::PathBuf;

use serde_json::Value;
use sprag_lifecycle::{EnvironmentEvent, ExecutionStatus, RunId, RunStatus};
use sprag_store::{EnvironmentGiven, EnvironmentRow, Row, RunRow, Table};
use sprag_worktree::{BranchPolicy, Cancel, Removed, State, Worktrees};

use crate::environment::{Environments, bury, host};

impl Environments {
    /// Takes the worktree of a dead run that has this branch; says whether there was one.
    pub(crate) async fn make_way(&self, worktrees: &Worktrees, branch: &str) -> Result<bool, String> {
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
            if let Some(row) = self.row_at(&listed.mark.path)? {
                made |= self.take_from_dead(worktrees, &row).await?;
            }
        }
        Ok(made)
    }

    /// The environment at a path, if this host has one there.
    fn row_at(&self, path: &std::path::Path) -> Result<Option<EnvironmentRow>, String> {
        let rows = self.0.store.read(|db| db.environments(false)).map_err(|error| error.to_string())?;
        let (path, host) = (path.display().to_string(), host());
        Ok(rows.into_iter().find(|row| *row.path == *path && *row.host == *host))
    }

    async fn take_from_dead(&self, worktrees: &Worktrees, row: &EnvironmentRow) -> Result<bool, String> {
        let told = |error: sprag_store::Error| error.to_string();
        let Some(run) = row.run else { return Ok(false) };
        if self.is_kept(row, run).map_err(told)? {
            return Ok(false);
        }
        self.bury_those_of(run).await.map_err(told)?;
        let store = &self.0.store;
        let attempt = store.claims().take_environment_of_dead_run(row.id, self.0.worker).await;
        let Some(attempt) = attempt.map_err(told)? else { return Ok(false) };
        let (worktrees, path, name) = (worktrees.clone(), row.path.to_string(), run.to_string());
        let removed = tokio::task::spawn_blocking(move || {
            let worktree = worktrees.adopt(&path, &name)?;
            worktrees.remove(worktree, BranchPolicy::Delete, &Cancel::default())
        });
        let removed = removed.await.map_err(|error| error.to_string())?;
        let given = EnvironmentGiven { attempt, ..EnvironmentGiven::default() };
        let (event, reason) = match &removed {
            Ok(Removed { leftovers, .. }) if leftovers.is_empty() => {
                (EnvironmentEvent::DestroySucceeded, None)
            }
            Ok(Removed { leftovers, .. }) => {
                (EnvironmentEvent::DestroyFailed, leftovers.first().map(|left| left.reason.clone()))
            }
            Err(error) => (EnvironmentEvent::DestroyFailed, Some(error.to_string())),
        };
        let _ = store.claims().environment(row.id, event, given, reason).await.map_err(told)?;
        let path = PathBuf::from(&*row.path);
        match removed {
            Ok(removed) => {
                let saved = removed.salvaged.map(|saved| saved.name);
                tracing::info!(%run, path = %path.display(), saved, "its run is dead, and its branch is wanted");
                Ok(true)
            }
            Err(error) => {
                tracing::warn!(%run, path = %path.display(), %error, "taking it from a dead run");
                Ok(false)
            }
        }
    }

    /// Whether a run has ended and its worktree is kept all the same.
    fn is_kept(&self, row: &EnvironmentRow, run: RunId) -> sprag_store::Result<bool> {
        let status = self.0.store.read(|db| Table::<RunRow>::load(db, run))?.map(|run| run.status());
        let details: Value = serde_json::from_str(&row.details).unwrap_or_default();
        Ok(match (status, details["keep"].as_str()) {
            (Some(status), Some("always")) => status.is_terminal(),
            (Some(status), Some("on_failure")) => status.is_terminal() && status != RunStatus::Completed,
            _ => false,
        })
    }

    /// Notes which of those who worked on a run, and on the runs that are its steps' work, are gone.
    async fn bury_those_of(&self, run: RunId) -> sprag_store::Result<()> {
        let mut runs = vec![run];
        let mut owners = Vec::new();
        while let Some(run) = runs.pop() {
            self.0.store.read(|db| {
                owners.extend(Table::<RunRow>::load(db, run)?.and_then(|row| row.pin));
                let running = |status| status == ExecutionStatus::Running;
                let executions = db.executions(run)?;
                owners.extend(
                    executions.iter().filter(|row| running(row.status())).filter_map(|row| row.owner),
                );
                runs.extend(db.children(run)?);
                Ok(())
            })?;
        }
        for owner in owners {
            bury(&self.0.store, Some(owner)).await;
        }
        Ok(())
    }
}
