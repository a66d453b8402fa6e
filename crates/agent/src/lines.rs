//! Splits an agent's output into lines of bounded size and keeps the JSON in them valid.
//!
//! ```text
//!   bytes ──▶ LineSplitter ──▶ Line::Whole      every string over `max_string_bytes` is cut short inside
//!                          └─▶ Line::TooLong    more than `max_line_bytes` all the same: only its head is kept
//! ```
//!
//! Agents print one JSON object per line, and a single tool result can be megabytes long. Cutting such a line at a
//! fixed length would make it unreadable, and the message that ends a turn would be lost with it. So long strings are
//! shortened in place, with a remark about the omitted length, and the line stays valid JSON.

/// Limits of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineLimits {
    /// The most bytes of one JSON string, including escapes.
    pub max_string_bytes: usize,
    /// The most bytes of a line after its strings were shortened.
    pub max_line_bytes: usize,
}

impl Default for LineLimits {
    /// Returns 256 KiB per string and 1 MiB per line: room for any structured output, while 50 agents together stay
    /// below 150 MB.
    fn default() -> LineLimits {
        LineLimits { max_string_bytes: 256 << 10, max_line_bytes: 1 << 20 }
    }
}

/// The most bytes of an overlong line that are shown to people.
const HEAD_BYTES: usize = 200;
/// The capacity in bytes that the buffer keeps between lines.
const KEPT_CAPACITY: usize = 64 << 10;

/// A line without its line end.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A line within the bounds.
    Whole {
        /// The bytes, with long strings shortened.
        bytes: &'a [u8],
        /// The number of bytes omitted from its strings.
        left_out: u64,
    },
    /// A line that exceeds the bounds even with its strings shortened.
    TooLong {
        /// The first bytes.
        head: &'a [u8],
        /// The original length of the line in bytes.
        length: u64,
    },
}

/// The parser's position inside a JSON line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonState {
    Outside,
    InString,
    /// After a backslash in a string.
    Escape,
    /// Inside the hexadecimal digits of a `\u` escape: the number of remaining digits, and the value so far.
    Unicode(u8, u16),
}

/// Splits a stream into lines. It keeps the incomplete last line between two calls.
#[derive(Debug)]
pub struct LineSplitter {
    limits: LineLimits,
    buffer: Vec<u8>,
    state: JsonState,
    /// The bytes of the current string so far, including omitted ones.
    string_bytes: usize,
    /// The omitted bytes of the current string; the string is being skipped if this is not zero.
    skipped: u64,
    /// Whether the last escape was the first half of a surrogate pair, which must keep its second half.
    after_high_surrogate: bool,
    left_out: u64,
    /// The original length of the line so far.
    length: u64,
    is_too_long: bool,
}

impl LineSplitter {
    /// Returns an empty splitter.
    pub fn new(limits: LineLimits) -> LineSplitter {
        LineSplitter {
            limits,
            buffer: Vec::new(),
            state: JsonState::Outside,
            string_bytes: 0,
            skipped: 0,
            after_high_surrogate: false,
            left_out: 0,
            length: 0,
            is_too_long: false,
        }
    }

    /// Appends bytes and passes each complete line to `sink`.
    pub fn push(&mut self, bytes: &[u8], mut sink: impl FnMut(Line<'_>)) {
        for &byte in bytes {
            if byte == b'\n' {
                self.end_line(&mut sink);
            } else {
                self.length += 1;
                self.take(byte);
            }
        }
    }

    /// Passes the incomplete last line to `sink`, if there is one. The caller calls it at the end of the stream.
    pub fn finish(&mut self, mut sink: impl FnMut(Line<'_>)) {
        if self.length > 0 {
            self.end_line(&mut sink);
        }
    }

    fn end_line(&mut self, sink: &mut impl FnMut(Line<'_>)) {
        // The line's end cut off a string, which happens in text that is not JSON.
        self.close_skipped_string();
        if self.buffer.last() == Some(&b'\r') {
            self.buffer.pop();
        }
        if self.is_too_long {
            let head = self.buffer.get(..HEAD_BYTES).unwrap_or(&self.buffer);
            sink(Line::TooLong { head, length: self.length });
        } else if !self.buffer.is_empty() {
            sink(Line::Whole { bytes: &self.buffer, left_out: self.left_out });
        }
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_CAPACITY);
        *self = LineSplitter { buffer: std::mem::take(&mut self.buffer), ..LineSplitter::new(self.limits) };
    }

    fn take(&mut self, byte: u8) {
        match self.state {
            JsonState::Outside => {
                if byte == b'"' {
                    self.state = JsonState::InString;
                    self.string_bytes = 0;
                    self.after_high_surrogate = false;
                }
                self.keep(byte);
            }
            JsonState::InString if byte == b'"' => {
                self.close_skipped_string();
                self.state = JsonState::Outside;
                self.keep(byte);
            }
            JsonState::InString => {
                let starts_character = byte & 0b1100_0000 != 0b1000_0000;
                let may_cut = starts_character && !(self.after_high_surrogate && byte == b'\\');
                if self.skipped == 0 && may_cut && self.string_bytes >= self.limits.max_string_bytes {
                    self.skipped = 1;
                    self.state = if byte == b'\\' { JsonState::Escape } else { JsonState::InString };
                    self.string_bytes += 1;
                    return;
                }
                if byte == b'\\' {
                    self.state = JsonState::Escape;
                } else {
                    self.after_high_surrogate = false;
                }
                self.keep_in_string(byte);
            }
            JsonState::Escape => {
                self.state = if byte == b'u' { JsonState::Unicode(4, 0) } else { JsonState::InString };
                self.after_high_surrogate = self.after_high_surrogate && byte == b'u';
                self.keep_in_string(byte);
            }
            JsonState::Unicode(left, value) => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0) as u16;
                let value = value << 4 | digit;
                if left == 1 {
                    // The second half completes a pair; another first half starts a new one.
                    self.after_high_surrogate = (0xD800..0xDC00).contains(&value);
                    self.state = JsonState::InString;
                } else {
                    self.state = JsonState::Unicode(left - 1, value);
                }
                // This is not an escape: the text is not JSON, and a quote in it must not be skipped.
                if byte == b'"' {
                    self.state = JsonState::Outside;
                }
                self.keep_in_string(byte);
            }
        }
    }

    fn keep_in_string(&mut self, byte: u8) {
        self.string_bytes += 1;
        if self.skipped > 0 {
            self.skipped += 1;
        } else {
            self.keep(byte);
        }
    }

    fn close_skipped_string(&mut self) {
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 {
            self.left_out += skipped;
            for byte in left_out_remark(skipped).bytes() {
                self.keep(byte);
            }
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.buffer.len() < self.limits.max_line_bytes {
            self.buffer.push(byte);
        } else {
            self.is_too_long = true;
        }
    }
}

/// Returns the remark that replaces the omitted part of a text.
pub(crate) fn left_out_remark(bytes: u64) -> String {
    format!("…[{bytes} bytes left out]")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const SMALL: LineLimits = LineLimits { max_string_bytes: 8, max_line_bytes: 200 };

    fn lines(limits: LineLimits, chunks: &[&[u8]]) -> Vec<String> {
        let mut splitter = LineSplitter::new(limits);
        let mut found = Vec::new();
        let mut note = |line: Line<'_>| {
            found.push(match line {
                Line::Whole { bytes, .. } => String::from_utf8_lossy(bytes).into_owned(),
                Line::TooLong { head, length } => {
                    format!("TOO LONG {length} {}", String::from_utf8_lossy(head))
                }
            });
        };
        for chunk in chunks {
            splitter.push(chunk, &mut note);
        }
        splitter.finish(&mut note);
        found
    }

    #[test]
    fn lines_come_out_whatever_the_chunks() {
        assert_eq!(lines(SMALL, &[b"a\nb", b"c\r\n", b"\n\nd"]), ["a", "bc", "d"]);
    }

    #[test]
    fn a_long_string_is_shortened_and_the_line_stays_json() {
        let line = json!({"type": "result", "text": "0123456789abcdef", "ok": true}).to_string();
        let found = lines(SMALL, &[line.as_bytes(), b"\n"]);
        let value: Value = serde_json::from_str(&found[0]).expect("still JSON");
        assert_eq!(value["text"], "01234567…[8 bytes left out]");
        assert_eq!((value["type"].as_str(), value["ok"].as_bool()), (Some("result"), Some(true)));
    }

    #[test]
    fn escapes_characters_and_surrogate_pairs_are_not_cut_in_two() {
        for text in [
            r#"{"a":"1234567\n\n\n","b":1}"#,
            r#"{"a":"123456é€é€","b":1}"#,
            r#"{"a":"1\ud83d\ude00\ud83d\ude00","b":1}"#,
        ] {
            let found = lines(SMALL, &[text.as_bytes(), b"\n"]);
            let value: Value =
                serde_json::from_str(&found[0]).unwrap_or_else(|error| panic!("{error}: {}", found[0]));
            assert_eq!(value["b"], 1, "{value}");
            assert!(value["a"].as_str().is_some_and(|text| text.contains("left out")), "{value}");
        }
    }

    #[test]
    fn a_line_that_is_no_json_and_too_long_keeps_its_head() {
        let long = vec![b'x'; 1000];
        let found = lines(SMALL, &[&long, b"\n{}\n"]);
        assert!(found[0].starts_with("TOO LONG 1000 xxx"), "{}", found[0]);
        assert_eq!(found[1], "{}");
    }

    #[test]
    fn a_stray_quote_does_not_spill_into_the_next_line() {
        assert_eq!(lines(SMALL, &[b"say \"hi\n{\"a\":\"b\"}\n"]), ["say \"hi", "{\"a\":\"b\"}"]);
    }

    proptest! {
        /// Any JSON in any pieces stays JSON, and only long strings change.
        #[test]
        fn json_stays_json(text in "\\PC{0,40}", number in any::<i64>(), cut in 0usize..80, raw in any::<bool>()) {
            let value = json!({"n": number, "text": text, "list": [text, {"deep": text}]});
            // The second form escapes everything that can be escaped.
            let line = if raw { value.to_string() } else { ascii(&value) };
            let cut = cut.min(line.len());
            let limits = LineLimits { max_string_bytes: 8, max_line_bytes: 10_000 };
            let found = lines(limits, &[&line.as_bytes()[..cut], &line.as_bytes()[cut..], b"\n"]);
            prop_assert_eq!(found.len(), 1);
            let out: Value = serde_json::from_str(&found[0]).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(&out["n"], &value["n"]);
            if text.len() <= 2 {
                prop_assert_eq!(out, value);
            }
        }

        /// Bytes that are not JSON cause no panic, and the buffer stays within its limits.
        #[test]
        fn any_bytes_are_bounded(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut splitter = LineSplitter::new(SMALL);
            let mut longest = 0;
            splitter.push(&bytes, |line| if let Line::Whole { bytes, .. } = line { longest = longest.max(bytes.len()) });
            prop_assert!(longest <= SMALL.max_line_bytes);
            prop_assert!(splitter.buffer.len() <= SMALL.max_line_bytes);
        }
    }

    /// Writes JSON with every character outside ASCII as an escape.
    fn ascii(value: &Value) -> String {
        let mut out = String::new();
        for unit in value.to_string().encode_utf16() {
            match u8::try_from(unit) {
                Ok(byte) if byte.is_ascii() => out.push(char::from(byte)),
                _ => out.push_str(&format!("\\u{unit:04x}")),
            }
        }
        out
    }
}
