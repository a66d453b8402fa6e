//! Reading a log by line numbers, and searching it.
//!
//! A log has at most 64 MB, so each request reads the file once and remembers the offset of every 256th line. The
//! number of a line never changes, because logs only grow.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use serde::Serialize;
use sprag_process::LogEntry;

use crate::error::Error;

/// The distance between two lines whose offsets are remembered.
const EVERY: u64 = 256;
/// The most lines of one answer.
const MOST_LINES: usize = 2_000;
/// The most bytes of the texts of one answer.
const MOST_BYTES: usize = 1 << 20;
/// The most bytes of one line's text. The raw log has the rest.
const LONGEST_LINE: usize = 16 << 10;
/// The most lines that a search returns.
const MOST_HITS: usize = 10_000;
const BUFFER: usize = 256 << 10;

/// The part of a log to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogPart {
    /// The lines from this number on, the first being 1.
    From(u64),
    /// The last lines.
    Last,
}

/// A part of a log, by lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLines {
    /// The lines, in order.
    pub lines: Vec<LogLine>,
    /// The number of complete lines in the log.
    pub total: u64,
    /// The offset of the byte after the last complete line, from which `log?follow=true&offset=` continues.
    pub end: u64,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// Its number, from 1.
    pub no: u64,
    /// The time at which it was printed; absent if the line is damaged.
    pub at: Option<String>,
    /// `out`, `err` or `note`; absent if the line is damaged.
    pub stream: Option<String>,
    /// The text, with the escape sequences of the command.
    pub text: String,
    /// Whether the text continues in the next line of the same stream.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// The bytes of the text that were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
}

/// The lines in which a text occurs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogHits {
    /// The numbers of the lines, in order; at most 10,000.
    pub lines: Vec<u64>,
    /// Whether there are more after the last one: search again with `after`.
    pub more: bool,
    /// The number of complete lines in the log.
    pub total: u64,
}

/// Returns at most `count` lines of a log.
pub fn read_lines(log: impl Read + Seek, part: LogPart, count: usize) -> Result<LogLines, Error> {
    let count = count.min(MOST_LINES);
    let mut reader = BufReader::with_capacity(BUFFER, log);
    // The offset of line 1, 257, 513, …
    let mut offsets = vec![0u64];
    let (mut total, mut end) = (0u64, 0u64);
    while let Some(length) = skip_line(&mut reader)? {
        end += length;
        total += 1;
        if total % EVERY == 0 {
            offsets.push(end);
        }
    }
    let first = match part {
        LogPart::From(no) => no.max(1),
        LogPart::Last => (total + 1).saturating_sub(count as u64).max(1),
    };
    let mut lines = Vec::new();
    if first <= total {
        let near = ((first - 1) / EVERY) as usize;
        reader.seek(SeekFrom::Start(offsets[near])).map_err(failed)?;
        for _ in near as u64 * EVERY..first - 1 {
            skip_line(&mut reader)?;
        }
        let (mut bytes, mut buffer) = (0, Vec::new());
        for no in first..=total.min(first.saturating_add(count as u64).saturating_sub(1)) {
            buffer.clear();
            reader.read_until(b'\n', &mut buffer).map_err(failed)?;
            let line = parsed(no, &buffer);
            bytes += line.text.len();
            lines.push(line);
            if bytes >= MOST_BYTES {
                break;
            }
        }
    }
    Ok(LogLines { lines, total, end })
}

/// Returns the lines after `after` in which a text occurs, in any case; escape sequences do not count as text.
pub fn search_lines(log: impl Read, text: &str, after: u64) -> Result<LogHits, Error> {
    let wanted = text.to_lowercase();
    let mut reader = BufReader::with_capacity(BUFFER, log);
    let mut hits = LogHits { lines: Vec::new(), more: false, total: 0 };
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        reader.read_until(b'\n', &mut buffer).map_err(failed)?;
        if !buffer.ends_with(b"\n") {
            return Ok(hits);
        }
        hits.total += 1;
        if hits.total <= after || hits.more {
            continue;
        }
        let line = String::from_utf8_lossy(&buffer);
        // A line is a time, a stream and a text.
        let shown = line.trim_end().splitn(3, ' ').nth(2).unwrap_or_default();
        let found = if shown.contains('\x1b') {
            without_escapes(shown).to_lowercase().contains(&wanted)
        } else {
            shown.to_lowercase().contains(&wanted)
        };
        if found && hits.lines.len() == MOST_HITS {
            hits.more = true;
        } else if found {
            hits.lines.push(hits.total);
        }
    }
}

/// Skips a line. Returns its length; none at the end of the log, and for a line that is not complete.
fn skip_line(reader: &mut impl BufRead) -> Result<Option<u64>, Error> {
    let mut length = 0;
    loop {
        let buffer = reader.fill_buf().map_err(failed)?;
        if buffer.is_empty() {
            return Ok(None);
        }
        // The buffer is searched by the standard library, which is quick in every build.
        let mut rest = buffer;
        let count = rest.skip_until(b'\n').map_err(failed)?;
        let is_end = buffer[count - 1] == b'\n';
        reader.consume(count);
        length += count as u64;
        if is_end {
            return Ok(Some(length));
        }
    }
}

fn parsed(no: u64, bytes: &[u8]) -> LogLine {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let (at, stream, mut text, partial) = match LogEntry::parse(text) {
        Some(entry) => (Some(entry.at), Some(entry.stream.to_string()), entry.text, entry.partial),
        None => (None, None, text.to_owned(), false),
    };
    let whole = text.len();
    if whole > LONGEST_LINE {
        text.truncate(text.floor_char_boundary(LONGEST_LINE));
    }
    let left_out = Some((whole - text.len()) as u64).filter(|count| *count > 0);
    LogLine { no, at, stream, text, partial, left_out }
}

/// Returns a text without the escape sequences that colour it and move the cursor.
fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\x1b' {
            out.push(c);
            continue;
        }
        match rest.next() {
            // A control sequence ends with a letter or a sign beyond it.
            Some('[') => drop(rest.by_ref().find(|c| ('@'..='~').contains(c))),
            // A command to the terminal ends with BEL or ESC \.
            Some(']') => {
                let end = rest.by_ref().find(|c| matches!(c, '\x07' | '\x1b'));
                rest.next_if(|c| end == Some('\x1b') && *c == '\\');
            }
            _ => {}
        }
    }
    out
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("the log cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn log(count: u64) -> Cursor<Vec<u8>> {
        let line = |no| format!("2026-01-31T10:00:00.123Z out line {no}\n");
        Cursor::new((1..=count).map(line).collect::<String>().into_bytes())
    }

    fn numbers(found: &LogLines) -> Vec<u64> {
        found.lines.iter().map(|line| line.no).collect()
    }

    #[test]
    fn any_line_is_found_by_its_number() {
        for first in [1, 2, 255, 256, 257, 258, 512, 999, 1000] {
            let found = read_lines(log(1000), LogPart::From(first), 2).expect("read");
            assert_eq!((found.total, found.lines[0].no), (1000, first));
            assert_eq!(found.lines[0].text, format!("line {first}"));
            assert_eq!(found.end, log(1000).into_inner().len() as u64);
        }
        assert_eq!(numbers(&read_lines(log(300), LogPart::Last, 3).expect("read")), [298, 299, 300]);
        assert_eq!(numbers(&read_lines(log(2), LogPart::Last, 3).expect("read")), [1, 2]);
        assert_eq!(numbers(&read_lines(log(2), LogPart::From(3), 3).expect("read")), [0; 0]);
        assert_eq!(numbers(&read_lines(log(0), LogPart::Last, 3).expect("read")), [0; 0]);
        assert_eq!(numbers(&read_lines(log(9), LogPart::From(u64::MAX), 3).expect("read")), [0; 0]);
    }

    #[test]
    fn an_incomplete_line_and_a_damaged_one() {
        let text = "2026-01-31T10:00:00.123Z err+ a\nodd\n2026-01-31T10:00:00.123Z out torn";
        let found = read_lines(Cursor::new(text), LogPart::From(1), 10).expect("read");
        assert_eq!((found.total, found.lines.len()), (2, 2));
        assert!(found.lines[0].partial && found.lines[0].stream.as_deref() == Some("err"));
        assert_eq!((found.lines[1].at.as_deref(), found.lines[1].text.as_str()), (None, "odd"));
    }

    #[test]
    fn a_long_line_is_cut_at_a_character() {
        let text = format!("2026-01-31T10:00:00.123Z out {}\n", "é".repeat(LONGEST_LINE));
        let found = read_lines(Cursor::new(text), LogPart::From(1), 10).expect("read");
        let line = &found.lines[0];
        assert_eq!(line.text.len() as u64 + line.left_out.unwrap_or(0), 2 * LONGEST_LINE as u64);
        assert!(line.text.len() <= LONGEST_LINE);
    }

    #[test]
    fn a_search_ignores_case_and_escape_sequences() {
        let line = |text: &str| format!("2026-01-31T10:00:00.123Z out {text}\n");
        let text = [
            line("Error here"),
            line("\x1b[31mer\x1b[0mror"),
            line("\x1b]8;;http://error\x07link\x1b]8;;\x1b\\"),
            line("fine"),
            line("ERROR"),
        ]
        .concat();
        let hits = search_lines(Cursor::new(&text), "error", 0).expect("searched");
        assert_eq!((hits.lines, hits.total, hits.more), (vec![1, 2, 5], 5, false));
        assert_eq!(search_lines(Cursor::new(&text), "error", 2).expect("searched").lines, [5]);
        assert_eq!(search_lines(Cursor::new(&text), "2026", 0).expect("searched").lines, [0; 0]);
        let many = search_lines(log(MOST_HITS as u64 + 5), "line", 0).expect("searched");
        assert!(many.more && many.lines.len() == MOST_HITS && many.total == MOST_HITS as u64 + 5);
    }
}
