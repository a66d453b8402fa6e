//! `sprag status`: a run and its steps.

use serde_json::json;
use sprag::view::StatusView;
use sprag_lifecycle::{RunId, WorkKind};
use sprag_store::{Row, StepRow, step_name};

use crate::context::{Context, Known, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{line, local, span};

pub(crate) fn status(context: &Context, run: Option<&str>) -> Result<Exit, Failure> {
    let store = context.store()?;
    let known = find_run(&store, run)?;
    let (steps, executions) = store.read(|db| Ok((db.steps(known.id())?, db.executions(known.id())?)))?;
    if context.json {
        line(&json!(StatusView::of(&known.run, &known.plan, &steps)).to_string());
        return Ok(Exit::Ok);
    }
    let style = context.style;
    let now = store.now().wall_ms;
    let run = &known.run;
    let took =
        run.started_ms.map(|at| format!(" · {}", span(run.ended_ms.unwrap_or(now) - at))).unwrap_or_default();
    line(&format!(
        "{}  {}  {}  {}",
        style.bold(&run.id.to_string()),
        run.pipeline,
        style.status(run.status().to_string().as_str(), 0),
        style.dim(&format!("{}{took}", local(run.created_ms)))
    ));
    let names: Vec<String> = steps.iter().map(|step| step_name(&known.plan, step)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for (step, name) in in_order(&steps, &names) {
        let status = step.status().to_string();
        let took = step.started_ms.map(|at| span(step.ended_ms.unwrap_or(now) - at)).unwrap_or_default();
        let tries = if step.attempt > 1 { format!("attempt {}", step.attempt) } else { String::new() };
        let last = executions.iter().rfind(|row| row.id.step == step.no);
        let why = match status.as_str() {
            "failed" => last.and_then(|row| row.result.as_deref()).and_then(crate::live::why_failed),
            "done" => last.and_then(|row| row.result.as_deref()).and_then(warnings),
            _ => None,
        };
        let text = format!(
            "  {} {:width$}  {}  {:>7}  {tries} {}",
            style.sign(&status),
            name,
            style.status(&status, 9),
            took,
            why.or_else(|| about(&known, step)).unwrap_or_default()
        );
        line(text.trim_end());
    }
    Ok(Exit::Ok)
}

/// What went wrong in a step that is done all the same.
fn warnings(result: &str) -> Option<String> {
    let facts: serde_json::Value = serde_json::from_str(result).ok()?;
    let told: Vec<&str> = facts["warnings"].as_array()?.iter().filter_map(|told| told.as_str()).collect();
    // Git says several lines; the first tells what it is about.
    let first = told.iter().filter_map(|told| told.lines().next()).map(crate::show::plain);
    let all: Vec<String> = first.collect();
    (!all.is_empty()).then(|| format!("warning: {}", all.join("; ")))
}

/// The steps with the items of a fan-out under it; of many only those that are worth a look.
fn in_order<'s>(steps: &'s [StepRow], names: &'s [String]) -> Vec<(&'s StepRow, &'s String)> {
    /// More items than this are counted, not listed; failed and running ones are listed all the same.
    const LISTED: usize = 20;
    let all = || steps.iter().zip(names);
    let mut shown = Vec::new();
    for (step, name) in all().filter(|(step, _)| step.item_of.is_none()) {
        shown.push((step, name));
        let Some(list) = step.items else { continue };
        let items = || all().filter(|(item, _)| item.item_of == Some(step.no) && item.no >= list.first);
        let many = items().count() > LISTED;
        let worth = |item: &StepRow| {
            !many || !matches!(item.status().to_string().as_str(), "done" | "pending" | "waiting")
        };
        shown.extend(items().filter(|(item, _)| worth(item)).take(LISTED * 5));
    }
    shown
}

/// What else there is to say of a step.
fn about(known: &Known, step: &StepRow) -> Option<String> {
    if let Some(list) = step.items {
        let items = list.items;
        let failed = if items.failed > 0 { format!(", {} failed", items.failed) } else { String::new() };
        return Some(format!("{} of {} items{failed}", items.settled, items.total));
    }
    match (known.plan.step(step.node()).work, step.work) {
        (WorkKind::Child, Some(child)) => Some(format!("run {}", RunId::from_i64(child))),
        _ => None,
    }
}
