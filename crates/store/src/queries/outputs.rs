//! The outputs of steps as they are stored: of a handler or a command, a question, a child run, a fan-out.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use sprag_lifecycle::{ExecutionId, Plan, RunId, StepNo, StepStatus, WorkKind};

use super::Queries;
use super::runs::{PlannedRun, planned_run};
use crate::backend::{Backend, Table};
use crate::error::Result;
use crate::names::{is_current, run_outputs};
use crate::rows::{ExecutionRow, GateRow, Row, StepRow};

/// The output of a step that has succeeded. Texts are JSON, unparsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepOutput {
    /// The result that a worker or a claimer reported; absent if it reported none.
    Reported(Option<Arc<str>>),
    /// The answer to a question, or the payload of a signal; absent after a wait for a time.
    Answer(Option<Arc<str>>),
    /// The outputs of a fan-out's items, in the order of its list; absent where an item has not succeeded.
    Items(Vec<Option<StepOutput>>),
    /// The outputs of a child run's planned steps, with their ids; absent where a step has not succeeded.
    Run(Vec<(String, Option<StepOutput>)>),
    /// The outputs that the pipeline of a child run declares, evaluated.
    Declared(Value),
}

impl Queries<'_> {
    /// Returns the outputs that a run's pipeline declares, evaluated from the run's rows; none if it declares none.
    pub fn run_outputs(self, run: RunId) -> Result<Option<Value>> {
        self.look(|db| run_outputs(db, run))
    }

    /// Returns the values of these items of fan-outs, as JSON, by their numbers. All are steps of one run.
    pub fn item_values(self, items: &[&StepRow]) -> Result<BTreeMap<StepNo, Arc<str>>> {
        self.look(|db| {
            let (mut values, mut made_by) = (BTreeMap::new(), BTreeMap::new());
            for step in items {
                let (Some(parent), Some(index)) = (step.item_of, step.item) else { continue };
                let attempt = match made_by.get(&parent) {
                    Some(attempt) => *attempt,
                    None => {
                        let list = Table::<StepRow>::load(db, (step.run, parent))?.and_then(|row| row.items);
                        let attempt = list.map(|list| list.made_by);
                        made_by.insert(parent, attempt);
                        attempt
                    }
                };
                let Some(attempt) = attempt else { continue };
                let list = ExecutionId { run: step.run, step: parent, attempt };
                if let Some(value) = db.item(list, index)? {
                    values.insert(step.no, value);
                }
            }
            Ok(values)
        })
    }

    /// Returns the output of a step; none if it has not succeeded, or not yet.
    pub fn step_output(self, run: RunId, no: StepNo) -> Result<Option<StepOutput>> {
        self.look(|db| {
            let Some(PlannedRun { plan: Some(plan), .. }) = planned_run(db, run)? else { return Ok(None) };
            let steps = db.steps(run)?;
            match steps.iter().find(|row| row.no == no) {
                Some(row) => output_of(db, &plan, &steps, row),
                None => Ok(None),
            }
        })
    }
}

/// Returns the output of a step among `steps`, which are all steps of its run.
fn output_of(
    db: &mut dyn Backend,
    plan: &Plan,
    steps: &[StepRow],
    row: &StepRow,
) -> Result<Option<StepOutput>> {
    if row.status() != StepStatus::Done {
        return Ok(None);
    }
    if row.items.is_some() {
        let items = steps.iter().filter(|item| item.item_of == Some(row.no) && is_current(steps, item));
        let mut outputs = Vec::new();
        for item in items {
            outputs.push(output_of(db, plan, steps, item)?);
        }
        return Ok(Some(StepOutput::Items(outputs)));
    }
    Ok(Some(match plan.step(row.node()).work {
        WorkKind::Execution | WorkKind::Task => {
            let id = ExecutionId { run: row.run, step: row.no, attempt: row.attempt };
            let execution = Table::<ExecutionRow>::load(db, id)?;
            StepOutput::Reported(execution.and_then(|execution| execution.result))
        }
        WorkKind::Gate | WorkKind::Wait | WorkKind::End => {
            let gate = row.work.map(|gate| Table::<GateRow>::load(db, gate)).transpose()?.flatten();
            StepOutput::Answer(gate.and_then(|gate| gate.answer))
        }
        WorkKind::Child => match row.work {
            Some(child) => {
                let child = RunId::from_i64(child);
                match run_outputs(db, child)? {
                    Some(outputs) => StepOutput::Declared(outputs),
                    None => StepOutput::Run(outputs_of_run(db, child)?),
                }
            }
            None => StepOutput::Run(Vec::new()),
        },
    }))
}

/// Returns the outputs of a run's planned steps, with their ids.
fn outputs_of_run(db: &mut dyn Backend, run: RunId) -> Result<Vec<(String, Option<StepOutput>)>> {
    let Some(PlannedRun { plan: Some(plan), .. }) = planned_run(db, run)? else { return Ok(Vec::new()) };
    let steps = db.steps(run)?;
    let mut outputs = Vec::new();
    for step in steps.iter().filter(|step| (step.no as usize) < plan.steps.len()) {
        let output = output_of(db, &plan, &steps, step)?;
        outputs.push((plan.step(step.no).id.clone(), output));
    }
    Ok(outputs)
}
