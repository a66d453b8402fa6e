//! Joins the pieces of a line.

use super::{LogEntry, Stream};

/// The longest line that is joined. A longer line is returned in parts.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Joins log entries to whole lines, for each stream. A command that pauses in the middle of a line is logged
/// in pieces.
#[derive(Debug, Default)]
pub struct LineJoiner {
    pending: [Option<LogEntry>; 2],
}

impl LineJoiner {
    /// Adds the next entry. Returns the line when its last piece has arrived.
    pub fn add(&mut self, entry: LogEntry) -> Option<LogEntry> {
        let pending = match entry.stream {
            Stream::Out => &mut self.pending[0],
            Stream::Err => &mut self.pending[1],
            Stream::Note => return Some(entry),
        };
        let line = match pending.take() {
            None => entry,
            Some(begun) => LogEntry { text: begun.text + &entry.text, partial: entry.partial, ..begun },
        };
        if line.partial && line.text.len() < MAX_LINE_BYTES {
            *pending = Some(line);
            return None;
        }
        Some(line)
    }

    /// Returns the unfinished lines at the end of the log.
    pub fn rest(&mut self) -> impl Iterator<Item = LogEntry> + '_ {
        self.pending.iter_mut().filter_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> LogEntry {
        LogEntry::parse(&format!("2026-01-31T10:00:00.123Z {text}")).expect("an entry")
    }

    #[test]
    fn pieces_of_two_streams_become_their_lines() {
        let mut lines = LineJoiner::default();
        let given: Vec<String> =
            ["out+ on", "err+ oo", "note aside", "out e", "err ps", "out two", "err+ ..."]
                .into_iter()
                .filter_map(|text| lines.add(entry(text)))
                .map(|line| line.text)
                .collect();
        assert_eq!(given, ["aside", "one", "oops", "two"]);
        assert_eq!(lines.rest().map(|line| line.text).collect::<Vec<_>>(), ["..."]);
        assert_eq!(lines.rest().count(), 0);
    }

    #[test]
    fn a_line_without_an_end_is_not_held_forever() {
        let mut lines = LineJoiner::default();
        let piece = entry(&format!("out+ {}", "x".repeat(16 << 10)));
        let given: usize =
            (0..640).filter_map(|_| lines.add(piece.clone())).map(|line| line.text.len()).sum();
        assert_eq!(given, 10 << 20);
    }
}
