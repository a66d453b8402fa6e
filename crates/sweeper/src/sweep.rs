//! One sweep: all actions that are due, each in a transaction of its own.

use sprag_lifecycle::{ExecutionId, RunId};
use sprag_store::{Id, Lease, Lost, ReservedRun, Result, WorkerRow};

use crate::Executor;

/// The most items of each kind that one sweep handles; the next sweep handles the rest.
const BATCH: usize = 256;

/// The counts of one sweep's actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Executions handed over because they were due.
    pub scheduled: usize,
    /// Executions taken from owners that were lost.
    pub abandoned: usize,
    /// Executions handed over again because no worker claimed them.
    pub redispatched: usize,
    /// Runs started because their group had a place.
    pub started: usize,
    /// Workers found to be gone.
    pub workers_lost: usize,
    /// Runs that are no longer reserved to a worker that is gone.
    pub orphans_freed: usize,
    /// Dead runs that were taken over because they held a place that another run waits for.
    pub adopted: usize,
    /// Environments taken from hosts that have no worker left.
    pub hosts_lost: usize,
    /// Runs started by rules.
    pub triggered: usize,
    /// Effects carried out.
    pub effects: usize,
}

impl Executor {
    /// Carries out all actions that are due.
    pub async fn sweep(&self) -> Result<Swept> {
        let mut swept = Swept::default();
        self.fire_timers(&mut swept).await?;
        self.reap_leases(&mut swept).await?;
        self.reap_workers(&mut swept).await?;
        self.free_orphans(&mut swept).await?;
        self.end_dead_holders(&mut swept).await?;
        self.redispatch(&mut swept).await?;
        self.fill(&mut swept).await?;
        if let Some(triggers) = &self.triggers {
            swept.triggered = triggers.fire().await?;
        }
        swept.effects = self.relay().await?;
        Ok(swept)
    }

    /// Carries out the actions that depend on time alone: timers, lapsed leases, and the ends of child runs. Leaves
    /// effects to an executor that can carry them out.
    pub async fn keep_time(&self) -> Result<()> {
        let mut swept = Swept::default();
        self.fire_timers(&mut swept).await?;
        self.reap_leases(&mut swept).await?;
        self.tell_parents().await.map(drop)
    }

    async fn fire_timers(&self, swept: &mut Swept) -> Result<()> {
        let now_ms = self.store.now().steady_ms;
        for timer in self.store.queries().timers_due(now_ms, self.batch(BATCH))? {
            if self.cares_for(timer.execution.run) {
                let scheduled = self.store.executor().timer_fired(timer.execution).await;
                swept.scheduled += usize::from(done(timer.execution.run, scheduled, false));
            }
        }
        Ok(())
    }

    async fn reap_leases(&self, swept: &mut Swept) -> Result<()> {
        let now_ms = self.store.now().steady_ms;
        for lease in self.store.queries().lapsed(now_ms, self.batch(BATCH))? {
            let run = lease.execution.run;
            if self.cares_for(run) {
                let outcome = self.store.reaper().expire(lease).await;
                let expired = outcome.map(|outcome| outcome.is_applied());
                swept.abandoned += usize::from(done(run, expired, false));
            }
        }
        Ok(())
    }

    /// Marks workers that are gone as lost, and takes from them what they hold.
    async fn reap_workers(&self, swept: &mut Swept) -> Result<()> {
        if self.config.only.is_some() {
            return Ok(());
        }
        for worker in self.store.queries().workers()? {
            if let Some(lost) = self.how_lost(&worker) {
                self.take_from(&worker, lost, swept).await?;
            }
        }
        Ok(())
    }

    /// Gives runs that are reserved to a missing worker to any worker. Every sweep checks this again, whatever
    /// happened to the worker and whenever the reservation was made.
    async fn free_orphans(&self, swept: &mut Swept) -> Result<()> {
        if self.config.only.is_some() {
            return Ok(());
        }
        for run in self.store.queries().orphaned_runs(BATCH)? {
            if done(run, self.store.executor().free_orphan(run).await, false) {
                tracing::info!(%run, "the worker that a run was reserved for is gone: any worker may take it");
                swept.orphans_freed += 1;
            }
        }
        Ok(())
    }

    async fn take_from(&self, worker: &WorkerRow, lost: Lost, swept: &mut Swept) -> Result<()> {
        tracing::info!(worker = worker.id, name = %worker.name, ?lost, "a worker is gone");
        if lost == Lost::ProcessGone {
            swept.abandoned += self.abandon_all(worker.id).await?;
        }
        swept.workers_lost +=
            usize::from(self.store.reaper().worker_lost(worker.id, lost).await?.is_applied());
        Ok(())
    }

    /// Takes everything from a worker whose process is known to be gone.
    pub async fn abandon_all(&self, worker: Id) -> Result<usize> {
        let mut abandoned = 0;
        for row in self.store.queries().held_by(worker)? {
            let lease = Lease { execution: row.id, fence: row.fence };
            abandoned += usize::from(self.store.reaper().owner_died(lease).await?.is_applied());
        }
        Ok(abandoned)
    }

    async fn redispatch(&self, swept: &mut Swept) -> Result<()> {
        let now_ms = self.store.now().steady_ms;
        let before_ms = now_ms - self.config.dispatch_deadline.as_millis() as i64;
        let unserved_since_ms = now_ms - self.config.unserved_bound.as_millis() as i64;
        let unclaimed = self.store.queries().unclaimed_since(before_ms, self.batch(BATCH))?;
        for execution in unclaimed.into_iter().filter(|execution| self.cares_for(execution.run)) {
            swept.hosts_lost += done(execution.run, self.leave_lost_hosts(execution, before_ms).await, 0);
            if self.store.queries().is_unserved(execution, unserved_since_ms)? {
                let failed = self.store.executor().fail_unserved(execution).await;
                if done(execution.run, failed, false) {
                    tracing::warn!(%execution, "no worker has served the queue for too long: the step fails");
                }
                continue;
            }
            let redispatched = self.store.executor().redispatch(execution).await;
            if done(execution.run, redispatched, false) {
                tracing::info!(%execution, "no worker received an execution: handing it over again");
                swept.redispatched += 1;
            }
        }
        Ok(())
    }

    /// Lets a run that waits for a host without any worker continue on another host, if a remote has its states.
    async fn leave_lost_hosts(&self, execution: ExecutionId, since_ms: i64) -> Result<usize> {
        let mut left = 0;
        for row in self.store.queries().leavable_environments(execution.run)? {
            if self.store.reaper().host_lost(row.id, since_ms).await? {
                let (run, host, path) = (execution.run, &row.host, &row.path);
                tracing::warn!(%run, %host, %path, "the environment's host is lost: the run continues elsewhere");
                left += 1;
            }
        }
        Ok(left)
    }

    /// Hands over the executions that have a place now, and starts the runs that have one.
    async fn fill(&self, swept: &mut Swept) -> Result<()> {
        let now_ms = self.store.now().steady_ms;
        for queue in self.store.queries().crowded_queues(now_ms)? {
            swept.scheduled += self.store.executor().fill_queue(queue, BATCH).await?;
        }
        for group in self.store.queries().crowded_groups()? {
            let unattended = self.unattended(&group)?;
            for _ in 0..BATCH {
                if self.store.executor().fill_group(group.clone(), unattended.clone()).await?.is_none() {
                    break;
                }
                swept.started += 1;
            }
        }
        Ok(())
    }

    /// Returns the queued runs whose process is gone, because a place would be wasted on them. A process that takes
    /// such a run over makes it eligible again.
    fn unattended(&self, group: &str) -> Result<Vec<RunId>> {
        let queued = self.store.queries().queued_and_reserved(group, BATCH)?;
        let is_gone = |queued: &&ReservedRun| {
            queued.worker.as_ref().is_none_or(|worker| self.hosts.is_gone(&worker.process))
        };
        Ok(queued.iter().filter(is_gone).map(|queued| queued.run).collect())
    }
}

/// Returns the result of one item of a sweep. Logs an error and returns `otherwise`, because one item that cannot be
/// read or written must not stop the others.
pub(crate) fn done<T>(run: RunId, result: Result<T>, otherwise: T) -> T {
    result.unwrap_or_else(|error| {
        tracing::warn!(%run, %error, "sweeping failed: left to the next sweep");
        otherwise
    })
}
