//! The output of attempts, printed as it arrives.

use std::collections::BTreeMap;

use serde_json::json;
use sprag_app::{App, Files};
use sprag_lifecycle::ExecutionId;
use sprag_process::{LineJoiner, LogEntry, LogReader};

use crate::context::RunWithPlan;
use crate::exit::Failure;
use crate::show::{Style, line, plain};

/// The number of log entries in one read.
const ENTRIES_AT_ONCE: usize = 4096;
/// The most reads of one log before the next log gets its turn.
const READS_AT_ONCE: usize = 64;

/// The logs of attempts, printed line by line, each line once and whole.
pub(crate) struct Tails {
    files: Files,
    tails: BTreeMap<ExecutionId, Tail>,
    app: App,
    known: RunWithPlan,
    width: usize,
    json: bool,
    /// Whether lines begin with the step's name.
    named: bool,
}

/// One attempt's log, read as far as it was printed.
struct Tail {
    step: String,
    reader: LogReader,
    lines: LineJoiner,
}

impl Tails {
    pub(crate) fn new(app: &App, files: Files, known: &RunWithPlan, json: bool, named: bool) -> Self {
        let width = known.plan.steps.iter().map(|step| step.id.chars().count()).max().unwrap_or(0);
        let (app, known) = (app.clone(), known.clone());
        Tails { files, tails: BTreeMap::new(), app, known, width, json, named }
    }

    /// Prints the new part of an attempt's log, to its end.
    pub(crate) fn print(&mut self, id: ExecutionId) -> Result<(), Failure> {
        self.read(id, usize::MAX)?;
        let Some(mut tail) = self.tails.remove(&id) else { return Ok(()) };
        tail.lines.rest().for_each(|entry| self.show(id, &tail.step, &entry));
        self.tails.insert(id, tail);
        Ok(())
    }

    /// Prints a part of what is new in the log of a running attempt. The log may grow faster than it is shown, and its
    /// last line may be unfinished.
    pub(crate) fn print_some(&mut self, id: ExecutionId) -> Result<(), Failure> {
        self.read(id, READS_AT_ONCE)
    }

    fn read(&mut self, id: ExecutionId, most: usize) -> Result<(), Failure> {
        let mut tail = self.tails.remove(&id).unwrap_or_else(|| {
            let step = self.known.name_of(&self.app, id.step);
            let reader = LogReader::new(self.files.log(id, &step));
            Tail { step, reader, lines: LineJoiner::default() }
        });
        for _ in 0..most {
            let entries = tail.reader.read(ENTRIES_AT_ONCE).map_err(|error| {
                let path = self.files.log(id, &tail.step);
                Failure::error(format!("{}: {error}", path.display()))
            })?;
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                if let Some(whole) = tail.lines.add(entry) {
                    self.show(id, &tail.step, &whole);
                }
            }
        }
        self.tails.insert(id, tail);
        Ok(())
    }

    fn show(&self, id: ExecutionId, step: &str, entry: &LogEntry) {
        if self.json {
            let told = json!({
                "run": id.run, "step": step, "attempt": id.attempt,
                "at": entry.at, "stream": entry.stream, "text": entry.text,
            });
            line(&told.to_string());
        } else if self.named {
            let name = format!("{step:>width$} │", width = self.width.max(step.chars().count()));
            line(&format!("{} {}", Style::stdout().dim(&name), plain(&entry.text)));
        } else {
            line(&plain(&entry.text));
        }
    }
}
