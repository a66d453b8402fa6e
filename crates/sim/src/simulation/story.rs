//! The story of a simulation: one line for each thing that happened, and a hash by which two are compared.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use sprag_lifecycle::RunId;
use sprag_store::{JournalEntry, Written};

use super::world::BEGINNING_MS;

/// See the module's documentation.
pub struct Story {
    lines: Option<Vec<String>>,
    line: String,
    hash: u64,
    /// Runs in the order in which they were first told of: their ids are hard to read.
    runs: BTreeMap<RunId, usize>,
}

impl Story {
    pub fn new(kept: bool) -> Self {
        let lines = kept.then(Vec::new);
        Story { lines, line: String::new(), hash: 0xcbf2_9ce4_8422_2325, runs: BTreeMap::new() }
    }

    /// A run's name in the story.
    pub fn name_of(&mut self, run: RunId) -> usize {
        let next = self.runs.len() + 1;
        *self.runs.entry(run).or_insert(next)
    }

    pub fn tell(&mut self, now_ms: i64, who: &str, what: fmt::Arguments<'_>) {
        let ms = now_ms - BEGINNING_MS;
        self.line.clear();
        let _ = write!(self.line, "{:>6}.{:03} {who:<12} {what}", ms / 1000, ms % 1000);
        for byte in self.line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(self.line.clone());
        }
    }

    /// Tells of a write that reached the store.
    pub fn tell_write(&mut self, now_ms: i64, who: &str, what: &'static str, written: &Written) {
        let mut text = operation(what);
        match &written.error {
            Some(error) => {
                let _ = write!(text, ": {error}");
            }
            // Whoever looks in vain, or only shows that it is there, is not worth a line.
            None if written.entries.is_empty() && is_routine(&text) => return self.mark(now_ms, &text),
            None if written.entries.is_empty() => {}
            None => {
                text.push(':');
                for entry in &written.entries {
                    self.append_entry(&mut text, entry);
                }
            }
        }
        self.tell(now_ms, who, format_args!("{text}"));
    }

    /// Counts in the hash, and is not told.
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
    ["Claims.claim", "Claims.claim_as", "Claims.heartbeat", "Holder.renew"].contains(&operation)
}

/// The operation's name, out of the path of the closure that does it.
fn operation(path: &str) -> String {
    let path = path.split("::{{closure}}").next().unwrap_or(path);
    let mut parts = path.rsplit("::");
    let verb = parts.next().unwrap_or_default();
    let handle = parts.next().unwrap_or_default();
    let handle = handle.split('<').next().unwrap_or_default();
    format!("{handle}.{verb}")
}
