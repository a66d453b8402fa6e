//! `sprag status`: a run and its steps.

use sprag_store::Row;

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{line, local, span, status_json};

pub(crate) fn status(context: &Context, run: Option<&str>) -> Result<Exit, Failure> {
    let store = context.store()?;
    let known = find_run(&store, run)?;
    let (steps, executions) = store.read(|db| Ok((db.steps(known.id())?, db.executions(known.id())?)))?;
    if context.json {
        line(&status_json(&known.run, &known.plan, &steps).to_string());
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
    let width = known.plan.steps.iter().map(|step| step.id.chars().count()).max().unwrap_or(0);
    for step in &steps {
        let planned = known.plan.step(step.no);
        let status = step.status().to_string();
        let took = step.started_ms.map(|at| span(step.ended_ms.unwrap_or(now) - at)).unwrap_or_default();
        let tries = if step.attempt > 1 { format!("attempt {}", step.attempt) } else { String::new() };
        let last = executions.iter().rfind(|row| row.id.step == step.no);
        let why = match status.as_str() {
            "failed" => last.and_then(|row| row.result.as_deref()).and_then(crate::live::why_failed),
            _ => None,
        };
        let text = format!(
            "  {} {:width$}  {}  {:>7}  {tries} {}",
            style.sign(&status),
            planned.id,
            style.status(&status, 9),
            took,
            why.unwrap_or_default()
        );
        line(text.trim_end());
    }
    Ok(Exit::Ok)
}
