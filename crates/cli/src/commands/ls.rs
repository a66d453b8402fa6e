//! `sprag ls`: the runs, newest first.

use serde_json::{Value, json};
use sprag_app::view::{DamagedView, RunView};
use sprag_app::{App, RunFilter, RunRow, parse_labels};
use sprag_lifecycle::{RunStatus, Word};

use crate::args::ListOptions;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{Style, line, local, plain, shown_status_word, span, table, time_in};

/// The kinds of things that a run can wait for, as `--waiting` names them.
const WAITS: [&str; 8] = ["any", "person", "task", "signal", "worker", "account", "group", "time"];
/// The most live runs that are searched for those that wait.
pub(super) const SEARCHED: usize = 10_000;

pub(crate) fn ls(context: &Context, options: &ListOptions) -> Result<Exit, Failure> {
    let statuses = options.statuses()?;
    let app = context.app()?;
    let labels = parse_labels(options.labels.iter().map(String::as_str))?;
    let since =
        options.since.as_deref().map(|text| super::logs::start_of(text, app.now().wall_ms)).transpose()?;
    let filter = RunFilter {
        statuses,
        labels,
        pipeline: options.pipeline.clone(),
        since_ms: since.as_deref().and_then(sprag_app::time_ms),
        without_boards: !options.boards,
        ..RunFilter::default()
    };
    print(context, &find(&app, filter, options)?, options, app.now().wall_ms, "")
}

impl ListOptions {
    /// Returns the statuses of the listed runs; those of live runs, if only runs that wait are wanted.
    pub(super) fn statuses(&self) -> Result<Vec<RunStatus>, Failure> {
        if let Some(kind) = self.waiting.as_deref().filter(|kind| !WAITS.contains(kind)) {
            return Err(Failure::usage(format!("no run waits for {kind:?}"))
                .next(format!("use one of: {}", WAITS.join(", "))));
        }
        let known = || RunStatus::ALL.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(", ");
        let parsed = self.status.iter().map(|text| {
            RunStatus::parse(text).ok_or_else(|| {
                let hint = if text.starts_with("wait") { "`--waiting` lists runs that wait; " } else { "" };
                Failure::usage(format!("{text:?} is no status of a run"))
                    .next(format!("{hint}one of: {}", known()))
            })
        });
        let named: Vec<RunStatus> = parsed.collect::<Result<_, _>>()?;
        if named.is_empty() && self.waiting.is_some() {
            return Ok(RunStatus::ALL.iter().copied().filter(|status| !status.is_terminal()).collect());
        }
        Ok(named)
    }

    /// Returns the options that select runs, as the user can type them again.
    fn filters(&self) -> String {
        let several = |name: &'static str, values: &[String]| -> String {
            values.iter().map(|value| format!(" {name} {}", quoted(value))).collect()
        };
        let one = |name: &'static str, value: &Option<String>| several(name, value.as_slice());
        [
            several("--status", &self.status),
            one("--waiting", &self.waiting),
            one("--pipeline", &self.pipeline),
            several("--label", &self.labels),
            one("--since", &self.since),
            if self.boards { " --boards".to_owned() } else { String::new() },
        ]
        .concat()
    }

    /// Returns whether a run belongs to the list, by what it waits for.
    pub(super) fn is_meant(&self, waiting_for: Option<&str>) -> bool {
        let Some(kind) = self.waiting.as_deref() else { return true };
        waiting_for.is_some_and(|wait| kind == "any" || kind == wait)
    }
}

/// The runs of a list, as programs see them.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) runs: Vec<Value>,
    /// The runs that cannot be read.
    pub(super) damaged: Vec<Value>,
    /// Whether there are more of them.
    pub(super) more: bool,
}

fn find(app: &App, filter: RunFilter, options: &ListOptions) -> Result<Listed, Failure> {
    let wanted = options.limit.saturating_add(1);
    let most = if options.waiting.is_some() { SEARCHED } else { wanted };
    let (rows, damaged): (Vec<RunRow>, _) = app.all_runs_and_damaged(&filter, most)?;
    let views = RunView::list(app, &rows)?;
    let meant = views.iter().filter(|view| options.is_meant(view.waiting_for.map(|wait| wait.as_str())));
    let mut runs: Vec<Value> = meant.take(wanted).map(|view| json!(view)).collect();
    let more = runs.len() > options.limit;
    runs.truncate(options.limit);
    let damaged = damaged.into_iter().map(|run| json!(DamagedView::from(run))).collect();
    Ok(Listed { runs, damaged, more })
}

/// Prints a list of runs, from the values that programs see. `at` is added to the command that it names.
pub(super) fn print(
    context: &Context,
    listed: &Listed,
    options: &ListOptions,
    now_ms: i64,
    at: &str,
) -> Result<Exit, Failure> {
    let Listed { runs, damaged, more } = listed;
    if context.json {
        line(&Value::Array(runs.iter().chain(damaged).cloned().collect()).to_string());
        return Ok(Exit::Ok);
    }
    for run in damaged {
        let word = |key: &str| plain(run[key].as_str().unwrap_or_default());
        eprintln!("{} {} is damaged: {}", Style::stderr().red("✗"), word("id"), word("reason"));
    }
    if runs.is_empty() && damaged.is_empty() {
        line(match options {
            ListOptions { waiting: Some(_), .. } => "no run waits",
            options if !options.filters().is_empty() => "no such runs",
            _ => "no runs yet; start one: sprag run FILE",
        });
    }
    if runs.is_empty() {
        return Ok(Exit::Ok);
    }
    let has_names = runs.iter().any(|run| run["name"].is_string());
    let has_labels =
        runs.iter().any(|run| run["labels"].as_object().is_some_and(|labels| !labels.is_empty()));
    let mut heads = vec!["RUN", "PIPELINE", "STATUS", "CREATED", "TOOK"];
    heads.extend(has_names.then_some("NAME"));
    heads.extend(has_labels.then_some("LABELS"));
    let cells = |run: &Value| {
        let word = |key: &str| plain(run[key].as_str().unwrap_or_default());
        let took = time_in(run, "started_at")
            .map(|started| span(time_in(run, "ended_at").unwrap_or(now_ms) - started));
        let mut cells = vec![
            word("id"),
            word("pipeline"),
            shown_status_word(&word("status"), run["waiting_for"].as_str()),
            time_in(run, "created_at").map(local).unwrap_or_default(),
            took.unwrap_or_default(),
        ];
        cells.extend(has_names.then(|| word("name")));
        cells.extend(has_labels.then(|| told_labels(&run["labels"])));
        cells
    };
    let rows: Vec<Vec<String>> = runs.iter().map(cells).collect();
    table(context.style, &heads, &rows);
    if *more {
        eprintln!("there are more: sprag ls -n {}{}{at}", options.limit * 5, options.filters());
    }
    Ok(Exit::Ok)
}

/// Returns a word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:/=,+".contains(c);
    let word = plain(word);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Returns the labels of a run in one line.
pub(super) fn told_labels(labels: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = labels.as_object().into_iter().flatten();
    let told: Vec<String> = labels.map(|(key, value)| format!("{key}={}", text(value))).collect();
    plain(&told.join(", "))
}
