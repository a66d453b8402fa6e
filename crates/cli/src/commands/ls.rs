//! `sprag ls`: the runs, newest first.

use serde_json::json;
use sprag_app::view::RunView;
use sprag_app::{Row, RunFilter};
use sprag_lifecycle::{RunStatus, Word};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, local, span, table};

pub(crate) fn ls(context: &Context, statuses: &[String], limit: usize) -> Result<Exit, Failure> {
    let mut wanted = Vec::new();
    for text in statuses {
        let known = || RunStatus::ALL.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(", ");
        let status = RunStatus::parse(text);
        wanted.push(status.ok_or_else(|| {
            Failure::usage(format!("{text:?} is no status of a run")).next(format!("one of: {}", known()))
        })?);
    }
    let app = context.app()?;
    let filter = RunFilter { statuses: wanted, ..RunFilter::default() };
    let runs = app.all_runs(&filter, limit)?;
    if context.json {
        line(&json!(runs.iter().map(RunView::of).collect::<Vec<_>>()).to_string());
        return Ok(Exit::Ok);
    }
    if runs.is_empty() {
        line("no runs yet; start one: sprag run FILE");
        return Ok(Exit::Ok);
    }
    let now = app.now().wall_ms;
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let took = run.started_ms.map(|started| span(run.ended_ms.unwrap_or(now) - started));
            vec![
                run.id.to_string(),
                run.pipeline.to_string(),
                run.status().to_string(),
                local(run.created_ms),
                took.unwrap_or_default(),
            ]
        })
        .collect();
    table(context.style, &["RUN", "PIPELINE", "STATUS", "CREATED", "TOOK"], &rows);
    Ok(Exit::Ok)
}
