//! How things look: colours, times, tables, and the JSON shapes that programs rely on.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::{Value, json};
use sprag_lifecycle::{Plan, RunId, StepNo, WorkKind};
use sprag_store::{JournalEntry, Row, RunRow, StepRow, step_name};

use crate::args::Colour;

/// Whether to colour, for one of the two streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    coloured: bool,
}

static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl Style {
    /// Remembers what the user wants.
    pub(crate) fn choose(colour: Colour) {
        CHOSEN.store(colour as u8, Ordering::Relaxed);
    }

    fn of(terminal: bool) -> Style {
        let coloured = match CHOSEN.load(Ordering::Relaxed) {
            chosen if chosen == Colour::Always as u8 => true,
            chosen if chosen == Colour::Never as u8 => false,
            _ => terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        Style { coloured }
    }

    pub(crate) fn stdout() -> Style {
        Style::of(std::io::stdout().is_terminal())
    }

    pub(crate) fn stderr() -> Style {
        Style::of(std::io::stderr().is_terminal())
    }

    #[cfg(test)]
    pub(crate) fn plain() -> Style {
        Style { coloured: false }
    }

    #[cfg(test)]
    pub(crate) fn colourful() -> Style {
        Style { coloured: true }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.coloured && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// A status in the colour of its meaning.
    pub(crate) fn status(self, word: &str, padded: usize) -> String {
        let text = format!("{word:padded$}");
        match word {
            "completed" | "done" => self.green(&text),
            "failed" | "failing" | "timed_out" | "abandoned" => self.red(&text),
            "running" | "scheduled" => self.paint("36", &text),
            "cancelled" | "cancelling" | "skipped" => self.paint("33", &text),
            _ => self.dim(&text),
        }
    }

    /// The sign in front of a step.
    pub(crate) fn sign(self, status: &str) -> String {
        match status {
            "done" | "completed" => self.green("✓"),
            "failed" => self.red("✗"),
            "running" => self.paint("36", "▶"),
            "skipped" => self.paint("33", "↷"),
            "cancelled" => self.paint("33", "■"),
            _ => self.dim("·"),
        }
    }

    pub(crate) fn coloured(self) -> bool {
        self.coloured
    }
}

/// Writes a line to stdout; a reader that has gone away is no error.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
}

/// How many characters a line of stdout holds: those of the terminal, else 80.
pub(crate) fn width() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(80, |size| usize::from(size.ws_col.max(40)))
}

/// Text from outside, made safe for a terminal: no control character but the tabulator.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// `1 step`, `2 steps`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A wall-clock time for programs.
pub(crate) fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| format!("{at:.3}"))
}

/// A wall-clock time for people.
pub(crate) fn local(ms: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(ms);
    at.map_or_else(
        |_| ms.to_string(),
        |at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%m-%d %H:%M:%S").to_string(),
    )
}

/// A span for people: `24ms`, `12.3s`, `4m05s`, `2h03m`, `3d04h`.
pub(crate) fn span(ms: i64) -> String {
    let ms = ms.max(0);
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{}.{}s", s, ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// A run in `ls --json`.
pub(crate) fn run_json(run: &RunRow) -> Value {
    json!({
        "id": run.id,
        "pipeline": &*run.pipeline,
        "status": run.status(),
        "created_at": rfc3339(run.created_ms),
        "started_at": run.started_ms.map(rfc3339),
        "ended_at": run.ended_ms.map(rfc3339),
    })
}

/// Whether a step counts: not an item of a list that has been made anew since, or will be.
pub(crate) fn is_current(steps: &[StepRow], step: &StepRow) -> bool {
    let Some(parent) = step.item_of else { return true };
    // Planned steps come first, in their order.
    let list = steps.get(parent as usize).and_then(|parent| parent.items);
    list.is_some_and(|list| step.no >= list.first)
}

/// A run in `status --json`.
pub(crate) fn status_json(run: &RunRow, plan: &Plan, steps: &[StepRow]) -> Value {
    let steps: Vec<Value> = steps
        .iter()
        .filter(|step| is_current(steps, step))
        .map(|step| {
            let mut told = json!({
                "id": step_name(plan, step), "status": step.status(), "attempt": step.attempt,
            });
            if let Some(parent) = step.item_of {
                told["item_of"] = plan.step(parent).id.clone().into();
            }
            if let Some(list) = step.items {
                let items = list.items;
                told["items"] =
                    json!({ "total": items.total, "settled": items.settled, "failed": items.failed });
            }
            if let (WorkKind::Child, Some(child)) = (plan.step(step.node()).work, step.work) {
                told["child"] = json!(RunId::from_i64(child));
            }
            told
        })
        .collect();
    json!({
        "id": run.id,
        "pipeline": &*run.pipeline,
        "status": run.status(),
        "epoch": run.epoch,
        "steps": steps,
    })
}

/// A journal entry for programs; `step_name` knows the steps' ids.
pub(crate) fn entry_json(entry: &JournalEntry, step_name: impl Fn(StepNo) -> Option<String>) -> Value {
    let step = entry.place.step.map(|no| step_name(no).unwrap_or_else(|| no.to_string()));
    let run = entry.place.run.map(|run| run.to_string());
    let id = match (entry.entity, &run, &step, entry.place.attempt) {
        ("run", Some(run), _, _) => run.clone(),
        ("step", Some(run), Some(step), _) => format!("{run}/{step}"),
        ("execution", Some(run), Some(step), Some(attempt)) => format!("{run}/{step}/{attempt}"),
        _ => entry.place.id.map_or_else(String::new, |id| id.to_string()),
    };
    let mut told = json!({
        "seq": entry.seq,
        "at": rfc3339(entry.at_ms),
        "entity": entry.entity,
        "id": id,
        "run": run,
        "step": step,
        "event": entry.event,
        "from": entry.from,
        "to": entry.to,
        "actor": entry.actor,
    });
    if let (Some(told), Some(note)) = (told.as_object_mut(), note_of(entry)) {
        told.extend(note);
    }
    told
}

/// What a journal entry tells beyond what happened to what: where an environment is, and why it went wrong.
pub(crate) fn note_of(entry: &JournalEntry) -> Option<serde_json::Map<String, Value>> {
    serde_json::from_str(entry.note.as_deref()?).ok()
}

/// A table with a heading, its columns as wide as they need to be; the last may be cut to fit 80.
pub(crate) fn table(style: Style, head: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([head[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let join = |cells: Vec<String>| cells.join("  ").trim_end().to_owned();
    line(
        &style.bold(&join(head.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect())),
    );
    for row in rows {
        let cells = row.iter().zip(&widths).zip(head).map(|((cell, width), name)| match *name {
            "STATUS" => style.status(cell, *width),
            _ => format!("{cell:width$}"),
        });
        line(&join(cells.collect()));
    }
}
