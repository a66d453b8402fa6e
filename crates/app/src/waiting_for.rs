//! The kind of thing that a run or a step waits for, in one word: what lists show beside a status. It is derived from the
//! rows whenever it is asked for; no status says it.

use std::collections::BTreeMap;

use serde::Serialize;
use sprag_lifecycle::{ExecutionStatus, Plan, RunStatus, StepNo, WorkKind};
use sprag_store::{GateKind, GateRow, Now, OpenStep, OpenWork, Row, RunRow};

use crate::App;
use crate::error::Error;

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
    /// An account of coding agents: the end of a hold, or a place.
    Account,
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
            WaitingFor::Account => "account",
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
    /// The number of questions that it asks.
    pub questions: usize,
}

impl App {
    /// Returns what a run and its steps wait for; nothing if it has ended.
    pub fn waiting_for(&self, run: &RunRow) -> Result<RunWaits, Error> {
        if run.status().is_terminal() {
            return Ok(RunWaits::default());
        }
        let now = self.now();
        Ok(waits_of(&self.store.queries().open_work(run)?, now))
    }

    /// Returns what each of these runs waits for.
    pub fn all_waiting_for(&self, runs: &[RunRow]) -> Result<Vec<RunWaits>, Error> {
        runs.iter().map(|run| self.waiting_for(run)).collect()
    }
}

pub(crate) fn waits_of(open: &OpenWork, now: Now) -> RunWaits {
    let mut waits = RunWaits::default();
    if open.run.status() == RunStatus::Queued {
        waits.run = Some(WaitingFor::Group);
        return waits;
    }
    let Some(plan) = &open.plan else { return waits };
    waits.questions = open.gates.iter().filter(|gate| gate.kind == GateKind::Question).count();
    let mut works = false;
    // A service runs for the other steps: what they wait for counts.
    for step in open.steps.iter().filter(|step| !plan.step(step.row.node()).service) {
        match of_step(plan, &open.gates, step, now) {
            Some(wait) => {
                waits.steps.insert(step.row.no, wait);
            }
            None => works = true,
        }
    }
    let first = waits.steps.values().min().copied();
    waits.run = first.filter(|first| !works || *first == WaitingFor::Person);
    waits
}

/// Returns what a step that has begun, or could begin, waits for; nothing if it is being executed.
fn of_step(plan: &Plan, gates: &[GateRow], step: &OpenStep, now: Now) -> Option<WaitingFor> {
    if let Some(gate) = gates.iter().find(|gate| Some(gate.id) == step.row.work) {
        return Some(match gate.kind {
            GateKind::Question => WaitingFor::Person,
            GateKind::Signal => WaitingFor::Signal,
            GateKind::Time => WaitingFor::Time,
        });
    }
    if let Some(child) = &step.child {
        return waits_of(child, now).run;
    }
    let row = step.execution.as_ref()?;
    let waits = matches!(
        row.status(),
        ExecutionStatus::Requested | ExecutionStatus::Scheduling | ExecutionStatus::Scheduled
    );
    match plan.step(step.row.node()).work {
        _ if !waits => None,
        _ if row.not_before_ms > now.steady_ms => Some(WaitingFor::Time),
        _ if step.account.is_some() => Some(WaitingFor::Account),
        WorkKind::Task => Some(WaitingFor::Task),
        _ => Some(WaitingFor::Worker),
    }
}
