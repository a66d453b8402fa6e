//! One entry of a log, as a line of the file and as JSON.
//!
//! ```text
//! 2026-01-31T10:00:00.123Z out a whole line
//! 2026-01-31T10:00:00.456Z err+ a piece of a line that continues in the next entry of `err`
//! 2026-01-31T10:00:00.789Z note sprag: a note of the supervisor
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

/// The source of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// The command's stdout.
    Out,
    /// The command's stderr.
    Err,
    /// The supervisor itself.
    Note,
}

/// A line of output, or a piece of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The time of reading: RFC 3339, UTC, with milliseconds.
    pub at: String,
    /// The source of the text.
    pub stream: Stream,
    /// The text, without the line end.
    pub text: String,
    /// Whether the line continues in the stream's next entry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl LogEntry {
    /// Parses a line of a log file; `None` if it is not an entry.
    pub fn parse(line: &str) -> Option<LogEntry> {
        let (at, rest) = line.split_once(' ')?;
        let (stream, text) = rest.split_once(' ')?;
        let (name, partial) = match stream.strip_suffix('+') {
            Some(name) => (name, true),
            None => (stream, false),
        };
        let stream = match name {
            "out" => Stream::Out,
            "err" => Stream::Err,
            "note" => Stream::Note,
            _ => return None,
        };
        // A timestamp has a fixed length; a shorter one was cut off by a crash.
        (at.len() == "2026-01-31T10:00:00.123Z".len() && at.ends_with('Z')).then(|| LogEntry {
            at: at.to_owned(),
            stream,
            text: text.to_owned(),
            partial,
        })
    }
}

/// Formats the line of the file, without its line end.
impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.partial { "+" } else { "" };
        write!(f, "{} {}{mark} {}", self.at, self.stream, self.text)
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stream::Out => "out",
            Stream::Err => "err",
            Stream::Note => "note",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_a_round_trip() {
        for (stream, text, partial) in
            [(Stream::Out, "", false), (Stream::Err, " a  b ", true), (Stream::Note, "sprag: é\r", false)]
        {
            let entry =
                LogEntry { at: "2026-01-31T10:00:00.123Z".into(), stream, text: text.into(), partial };
            assert_eq!(LogEntry::parse(&entry.to_string()), Some(entry));
        }
        for torn in ["", "2026-01", "2026-01-31T10:00:00.123Z", "2026-01-31T10:00:00.123Z ou", "x out y"] {
            assert_eq!(LogEntry::parse(torn), None, "{torn:?}");
        }
    }

    #[test]
    fn json_has_the_documented_fields() {
        let entry = LogEntry { at: "t".into(), stream: Stream::Out, text: "x".into(), partial: false };
        assert_eq!(serde_json::to_string(&entry).expect("json"), r#"{"at":"t","stream":"out","text":"x"}"#);
    }
}
