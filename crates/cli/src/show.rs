//! The look of the output: colours and tables.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use sprag_app::text::parse_rfc3339;
pub(crate) use sprag_app::text::{local, plain, plain_lines, rfc3339, span};

use sprag_app::WaitingFor;

use unicode_width::UnicodeWidthChar;

use crate::args::Colour;

/// Whether to use colours on one of the two streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    coloured: bool,
}

static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl Style {
    /// Stores the user's choice of colours.
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

    pub(crate) fn cyan(self, text: &str) -> String {
        self.paint("36", text)
    }

    /// Returns a status in the colour of its meaning.
    pub(crate) fn status(self, word: &str, padded: usize) -> String {
        let text = crate::show::padded(word, padded);
        match word {
            "completed" | "done" => self.green(&text),
            "failed" | "failing" | "timed_out" | "abandoned" => self.red(&text),
            "running" | "scheduled" => self.paint("36", &text),
            "cancelled" | "cancelling" | "skipped" => self.paint("33", &text),
            word if word.starts_with("waits for ") => self.paint("35", &text),
            _ => self.dim(&text),
        }
    }

    /// Returns the sign in front of a step.
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

/// Writes a line to stdout, and ignores a reader that has gone away. Names and texts of others in the line cannot
/// control the terminal.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", defused(text));
}

/// Ends the line on which a terminal has written the `^C` of an interrupt.
pub(crate) fn end_line() {
    if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        eprintln!("");
    }
}

/// Writes the contents of files to stdout, unchanged unless stdout is a terminal.
pub(crate) fn contents(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = if out.is_terminal() {
        out.write_all(defused(text).as_bytes())
    } else {
        out.write_all(text.as_bytes())
    };
}

/// Returns a text without control characters, except line ends, tabs and the colours of [`Style`]. In JSON the
/// others are written as escapes, which mean the same.
pub(crate) fn defused(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if text.chars().all(is_harmless) {
        return text.into();
    }
    let is_json = text.starts_with(['{', '[']);
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = colour_length(rest);
        let length = if colour > 0 { colour } else { c.len_utf8() };
        match c {
            _ if colour > 0 || is_harmless(c) => safe.push_str(&rest[..length]),
            _ if is_json => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => safe.push('\u{fffd}'),
        }
        rest = &rest[length..];
    }
    safe.into()
}

/// Returns the length of the colour that a text begins with (`ESC [ 1 ; 31 m`); 0 if it begins with something else.
fn colour_length(text: &str) -> usize {
    let Some(numbers) = text.strip_prefix("\x1b[") else { return 0 };
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != ';' && c != ':').unwrap_or(numbers.len());
    if numbers[end..].starts_with('m') { "\x1b[".len() + end + 1 } else { 0 }
}

/// Returns the number of columns in a line of stdout: the terminal's width, else 80.
pub(crate) fn width() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(80, |size| usize::from(size.ws_col.max(40)))
}

/// Returns the number of columns that a character takes on a terminal: 2 for those of East Asian scripts and most
/// pictographs, 0 for marks that combine with the character before them.
pub(crate) fn columns_of_char(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Returns the number of columns that a text takes on a terminal. Colours take none.
pub(crate) fn columns_of(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let columns = |part: &str| part.chars().map(columns_of_char).sum::<usize>();
    let first = parts.next().map_or(0, columns);
    first + parts.map(|part| part.split_once('m').map_or(0, |(_, rest)| columns(rest))).sum::<usize>()
}

/// Returns the start of a text that fits into this many columns.
pub(crate) fn start_within(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    let end = text.char_indices().find(|(_, c)| {
        taken += columns_of_char(*c);
        taken > columns
    });
    end.map_or(text, |(end, _)| &text[..end])
}

/// Returns a text with spaces behind it, so that it takes this many columns.
pub(crate) fn padded(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(columns_of(text))))
}

/// Returns a name of at most `most` columns: its start and its end, if it is wider.
pub(crate) fn shortened(name: &str, most: usize) -> String {
    let most = most.max(3);
    if columns_of(name) <= most {
        return name.to_owned();
    }
    let start = start_within(name, (most - 1) / 2);
    let mut taken = 0;
    let end = name.char_indices().rev().take_while(|(_, c)| {
        taken += columns_of_char(*c);
        taken <= most / 2
    });
    let end = end.last().map_or(name.len(), |(at, _)| at);
    format!("{start}…{}", &name[end..])
}

/// Returns the status of a run or a step as people see it: what it waits for, if it does.
pub(crate) fn shown_status(status: &str, waiting_for: Option<WaitingFor>) -> String {
    shown_status_word(status, waiting_for.map(WaitingFor::as_str))
}

/// Returns the status of a run or a step as people see it, from the words that programs see.
pub(crate) fn shown_status_word(status: &str, waiting_for: Option<&str>) -> String {
    waiting_for.map_or_else(|| status.to_owned(), |wait| format!("waits for {wait}"))
}

/// Returns a time in a value that programs see, in milliseconds; none if it is absent.
pub(crate) fn time_in(value: &serde_json::Value, key: &str) -> Option<i64> {
    parse_rfc3339(value[key].as_str()?)
}

/// Returns a text of several lines in which all lines but the first are indented.
pub(crate) fn hanging(text: &str, indent: usize) -> String {
    plain_lines(text).replace('\n', &format!("\n{}", " ".repeat(indent)))
}

/// Returns a count with its noun: `1 step`, `2 steps`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Prints a table with a heading. Columns are as wide as necessary; the last one may be cut to fit 80 characters.
pub(crate) fn table(style: Style, head: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| columns_of(cell));
            cells.chain([columns_of(head[column])]).max().unwrap_or(0)
        })
        .collect();
    let join = |cells: Vec<String>| cells.join("  ").trim_end().to_owned();
    line(&style.bold(&join(head.iter().zip(&widths).map(|(cell, width)| padded(cell, *width)).collect())));
    for row in rows {
        let cells = row.iter().zip(&widths).zip(head).map(|((cell, width), name)| match *name {
            "STATUS" => style.status(cell, *width),
            _ => padded(cell, *width),
        });
        line(&join(cells.collect()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_count_as_two_columns() {
        assert_eq!(columns_of("\x1b[31m漢字\x1b[0m e\u{301}"), 6);
        assert_eq!(start_within("漢字", 3), "漢");
        assert_eq!(padded("漢", 4), "漢  ");
        for (name, most, short) in
            [("漢字漢字漢字", 12, "漢字漢字漢字"), ("漢字漢字漢字", 8, "漢…漢字"), ("abcdefgh", 7, "abc…fgh")]
        {
            assert_eq!(shortened(name, most), short);
        }
    }

    #[test]
    fn e04_no_line_steers_a_terminal() {
        for (text, shown) in [
            ("a\tb\nc é", "a\tb\nc é"),
            ("\x1b[31mred\x1b[0m \x1b[1;2mx\x1b[m", "\x1b[31mred\x1b[0m \x1b[1;2mx\x1b[m"),
            ("\x1b[2J\x1b]0;title\x07\r\x08", "\u{fffd}[2J\u{fffd}]0;title\u{fffd}\u{fffd}\u{fffd}"),
            ("\u{9b}2J", "\u{fffd}2J"),
            ("\x1b", "\u{fffd}"),
            ("\x1b[3", "\u{fffd}[3"),
            ("{\"a\":\"\u{9b}\"}", "{\"a\":\"\\u009b\"}"),
        ] {
            assert_eq!(defused(text), shown, "{text:?}");
        }
    }
}
