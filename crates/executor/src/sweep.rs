//! One sweep: everything whose time has come, each in a transaction of its own.

use sprag_lifecycle::{ExecutionId, RunId};
use sprag_store::ops::{Lease, Lost, could_take, leavable_environments};
use sprag_store::{ExecutionRow, Id, Result, RunRow, Table, WorkerRow};

use crate::Executor;

/// How much of each kind one sweep takes on; the rest comes with the next.
const BATCH: usize = 256;

/// What a sweep has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Executions handed over because their time had come.
    pub scheduled: usize,
    /// Executions taken from owners that were lost.
    pub abandoned: usize,
    /// Executions handed over again because nobody came for them.
    pub redispatched: usize,
    /// Runs started because their group had a place.
    pub started: usize,
    /// Workers found to be gone.
    pub workers_lost: usize,
    /// Environments taken from hosts where nobody works any more.
    pub hosts_lost: usize,
    /// Effects carried out.
    pub effects: usize,
}

impl Executor {
    /// Does everything whose time has come.
    pub async fn sweep(&self) -> Result<Swept> {
        let mut swept = Swept::default();
        self.fire_timers(&mut swept).await?;
        self.reap_leases(&mut swept).await?;
        self.reap_workers(&mut swept).await?;
        self.redispatch(&mut swept).await?;
        self.fill(&mut swept).await?;
        swept.effects = self.relay().await?;
        Ok(swept)
    }

    async fn fire_timers(&self, swept: &mut Swept) -> Result<()> {
        let now_ms = self.store.now().steady_ms;
        for timer in self.store.read(|db| db.timers_due(now_ms, self.batch(BATCH)))? {
            if self.cares_for(timer.execution.run) {
                let scheduled = self.store.executor().timer_fired(timer.execution).await;
                swept.scheduled += usize::from(done(timer.execution.run, scheduled, false));
            }
        }
        Ok(())
    }

    async fn reap_leases(&self, swept: &mut Swept) -> Result<()> {
        let now_ms = self.store.now().steady_ms;
        for (execution, fence) in self.store.read(|db| db.lapsed(now_ms, self.batch(BATCH)))? {
            if self.cares_for(execution.run) {
                let outcome = self.store.reaper().expire(Lease { execution, fence }).await;
                let expired = outcome.map(|outcome| outcome.is_applied());
                swept.abandoned += usize::from(done(execution.run, expired, false));
            }
        }
        Ok(())
    }

    /// Workers that are gone lose what they hold, and runs reserved to them go to anyone.
    async fn reap_workers(&self, swept: &mut Swept) -> Result<()> {
        if self.config.only.is_some() {
            return Ok(());
        }
        let now_ms = self.store.now().steady_ms;
        for worker in self.store.read(|db| db.workers())? {
            let lost = if self.hosts.is_gone(&worker.process) {
                Lost::ProcessGone
            } else if worker.heartbeat_until_ms <= now_ms {
                Lost::LeaseLapsed
            } else {
                continue;
            };
            self.take_from(&worker, lost, swept).await?;
        }
        Ok(())
    }

    async fn take_from(&self, worker: &WorkerRow, lost: Lost, swept: &mut Swept) -> Result<()> {
        tracing::info!(worker = worker.id, name = %worker.name, ?lost, "worker is gone");
        if lost == Lost::ProcessGone {
            swept.abandoned += self.abandon_all(worker.id).await?;
        }
        for run in self.store.read(|db| db.pinned_runs(worker.id))? {
            self.store.executor().pin_run(run, None).await?;
        }
        swept.workers_lost +=
            usize::from(self.store.reaper().worker_lost(worker.id, lost).await?.is_applied());
        Ok(())
    }

    /// Takes everything from a worker whose process is known to be gone.
    pub async fn abandon_all(&self, worker: Id) -> Result<usize> {
        let mut abandoned = 0;
        for row in self.store.read(|db| db.held_by(worker))? {
            let lease = Lease { execution: row.id, fence: row.fence };
            abandoned += usize::from(self.store.reaper().owner_died(lease).await?.is_applied());
        }
        Ok(abandoned)
    }

    async fn redispatch(&self, swept: &mut Swept) -> Result<()> {
        let now_ms = self.store.now().steady_ms;
        let before_ms = now_ms - self.config.dispatch_deadline.as_millis() as i64;
        let unclaimed = self.store.read(|db| db.unclaimed_since(before_ms, self.batch(BATCH)))?;
        for execution in unclaimed.into_iter().filter(|execution| self.cares_for(execution.run)) {
            swept.hosts_lost += done(execution.run, self.leave_lost_hosts(execution, before_ms).await, 0);
            if self.is_hopeless(execution, now_ms)? {
                let failed = self.store.executor().fail_unserved(execution).await;
                if done(execution.run, failed, false) {
                    tracing::warn!(%execution, "no worker has served its queue for too long: its step fails");
                }
                continue;
            }
            let redispatched = self.store.executor().redispatch(execution).await;
            if done(execution.run, redispatched, false) {
                tracing::info!(%execution, "nobody came for it: handed over again");
                swept.redispatched += 1;
            }
        }
        Ok(())
    }

    /// Has a run that waits for a host where nobody works any more go on elsewhere, if a remote has its states.
    async fn leave_lost_hosts(&self, execution: ExecutionId, since_ms: i64) -> Result<usize> {
        let mut left = 0;
        for row in self.store.read(|db| leavable_environments(db, execution.run))? {
            if self.store.reaper().host_lost(row.id, since_ms).await? {
                let (run, host, path) = (execution.run, &row.host, &row.path);
                tracing::warn!(%run, %host, %path, "nobody works on its host any more: it goes on elsewhere");
                left += 1;
            }
        }
        Ok(left)
    }

    /// Whether it has waited for longer than its bound, and nobody is there to wait for.
    fn is_hopeless(&self, execution: ExecutionId, now_ms: i64) -> Result<bool> {
        let bound_ms = self.config.unserved_bound.as_millis() as i64;
        self.store.read(|db| {
            let Some(row) = Table::<ExecutionRow>::load(db, execution)? else { return Ok(false) };
            if row.published_ms + bound_ms > now_ms {
                return Ok(false);
            }
            for worker in db.workers()? {
                if could_take(db, &worker, &row)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Hands over what has a place now, and starts the runs that have one.
    async fn fill(&self, swept: &mut Swept) -> Result<()> {
        let now_ms = self.store.now().steady_ms;
        for queue in self.store.read(|db| db.crowded_queues(now_ms))? {
            swept.scheduled += self.store.executor().fill_queue(queue, BATCH).await?;
        }
        for group in self.store.read(|db| db.crowded_groups())? {
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

    /// Queued runs whose process is gone: a place would be lost on them. Whoever takes one over frees it.
    fn unattended(&self, group: &str) -> Result<Vec<RunId>> {
        self.store.read(|db| {
            let mut gone = Vec::new();
            for run in db.queued(group, BATCH)? {
                let pin = Table::<RunRow>::load(db, run)?.and_then(|row| row.pin);
                let Some(pin) = pin else { continue };
                let worker = Table::<WorkerRow>::load(db, pin)?;
                if worker.is_none_or(|worker| self.hosts.is_gone(&worker.process)) {
                    gone.push(run);
                }
            }
            Ok(gone)
        })
    }
}

/// What came of one item of a sweep: one that cannot be read or written must not hold up the others.
fn done<T>(run: RunId, result: Result<T>, otherwise: T) -> T {
    result.unwrap_or_else(|error| {
        tracing::warn!(%run, %error, "sweep: left for the next one");
        otherwise
    })
}
