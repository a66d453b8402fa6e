//! Dead holders of a group's places, for an executor of one run. Without a server, no other process ends them.
//!
//! A run keeps its place until it has ended. A cancelled or failed run whose process is gone never ends by itself:
//! another process has to report that its work is gone, and to execute its `always` steps. The process that waits for
//! the place does both. A dead run that was not cancelled keeps its place, because the process that resumes it
//! continues in that place.

use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};

use sprag_lifecycle::{RunId, RunStatus, WorkerStatus, mutant};
use sprag_store::{Lost, Result, Row, WorkerRow};

use crate::sweep::done;
use crate::{Executor, Swept};

impl Executor {
    pub(crate) fn adopted(&self) -> MutexGuard<'_, BTreeSet<RunId>> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether its run waits for a place in a group, or a run that it has adopted has not ended.
    pub(crate) fn is_held_up(&self) -> bool {
        self.config.only.is_some_and(|only| {
            let waits = self.store.queries().holders_before(only).is_ok_and(|holders| !holders.is_empty());
            waits || !self.adopted().is_empty()
        })
    }

    /// Ends the dead runs whose places its own run, or one of its child runs, waits for.
    pub(crate) async fn end_dead_holders(&self, swept: &mut Swept) -> Result<()> {
        let Some(only) = self.config.only else { return Ok(()) };
        for holder in self.store.queries().holders_before(only)? {
            done(holder, self.end_if_dead(holder, swept).await, ());
        }
        let adopted = self.adopted().clone();
        for run in adopted {
            let row = self.store.queries().run(run)?;
            // The run's effects are in the outbox. They are carried out once more before the executor forgets the run.
            if row.is_none_or(|row| row.status().is_terminal()) {
                self.relay().await?;
                self.adopted().remove(&run);
            }
        }
        Ok(())
    }

    async fn end_if_dead(&self, holder: RunId, swept: &mut Swept) -> Result<()> {
        let Some(row) = self.store.queries().run(holder)? else { return Ok(()) };
        let ends = matches!(row.status(), RunStatus::Cancelling | RunStatus::Failing);
        if !ends || mutant!(DeadHoldersKept) {
            return Ok(());
        }
        let now_ms = self.store.now().steady_ms;
        for running in self.store.queries().running_in(holder)? {
            let owner = running.owner.as_ref();
            let outcome = if owner.is_some_and(|owner| self.hosts.is_gone(&owner.process)) {
                self.store.reaper().owner_died(running.lease()).await?
            } else if running.row.lease_until_ms <= now_ms {
                self.store.reaper().expire(running.lease()).await?
            } else {
                continue;
            };
            swept.abandoned += usize::from(outcome.is_applied());
        }
        self.adopt(holder, swept).await
    }

    /// Takes over the rest of an ending run, if the worker that it is reserved to is gone and no other worker could
    /// take it.
    async fn adopt(&self, holder: RunId, swept: &mut Swept) -> Result<()> {
        let Some(worker) = self.config.worker else { return Ok(()) };
        let Some(row) = self.store.queries().run(holder)? else { return Ok(()) };
        if row.status().is_terminal() {
            return Ok(());
        }
        // Taken over before: the answer to that may have been lost.
        if row.pin == Some(worker) {
            self.adopted().insert(holder);
            return Ok(());
        }
        if let Some(pin) = row.pin {
            let owner = self.store.queries().worker(pin)?;
            let there = owner.filter(|owner| owner.status() != WorkerStatus::Offline);
            match there.map(|owner| self.how_lost(&owner)) {
                None => {}
                Some(Some(lost)) => drop(self.store.reaper().worker_lost(pin, lost).await?),
                Some(None) => return Ok(()),
            }
        } else if self.store.queries().is_served(holder, &|worker| self.how_lost(worker).is_none())? {
            return Ok(());
        }
        if self.store.executor().adopt_run(holder, row.pin, worker).await? {
            tracing::info!(run = %holder, "a dead run holds a place in a group that this run waits for: ending it");
            self.adopted().insert(holder);
            swept.adopted += 1;
        }
        Ok(())
    }
}

impl Executor {
    /// Returns the way in which a worker was lost; none if it is alive. An offline worker was lost earlier.
    pub(crate) fn how_lost(&self, worker: &WorkerRow) -> Option<Lost> {
        let now_ms = self.store.now().steady_ms;
        if self.hosts.is_gone(&worker.process) {
            Some(Lost::ProcessGone)
        } else if worker.heartbeat_until_ms <= now_ms {
            Some(Lost::LeaseLapsed)
        } else {
            None
        }
    }
}
