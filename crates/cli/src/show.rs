//! How things look: colours and tables.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) use sprag::text::{local, plain, rfc3339, span};

use crate::args::Colour;

/// Whether to colour, for one of the two streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    coloured: bool,
}

static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl Style {
    /// Remembers what the user wants.
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

    /// A status in the colour of its meaning.
    pub(crate) fn status(self, word: &str, padded: usize) -> String {
        let text = format!("{word:padded$}");
        match word {
            "completed" | "done" => self.green(&text),
            "failed" | "failing" | "timed_out" | "abandoned" => self.red(&text),
            "running" | "scheduled" => self.paint("36", &text),
            "cancelled" | "cancelling" | "skipped" => self.paint("33", &text),
            _ => self.dim(&text),
        }
    }

    /// The sign in front of a step.
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

/// Writes a line to stdout; a reader that has gone away is no error.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
}

/// How many characters a line of stdout holds: those of the terminal, else 80.
pub(crate) fn width() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(80, |size| usize::from(size.ws_col.max(40)))
}

/// `1 step`, `2 steps`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A table with a heading, its columns as wide as they need to be; the last may be cut to fit 80.
pub(crate) fn table(style: Style, head: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([head[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let join = |cells: Vec<String>| cells.join("  ").trim_end().to_owned();
    line(
        &style.bold(&join(head.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect())),
    );
    for row in rows {
        let cells = row.iter().zip(&widths).zip(head).map(|((cell, width), name)| match *name {
            "STATUS" => style.status(cell, *width),
            _ => format!("{cell:width$}"),
        });
        line(&join(cells.collect()));
    }
}
