//! Unsettled steps, and the rows that explain why a run waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, ExecutionStatus, Plan, RunId, RunStatus, StepNo, StepStatus, WorkKind};

use super::runs::{PlannedRun, planned_run};
use super::{Queries, shown_workers};
use crate::accounts::{AccountWait, account_wait};
use crate::backend::{Backend, Table};
use crate::error::Result;
use crate::ops::hosts_of_files;
use crate::rows::{
    EnvironmentRow, ExecutionRow, GateKind, GateRow, Refusal, Row, RunRow, StepRow, WorkerRow,
};

/// The most unsettled steps of a run in an [`OpenWork`].
const MOST_STEPS: usize = 500;
/// The deepest nesting of child runs in an [`OpenWork`].
const DEEPEST: u32 = 8;

/// The steps of a live run that have begun or could begin, and the same of its child runs.
#[derive(Debug, Clone)]
pub struct OpenWork {
    /// The run.
    pub run: RunRow,
    /// The run's plan; absent for a run that is queued or has ended, and in an incomplete database.
    pub plan: Option<Arc<Plan>>,
    /// The run's open gates, oldest first.
    pub gates: Vec<GateRow>,
    /// The pending and running steps, in order, without fan-outs: their items are steps of their own.
    pub steps: Vec<OpenStep>,
}

/// A step that has begun or could begin, with the rows of its work.
#[derive(Debug, Clone)]
pub struct OpenStep {
    /// The step.
    pub row: StepRow,
    /// The step's present attempt, if a worker or a claimer executes it.
    pub execution: Option<ExecutionRow>,
    /// The reason why its execution waits for its account; absent if it does not.
    pub account: Option<AccountWait>,
    /// The step's child run.
    pub child: Option<Box<OpenWork>>,
}

/// A run's unsettled steps and open gates.
#[derive(Debug, Clone)]
pub struct UnsettledRun {
    /// The run.
    pub run: RunRow,
    /// The run's plan; absent only in an incomplete database.
    pub plan: Option<Arc<Plan>>,
    /// The steps that have not settled, in order.
    pub steps: Vec<StepRow>,
    /// The run's open gates, oldest first.
    pub gates: Vec<GateRow>,
}

/// The rows that explain why a run waits.
#[derive(Debug, Clone)]
pub struct WaitFacts {
    /// The run's steps, in order.
    pub steps: Vec<StepRow>,
    /// The run's attempts, by step and attempt.
    pub executions: Vec<ExecutionRow>,
    /// The run's open gates, oldest first.
    pub gates: Vec<GateRow>,
    /// The refused events of the run, oldest first.
    pub refusals: Vec<Refusal>,
    /// The run's environments, in order.
    pub environments: Vec<EnvironmentRow>,
    /// The workers that people are shown.
    pub workers: Vec<WorkerRow>,
    /// The group for whose place a queued run waits; absent if it has none.
    pub group: Option<Arc<str>>,
    /// The runs that hold the places of that group, in order.
    pub place_holders: Vec<RunId>,
    /// The reasons why executions wait for their accounts.
    pub accounts: BTreeMap<ExecutionId, AccountWait>,
    /// The hosts that have the run's files.
    pub hosts: Vec<Arc<str>>,
}

impl Queries<'_> {
    /// Returns the steps of a run that have begun or could begin, with the rows of their work, and the same of its child
    /// runs: at most 500 steps of each run, and eight levels of child runs.
    pub fn open_work(self, run: &RunRow) -> Result<OpenWork> {
        self.look(|db| open_work(db, run.clone(), 0))
    }

    /// Returns a run's unsettled steps and open gates.
    pub fn unsettled(self, run: RunId) -> Result<Option<UnsettledRun>> {
        self.look(|db| {
            let Some(PlannedRun { run: row, plan }) = planned_run(db, run)? else { return Ok(None) };
            let mut steps = Vec::new();
            for no in db.unsettled(run)? {
                steps.extend(Table::<StepRow>::load(db, (run, no))?);
            }
            Ok(Some(UnsettledRun { run: row, plan, steps, gates: db.open_gates(run)? }))
        })
    }

    /// Returns the open questions of a run and of its live child runs, at any depth.
    pub fn open_questions(self, run: RunId) -> Result<Vec<GateRow>> {
        self.look(|db| {
            let mut open = Vec::new();
            let mut runs = vec![run];
            while let Some(run) = runs.pop() {
                let gates = db.open_gates(run)?;
                open.extend(gates.into_iter().filter(|gate| gate.kind == GateKind::Question));
                runs.extend(db.children(run)?);
            }
            Ok(open)
        })
    }

    /// Returns the rows that explain why a run waits.
    pub fn wait_facts(self, run: &RunRow) -> Result<WaitFacts> {
        self.look(|db| {
            let mut group = run.group.clone();
            if let Some(second) = db.plan(run.plan)?.and_then(|plan| plan.second_group.clone())
                && !db.places(&second)?.is_empty()
            {
                group = Some(second);
            }
            let place_holders = match &group {
                Some(group) => db.places(group)?,
                None => Vec::new(),
            };
            let (now, executions) = (db.now(), db.executions(run.id)?);
            let mut accounts = BTreeMap::new();
            for row in executions.iter().filter(|row| row.status() == ExecutionStatus::Requested) {
                accounts.extend(account_wait(db, row, now)?.map(|wait| (row.id, wait)));
            }
            Ok(WaitFacts {
                steps: db.steps(run.id)?,
                executions,
                accounts,
                gates: db.open_gates(run.id)?,
                refusals: db.refusals(run.id)?,
                environments: db.environments_of(run.id)?,
                workers: shown_workers(db)?,
                group,
                place_holders,
                hosts: hosts_of_files(db, run)?,
            })
        })
    }

    /// Returns the tasks of a board that a task needs, in order.
    pub fn task_needs(self, board: RunId, task: StepNo) -> Result<Vec<StepNo>> {
        self.look(|db| Ok(db.task_needs(board, task)?.iter().map(|need| need.item).collect()))
    }
}

fn open_work(db: &mut dyn Backend, run: RunRow, depth: u32) -> Result<OpenWork> {
    let mut open = OpenWork { run, plan: None, gates: Vec::new(), steps: Vec::new() };
    let status = open.run.status();
    if status.is_terminal() || status == RunStatus::Queued || depth > DEEPEST {
        return Ok(open);
    }
    let Some(plan) = db.plan(open.run.plan)? else { return Ok(open) };
    let id = open.run.id;
    open.gates = db.open_gates(id)?;
    for no in db.unsettled(id)?.into_iter().take(MOST_STEPS) {
        let Some(row) = Table::<StepRow>::load(db, (id, no))? else { continue };
        let has_begun = matches!(row.status(), StepStatus::Pending | StepStatus::Running);
        if !has_begun || row.items.is_some() {
            continue;
        }
        let mut step = OpenStep { row, execution: None, account: None, child: None };
        let is_gate = open.gates.iter().any(|gate| Some(gate.id) == step.row.work);
        match (plan.step(step.row.node()).work, step.row.work) {
            _ if is_gate => {}
            (WorkKind::Child, Some(child)) => {
                if let Some(child) = Table::<RunRow>::load(db, RunId::from_i64(child))? {
                    step.child = Some(Box::new(open_work(db, child, depth + 1)?));
                }
            }
            _ => {
                let attempt = ExecutionId { run: id, step: no, attempt: step.row.attempt };
                step.execution = Table::<ExecutionRow>::load(db, attempt)?;
                let now = db.now();
                let requested = step.execution.iter().find(|row| row.status() == ExecutionStatus::Requested);
                step.account = requested.map(|row| account_wait(db, row, now)).transpose()?.flatten();
            }
        }
        open.steps.push(step);
    }
    open.plan = Some(plan);
    Ok(open)
}
