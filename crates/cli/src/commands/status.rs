//! `sprag status`: a run and its steps.

use std::collections::BTreeMap;

use serde_json::json;
use sprag_app::text::size;
use sprag_app::view::{RunDetail, StatusView, StepView, is_not_run, round_of};
use sprag_app::{App, ExecutionRow, Row, RunLabels, StepRow, step_name, why_attempt_failed};
use sprag_lifecycle::{RunId, Word, WorkKind};

use super::ls::told_labels;
use crate::context::{Context, RunWithPlan, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{columns_of, line, local, padded, plain, shortened, shown_status, span};

/// The most characters of an item's value beside the name of its step.
pub(super) const WIDEST_ITEM: usize = 20;

pub(crate) fn status(context: &Context, run: Option<&str>) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    let full = app.run_in_full(known.id())?;
    let (steps, executions) = full.map(|full| (full.steps, full.executions)).unwrap_or_default();
    let missing = sprag_app::missing_logs(&app, &context.files(), &known)?;
    let waits = app.waiting_for(&known.run)?;
    if context.json {
        // The same keys as a server's answer has.
        let detail = RunDetail::of(&known.run, &known.plan, &steps, &missing);
        let outputs = app.run_outputs(&known.run)?;
        let detail = detail.waiting(&known.plan, &steps, &waits).with_outputs(outputs);
        let status = detail.status.with_items(&app, &known.plan, &steps)?.with_inner(&app)?;
        line(&json!(RunDetail { status, ..detail }).to_string());
        return Ok(Exit::Ok);
    }
    let style = context.style;
    let now = app.now().wall_ms;
    let run = &known.run;
    let took =
        run.started_ms.map(|at| format!(" · {}", span(run.ended_ms.unwrap_or(now) - at))).unwrap_or_default();
    line(&format!(
        "{}  {}  {}  {}",
        style.bold(&run.id.to_string()),
        run.pipeline,
        style.status(&shown_status(run.status().as_str(), waits.run), 0),
        style.dim(&format!("{}{took}", local(run.created_ms)))
    ));
    let labels = RunLabels::of(run);
    if let Some(name) = &labels.name {
        line(&format!("  {} {}", style.dim("name:"), plain(name)));
    }
    if !labels.labels.is_empty() {
        line(&format!("  {} {}", style.dim("labels:"), told_labels(&json!(labels.labels))));
    }
    if let Some(reason) = run.reason.as_deref().filter(|reason| !reason.is_empty()) {
        line(&format!("  {} {}", style.dim("reason:"), plain(reason)));
    }
    let keys = known.task_keys(&app)?;
    let listed = in_order(&steps);
    let items = sprag_app::item_names(&app, &known.plan, listed.iter().copied())?;
    let name = |step: &StepRow| {
        let item = items.get(&step.no).map(|item| shortened(item, WIDEST_ITEM));
        let own = || sprag_app::named_item(&step_name(&known.plan, step), item.as_deref());
        keys.get(&step.no).cloned().unwrap_or_else(own)
    };
    let width = listed.iter().map(|step| columns_of(&name(step))).max().unwrap_or(0);
    for step in listed {
        let not_run = is_not_run(step);
        let status = if not_run { "not run".to_owned() } else { step.status().to_string() };
        let wait = waits.steps.get(&step.no).copied();
        let took = step.started_ms.map(|at| span(step.ended_ms.unwrap_or(now) - at)).unwrap_or_default();
        let of_step = || executions.iter().filter(|row| row.id.step == step.no);
        let tries = match round_of(&known.plan, step) {
            Some((round, most)) if step.started_ms.is_some() || round > 1 => {
                format!("round {round} of {most}")
            }
            _ if step.attempt > 1 && !not_run => {
                // An attempt that was cancelled before it began is none.
                let settled = step.status().is_settled();
                let begun = of_step().rfind(|row| row.started_ms.is_some()).filter(|_| settled);
                format!("attempt {}", begun.map_or(step.attempt, |row| row.id.attempt))
            }
            _ => String::new(),
        };
        let last = of_step().next_back();
        let result = last.and_then(|row| row.result.as_deref()).filter(|_| step.status().is_settled());
        // An attempt that failed is worth a word, also if the step was cancelled before the next one.
        let has_failed =
            |row: &&ExecutionRow| ["failed", "timed_out", "abandoned"].contains(&row.status().as_str());
        let begun = || of_step().rfind(|row| row.started_ms.is_some());
        let attempt = last.filter(has_failed).or_else(|| begun().filter(has_failed));
        let is_live = !step.status().is_settled() && step.attempt > 1;
        let failed = attempt
            .filter(|_| is_live || step.status().is_settled() && status != "done" && !not_run)
            .map(|row| {
                let before = format!("attempt {} failed: ", row.id.attempt);
                format!("{}{}", if is_live { &before } else { "" }, why_attempt_failed(row))
            });
        let told: Vec<String> = failed.into_iter().chain(result.and_then(warnings)).collect();
        let why = (!told.is_empty()).then(|| told.join("; "));
        let text = format!(
            "  {} {}  {}  {:>7}  {tries}{}",
            style.sign(&status),
            padded(&name(step), width),
            style.status(&shown_status(&status, wait), if waits.steps.is_empty() { 9 } else { 16 }),
            took,
            after_tries(&tries, why.or_else(|| about(&known, step)))
        );
        line(text.trim_end());
        for inner in inside(&app, &known, step)? {
            let status = if inner.not_run { "not run" } else { inner.status };
            let shown = style.status(&shown_status(status, inner.waiting_for), 0);
            line(&format!("    {} {}  {shown}", style.sign(status), inner.id));
        }
        if let Some(log) = missing.get(&step.no) {
            let told = format!(
                "{} of its log are missing here: host {} has it in {}",
                size(log.bytes),
                log.host,
                log.path
            );
            line(&format!("    {}", style.dim(&crate::show::plain(&told))));
        }
    }
    for note in app.step_notes(known.id())? {
        let said = if note.kind == "report" { "reports" } else { "notes" };
        line(&format!("  {} {}", style.dim(&format!("{} {said}:", plain(&note.step))), plain(&note.text)));
    }
    Ok(Exit::Ok)
}

/// Returns the steps inside a step, with their whole names.
fn inside(app: &App, known: &RunWithPlan, step: &StepRow) -> Result<Vec<StepView>, Failure> {
    let view = StatusView::of(&known.run, &known.plan, std::slice::from_ref(step), &BTreeMap::new());
    let own = StatusView { steps: vec![StepView::of(&known.plan, step)], ..view };
    Ok(own.with_inner(app)?.steps.into_iter().skip(1).collect())
}

/// Returns the warnings in a step's result.
fn warnings(result: &str) -> Option<String> {
    let facts: serde_json::Value = serde_json::from_str(result).ok()?;
    let told: Vec<&str> = facts["warnings"].as_array()?.iter().filter_map(|told| told.as_str()).collect();
    // Git prints several lines; the first one has the subject.
    let first = told.iter().filter_map(|told| told.lines().next()).map(crate::show::plain);
    let all: Vec<String> = first.collect();
    (!all.is_empty()).then(|| format!("warning: {}", all.join("; ")))
}

/// Returns the steps, with the items of a fan-out below it. Of many items, returns only those that need attention.
fn in_order(steps: &[StepRow]) -> Vec<&StepRow> {
    /// The most items that are listed; further items are counted. Failed and running items are listed in any case.
    const LISTED: usize = 20;
    let mut shown = Vec::new();
    for step in steps.iter().filter(|step| step.item_of.is_none()) {
        shown.push(step);
        let Some(list) = step.items else { continue };
        let items = || steps.iter().filter(|item| item.item_of == Some(step.no) && item.no >= list.first);
        let many = items().count() > LISTED;
        let worth = |item: &StepRow| {
            !many || !matches!(item.status().to_string().as_str(), "done" | "pending" | "waiting")
        };
        shown.extend(items().filter(|item| worth(item)).take(LISTED * 5));
    }
    shown
}

/// Returns what follows the attempt or round of a step in its line: a reason or a description.
pub(super) fn after_tries(tries: &str, told: Option<String>) -> String {
    let between = if tries.is_empty() { " " } else { ", " };
    told.map(|told| format!("{between}{told}")).unwrap_or_default()
}

/// Returns the item counts of a fan-out, or the child run of a step; none for other steps.
fn about(known: &RunWithPlan, step: &StepRow) -> Option<String> {
    if let Some(list) = step.items {
        let items = list.items;
        let failed = if items.failed > 0 { format!(", {} failed", items.failed) } else { String::new() };
        return Some(format!("{} of {} items{failed}", items.settled, items.total));
    }
    match (known.plan.step(step.node()).work, step.work) {
        (WorkKind::Child, Some(child)) => Some(format!("run {}", RunId::from_i64(child))),
        _ if known.plan.step(step.node()).service => Some("service".into()),
        _ => None,
    }
}
