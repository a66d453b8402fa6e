//! The kind of thing that a run or a step waits for, in one word: what lists show beside a status. It is derived from the
//! rows whenever it is asked for; no status says it.

use std::collections::BTreeMap;

use serde::Serialize;
use sprag_lifecycle::{ExecutionId, ExecutionStatus, Plan, RunId, RunStatus, StepNo, StepStatus, WorkKind};
use sprag_store::{Backend, ExecutionRow, GateKind, GateRow, Now, Row, RunRow, StepRow, Table};

use crate::App;
use crate::error::Error;

/// The most unsettled steps of a run that are looked at.
const MOST_STEPS: usize = 500;
/// The deepest nesting of child runs that is searched.
const DEEPEST: u32 = 8;

/// The kind of thing that a run or a step waits for. The first of them counts, if a run waits for several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum WaitingFor {
    /// A person's answer to a question.
    Person,
    /// An agent or a person who claims a task.
    Task,
    /// A signal from outside.
    Signal,
    /// A place in its concurrency group.
    Group,
    /// A worker that takes a step, or a place in its queue.
    Worker,
    /// A time: the end of a `wait`, or of the delay before the next attempt.
    Time,
}

impl WaitingFor {
    /// Returns the word that people and programs see.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitingFor::Person => "person",
            WaitingFor::Task => "task",
            WaitingFor::Signal => "signal",
            WaitingFor::Group => "group",
            WaitingFor::Worker => "worker",
            WaitingFor::Time => "time",
        }
    }
}

/// What a run and its steps wait for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunWaits {
    /// What the run as a whole waits for. A question counts at any time, everything else only while no worker executes
    /// a step of the run.
    pub run: Option<WaitingFor>,
    /// What each of its steps waits for, by number.
    pub steps: BTreeMap<StepNo, WaitingFor>,
}

impl App {
    /// Returns what a run and its steps wait for; nothing if it has ended.
    pub fn waiting_for(&self, run: &RunRow) -> Result<RunWaits, Error> {
        if run.status().is_terminal() {
            return Ok(RunWaits::default());
        }
        let now = self.now();
        Ok(self.store.read(|db| look(db, run, now, 0))?)
    }

    /// Returns what each of these runs waits for.
    pub fn all_waiting_for(&self, runs: &[RunRow]) -> Result<Vec<Option<WaitingFor>>, Error> {
        runs.iter().map(|run| Ok(self.waiting_for(run)?.run)).collect()
    }
}

fn look(db: &mut dyn Backend, run: &RunRow, now: Now, depth: u32) -> sprag_store::Result<RunWaits> {
    let mut waits = RunWaits::default();
    if run.status().is_terminal() || depth > DEEPEST {
        return Ok(waits);
    }
    if run.status() == RunStatus::Queued {
        waits.run = Some(WaitingFor::Group);
        return Ok(waits);
    }
    let Some(plan) = db.plan(run.plan)? else { return Ok(waits) };
    let gates = db.open_gates(run.id)?;
    let mut works = false;
    for no in db.unsettled(run.id)?.into_iter().take(MOST_STEPS) {
        let Some(step) = Table::<StepRow>::load(db, (run.id, no))? else { continue };
        if !matches!(step.status(), StepStatus::Pending | StepStatus::Running) || step.items.is_some() {
            continue;
        }
        match of_step(db, &plan, &gates, &step, now, depth)? {
            Some(wait) => {
                waits.steps.insert(no, wait);
            }
            None => works = true,
        }
    }
    let first = waits.steps.values().min().copied();
    waits.run = first.filter(|first| !works || *first == WaitingFor::Person);
    Ok(waits)
}

/// Returns what a step that has begun, or could begin, waits for; nothing if it is being executed.
fn of_step(
    db: &mut dyn Backend,
    plan: &Plan,
    gates: &[GateRow],
    step: &StepRow,
    now: Now,
    depth: u32,
) -> sprag_store::Result<Option<WaitingFor>> {
    if let Some(gate) = gates.iter().find(|gate| Some(gate.id) == step.work) {
        return Ok(Some(match gate.kind {
            GateKind::Question => WaitingFor::Person,
            GateKind::Signal => WaitingFor::Signal,
            GateKind::Time => WaitingFor::Time,
        }));
    }
    let work = plan.step(step.node()).work;
    if let (WorkKind::Child, Some(child)) = (work, step.work) {
        let Some(child) = Table::<RunRow>::load(db, RunId::from_i64(child))? else { return Ok(None) };
        return Ok(look(db, &child, now, depth + 1)?.run);
    }
    let id = ExecutionId { run: step.run, step: step.no, attempt: step.attempt };
    let Some(row) = Table::<ExecutionRow>::load(db, id)? else { return Ok(None) };
    let waits = matches!(
        row.status(),
        ExecutionStatus::Requested | ExecutionStatus::Scheduling | ExecutionStatus::Scheduled
    );
    Ok(match work {
        _ if !waits => None,
        _ if row.not_before_ms > now.steady_ms => Some(WaitingFor::Time),
        WorkKind::Task => Some(WaitingFor::Task),
        _ => Some(WaitingFor::Worker),
    })
}
