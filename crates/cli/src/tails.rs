//! The output of attempts, printed as it arrives.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal, Write};

use serde_json::json;
use sprag_app::text::command_line;
use sprag_app::{App, Files};
use sprag_lifecycle::ExecutionId;
use sprag_process::{LineJoiner, LogEntry, LogReader, Stream};

use crate::context::RunWithPlan;
use crate::exit::Failure;
use crate::show::{Style, columns_of, line, shortened};

/// The number of log entries in one read.
const ENTRIES_AT_ONCE: usize = 4096;
/// The most reads of one log before the next log gets its turn.
const READS_AT_ONCE: usize = 64;

/// The widest column of step names.
const WIDEST_NAME: usize = 20;

/// The look of printed lines, and which of them are printed.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineOptions {
    pub(crate) json: bool,
    /// Whether lines begin with the step's name.
    pub(crate) named: bool,
    /// Whether lines begin with their time.
    pub(crate) timestamps: bool,
    /// Whether the text is printed exactly as the command printed it.
    pub(crate) raw: bool,
    /// The time of the first line that is printed, in the form of [`LogEntry::at`].
    pub(crate) since: Option<String>,
    /// The number of lines that are printed of what each log holds at first.
    pub(crate) tail: Option<usize>,
}

/// The printer of log lines.
pub(crate) struct LinePrinter {
    /// The width of the column of step names.
    width: usize,
    /// Whether longer names are cut: on a terminal, where the lines themselves need the room.
    cuts: bool,
    pub(crate) options: LineOptions,
}

/// The logs of attempts, printed line by line, each line once and whole.
pub(crate) struct Tails {
    files: Files,
    tails: BTreeMap<ExecutionId, Tail>,
    app: App,
    known: RunWithPlan,
    printer: LinePrinter,
}

/// One attempt's log, read as far as it was printed.
struct Tail {
    step: String,
    reader: LogReader,
    lines: LineJoiner,
    /// The last lines of the first read, until it is complete.
    held: Option<VecDeque<LogEntry>>,
}

impl Tails {
    pub(crate) fn new(app: &App, files: Files, known: &RunWithPlan, options: LineOptions) -> Self {
        let printer = LinePrinter::new(known.plan.steps.iter().map(|step| step.id.as_str()), options);
        let (app, known) = (app.clone(), known.clone());
        Tails { files, tails: BTreeMap::new(), app, known, printer }
    }

    /// Prints the new part of an attempt's log, to its end.
    pub(crate) fn print(&mut self, id: ExecutionId) -> Result<(), Failure> {
        self.read(id, usize::MAX)?;
        let Some(mut tail) = self.tails.remove(&id) else { return Ok(()) };
        for entry in tail.lines.rest() {
            self.show(id, &tail.step, &entry);
        }
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
            let held = self.printer.options.tail.map(|_| VecDeque::new());
            Tail { step, reader, lines: LineJoiner::default(), held }
        });
        for _ in 0..most {
            let entries = tail.reader.read(ENTRIES_AT_ONCE).map_err(|error| {
                let path = self.files.log(id, &tail.step);
                Failure::error(format!("{}: {error}", path.display()))
            })?;
            if entries.is_empty() {
                // All that was there is read: the last lines of it are known.
                for entry in tail.held.take().into_iter().flatten() {
                    self.show(id, &tail.step, &entry);
                }
                break;
            }
            for entry in entries {
                let Some(whole) = tail.lines.add(entry) else { continue };
                match (&mut tail.held, self.printer.options.tail) {
                    (Some(held), Some(most)) => {
                        held.push_back(whole);
                        if held.len() > most {
                            held.pop_front();
                        }
                    }
                    _ => self.show(id, &tail.step, &whole),
                }
            }
        }
        self.tails.insert(id, tail);
        Ok(())
    }

    fn show(&self, id: ExecutionId, step: &str, entry: &LogEntry) {
        self.printer.print(&id.run.to_string(), step, id.attempt, entry);
    }
}

impl LinePrinter {
    /// Returns a printer for the lines of these steps.
    pub(crate) fn new<'n>(names: impl Iterator<Item = &'n str>, options: LineOptions) -> Self {
        let longest = names.map(columns_of).max().unwrap_or(0);
        LinePrinter { width: longest.min(WIDEST_NAME), cuts: std::io::stdout().is_terminal(), options }
    }

    /// Prints a line of an attempt's log, unless it is older than the user wants.
    pub(crate) fn print(&self, run: &str, step: &str, attempt: u32, entry: &LogEntry) {
        let options = &self.options;
        if options.since.as_ref().is_some_and(|since| entry.at < *since) {
            return;
        }
        if options.json {
            let told = json!({
                "run": run, "step": step, "attempt": attempt,
                "at": entry.at, "stream": entry.stream, "text": entry.text,
            });
            line(&told.to_string());
            return;
        }
        if options.raw {
            // Notes are Sprag's own, not the command's.
            if entry.stream != Stream::Note {
                let mut out = std::io::stdout().lock();
                let _ = writeln!(out, "{}", entry.text);
            }
            return;
        }
        let style = Style::stdout();
        let mut before = String::new();
        if options.timestamps {
            before += &format!("{} ", entry.at);
        }
        if options.named {
            let step = if self.cuts { shortened(step, WIDEST_NAME) } else { step.to_owned() };
            let room = self.width.saturating_sub(columns_of(&step));
            before += &format!("{}{step} │ ", " ".repeat(room));
        }
        line(&format!("{}{}", style.dim(&before), command_line(&entry.text, style.coloured())));
    }
}
