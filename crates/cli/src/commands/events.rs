//! `sprag events`: the journal.

use std::collections::VecDeque;

use serde_json::{Value, json};
use sprag_app::{Events, JournalEntry, Names};
use tokio::signal::unix::{SignalKind, signal};

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{end_line, line, local, plain, time_in};

pub(crate) async fn events(
    context: &Context,
    run: Option<&str>,
    since: u64,
    follow: bool,
    tail: Option<usize>,
) -> Result<Exit, Failure> {
    let app = context.app()?;
    let only = run.map(|run| find_run(&app, Some(run))).transpose()?.map(|known| known.id());
    let mut names = Names::new(&app);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut events = Events::new(&app, only, since);
    if let Some(most) = tail {
        let mut last = VecDeque::new();
        loop {
            let entries = events.ready()?;
            if entries.is_empty() {
                break;
            }
            last.extend(entries);
            last.drain(..last.len().saturating_sub(most));
        }
        for entry in &last {
            show(context, &mut names, entry)?;
        }
    }
    loop {
        let entries = events.ready()?;
        for entry in &entries {
            show(context, &mut names, entry)?;
        }
        if entries.is_empty() && !follow {
            return Ok(Exit::Ok);
        }
        if entries.is_empty() {
            tokio::select! {
                () = events.wait(std::time::Duration::from_secs(2)) => {}
                _ = interrupt.recv() => {
                    end_line();
                    return Ok(Exit::Ok);
                }
            }
        }
    }
}

fn show(context: &Context, names: &mut Names, entry: &JournalEntry) -> Result<(), Failure> {
    print(context, &json!(names.view(entry)?));
    Ok(())
}

/// Prints an entry of the journal, from the value that programs see.
pub(super) fn print(context: &Context, entry: &Value) {
    if context.json {
        line(&entry.to_string());
        return;
    }
    let style = context.style;
    let word = |key: &str| plain(entry[key].as_str().unwrap_or_default());
    let subject = if entry["name"].is_string() { word("name") } else { word("id") };
    let about = [subject, word("path"), word("reason")].join(" ");
    line(&format!(
        "{:>6} {}  {:<21} {} → {}  {}",
        entry["seq"].as_u64().unwrap_or_default(),
        style.dim(&time_in(entry, "at").map(local).unwrap_or_default()),
        word("event"),
        entry["from"].as_str().map_or_else(|| "·".to_owned(), plain),
        style.status(&word("to"), 0),
        style.dim(about.trim_end()),
    ));
}
