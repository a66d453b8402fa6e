//! Runs with what belongs to them: plan, steps, attempts, environments.

use std::sync::Arc;

use sprag_lifecycle::{Execution, ExecutionPredicate, ExecutionStatus, Plan, RunId, WorkKind};

use super::Queries;
use crate::backend::{Backend, Table};
use crate::error::Result;
use crate::names::{is_current, step_name};
use crate::ops::Lease;
use crate::outcome::Outcome;
use crate::rows::{EnvironmentRow, ExecutionRow, Id, Row, RunRow, StepRow};

/// A run and its plan.
#[derive(Debug, Clone)]
pub struct PlannedRun {
    /// The run.
    pub run: RunRow,
    /// The run's plan; absent only in an incomplete database.
    pub plan: Option<Arc<Plan>>,
}

/// A run, its plan and its steps.
#[derive(Debug, Clone)]
pub struct RunWithSteps {
    /// The run.
    pub run: RunRow,
    /// The run's plan; absent only in an incomplete database.
    pub plan: Option<Arc<Plan>>,
    /// The run's steps, in order; the items of its fan-outs follow its planned steps.
    pub steps: Vec<StepRow>,
}

/// A run, its plan, its steps and all attempts at them.
#[derive(Debug, Clone)]
pub struct RunInFull {
    /// The run.
    pub run: RunRow,
    /// The run's plan; absent only in an incomplete database.
    pub plan: Option<Arc<Plan>>,
    /// The run's steps, in order; the items of its fan-outs follow its planned steps.
    pub steps: Vec<StepRow>,
    /// The run's attempts, by step and attempt.
    pub executions: Vec<ExecutionRow>,
}

/// A run and its environments.
#[derive(Debug, Clone)]
pub struct RunEnvironments {
    /// The run; absent once it is forgotten.
    pub run: Option<RunRow>,
    /// The run's environments, in order. Their rows stay after the run is forgotten.
    pub environments: Vec<EnvironmentRow>,
}

/// A task that waits in a queue, or that an agent or a person has claimed.
#[derive(Debug, Clone)]
pub struct OpenTask {
    /// The attempt at the step.
    pub execution: ExecutionRow,
    /// The step's name.
    pub step: String,
    /// The pipeline's name.
    pub pipeline: String,
}

impl Queries<'_> {
    /// Returns a run and its plan. Between two reads, another process could forget both.
    pub fn planned_run(self, id: RunId) -> Result<Option<PlannedRun>> {
        self.look(|db| planned_run(db, id))
    }

    /// Returns a run's plan.
    pub fn plan_of(self, run: RunId) -> Result<Option<Arc<Plan>>> {
        Ok(self.planned_run(run)?.and_then(|planned| planned.plan))
    }

    /// Returns a run, its plan and its steps.
    pub fn run_with_steps(self, id: RunId) -> Result<Option<RunWithSteps>> {
        self.look(|db| {
            let Some(PlannedRun { run, plan }) = planned_run(db, id)? else { return Ok(None) };
            Ok(Some(RunWithSteps { run, plan, steps: db.steps(id)? }))
        })
    }

    /// Returns a run, its plan, its steps and all attempts at them.
    pub fn run_in_full(self, id: RunId) -> Result<Option<RunInFull>> {
        self.look(|db| run_in_full(db, id))
    }

    /// Returns a run, and those of its child runs at any depth that work in the run's environment because they have none
    /// of their own.
    pub fn runs_in_environment(self, run: RunId) -> Result<Vec<RunInFull>> {
        self.look(|db| {
            let mut found = Vec::new();
            let mut runs = vec![run];
            while let Some(of) = runs.pop() {
                let Some(full) = run_in_full(db, of)? else { continue };
                let Some(plan) = &full.plan else { continue };
                if of != run && plan.environment.is_some() {
                    continue;
                }
                for step in full.steps.iter().filter(|step| is_current(&full.steps, step)) {
                    if let (WorkKind::Child, Some(child)) = (plan.step(step.node()).work, step.work) {
                        runs.push(RunId::from_i64(child));
                    }
                }
                found.push(full);
            }
            Ok(found)
        })
    }

    /// Returns a run and its environments.
    pub fn run_and_environments(self, run: RunId) -> Result<RunEnvironments> {
        self.look(|db| {
            let row = Table::<RunRow>::load(db, run)?;
            Ok(RunEnvironments { run: row, environments: db.environments_of(run)? })
        })
    }

    /// Returns the tasks of a run that wait for an agent or a person, or that one has claimed: those of one queue, or of
    /// all.
    pub fn open_tasks(self, run: RunId, queue: Option<&str>) -> Result<Vec<OpenTask>> {
        self.look(|db| {
            let Some(PlannedRun { run: row, plan: Some(plan) }) = planned_run(db, run)? else {
                return Ok(Vec::new());
            };
            let mut tasks = Vec::new();
            for execution in db.executions(run)?.into_iter().filter(|row| !row.status().is_terminal()) {
                let Some(step) = Table::<StepRow>::load(db, (run, execution.id.step))? else { continue };
                let is_task = plan.step(step.node()).work == WorkKind::Task;
                if is_task && queue.is_none_or(|queue| queue == &*execution.queue) {
                    let step = step_name(&plan, &step);
                    tasks.push(OpenTask { execution, step, pipeline: row.pipeline.to_string() });
                }
            }
            Ok(tasks)
        })
    }

    /// Returns the name of an execution's step, if this worker may send its log: while the worker holds the execution,
    /// after its own report, and after the execution was taken from it. No other worker runs that attempt then, and its
    /// log is evidence.
    pub fn log_of(self, worker: Id, lease: Lease) -> Result<std::result::Result<String, Outcome<Execution>>> {
        self.look(|db| {
            let id = lease.execution;
            let Some(row) = Table::<ExecutionRow>::load(db, id)? else { return Ok(Err(Outcome::NotFound)) };
            let taken_away = row.status() == ExecutionStatus::Abandoned && row.fence == lease.fence + 1;
            if (row.fence != lease.fence && !taken_away) || row.owner != Some(worker) {
                return Ok(Err(Outcome::Superseded(ExecutionPredicate::MatchingFence)));
            }
            let plan = planned_run(db, id.run)?.and_then(|planned| planned.plan);
            let step = Table::<StepRow>::load(db, (id.run, id.step))?;
            Ok(match (plan, step) {
                (Some(plan), Some(step)) => Ok(step_name(&plan, &step)),
                _ => Err(Outcome::NotFound),
            })
        })
    }
}

pub(super) fn planned_run(db: &mut dyn Backend, id: RunId) -> Result<Option<PlannedRun>> {
    let Some(run) = Table::<RunRow>::load(db, id)? else { return Ok(None) };
    let plan = db.plan(run.plan)?;
    Ok(Some(PlannedRun { run, plan }))
}

pub(crate) fn run_in_full(db: &mut dyn Backend, id: RunId) -> Result<Option<RunInFull>> {
    let Some(PlannedRun { run, plan }) = planned_run(db, id)? else { return Ok(None) };
    Ok(Some(RunInFull { run, plan, steps: db.steps(id)?, executions: db.executions(id)? }))
}
