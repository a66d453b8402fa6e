//! The event log of a simulation: one line per event, and a hash for comparisons.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use sprag_lifecycle::RunId;
use sprag_store::{JournalEntry, Written};

use super::world::START_MS;

/// The event log of one world. See the module's documentation.
pub struct EventLog {
    lines: Option<Vec<String>>,
    line: String,
    hash: u64,
    /// Numbers of runs in the order of their first event, because run ids are hard to read.
    runs: BTreeMap<RunId, usize>,
}

impl EventLog {
    pub fn new(kept: bool) -> Self {
        let lines = kept.then(Vec::new);
        EventLog { lines, line: String::new(), hash: 0xcbf2_9ce4_8422_2325, runs: BTreeMap::new() }
    }

    /// Returns a run's number in the log.
    pub fn name_of(&mut self, run: RunId) -> usize {
        let next = self.runs.len() + 1;
        *self.runs.entry(run).or_insert(next)
    }

    pub fn record(&mut self, now_ms: i64, who: &str, what: fmt::Arguments<'_>) {
        let ms = now_ms - START_MS;
        self.line.clear();
        let _ = write!(self.line, "{:>6}.{:03} {who:<12} {what}", ms / 1000, ms % 1000);
        for byte in self.line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(self.line.clone());
        }
    }

    /// Records a write that reached the store.
    pub fn record_write(&mut self, now_ms: i64, who: &str, what: &'static str, written: &Written) {
        let mut text = operation(what);
        match &written.error {
            Some(error) => {
                let _ = write!(text, ": {error}");
            }
            // A claim without result or a heartbeat gets no line.
            None if written.entries.is_empty() && is_routine(&text) => return self.mark(now_ms, &text),
            None if written.entries.is_empty() => {}
            None => {
                text.push(':');
                for entry in &written.entries {
                    self.append_entry(&mut text, entry);
                }
            }
        }
        self.record(now_ms, who, format_args!("{text}"));
    }

    /// Adds an event to the hash without a line.
    fn mark(&mut self, now_ms: i64, what: &str) {
        let what = what.bytes().fold(now_ms as u64, |hash, byte| hash.rotate_left(8) ^ u64::from(byte));
        self.hash = (self.hash ^ what).wrapping_mul(0x0000_0100_0000_01b3);
    }

    fn append_entry(&mut self, text: &mut String, entry: &JournalEntry) {
        let _ = write!(text, " {}", entry.event);
        if let Some(run) = entry.place.run {
            let _ = write!(text, " r{}", self.name_of(run));
        }
        if let Some(step) = entry.place.step {
            let _ = write!(text, "/{step}");
        }
        if let Some(attempt) = entry.place.attempt {
            let _ = write!(text, "#{attempt}");
        }
        text.push(',');
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}

fn is_routine(operation: &str) -> bool {
    ["Claims.claim", "Claims.claim_once", "Claims.heartbeat", "LeaseHolder.renew"].contains(&operation)
}

/// Returns the operation's name, taken from the path of its closure.
fn operation(path: &str) -> String {
    let path = path.split("::{{closure}}").next().unwrap_or(path);
    let mut parts = path.rsplit("::");
    let verb = parts.next().unwrap_or_default();
    let handle = parts.next().unwrap_or_default();
    let handle = handle.split('<').next().unwrap_or_default();
    format!("{handle}.{verb}")
}
