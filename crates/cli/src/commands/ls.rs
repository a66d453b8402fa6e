//! `sprag ls`: the runs, newest first.

use serde_json::json;
use sprag_app::view::{DamagedView, RunView};
use sprag_app::{App, DamagedRun, RunFilter, RunLabels, RunRow, parse_labels};
use sprag_lifecycle::{RunStatus, Word};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{Style, line, local, plain, shown_status, span, table};

/// The kinds of things that a run can wait for, as `--waiting` names them.
const WAITS: [&str; 8] = ["any", "person", "task", "signal", "worker", "account", "group", "time"];
/// The most live runs that are searched for those that wait.
const SEARCHED: usize = 10_000;

pub(crate) fn ls(
    context: &Context,
    statuses: &[String],
    waiting: Option<&str>,
    labels: &[String],
    limit: usize,
) -> Result<Exit, Failure> {
    if let Some(kind) = waiting.filter(|kind| !WAITS.contains(kind)) {
        return Err(Failure::usage(format!("no run waits for {kind:?}"))
            .next(format!("use one of: {}", WAITS.join(", "))));
    }
    let mut wanted = Vec::new();
    for text in statuses {
        let known = || RunStatus::ALL.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(", ");
        let status = RunStatus::parse(text);
        wanted.push(status.ok_or_else(|| {
            Failure::usage(format!("{text:?} is no status of a run")).next(format!("one of: {}", known()))
        })?);
    }
    let app = context.app()?;
    let labels = parse_labels(labels.iter().map(String::as_str))?;
    let is_filtered = !statuses.is_empty() || !labels.is_empty();
    let filter = RunFilter { statuses: wanted, labels, ..RunFilter::default() };
    let Listed { runs, views, damaged, more } = find(&app, filter, waiting, limit)?;
    let damaged: Vec<DamagedView> = damaged.into_iter().map(DamagedView::from).collect();
    if context.json {
        let all = views.iter().map(|view| json!(view)).chain(damaged.iter().map(|run| json!(run)));
        line(&json!(all.collect::<Vec<_>>()).to_string());
        return Ok(Exit::Ok);
    }
    for run in &damaged {
        eprintln!("{} {} is damaged: {}", Style::stderr().red("✗"), run.id, plain(&run.reason));
    }
    if runs.is_empty() && !damaged.is_empty() {
        return Ok(Exit::Ok);
    }
    if runs.is_empty() {
        match waiting {
            Some(_) => line("no run waits"),
            None if is_filtered => line("no such runs"),
            None => line("no runs yet; start one: sprag run FILE"),
        }
        return Ok(Exit::Ok);
    }
    let now = app.now().wall_ms;
    let labels: Vec<RunLabels> = runs.iter().map(RunLabels::of).collect();
    let (has_names, has_labels) =
        (labels.iter().any(|run| run.name.is_some()), labels.iter().any(|run| !run.labels.is_empty()));
    let mut heads = vec!["RUN", "PIPELINE", "STATUS", "CREATED", "TOOK"];
    heads.extend(has_names.then_some("NAME"));
    heads.extend(has_labels.then_some("LABELS"));
    let cells = |((run, view), labels): ((&RunRow, &RunView), &RunLabels)| {
        let took = run.started_ms.map(|started| span(run.ended_ms.unwrap_or(now) - started));
        let mut cells = vec![
            run.id.to_string(),
            run.pipeline.to_string(),
            shown_status(view.status, view.waiting_for),
            local(run.created_ms),
            took.unwrap_or_default(),
        ];
        cells.extend(has_names.then(|| plain(labels.name.as_deref().unwrap_or_default())));
        cells.extend(has_labels.then(|| told_labels(labels)));
        cells
    };
    let rows: Vec<Vec<String>> = runs.iter().zip(&views).zip(&labels).map(cells).collect();
    table(context.style, &heads, &rows);
    if more {
        eprintln!("there are more: sprag ls -n {}", limit * 5);
    }
    Ok(Exit::Ok)
}

/// Returns the labels of a run in one line.
pub(super) fn told_labels(labels: &RunLabels) -> String {
    let told: Vec<String> = labels.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    plain(&told.join(", "))
}

/// The runs of a list.
struct Listed {
    runs: Vec<RunRow>,
    views: Vec<RunView>,
    /// The runs that cannot be read.
    damaged: Vec<DamagedRun>,
    /// Whether there are more of them.
    more: bool,
}

fn find(app: &App, mut filter: RunFilter, waiting: Option<&str>, limit: usize) -> Result<Listed, Failure> {
    let Some(kind) = waiting else {
        let (mut runs, damaged) = app.all_runs_and_damaged(&filter, limit.saturating_add(1))?;
        let more = runs.len() > limit;
        runs.truncate(limit);
        let views = RunView::list(app, &runs)?;
        return Ok(Listed { runs, views, damaged, more });
    };
    if filter.statuses.is_empty() {
        filter.statuses = RunStatus::ALL.iter().copied().filter(|status| !status.is_terminal()).collect();
    }
    let (live, damaged) = app.all_runs_and_damaged(&filter, SEARCHED)?;
    let views = RunView::list(app, &live)?;
    let is_meant =
        |view: &RunView| view.waiting_for.is_some_and(|wait| kind == "any" || kind == wait.as_str());
    let mut found: Vec<(RunRow, RunView)> =
        live.into_iter().zip(views).filter(|(_, view)| is_meant(view)).collect();
    let more = found.len() > limit;
    found.truncate(limit);
    let (runs, views) = found.into_iter().unzip();
    Ok(Listed { runs, views, damaged, more })
}
