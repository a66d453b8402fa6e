//! Finding out whether workers have anything left to do, now or by the clock alone.
//!
//! Work counts as left if a worker executes it, could take it, or will be able to take it when a backoff or a `wait`
//! is over. Work that waits for a person, a signal, an agent or a worker that is not running does not count: the wait
//! may last for ever, and ending it is a reason to start a worker again.

use sprag_lifecycle::{ExecutionStatus, RunId, RunStatus, StepNo};
use sprag_store::ops::could_take;
use sprag_store::{
    Backend, ExecutionRow, GateKind, GateRow, Id, Now, Result, Row, RunRow, StepRow, Table, WorkerRow,
    step_name,
};

use crate::App;
use crate::error::Error;
use crate::resume::is_dead;
use crate::waiting::Waiting;

/// The number of live runs that are read at once.
const PAGE: usize = 256;

/// Returns the first thing that is left for workers to do, as the worker `own` sees it; none if there is nothing.
pub fn first_left(app: &App, own: Id) -> Result<Option<Waiting>, Error> {
    let now = app.store.now();
    let left = app.store.read(|db| {
        let mut workers = db.workers()?;
        // Claimers execute nothing.
        workers.retain(|worker| !worker.process.is_empty() && !is_lost(worker, now));
        if let Some(row) =
            db.outbox_due(now.steady_ms, usize::MAX)?.iter().find(|row| &*row.kind == "child.ended")
        {
            return Ok(Some(waiting(row.run, None, "its child run has ended")));
        }
        let mut after = None;
        loop {
            let page = db.live_runs(after, PAGE)?;
            let Some(last) = page.last() else { return Ok(None) };
            after = Some(*last);
            for run in page {
                let look = Look { workers: &workers, own, now };
                if let Some(left) = look.left_of(db, run)? {
                    return Ok(Some(left));
                }
            }
        }
    })?;
    Ok(left)
}

fn is_lost(worker: &WorkerRow, now: Now) -> bool {
    is_dead(worker) || worker.heartbeat_until_ms <= now.steady_ms
}

fn waiting(run: RunId, step: Option<String>, what: impl Into<String>) -> Waiting {
    Waiting { run, step, what: what.into(), is_gate: false, since_ms: None, until_ms: None }
}

struct Look<'a> {
    /// The workers that are alive.
    workers: &'a [WorkerRow],
    own: Id,
    now: Now,
}

impl Look<'_> {
    /// Returns the first thing that is left of one run.
    fn left_of(&self, db: &mut dyn Backend, run: RunId) -> Result<Option<Waiting>> {
        let Some(row) = Table::<RunRow>::load(db, run)? else { return Ok(None) };
        match row.pin {
            Some(pin) if pin != self.own => {
                // The run's own process executes it; if that process is gone, a sweep frees the run.
                let there = self.workers.iter().any(|worker| worker.id == pin);
                return Ok((!there).then(|| waiting(run, None, "its process is gone")));
            }
            _ => {}
        }
        if row.status() == RunStatus::Queued {
            return self.has_place(db, &row);
        }
        for execution in db.executions(run)?.into_iter().filter(|row| !row.status().is_terminal()) {
            if let Some((what, until_ms)) = self.left(db, &row, &execution)? {
                let step = self.name(db, &row, execution.id.step)?;
                return Ok(Some(Waiting { until_ms, ..waiting(run, step, what) }));
            }
        }
        // A question or a signal whose time is over is about to end; before that it waits for a person or a program.
        let is_over = |gate: &GateRow| gate.timeout_at_ms > 0 && gate.timeout_at_ms <= self.now.steady_ms;
        let gates = db.open_gates(run)?;
        let Some(gate) = gates.iter().find(|gate| gate.kind == GateKind::Time || is_over(gate)) else {
            return Ok(None);
        };
        let step = self.name(db, &row, gate.step)?;
        let until_ms = Some(gate.timeout_at_ms - self.now.steady_ms + self.now.wall_ms);
        Ok(Some(Waiting { until_ms, ..waiting(run, step, crate::explain::gate_text(gate)) }))
    }

    /// Returns what a queued run waits for, if its group has a free place.
    fn has_place(&self, db: &mut dyn Backend, row: &RunRow) -> Result<Option<Waiting>> {
        let limits = db.plan(row.plan)?.and_then(|plan| plan.concurrency.clone());
        let (Some(group), Some(limits)) = (&row.group, limits) else {
            return Ok(Some(waiting(row.id, None, "its start")));
        };
        let free = db.places(group)?.len() < limits.limit as usize;
        Ok(free.then(|| waiting(row.id, None, format!("its place in group {group:?}"))))
    }

    /// Returns what is left of an execution, and until when it waits.
    fn left(
        &self,
        db: &mut dyn Backend,
        run: &RunRow,
        execution: &ExecutionRow,
    ) -> Result<Option<(String, Option<i64>)>> {
        let step = Table::<StepRow>::load(db, (run.id, execution.id.step))?;
        let plan = db.plan(run.plan)?;
        if let (Some(step), Some(plan)) = (step, plan)
            && !plan.step(step.node()).is_for_workers()
        {
            return Ok(None);
        }
        let takers = |db: &mut dyn Backend| -> Result<bool> {
            for worker in self.workers {
                if could_take(db, worker, execution)? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        Ok(match execution.status() {
            ExecutionStatus::Running => {
                let owner = self.workers.iter().find(|worker| Some(worker.id) == execution.owner);
                Some(match owner {
                    Some(owner) => (format!("worker {} runs it", owner.name), None),
                    None => ("its worker is gone".into(), None),
                })
            }
            ExecutionStatus::Scheduled => takers(db)?.then(|| ("a free slot".into(), None)),
            _ if execution.not_before_ms > self.now.steady_ms => {
                let until_ms = execution.not_before_ms - self.now.steady_ms + self.now.wall_ms;
                let what = format!("its backoff before attempt {}", execution.id.attempt);
                takers(db)?.then_some((what, Some(until_ms)))
            }
            // In a full queue, the executions beyond its limit count as left too; a held queue waits for a person.
            _ => {
                let settings = db.queue(&execution.queue)?;
                let free = match settings {
                    Some(queue) if queue.held => false,
                    Some(queue) => match queue.limit {
                        Some(limit) => db.in_flight(&execution.queue)? < limit,
                        None => true,
                    },
                    None => true,
                };
                (free && takers(db)?).then(|| (format!("its place in queue {:?}", execution.queue), None))
            }
        })
    }

    fn name(&self, db: &mut dyn Backend, run: &RunRow, no: StepNo) -> Result<Option<String>> {
        let plan = db.plan(run.plan)?;
        let step = Table::<StepRow>::load(db, (run.id, no))?;
        Ok(plan.zip(step).map(|(plan, step)| step_name(&plan, &step)))
    }
}
