//! Work that is due for executors and reapers.

use std::collections::BTreeSet;
use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId};

use super::{Queries, with_children};
use crate::backend::{Backend, Table};
use crate::error::Result;
use crate::ops::{Lease, could_take, leavable_environments};
use crate::rows::{EnvironmentRow, ExecutionRow, Id, OutboxRow, Row, RunRow, TimerRow, WorkerRow};

/// The timers and leases that are due.
#[derive(Debug, Clone)]
pub struct Overdue {
    /// The timers, earliest first.
    pub timers: Vec<TimerRow>,
    /// The leases that have expired, in the order of expiry.
    pub lapsed: Vec<Lease>,
}

/// A queued run that is reserved to a worker.
#[derive(Debug, Clone)]
pub struct ReservedRun {
    /// The run.
    pub run: RunId,
    /// The worker; absent if it never registered.
    pub worker: Option<WorkerRow>,
}

/// An execution that runs, and its owner.
#[derive(Debug, Clone)]
pub struct RunningExecution {
    /// The execution.
    pub row: ExecutionRow,
    /// The worker that holds it; absent if it never registered.
    pub owner: Option<WorkerRow>,
}

impl RunningExecution {
    /// Returns the right to the execution that its owner has.
    pub fn lease(&self) -> Lease {
        Lease { execution: self.row.id, fence: self.row.fence }
    }
}

impl Queries<'_> {
    /// Returns the timers that are due, earliest first.
    pub fn timers_due(self, now_ms: i64, limit: usize) -> Result<Vec<TimerRow>> {
        self.look(|db| db.timers_due(now_ms, limit))
    }

    /// Returns the leases that have expired, in the order of expiry.
    pub fn lapsed(self, now_ms: i64, limit: usize) -> Result<Vec<Lease>> {
        self.look(|db| lapsed(db, now_ms, limit))
    }

    /// Returns the timers and leases that are due, at most `limit` of each.
    pub fn overdue(self, now_ms: i64, limit: usize) -> Result<Overdue> {
        self.look(|db| {
            Ok(Overdue { timers: db.timers_due(now_ms, limit)?, lapsed: lapsed(db, now_ms, limit)? })
        })
    }

    /// Returns the effects in the outbox that are due, oldest first.
    pub fn outbox_due(self, now_ms: i64, limit: usize) -> Result<Vec<OutboxRow>> {
        self.look(|db| db.outbox_due(now_ms, limit))
    }

    /// Returns the next time (steady) at which a timer, a lease or the outbox is due.
    pub fn next_due(self) -> Result<Option<i64>> {
        self.look(|db| db.next_due())
    }

    /// Returns the live runs reserved to a worker that is offline or never registered, oldest first.
    pub fn orphaned_runs(self, limit: usize) -> Result<Vec<RunId>> {
        self.look(|db| db.orphaned_runs(limit))
    }

    /// Returns the executions that have waited in a queue since before this time, oldest first.
    pub fn unclaimed_since(self, before_ms: i64, limit: usize) -> Result<Vec<ExecutionId>> {
        self.look(|db| db.unclaimed_since(before_ms, limit))
    }

    /// Whether an execution has waited in its queue since before this time, and no worker that is present could take it.
    pub fn is_unserved(self, execution: ExecutionId, before_ms: i64) -> Result<bool> {
        self.look(|db| {
            let Some(row) = Table::<ExecutionRow>::load(db, execution)? else { return Ok(false) };
            if row.published_ms > before_ms {
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

    /// Returns the environments of a run on hosts that it may leave, because a remote has their states.
    pub fn leavable_environments(self, run: RunId) -> Result<Vec<EnvironmentRow>> {
        self.look(|db| leavable_environments(db, run))
    }

    /// Returns the queues that have executions to publish once a place is free, in order.
    pub fn crowded_queues(self, now_ms: i64) -> Result<Vec<Arc<str>>> {
        self.look(|db| db.crowded_queues(now_ms))
    }

    /// Returns the groups in which runs wait for a place, in order.
    pub fn crowded_groups(self) -> Result<Vec<Arc<str>>> {
        self.look(|db| db.crowded_groups())
    }

    /// Returns the first `limit` queued runs of a group as far as they are reserved to a worker, in the order of their
    /// start.
    pub fn queued_and_reserved(self, group: &str, limit: usize) -> Result<Vec<ReservedRun>> {
        self.look(|db| {
            let mut reserved = Vec::new();
            for run in db.queued(group, limit)? {
                if let Some(pin) = Table::<RunRow>::load(db, run)?.and_then(|row| row.pin) {
                    reserved.push(ReservedRun { run, worker: Table::<WorkerRow>::load(db, pin)? });
                }
            }
            Ok(reserved)
        })
    }

    /// Returns the runs that hold a place for which this run, or one of its child runs, waits.
    pub fn holders_before(self, run: RunId) -> Result<Vec<RunId>> {
        /// The most runs that are read from each queue of a group.
        const LOOK: usize = 64;
        self.look(|db| {
            let mut found = BTreeSet::new();
            for group in db.crowded_groups()? {
                for queued in db.queued(&group, LOOK)? {
                    if Table::<RunRow>::load(db, queued)?.is_some_and(|row| row.root == run) {
                        found.extend(db.places(&group)?);
                        break;
                    }
                }
            }
            Ok(found.into_iter().collect())
        })
    }

    /// Returns the running executions of a run and of its live child runs, with their owners.
    pub fn running_in(self, run: RunId) -> Result<Vec<RunningExecution>> {
        self.look(|db| {
            let mut found = Vec::new();
            for run in with_children(db, run)? {
                for row in db.executions(run)?.into_iter().filter(is_running) {
                    let owner = row.owner.map(|owner| Table::<WorkerRow>::load(db, owner)).transpose()?;
                    found.push(RunningExecution { row, owner: owner.flatten() });
                }
            }
            Ok(found)
        })
    }

    /// Returns the workers that a run and its live child runs are reserved to, and those that execute their steps, with
    /// repetitions.
    pub fn workers_of(self, run: RunId) -> Result<Vec<Id>> {
        self.look(|db| {
            let mut workers = Vec::new();
            for run in with_children(db, run)? {
                workers.extend(Table::<RunRow>::load(db, run)?.and_then(|row| row.pin));
                let executions = db.executions(run)?;
                workers.extend(executions.iter().filter(|row| is_running(row)).filter_map(|row| row.owner));
            }
            Ok(workers)
        })
    }

    /// Whether a live worker has, or could take, an execution of a run or of its child runs. `is_there` tells which
    /// workers are alive.
    pub fn is_served(self, run: RunId, is_there: &dyn Fn(&WorkerRow) -> bool) -> Result<bool> {
        self.look(|db| {
            let mut workers = db.workers()?;
            workers.retain(is_there);
            for run in with_children(db, run)? {
                for row in db.executions(run)?.into_iter().filter(|row| !row.status().is_terminal()) {
                    for worker in &workers {
                        if row.owner == Some(worker.id) || could_take(db, worker, &row)? {
                            return Ok(true);
                        }
                    }
                }
            }
            Ok(false)
        })
    }
}

fn is_running(row: &ExecutionRow) -> bool {
    row.status() == ExecutionStatus::Running
}

fn lapsed(db: &mut dyn Backend, now_ms: i64, limit: usize) -> Result<Vec<Lease>> {
    let lapsed = db.lapsed(now_ms, limit)?;
    Ok(lapsed.into_iter().map(|(execution, fence)| Lease { execution, fence }).collect())
}
