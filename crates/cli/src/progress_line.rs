//! The progress line of a live view: the last line of a terminal, drawn in place.

use std::io::{IsTerminal, Write};

use crate::show::{Style, columns_of_char};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// The progress line on stderr, if that is a terminal.
pub(crate) struct ProgressLine {
    /// Whether there is a line to draw on.
    has_line: bool,
    /// The text that is drawn; empty if there is none.
    drawn: String,
    /// The number of times that it was drawn.
    tick: usize,
    style: Style,
}

impl ProgressLine {
    /// Returns a line that is drawn if `wanted`, and if stderr is a terminal.
    pub(crate) fn new(wanted: bool) -> Self {
        let has_line = wanted && std::io::stderr().is_terminal();
        ProgressLine { has_line, drawn: String::new(), tick: 0, style: Style::stderr() }
    }

    /// Returns whether the line is drawn: on a terminal, unless the shell runs this process in the background. There it
    /// would be drawn into the lines of other processes.
    pub(crate) fn is_drawn(&self) -> bool {
        self.has_line && is_in_foreground()
    }

    /// Draws a text behind a spinner, over what is drawn.
    pub(crate) fn draw(&mut self, text: &str) {
        self.tick += 1;
        let cut = fitted(&format!("{} {text}", SPINNER[self.tick % SPINNER.len()]), columns());
        eprint!("{}{}", erased(&self.drawn, columns()), self.style.dim(&cut));
        let _ = std::io::stderr().flush();
        self.drawn = cut;
    }

    /// Removes the line, so that other text can be written in its place. Returns whether there was one.
    pub(crate) fn clear(&mut self) -> bool {
        if self.drawn.is_empty() {
            return false;
        }
        eprint!("{}", erased(&self.drawn, columns()));
        let _ = std::io::stderr().flush();
        self.drawn.clear();
        true
    }
}

/// Returns whether the terminal belongs to the job of this process. Without a terminal of its own, it counts as its own.
fn is_in_foreground() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // "PID (NAME) STATE PARENT GROUP SESSION TTY FOREGROUND …". The name may contain brackets.
    let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(2);
    match (fields.next(), fields.nth(2)) {
        (Some(group), Some(foreground)) => group == foreground || ["-1", "0"].contains(&foreground),
        _ => true,
    }
}

/// Returns the number of columns of the terminal.
fn columns() -> usize {
    usize::from(rustix::termios::tcgetwinsize(std::io::stderr()).map_or(80, |size| size.ws_col.max(20)))
}

/// The position after a text on a terminal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cursor {
    /// The number of rows above.
    row: usize,
    /// The number of columns that are filled, at least 1 behind a text that is not empty.
    column: usize,
}

impl Cursor {
    fn after(text: &str, columns: usize) -> Cursor {
        text.chars().fold(Cursor::default(), |cursor, c| cursor.and(c, columns))
    }

    /// Moves over a character. One that does not fit into its row is drawn on the next one.
    fn and(self, c: char, columns: usize) -> Cursor {
        let width = columns_of_char(c);
        if self.column + width > columns {
            Cursor { row: self.row + 1, column: width }
        } else {
            Cursor { column: self.column + width, ..self }
        }
    }
}

/// Returns the part of a progress line that fits on the rows it may have. There is room for the `^C` that a terminal
/// writes after it.
fn fitted(text: &str, columns: usize) -> String {
    const ROWS: usize = 3;
    const ECHO: usize = 3;
    let (mut cut, mut cursor) = (String::new(), Cursor::default());
    for c in text.chars() {
        let next = cursor.and(c, columns);
        let fits = next.row + 1 < ROWS || next.row < ROWS && next.column + ECHO <= columns;
        if !fits {
            break;
        }
        cursor = next;
        cut.push(c);
    }
    if cursor.column + ECHO > columns {
        cut.push_str(&" ".repeat(columns - cursor.column + 1));
    }
    cut
}

/// Returns the sequence that removes a drawn text, behind which the cursor is. In a terminal that has become narrower
/// since, the text takes several rows.
fn erased(drawn: &str, columns: usize) -> String {
    match Cursor::after(drawn, columns).row {
        0 => "\r\x1b[2K".to_owned(),
        rows => format!("\r\x1b[{rows}A\x1b[J"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Cursor, erased, fitted};

    #[test]
    fn a_long_progress_line_continues_on_the_next_row_and_leaves_room_for_an_echo() {
        assert_eq!(fitted("short", 80), "short");
        assert_eq!(fitted(&"x".repeat(100), 80).chars().count(), 100);
        for (character, columns) in [("x", 80), ("漢", 80), ("漢", 41), ("e\u{301}", 20)] {
            for characters in 1..400 {
                let cut = Cursor::after(&fitted(&character.repeat(characters), columns), columns);
                let fits = cut.row < 3 && cut.column + 3 <= columns;
                assert!(fits, "{characters} {character} in {columns} became {cut:?}");
            }
        }
    }

    #[test]
    fn a_line_is_erased_whole_after_the_terminal_became_narrower() {
        for (character, characters, columns, wanted) in [
            ("x", 0, 80, "\r\x1b[2K"),
            ("x", 79, 80, "\r\x1b[2K"),
            ("x", 79, 40, "\r\x1b[1A\x1b[J"),
            ("x", 79, 20, "\r\x1b[3A\x1b[J"),
            ("漢", 40, 80, "\r\x1b[2K"),
            ("漢", 60, 80, "\r\x1b[1A\x1b[J"),
            // The last column of each row stays empty.
            ("漢", 41, 41, "\r\x1b[2A\x1b[J"),
        ] {
            assert_eq!(erased(&character.repeat(characters), columns), wanted, "{characters} in {columns}");
        }
    }
}
