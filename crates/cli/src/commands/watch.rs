//! `sprag watch`: the live view of a run that other processes execute, or one line for each live run.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_app::view::RunView;
use sprag_app::{App, RunFilter, RunRow, Topic};
use sprag_lifecycle::{RunStatus, Word};
use tokio::signal::unix::{SignalKind, signal};

use super::run::{heading, outcome, watch_and_ask};
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::live::{OnInterrupt, Watched};
use crate::show::{
    Style, columns_of, counted, end_line, line, plain, shown_status_word, span, start_within, width,
};

/// The time between two looks at all live runs.
const LOOK: Duration = Duration::from_millis(500);
/// The most runs that are shown at once.
const MOST: usize = 200;

/// `sprag watch RUN`: shows the run until it has ended, as `sprag run` does.
pub(crate) async fn one(context: &Context, run: &str) -> Result<Exit, Failure> {
    let app = context.app()?;
    let known = find_run(&app, Some(run))?;
    heading(context, &known);
    match watch_and_ask(context, &app, &known, None, OnInterrupt::Leave).await? {
        Watched::Ended(status) => {
            outcome(context, &app, &known, status)?;
            Ok(status.into())
        }
        Watched::Waits => super::gates::waits_for_person(context, &app, known.id(), true),
        Watched::Left => {
            if !context.json {
                eprintln!("stopped watching; the run continues: sprag watch {}", known.id());
            }
            Ok(Exit::Ok)
        }
    }
}

/// One live run, as it is shown.
pub(super) struct LiveRun {
    /// The view of the run that programs see.
    pub(super) view: Value,
    /// The number of its steps that have ended, without the items of fan-outs.
    pub(super) settled: u32,
    /// The number of its steps, without the items of fan-outs.
    pub(super) total: u32,
    /// The time of its start, or of its creation if it has not started, in milliseconds since 1970.
    pub(super) since_ms: i64,
}

/// `sprag watch`: shows all live runs until Ctrl-C. On a terminal the lines are drawn in place; otherwise a line is
/// printed for each change.
pub(crate) async fn all(context: &Context) -> Result<Exit, Failure> {
    let app = context.app()?;
    let wake = app.subscribe(vec![Topic::Journal]);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let in_place = !context.json && std::io::stdout().is_terminal();
    let mut drawn = Drawn::new();
    let mut shown: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let live = live_runs(&app)?;
        if in_place {
            drawn = redraw(context.style, &live, &drawn, app.now().wall_ms);
        } else {
            changes(context, &app, &live, &mut shown)?;
        }
        tokio::select! {
            () = wake.wait(LOOK) => {}
            _ = interrupt.recv() => {
                end_line();
                return Ok(Exit::Ok);
            }
            _ = terminate.recv() => return Ok(Exit::Ok),
        }
    }
}

fn live_runs(app: &App) -> Result<Vec<LiveRun>, Failure> {
    let statuses: Vec<RunStatus> =
        RunStatus::ALL.iter().copied().filter(|status| !status.is_terminal()).collect();
    let rows: Vec<RunRow> = app.all_runs(&RunFilter { statuses, ..RunFilter::default() }, MOST)?;
    let views = RunView::list(app, &rows)?;
    let mut live = Vec::new();
    for (row, view) in rows.iter().zip(views) {
        let (settled, total) =
            view.progress.as_ref().map_or((0, 0), |progress| (progress.settled, progress.total));
        live.push(LiveRun {
            view: json!(view),
            settled,
            total,
            since_ms: row.started_ms.unwrap_or(row.created_ms),
        });
    }
    Ok(live)
}

impl LiveRun {
    /// Returns the run's id.
    pub(super) fn id(&self) -> String {
        self.word("id").to_owned()
    }

    fn word(&self, key: &str) -> &str {
        self.view[key].as_str().unwrap_or_default()
    }

    fn line(&self, style: Style, took: Option<String>, width: usize) -> String {
        let status = shown_status_word(self.word("status"), self.view["waiting_for"].as_str());
        let took = took.map(|took| format!("  {took:>7}")).unwrap_or_default();
        let progress = format!("{}/{}", self.settled, self.total);
        let before = format!("{}  {progress:>7}", self.word("id"));
        let room = width.saturating_sub(columns_of(&before) + columns_of(&took) + 21);
        let name = plain(self.word("pipeline"));
        let name = start_within(&name, room.max(8));
        format!("{before}  {}{took}  {name}", style.status(&status, 16))
    }

    /// Returns the line about the run where lines are not drawn in place.
    pub(super) fn text(&self, context: &Context) -> String {
        if !context.json {
            return self.line(context.style, None, usize::MAX / 2);
        }
        let mut told = self.view.clone();
        told["steps"] = json!({ "settled": self.settled, "total": self.total });
        told.to_string()
    }

    /// Returns the line about a run that has ended, from the view that programs see.
    pub(super) fn ended_text(context: &Context, view: &Value) -> String {
        if context.json {
            let mut told = view.clone();
            told["steps"] = Value::Null;
            return told.to_string();
        }
        let word = |key: &str| plain(view[key].as_str().unwrap_or_default());
        let status = context.style.status(&word("status"), 16);
        format!("{}           {status}  {}", word("id"), word("pipeline"))
    }
}

/// The number of columns of each line that is drawn.
pub(super) type Drawn = Vec<usize>;

/// Draws the lines over those that were drawn before. Returns those that are there now.
pub(super) fn redraw(style: Style, live: &[LiveRun], before: &Drawn, now_ms: i64) -> Drawn {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    let height = size.as_ref().map_or(24, |size| usize::from(size.ws_row.max(4)));
    let columns = size.map_or(80, |size| usize::from(size.ws_col.max(1)));
    let room = height - 2;
    let mut lines: Vec<String> = live
        .iter()
        .take(room)
        .map(|run| run.line(style, Some(span((now_ms - run.since_ms) / 1000 * 1000)), width()))
        .collect();
    if live.is_empty() {
        lines.push(style.dim("no live runs (Ctrl-C stops watching)"));
    } else if live.len() > room {
        lines.push(style.dim(&format!("and {}", counted(live.len() - room, "more run"))));
    }
    let mut text = String::new();
    // In a terminal that has become narrower since, a line takes several rows.
    let rows: usize = before.iter().map(|drawn| drawn.saturating_sub(1) / columns + 1).sum();
    if rows > 0 {
        // What follows the new lines on the old rows is removed with them.
        text += &format!("\x1b[{rows}A\r\x1b[J");
    }
    for line in &lines {
        text += &format!("\r\x1b[2K{line}\n");
    }
    // Lines of runs that have ended since.
    text += "\x1b[J";
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    lines.iter().map(|line| columns_of(line)).collect()
}

/// Prints a line for each run that has changed since the last look, and for each that has ended.
fn changes(
    context: &Context,
    app: &App,
    live: &[LiveRun],
    shown: &mut BTreeMap<String, String>,
) -> Result<(), Failure> {
    for run in live {
        let text = run.text(context);
        if shown.get(run.word("id")) != Some(&text) {
            line(&text);
            shown.insert(run.id(), text);
        }
    }
    let ended: Vec<String> =
        shown.keys().filter(|id| live.iter().all(|run| run.word("id") != id.as_str())).cloned().collect();
    for id in ended {
        shown.remove(&id);
        let row = id.parse().ok().map(|id| app.run(id)).transpose()?.flatten();
        let Some(row) = row else { continue };
        line(&LiveRun::ended_text(context, &json!(RunView::of(&row))));
    }
    Ok(())
}
