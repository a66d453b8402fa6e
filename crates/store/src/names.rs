//! What a step's texts can name: the run's inputs, and what became of the steps before it.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sprag_lifecycle::{
    ExecutionId, ExecutionStatus, GateStatus, Plan, PlanStep, RunId, StepNo, StepStatus, WorkKind,
};

use crate::error::Result;
use crate::rows::{ExecutionRow, GateRow, Row, RunRow, StepRow};
use crate::session::Session;

/// The key under which an item's value stands among the names, before the language has placed it.
pub const ITEM: &str = "item";

/// A step's name for people: its id, and which item of a fan-out it is.
pub fn step_name(plan: &Plan, row: &StepRow) -> String {
    let id = plan.steps.get(row.node() as usize).map_or("?", |step| step.id.as_str());
    match row.item {
        // The tasks of a board are counted as people do, and there is nothing else to call them by.
        Some(_) if is_task(plan, row) => format!("{id}-{}", row.no),
        Some(index) => format!("{id}[{index}]"),
        None => id.to_owned(),
    }
}

/// Whether a step is a task of a board.
pub fn is_task(plan: &Plan, row: &StepRow) -> bool {
    let planned = plan.steps.get(row.node() as usize);
    row.item_of.is_some() && planned.and_then(|step| step.spread).is_some_and(|spread| spread.open)
}

/// Everything that the texts of this step can name.
pub(crate) fn names(session: &mut Session<'_>, plan: &Plan, run: &RunRow, step: &StepRow) -> Result<Value> {
    let inputs: Value = serde_json::from_str(&run.inputs).unwrap_or(Value::Null);
    let mut names = json!({ "inputs": inputs, "run": run_names(run.id, plan) });
    if let Some(branch) = session.language().branch(plan, &run.id.to_string()) {
        names["run"]["branch"] = branch.into();
    }
    names["steps"] = step_names(session, plan, run.id, step)?;
    if let Some(item) = item_value(session, step)? {
        names[ITEM] = serde_json::from_str(&item).unwrap_or(Value::Null);
    }
    Ok(names)
}

/// What texts can name of a run.
pub fn run_names(run: RunId, plan: &Plan) -> Value {
    json!({ "id": run.to_string(), "name": format!("{}-{run}", plan.name) })
}

/// What the texts of a step can name of the steps that it reads, itself included.
pub(crate) fn step_names(
    session: &mut Session<'_>,
    plan: &Plan,
    run: RunId,
    step: &StepRow,
) -> Result<Value> {
    let mut known = Map::new();
    for no in &plan.step(step.node()).reads {
        let named = if *no == step.node() {
            json!({ "attempt": step.attempt, "feedback": step.feedback.as_deref().unwrap_or("") })
        } else {
            let Some(row) = session.get::<StepRow>((run, *no))? else { continue };
            let outputs = outputs(session, plan, &row)?;
            json!({
                "status": row.status(),
                "attempt": row.attempt,
                "feedback": row.feedback.as_deref().unwrap_or(""),
                "outputs": outputs,
            })
        };
        known.insert(plan.step(*no).id.clone(), named);
    }
    Ok(Value::Object(known))
}

/// The value of the item that a step stands for, as JSON.
pub(crate) fn item_value(session: &mut Session<'_>, step: &StepRow) -> Result<Option<Arc<str>>> {
    let (Some(parent), Some(index)) = (step.item_of, step.item) else { return Ok(None) };
    match session.get::<StepRow>((step.run, parent))?.and_then(|row| row.items) {
        Some(list) => {
            session.db().item(ExecutionId { run: step.run, step: parent, attempt: list.made_by }, index)
        }
        None => Ok(None),
    }
}

/// On what terms a step's work is handed over.
pub(crate) struct Terms {
    /// The queue it waits in.
    pub(crate) queue: Arc<str>,
    /// Higher is claimed first.
    pub(crate) priority: i32,
}

/// The terms of the plan; a board's task may have its own.
pub(crate) fn terms(session: &mut Session<'_>, planned: &PlanStep, step: &StepRow) -> Result<Terms> {
    let mut terms = Terms { queue: planned.queue.as_str().into(), priority: planned.priority };
    if planned.spread.is_some_and(|spread| spread.open)
        && let Some(task) = item_value(session, step)?
    {
        let task: Value = serde_json::from_str(&task).unwrap_or_default();
        if let Some(queue) = task["queue"].as_str() {
            terms.queue = queue.into();
        }
        if let Some(priority) = task["priority"].as_i64() {
            terms.priority = i32::try_from(priority).unwrap_or_default();
        }
    }
    Ok(terms)
}

/// What a step has handed on: the outputs of its work, of its items as lists, of a child run by its steps.
pub(crate) fn outputs(session: &mut Session<'_>, plan: &Plan, row: &StepRow) -> Result<Value> {
    if row.items.is_some() {
        return item_outputs(session, plan, row);
    }
    if row.status() != StepStatus::Done && row.status() != StepStatus::Failed {
        return Ok(json!({}));
    }
    match plan.step(row.node()).work {
        WorkKind::Execution | WorkKind::Task => {
            let id = ExecutionId { run: row.run, step: row.no, attempt: row.attempt };
            let result = session.get::<ExecutionRow>(id)?.and_then(|execution| execution.result);
            Ok(result.map_or_else(|| json!({}), |text| outputs_of(&text)))
        }
        WorkKind::Gate | WorkKind::Wait => {
            let Some(gate) = row.work else { return Ok(json!({})) };
            let answer = session.get::<GateRow>(gate)?.and_then(|gate| gate.answer);
            Ok(answer.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_else(|| json!({})))
        }
        WorkKind::Child => {
            let Some(child) = row.work else { return Ok(json!({})) };
            run_outputs(session, RunId::from_i64(child))
        }
    }
}

/// The outputs in the result that a worker reported.
pub fn outputs_of(result: &str) -> Value {
    let result: Value = serde_json::from_str(result).unwrap_or(Value::Null);
    match (result.get("outputs"), result.get("output")) {
        (Some(outputs), _) => outputs.clone(),
        (None, Some(Value::Object(output))) => Value::Object(output.clone()),
        (None, Some(output)) => json!({ "value": output }),
        (None, None) => json!({}),
    }
}

/// Each output's values over the items, in the list's order; `null` where an item has none.
fn item_outputs(session: &mut Session<'_>, plan: &Plan, row: &StepRow) -> Result<Value> {
    let mut lists: Map<String, Value> = Map::new();
    let items = session.item_rows(row.run, row.no)?;
    for (at, item) in items.iter().enumerate() {
        let Value::Object(of_item) = outputs(session, plan, item)? else { continue };
        for (name, value) in of_item {
            let list = lists.entry(name).or_insert_with(|| Value::Array(vec![Value::Null; items.len()]));
            list[at] = value;
        }
    }
    Ok(Value::Object(lists))
}

/// The outputs of a run's steps, by their ids.
fn run_outputs(session: &mut Session<'_>, run: RunId) -> Result<Value> {
    let Some(row) = session.get::<RunRow>(run)? else { return Ok(json!({})) };
    let plan = session.plan(run, row.plan)?;
    let mut all = Map::new();
    for (no, planned) in plan.steps.iter().enumerate() {
        let Some(step) = session.get::<StepRow>((run, no as StepNo))? else { continue };
        all.insert(planned.id.clone(), outputs(session, &plan, &step)?);
    }
    Ok(Value::Object(all))
}

/// A failure in words, for whoever tries again: what failed, how, and the end of what it said.
pub(crate) fn failure(session: &mut Session<'_>, plan: &Plan, row: &StepRow) -> Result<Option<Arc<str>>> {
    let name = step_name(plan, row);
    if row.items.is_some() {
        let items = session.item_rows(row.run, row.no)?;
        let mut told = Vec::new();
        for item in items.iter().filter(|item| item.status() == StepStatus::Failed) {
            told.extend(failure(session, plan, item)?);
        }
        return Ok((!told.is_empty()).then(|| told.join("\n").into()));
    }
    let told = match plan.step(row.node()).work {
        WorkKind::Gate | WorkKind::Wait => gate_failure(session, row)?,
        WorkKind::Child => {
            row.work.map(|child| format!("its run {} did not succeed", RunId::from_i64(child)))
        }
        WorkKind::Execution | WorkKind::Task => {
            let id = ExecutionId { run: row.run, step: row.no, attempt: row.attempt };
            session.get::<ExecutionRow>(id)?.map(|execution| execution_failure(&execution))
        }
    };
    Ok(told.map(|told| format!("step `{name}` failed: {told}").into()))
}

fn gate_failure(session: &mut Session<'_>, row: &StepRow) -> Result<Option<String>> {
    let Some(gate) = row.work else { return Ok(None) };
    let Some(gate) = session.get::<GateRow>(gate)? else { return Ok(None) };
    if gate.status() == GateStatus::Expired {
        return Ok(Some("nobody answered in time".into()));
    }
    let answer: Value =
        gate.answer.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let choice = answer["choice"].as_str().unwrap_or("no");
    Ok(Some(match answer["comment"].as_str() {
        Some(comment) => format!("the answer was {choice:?}: {comment}"),
        None => format!("the answer was {choice:?}"),
    }))
}

fn execution_failure(row: &ExecutionRow) -> String {
    let result: Value =
        row.result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut told = match (row.status(), result["message"].as_str(), result["exit_code"].as_i64()) {
        (ExecutionStatus::TimedOut, _, _) => "it took too long and was ended".to_owned(),
        (_, Some(message), _) => message.to_owned(),
        (_, None, Some(code)) => format!("exit code {code}"),
        _ => row.status().to_string(),
    };
    if let Some(tail) = result["tail"].as_str().filter(|tail| !tail.is_empty()) {
        told.push('\n');
        told.push_str(tail);
    }
    told
}
