//! Compares a finished run with what the reference expects.

use std::collections::BTreeMap;

use sprag_lifecycle::{Condition, OnFail, Plan, PlanStep, RunStatus, StepNo, StepStatus};
use sprag_store::testing::Tables;
use sprag_store::{Row, RunRow, StepRow};

use super::reference::{Expected, ancestors, descendants, good_ends, is_met};
use super::script::{Fault, RunTest, Script, Scripts, WaitsFor, has};

/// Compares a finished run with the expected outcomes. The error describes the difference.
pub fn compare(
    tables: &Tables,
    run: &RunRow,
    plan: &Plan,
    scripts: &Scripts,
    expected: &Expected,
    cancelled: bool,
) -> Result<(), String> {
    let right = if cancelled {
        run.status() == RunStatus::Cancelled
    } else {
        expected.outcomes.contains(&run.status())
    };
    if !right {
        return Err(format!(
            "the run is {}, expected {:?}, cancelled: {cancelled}",
            run.status(),
            expected.outcomes
        ));
    }
    let allowed = match run.status() {
        RunStatus::Completed => &expected.completed,
        _ => &expected.broken,
    };
    let rows: BTreeMap<StepNo, &StepRow> =
        tables.all_steps().filter(|step| step.run == run.id).map(|step| (step.no, step)).collect();
    for (no, allowed) in allowed.iter().enumerate() {
        let row = rows[&(no as StepNo)];
        if !allowed.contains(&row.status()) {
            return Err(format!(
                "step {no} of a run that is {} is {}, expected {allowed:?}\n{row:?}\n{:?}",
                run.status(),
                row.status(),
                plan.step(no as StepNo),
            ));
        }
    }
    if !cancelled {
        compare_conditions(&rows, plan, scripts)?;
    }
    if run.epoch == 1 {
        compare_ends(&rows, plan, scripts)?;
    }
    if run.status() == RunStatus::Completed {
        // A resumed fan-out keeps its list, and may be skipped because the run has ended early.
        let has_run = |row: &&&StepRow| row.items.is_some() && row.status() != StepStatus::Skipped;
        for row in rows.values().filter(has_run).filter(|row| expected.fresh.contains(&row.no)) {
            compare_items(&rows, row, plan.step(row.no), scripts.of(plan.step(row.no)), run.epoch)?;
        }
    }
    Ok(())
}

/// Checks that no step starts after one that it needs has ended the run. A rework, like a resume, runs again what it
/// goes back to.
fn compare_ends(rows: &BTreeMap<StepNo, &StepRow>, plan: &Plan, scripts: &Scripts) -> Result<(), String> {
    let reworks = plan.steps.iter().any(|step| matches!(step.policy.on_fail, OnFail::Rework { .. }));
    for end in good_ends(plan, scripts).filter(|end| !reworks && rows[end].status() == StepStatus::Done) {
        for no in descendants(plan, end).into_iter().filter(|no| *no != end) {
            let (planned, row) = (plan.step(no), rows[&no]);
            // A step that needs only some of its needs, and those after it, may come before the end.
            let joins = |no: &StepNo| plan.step(*no).quorum.is_some();
            let early = joins(&no) || ancestors(plan, no).iter().any(joins);
            if !planned.policy.always
                && !early
                && row.status() != StepStatus::Skipped
                && row.status() != StepStatus::Cancelled
            {
                return Err(format!("step {no} is {} although step {end} has ended the run", row.status()));
            }
        }
    }
    Ok(())
}

/// Checks conditions on the run's status: once a need is broken, the run has failed.
fn compare_conditions(
    rows: &BTreeMap<StepNo, &StepRow>,
    plan: &Plan,
    scripts: &Scripts,
) -> Result<(), String> {
    for (no, planned) in plan.steps.iter().enumerate() {
        let Some(test) = scripts.of(planned).by_status else { continue };
        let broken = planned.needs.iter().any(|need| !is_met(rows[need], plan.step(*need)));
        let simple = planned.condition == Condition::Step && planned.quorum.is_none();
        if !broken || !planned.policy.always || !simple || scripts.of(planned).is_skipped {
            continue;
        }
        let row = rows[&(no as StepNo)];
        if (row.status() == StepStatus::Skipped) != (test == RunTest::Succeeded) {
            return Err(format!("step {no} with the condition {test:?} is {} after a failure", row.status()));
        }
    }
    Ok(())
}

/// Compares the items of lists in a completed run with their scripts. A first failing item may stop the others.
fn compare_items(
    rows: &BTreeMap<StepNo, &StepRow>,
    parent: &StepRow,
    planned: &PlanStep,
    script: &Script,
    epoch: u32,
) -> Result<(), String> {
    let (Some(list), WaitsFor::Worker | WaitsFor::Gate | WaitsFor::Signal) =
        (parent.items, &script.waits_for)
    else {
        return Ok(());
    };
    let spread = planned.spread.unwrap_or_default();
    let cut = spread.fail_fast && parent.status() == StepStatus::Failed;
    let made: Vec<&&StepRow> =
        rows.values().filter(|row| row.item_of == Some(parent.no) && row.no >= list.first).collect();
    let mut failed = None;
    for (at, row) in made.iter().enumerate() {
        let item = at as u32;
        let wrong = script.fails(epoch, parent.round, Some(item)) && (script.rejects || !script.gate_default);
        let fails = match script.fault {
            Fault::Tries(tries) => wrong && tries >= planned.policy.attempts,
            _ => wrong,
        };
        let fails = fails || script.exceeds_rounds(planned);
        let is_conditional = planned.condition == Condition::Item;
        let expected = if is_conditional && script.condition.is_err() {
            StepStatus::Failed
        } else if is_conditional && !has(script.condition_items, item) {
            StepStatus::Skipped
        } else if fails {
            StepStatus::Failed
        } else {
            StepStatus::Done
        };
        if row.item != Some(item) || (row.status() != expected && !(cut && row.status() != StepStatus::Done))
        {
            return Err(format!(
                "item {item} of step {} is {}, expected {expected}",
                parent.no,
                row.status()
            ));
        }
        if expected == StepStatus::Failed && failed.is_none() {
            failed = Some(made.len() == at + 1);
        }
    }
    if !cut && made.len() as u32 != list.items.total {
        return Err(format!("step {} has made {} of {} items", parent.no, made.len(), list.items.total));
    }
    if cut && epoch == 1 && spread.max_parallel == Some(1) && failed != Some(true) {
        return Err(format!("step {} continued after its first item had failed", parent.no));
    }
    Ok(())
}
