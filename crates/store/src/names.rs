//! The values that a step's texts can name: the run's inputs, and the results of the steps before it.

use std::sync::Arc;

use serde_json::{Value, json};
use sprag_lifecycle::{
    ExecutionId, ExecutionStatus, GateStatus, OUTER_INPUT, OnFail, Plan, PlanOutputs, PlanStep, RunId,
    RunStatus, StepNo, StepStatus, WorkKind, mutant,
};

use crate::backend::Backend;
use crate::error::Result;
use crate::gathered::{
    DeclaredOutputs, Failure, Gathered, Handed, NoRoom, Room, StepEnd, StepRead, StepsRead,
};
use crate::outside::TIMED_OUT;
use crate::rows::{ExecutionRow, GateRow, Row, RunRow, StepRow};
use crate::session::Session;

/// The key of an item's value among the names, before the evaluator has placed it.
pub const ITEM: &str = "item";
/// The key of an item's number among the names.
pub(crate) const ITEM_INDEX: &str = "item_index";
/// The key of the time among the names, for functions.
pub(crate) const NOW: &str = "now";

/// Puts the names around steps that are written inside a step in their places, if the run has them. A step's own names
/// come first.
pub(crate) fn unfold_outer(names: &mut Value) {
    let Some(mut outer) = names["inputs"].as_object_mut().and_then(|inputs| inputs.remove(OUTER_INPUT))
    else {
        return;
    };
    names["inputs"] = outer["inputs"].take();
    for key in [ITEM, ITEM_INDEX, "matrix"] {
        if let (true, Some(value)) = (names.get(key).is_none(), outer.get_mut(key)) {
            names[key] = value.take();
        }
    }
    if let (Some(own), Some(around)) = (names["steps"].as_object_mut(), outer["steps"].as_object_mut()) {
        for (id, read) in std::mem::take(around) {
            own.entry(id).or_insert(read);
        }
    }
}

/// The most bytes of feedback for the next attempt.
const FEEDBACK_BYTES: usize = 64 << 10;

/// Returns a step's name for people: its id, and the number of its item in a fan-out.
pub fn step_name(plan: &Plan, row: &StepRow) -> String {
    let id = plan.steps.get(row.node() as usize).map_or("?", |step| step.id.as_str());
    match row.item {
        // Tasks of a board are counted from 1, and have no other name.
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

/// Whether a step counts. An item of a list that has been made again since, or will be, does not.
pub fn is_current(steps: &[StepRow], step: &StepRow) -> bool {
    let Some(parent) = step.item_of else { return true };
    // Planned steps come first, in their order.
    let list = steps.get(parent as usize).and_then(|parent| parent.items);
    list.is_some_and(|list| step.no >= list.first)
}

/// Gathers all values that the texts of this step can name; [`NoRoom`] if they are too large.
pub(crate) fn names(
    session: &mut Session<'_>,
    plan: &Plan,
    run: &RunRow,
    step: &StepRow,
) -> Result<Result<Gathered, NoRoom>> {
    let mut room = Room::default();
    let mut own = run_names(run.id, plan);
    let status = if mutant!(RunStatusStale) { RunStatus::Running } else { run.status() };
    own["status"] = status.to_string().into();
    if let Some(branch) = session.evaluator().branch(plan, &run.id.to_string()) {
        own["branch"] = branch.into();
    }
    let now_ms = session.now().wall_ms;
    let item = item_value(session, step)?;
    let taken = room.take(&run.inputs).and_then(|()| room.take(item.as_deref().unwrap_or_default()));
    let steps = match taken {
        Ok(()) => step_names(session, plan, run.id, step, &mut room)?,
        Err(no_room) => Err(no_room),
    };
    Ok(steps.map(|steps| Gathered {
        inputs: Arc::clone(&run.inputs),
        run: own,
        steps,
        item,
        item_index: step.item,
        now_ms,
        bytes: room.taken(),
    }))
}

/// Returns the values of a run that texts can name.
pub fn run_names(run: RunId, plan: &Plan) -> Value {
    json!({ "id": run.to_string(), "name": format!("{}-{run}", plan.name) })
}

/// Gathers the values that the texts of a step can name of the steps that it reads, itself included; [`NoRoom`] if
/// they are too large.
pub(crate) fn step_names(
    session: &mut Session<'_>,
    plan: &Plan,
    run: RunId,
    step: &StepRow,
    room: &mut Room,
) -> Result<Result<StepsRead, NoRoom>> {
    let mut known = Vec::new();
    for no in &plan.step(step.node()).reads {
        let id = plan.step(*no).id.clone();
        if *no == step.node() {
            if room.take(step.feedback.as_deref().unwrap_or_default()).is_err() {
                return Ok(Err(NoRoom));
            }
            let last_round = match last_round(session, plan, step, room)? {
                Ok(last_round) => last_round,
                Err(no_room) => return Ok(Err(no_room)),
            };
            let (attempt, round, feedback) = (step.attempt, step.repeats + 1, step.feedback.clone());
            known.push(StepRead { id, attempt, round, last_round, feedback, ended: None });
            continue;
        }
        let Some(row) = session.get::<StepRow>((run, *no))? else { continue };
        match step_read(session, plan, row, room)? {
            Ok(read) => known.push(read),
            Err(no_room) => return Ok(Err(no_room)),
        }
    }
    Ok(Ok(StepsRead::new(known)))
}

/// Gathers the values that texts can name of a planned step.
fn step_read(
    session: &mut Session<'_>,
    plan: &Plan,
    row: StepRow,
    room: &mut Room,
) -> Result<Result<StepRead, NoRoom>> {
    if room.take(row.feedback.as_deref().unwrap_or_default()).is_err() {
        return Ok(Err(NoRoom));
    }
    let end = match step_end(session, plan, &row, room)? {
        Ok(end) => end,
        Err(no_room) => return Ok(Err(no_room)),
    };
    let planned = plan.step(row.no);
    let most = planned.repeat.map_or(1, |repeat| repeat.max);
    let ended = Some((row.status(), end));
    Ok(Ok(StepRead {
        id: planned.id.clone(),
        attempt: row.attempt,
        round: (row.repeats + 1).min(most),
        last_round: Handed::Nothing,
        feedback: row.feedback,
        ended,
    }))
}

/// Gathers the outputs of the last round of a step with `repeat` that another one followed.
fn last_round(
    session: &mut Session<'_>,
    plan: &Plan,
    row: &StepRow,
    room: &mut Room,
) -> Result<Result<Handed, NoRoom>> {
    let Some(last) = row.last_round else { return Ok(Ok(Handed::Nothing)) };
    if plan.step(row.node()).work == WorkKind::Child {
        return run_handed(session, RunId::from_i64(last), room);
    }
    let attempt = u32::try_from(last).unwrap_or_default();
    let id = ExecutionId { run: row.run, step: row.no, attempt };
    let result = session.get::<ExecutionRow>(id)?.and_then(|execution| execution.result);
    Ok(match result {
        Some(text) => room.take(&text).map(|()| Handed::Result(text)),
        None => Ok(Handed::Nothing),
    })
}

/// Returns the value of the step's item, as JSON.
pub(crate) fn item_value(session: &mut Session<'_>, step: &StepRow) -> Result<Option<Arc<str>>> {
    let (Some(parent), Some(index)) = (step.item_of, step.item) else { return Ok(None) };
    match session.get::<StepRow>((step.run, parent))?.and_then(|row| row.items) {
        Some(list) => {
            session.db().item(ExecutionId { run: step.run, step: parent, attempt: list.made_by }, index)
        }
        None => Ok(None),
    }
}

/// The queue and the priority with which a step's work is published.
pub(crate) struct Terms {
    /// The queue of the execution.
    pub(crate) queue: Arc<str>,
    /// The priority of the execution; workers claim higher ones first.
    pub(crate) priority: i32,
}

/// Returns the terms of the plan; a board's task may have its own.
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

/// Gathers the outputs of a step or an item, and the reason if it failed.
fn step_end(
    session: &mut Session<'_>,
    plan: &Plan,
    row: &StepRow,
    room: &mut Room,
) -> Result<Result<StepEnd, NoRoom>> {
    let handed = match handed(session, plan, row, room)? {
        Ok(handed) => handed,
        Err(no_room) => return Ok(Err(no_room)),
    };
    let failure = if row.status() == StepStatus::Failed && row.items.is_none() {
        failure_of(session, plan, row)?
    } else {
        Failure::None
    };
    // The result of an execution counts once more: its reason is in it.
    let more = match &failure {
        Failure::Execution(_, Some(result)) => room.take(result),
        Failure::Outside { message, .. } => room.take(message),
        Failure::None | Failure::Execution(_, None) => Ok(()),
    };
    Ok(more.map(|()| StepEnd { handed, failure }))
}

/// Returns the reason why a step without items failed.
fn failure_of(session: &mut Session<'_>, plan: &Plan, row: &StepRow) -> Result<Failure> {
    // A step whose texts could not be filled in has an execution too, whatever its work.
    let id = ExecutionId { run: row.run, step: row.no, attempt: row.attempt };
    if let Some(execution) = session.get::<ExecutionRow>(id)? {
        return Ok(Failure::Execution(execution.status(), execution.result));
    }
    let Some(work) = row.work else { return Ok(Failure::None) };
    Ok(match plan.step(row.node()).work {
        WorkKind::Gate | WorkKind::Wait | WorkKind::End => {
            let timed_out =
                session.get::<GateRow>(work)?.is_some_and(|gate| gate.status() == GateStatus::Expired);
            let message = gate_failure(session, row)?.unwrap_or_default();
            Failure::Outside { message, timed_out }
        }
        WorkKind::Child => {
            let child = RunId::from_i64(work);
            let run = session.get::<RunRow>(child)?;
            let timed_out = run.is_some_and(|run| run.reason.as_deref() == Some(TIMED_OUT));
            Failure::Outside { message: child_failure(session, child)?, timed_out }
        }
        WorkKind::Execution | WorkKind::Task => Failure::None,
    })
}

/// Gathers the outputs of a step: of its work, its items, or the steps of its child run. Loads rows only while there
/// is room.
fn handed(
    session: &mut Session<'_>,
    plan: &Plan,
    row: &StepRow,
    room: &mut Room,
) -> Result<Result<Handed, NoRoom>> {
    if row.items.is_some() {
        let mut all = Vec::new();
        for item in session.item_rows(row.run, row.no)? {
            match step_end(session, plan, &item, room)? {
                Ok(of_item) => all.push(of_item),
                Err(no_room) => return Ok(Err(no_room)),
            }
        }
        return Ok(Ok(Handed::Items(all)));
    }
    if row.status() != StepStatus::Done && row.status() != StepStatus::Failed {
        return Ok(room.take("").map(|()| Handed::Nothing));
    }
    let taken = |text: Option<Arc<str>>, room: &mut Room, wrap: fn(Arc<str>) -> Handed| match text {
        Some(text) => room.take(&text).map(|()| wrap(text)),
        None => room.take("").map(|()| Handed::Nothing),
    };
    match plan.step(row.node()).work {
        WorkKind::Execution | WorkKind::Task => {
            let id = ExecutionId { run: row.run, step: row.no, attempt: row.attempt };
            let execution = session.get::<ExecutionRow>(id)?;
            // A round that was refused has no outputs: those of the round before it count.
            if row.last_round.is_some() && execution.as_ref().is_some_and(|one| one.started_ms.is_none()) {
                return last_round(session, plan, row, room);
            }
            Ok(taken(execution.and_then(|execution| execution.result), room, Handed::Result))
        }
        WorkKind::Gate | WorkKind::Wait | WorkKind::End => {
            let gate = row.work.map(|gate| session.get::<GateRow>(gate)).transpose()?.flatten();
            Ok(taken(gate.and_then(|gate| gate.answer), room, Handed::Answer))
        }
        WorkKind::Child => match row.work {
            Some(child) => run_handed(session, RunId::from_i64(child), room),
            None => last_round(session, plan, row, room),
        },
    }
}

/// Gathers the outputs of a run: those that its pipeline declares, otherwise those of its steps, by their ids.
fn run_handed(session: &mut Session<'_>, run: RunId, room: &mut Room) -> Result<Result<Handed, NoRoom>> {
    let Some(row) = session.get::<RunRow>(run)? else { return Ok(Ok(Handed::Nothing)) };
    let plan = session.plan(run, row.plan)?;
    if let Some(outputs) = &plan.outputs {
        let declared = declared_outputs(session, &row, &plan, outputs, room)?;
        return Ok(declared.map(|declared| Handed::Declared(Box::new(declared))));
    }
    let mut all = Vec::new();
    for (no, planned) in plan.steps.iter().enumerate() {
        let Some(step) = session.get::<StepRow>((run, no as StepNo))? else { continue };
        match handed(session, &plan, &step, room)? {
            Ok(of_step) => all.push((planned.id.clone(), of_step)),
            Err(no_room) => return Ok(Err(no_room)),
        }
    }
    Ok(Ok(Handed::Run(all)))
}

/// Gathers the values that the declared outputs of a run name.
fn declared_outputs(
    session: &mut Session<'_>,
    run: &RunRow,
    plan: &Plan,
    outputs: &PlanOutputs,
    room: &mut Room,
) -> Result<Result<DeclaredOutputs, NoRoom>> {
    let evaluator = session.evaluator();
    let mut own = run_names(run.id, plan);
    own["status"] = run.status().to_string().into();
    if let Some(branch) = evaluator.branch(plan, &run.id.to_string()) {
        own["branch"] = branch.into();
    }
    let taken =
        room.take_slow().and_then(|()| room.take(&run.inputs)).and_then(|()| room.take(&outputs.spec));
    if let Err(no_room) = taken {
        return Ok(Err(no_room));
    }
    let mut known = Vec::new();
    for no in &outputs.reads {
        let Some(row) = session.get::<StepRow>((run.id, *no))? else { continue };
        match step_read(session, plan, row, room)? {
            Ok(read) => known.push(read),
            Err(no_room) => return Ok(Err(no_room)),
        }
    }
    let (spec, inputs) = (outputs.spec.as_str().into(), Arc::clone(&run.inputs));
    Ok(Ok(DeclaredOutputs { evaluator, spec, inputs, run: own, steps: StepsRead::new(known) }))
}

/// Returns the outputs that a run's pipeline declares; none if it declares none. They are `null` where they name more
/// than a step may name.
pub(crate) fn run_outputs(db: &mut dyn Backend, run: RunId) -> Result<Option<Value>> {
    let mut session = Session::new(db)?;
    let Some(row) = session.get::<RunRow>(run)? else { return Ok(None) };
    let plan = session.plan(run, row.plan)?;
    let Some(outputs) = &plan.outputs else { return Ok(None) };
    let declared = declared_outputs(&mut session, &row, &plan, outputs, &mut Room::default())?;
    Ok(Some(declared.map_or(Value::Null, |declared| declared.value())))
}

/// Returns the outputs in the result that a worker reported.
pub fn outputs_of(result: &str) -> Value {
    let result: Value = serde_json::from_str(result).unwrap_or(Value::Null);
    match (result.get("outputs"), result.get("output")) {
        (Some(outputs), _) => outputs.clone(),
        (None, Some(Value::Object(output))) => Value::Object(output.clone()),
        (None, Some(output)) => json!({ "value": output }),
        (None, None) => json!({}),
    }
}

/// Describes a failure for the next attempt: what failed, how, and its last output.
pub(crate) fn failure(session: &mut Session<'_>, plan: &Plan, row: &StepRow) -> Result<Option<Arc<str>>> {
    let name = step_name(plan, row);
    if row.items.is_some() {
        let items = session.item_rows(row.run, row.no)?;
        let mut told = String::new();
        let failed: Vec<&StepRow> = items.iter().filter(|item| item.status() == StepStatus::Failed).collect();
        for (count, item) in failed.iter().enumerate() {
            if told.len() > FEEDBACK_BYTES {
                told.push_str(&format!("\n… and {} more", failed.len() - count));
                break;
            }
            let separator = if told.is_empty() { "" } else { "\n" };
            let of_item = failure(session, plan, item)?;
            told.extend(of_item.iter().flat_map(|of_item| [separator, &**of_item]));
        }
        return Ok((!told.is_empty()).then(|| told.into()));
    }
    let told = match plan.step(row.node()).work {
        WorkKind::Gate | WorkKind::Wait | WorkKind::End => gate_failure(session, row)?,
        WorkKind::Child => {
            row.work.map(|child| child_failure(session, RunId::from_i64(child))).transpose()?
        }
        WorkKind::Execution | WorkKind::Task => {
            let id = ExecutionId { run: row.run, step: row.no, attempt: row.attempt };
            session
                .get::<ExecutionRow>(id)?
                .map(|execution| execution_failure(execution.status(), execution.result.as_deref()))
        }
    };
    Ok(told.map(|told| {
        let end =
            (0..=FEEDBACK_BYTES.min(told.len())).rev().find(|at| told.is_char_boundary(*at)).unwrap_or(0);
        format!("step `{name}` failed: {}", &told[..end]).into()
    }))
}

/// Describes why a child run did not succeed: by its first step whose failure is not tolerated.
fn child_failure(session: &mut Session<'_>, child: RunId) -> Result<String> {
    let Some(run) = session.get::<RunRow>(child)? else {
        return Ok(format!("its run {child} did not succeed"));
    };
    if run.reason.as_deref() == Some(TIMED_OUT) {
        return Ok(format!("its run {child} exceeded its timeout"));
    }
    let plan = session.plan(child, run.plan)?;
    for (no, planned) in plan.steps.iter().enumerate() {
        if planned.policy.on_fail == OnFail::Continue || planned.policy.then_continue {
            continue;
        }
        let step = session.get::<StepRow>((child, no as StepNo))?;
        let Some(step) = step.filter(|step| step.status() == StepStatus::Failed) else { continue };
        if let Some(why) = failure(session, &plan, &step)? {
            return Ok(format!("its run {child} did not succeed: {why}"));
        }
    }
    Ok(format!("its run {child} did not succeed"))
}

fn gate_failure(session: &mut Session<'_>, row: &StepRow) -> Result<Option<String>> {
    let Some(gate) = row.work else { return Ok(None) };
    let Some(gate) = session.get::<GateRow>(gate)? else { return Ok(None) };
    if gate.status() == GateStatus::Expired {
        return Ok(Some("there was no answer in time".into()));
    }
    let answer: Value =
        gate.answer.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let choice = answer["choice"].as_str().unwrap_or("no");
    Ok(Some(match answer["comment"].as_str() {
        Some(comment) => format!("the answer was {choice:?}: {comment}"),
        None => format!("the answer was {choice:?}"),
    }))
}

/// Describes the failure of an execution with this status and result: the reason, and the end of its output.
pub(crate) fn execution_failure(status: ExecutionStatus, result: Option<&str>) -> String {
    let result: Value = result.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut told = match (status, result["message"].as_str(), result["exit_code"].as_i64()) {
        (ExecutionStatus::TimedOut, _, _) => "it exceeded its timeout and was stopped".to_owned(),
        (_, Some(message), _) => message.to_owned(),
        (_, None, Some(code)) => format!("exit code {code}"),
        _ => status.to_string(),
    };
    if let Some(tail) = result["tail"].as_str().filter(|tail| !tail.is_empty()) {
        told.push('\n');
        told.push_str(tail);
    }
    told
}
