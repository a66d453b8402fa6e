//! Whether workers have anything left to do, now or by the clock alone.
//!
//! Work counts as left if a worker executes it, could take it, or will be able to take it when a backoff or a `wait` is
//! over. Work that waits for a person, a signal, an agent or a worker that is not running does not count: the wait may
//! last for ever, and ending it is a reason to start a worker again.

use std::sync::Arc;

use sprag_lifecycle::{ExecutionStatus, RunId, RunStatus, StepNo};

use super::Queries;
use crate::accounts::{AccountBusy, AccountWait, account_wait};
use crate::backend::{Backend, Table};
use crate::clock::Now;
use crate::error::Result;
use crate::names::step_name;
use crate::ops::could_take;
use crate::rows::{ExecutionRow, GateKind, GateRow, Id, Row, RunRow, StepRow, WorkerRow};

/// The number of live runs that are read at once.
const PAGE: usize = 256;

/// Something that is left for workers to do.
#[derive(Debug, Clone)]
pub struct WorkLeft {
    /// The run.
    pub run: RunId,
    /// The name of the step; absent if the whole run waits.
    pub step: Option<String>,
    /// The kind of work.
    pub kind: WorkLeftKind,
}

/// The kind of thing that is left to do.
#[derive(Debug, Clone)]
pub enum WorkLeftKind {
    /// A parent run has not been notified of its child's end.
    ChildEnded,
    /// The worker that the run is reserved to is gone.
    ProcessGone,
    /// The run has not started, although no group holds it back.
    Start,
    /// The run has not started, although its group has a free place.
    GroupPlace(Arc<str>),
    /// A worker executes the step: its name.
    Executed(Arc<str>),
    /// The worker that executed the step is gone.
    WorkerGone,
    /// A worker could take the step once it has a free slot.
    Slot,
    /// A worker could take the step once its backoff is over.
    Backoff {
        /// The attempt that the step waits for.
        attempt: u32,
        /// The end of the backoff (steady).
        until_ms: i64,
    },
    /// The hold of the step's account ends by the clock.
    Account {
        /// The account's name.
        name: Arc<str>,
        /// The end of the hold (steady).
        until_ms: i64,
    },
    /// The step's queue has a free place.
    QueuePlace(Arc<str>),
    /// The gate ends by the clock.
    Gate(Box<GateRow>),
}

impl Queries<'_> {
    /// Returns the first thing that is left for workers to do, as the worker `own` sees it. `is_there` tells which
    /// workers are alive and execute steps.
    pub fn work_left(
        self,
        own: Id,
        now: Now,
        is_there: &dyn Fn(&WorkerRow) -> bool,
    ) -> Result<Option<WorkLeft>> {
        self.look(|db| {
            let mut workers = db.workers()?;
            workers.retain(is_there);
            let effects = db.outbox_due(now.steady_ms, usize::MAX)?;
            if let Some(row) = effects.iter().find(|row| &*row.kind == "child.ended") {
                return Ok(Some(of_run(row.run, WorkLeftKind::ChildEnded)));
            }
            let look = Look { workers: &workers, own, now };
            let mut after = None;
            loop {
                let page = db.live_runs(after, PAGE)?;
                let Some(last) = page.last() else { return Ok(None) };
                after = Some(*last);
                for run in page {
                    if let Some(left) = look.left_of(db, run)? {
                        return Ok(Some(left));
                    }
                }
            }
        })
    }
}

fn of_run(run: RunId, kind: WorkLeftKind) -> WorkLeft {
    WorkLeft { run, step: None, kind }
}

struct Look<'a> {
    /// The workers that are alive.
    workers: &'a [WorkerRow],
    own: Id,
    now: Now,
}

impl Look<'_> {
    /// Returns the first thing that is left of one run.
    fn left_of(&self, db: &mut dyn Backend, run: RunId) -> Result<Option<WorkLeft>> {
        let Some(row) = Table::<RunRow>::load(db, run)? else { return Ok(None) };
        if let Some(pin) = row.pin.filter(|pin| *pin != self.own) {
            // The run's own process executes it; if that process is gone, a sweep frees the run.
            let there = self.workers.iter().any(|worker| worker.id == pin);
            return Ok((!there).then(|| of_run(run, WorkLeftKind::ProcessGone)));
        }
        if row.status() == RunStatus::Queued {
            return self.has_place(db, &row);
        }
        for execution in db.executions(run)?.into_iter().filter(|row| !row.status().is_terminal()) {
            if let Some(kind) = self.left(db, &row, &execution)? {
                let step = self.name(db, &row, execution.id.step)?;
                return Ok(Some(WorkLeft { run, step, kind }));
            }
        }
        // A question or a signal whose time is over is about to end; before that it waits for a person or a program.
        let is_over = |gate: &GateRow| gate.timeout_at_ms > 0 && gate.timeout_at_ms <= self.now.steady_ms;
        let mut gates = db.open_gates(run)?.into_iter();
        let Some(gate) = gates.find(|gate| gate.kind == GateKind::Time || is_over(gate)) else {
            return Ok(None);
        };
        let step = self.name(db, &row, gate.step)?;
        Ok(Some(WorkLeft { run, step, kind: WorkLeftKind::Gate(Box::new(gate)) }))
    }

    /// Returns the start of a queued run, if its group has a free place.
    fn has_place(&self, db: &mut dyn Backend, row: &RunRow) -> Result<Option<WorkLeft>> {
        let plan = db.plan(row.plan)?;
        if let Some(second) = plan.as_ref().and_then(|plan| plan.second_group.as_ref())
            && !db.places(second)?.is_empty()
        {
            return Ok(None);
        }
        let limits = plan.and_then(|plan| plan.concurrency.clone());
        let (Some(group), Some(limits)) = (&row.group, limits) else {
            return Ok(Some(of_run(row.id, WorkLeftKind::Start)));
        };
        let free = db.places(group)?.len() < limits.limit as usize;
        Ok(free.then(|| of_run(row.id, WorkLeftKind::GroupPlace(Arc::clone(group)))))
    }

    /// Returns what is left of an execution.
    fn left(
        &self,
        db: &mut dyn Backend,
        run: &RunRow,
        execution: &ExecutionRow,
    ) -> Result<Option<WorkLeftKind>> {
        let step = Table::<StepRow>::load(db, (run.id, execution.id.step))?;
        let plan = db.plan(run.plan)?;
        if let (Some(step), Some(plan)) = (step, plan)
            && (!plan.step(step.node()).is_for_workers() || plan.step(step.node()).service)
        {
            // A service runs for the steps of its run: what they wait for counts.
            return Ok(None);
        }
        Ok(match execution.status() {
            ExecutionStatus::Running => {
                let owner = self.workers.iter().find(|worker| Some(worker.id) == execution.owner);
                Some(match owner {
                    Some(owner) => WorkLeftKind::Executed(Arc::clone(&owner.name)),
                    None => WorkLeftKind::WorkerGone,
                })
            }
            ExecutionStatus::Scheduled => self.has_taker(db, execution)?.then_some(WorkLeftKind::Slot),
            _ if execution.not_before_ms > self.now.steady_ms => {
                let (attempt, until_ms) = (execution.id.attempt, execution.not_before_ms);
                self.has_taker(db, execution)?.then_some(WorkLeftKind::Backoff { attempt, until_ms })
            }
            _ if execution.account.is_some()
                && let Some(AccountWait { account, why }) = account_wait(db, execution, self.now)? =>
            {
                // An account that is in use is free later; a hold without an end waits for a person.
                let (name, until_ms) = (account.name, account.until_ms);
                match why {
                    AccountBusy::Held => until_ms.map(|until_ms| WorkLeftKind::Account { name, until_ms }),
                    AccountBusy::Full | AccountBusy::Probing => None,
                }
            }
            // In a full queue, the executions beyond its limit count as left too; a held queue waits for a person.
            _ => {
                let free = match db.queue(&execution.queue)? {
                    Some(queue) if queue.held => false,
                    Some(queue) => match queue.limit {
                        Some(limit) => db.in_flight(&execution.queue)? < limit,
                        None => true,
                    },
                    None => true,
                };
                let queue = Arc::clone(&execution.queue);
                (free && self.has_taker(db, execution)?).then_some(WorkLeftKind::QueuePlace(queue))
            }
        })
    }

    fn has_taker(&self, db: &mut dyn Backend, execution: &ExecutionRow) -> Result<bool> {
        for worker in self.workers {
            if could_take(db, worker, execution)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn name(&self, db: &mut dyn Backend, run: &RunRow, no: StepNo) -> Result<Option<String>> {
        let plan = db.plan(run.plan)?;
        let step = Table::<StepRow>::load(db, (run.id, no))?;
        Ok(plan.zip(step).map(|(plan, step)| step_name(&plan, &step)))
    }
}
