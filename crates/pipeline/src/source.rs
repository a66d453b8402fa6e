//! The text of a pipeline file: read within bounds, with positions as lines and columns.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::diagnostic::{Diagnostics, Problem, Report};

/// Five times a pipeline of a thousand long steps; a larger file is not a pipeline.
pub(crate) const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A range of the text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Span { start: range.start, end: range.end }
    }
}

/// A named text and the offsets of its lines.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
    line_starts: Vec<usize>,
}

/// A position for people: both count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineColumn {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl Source {
    pub(crate) fn new(name: &str, text: &str) -> Arc<Source> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Arc::new(Source { name: name.to_owned(), text, line_starts })
    }

    /// Reads the regular file at `path`, or returns a diagnostic about the file. Opening it never blocks, even if the
    /// path is a pipe without a writer.
    pub(crate) fn read(path: &Path) -> Result<Arc<Source>, Diagnostics> {
        Source::read_with(path, || {
            let careful = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
            let file = OpenOptions::new().read(true).custom_flags(careful).open(path)?;
            match file.metadata()?.file_type() {
                kind if kind.is_file() || kind.is_dir() => Ok(file),
                _ => Err(std::io::Error::other("it is not a regular file")),
            }
        })
    }

    /// Reads the file as [`Source::read`] does, but also reads a pipe or a terminal to its end.
    pub(crate) fn read_stream(path: &Path) -> Result<Arc<Source>, Diagnostics> {
        Source::read_with(path, || File::open(path))
    }

    fn read_with(
        path: &Path,
        open: impl FnOnce() -> std::io::Result<File>,
    ) -> Result<Arc<Source>, Diagnostics> {
        let name = path.display().to_string();
        let refuse = |problem: Problem| Diagnostics::without_source(&name, problem);
        let unreadable = |error: std::io::Error| {
            let help = match error.kind() {
                std::io::ErrorKind::NotFound => {
                    "give the path of a pipeline file, for example examples/hello.yaml"
                }
                std::io::ErrorKind::IsADirectory => "give the path of a file in it",
                _ => "check that the file can be read",
            };
            refuse(Problem::nowhere(format!("cannot read {name}: {error}")).help(help))
        };
        let file = open().map_err(unreadable)?;
        let stated_bytes = file.metadata().map_err(unreadable)?.len();
        let mut bytes = Vec::new();
        // The stated size of a pipe or a device means nothing, so reading is bounded too.
        if stated_bytes <= MAX_FILE_BYTES {
            file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        }
        if stated_bytes > MAX_FILE_BYTES || bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(refuse(too_large()));
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Source::new(&name, text)),
            Err(error) => {
                let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
                let at = valid.strip_prefix('\u{feff}').unwrap_or(&valid).len();
                let mut report = Report::new(Source::new(&name, &valid));
                report.error(
                    Problem::at(Span { start: at, end: at }, "the file is not UTF-8 text from here on")
                        .help("save the file as UTF-8"),
                );
                Err(report.finish())
            }
        }
    }

    /// Reports text that is too large, or that contains control characters, which a terminal would interpret.
    pub(crate) fn check_characters(self: &Arc<Source>, report: &mut Report) {
        if self.text.len() as u64 > MAX_FILE_BYTES {
            report.error(too_large());
            return;
        }
        for (at, found) in self.text.char_indices() {
            let end = at + found.len_utf8();
            let line_end = found == '\n' || (found == '\r' && self.text[end..].starts_with('\n'));
            if found.is_control() && found != '\t' && !line_end {
                let message = format!("control character U+{:04X} in the file", u32::from(found));
                let help = "remove it, or write it as an escape in double quotes, such as \"\\u001b\"";
                report.error(Problem::at(Span { start: at, end }, message).help(help));
            }
        }
    }

    pub(crate) fn position(&self, at: usize) -> LineColumn {
        let at = self.floor_char_boundary(at);
        let line = self.line_starts.partition_point(|start| *start <= at).max(1) - 1;
        let column = self.text[self.line_starts[line]..at].chars().count() + 1;
        LineColumn { line: line + 1, column }
    }

    /// Returns the text of a line, counted from 1, without its line end.
    pub(crate) fn line(&self, line: usize) -> &str {
        let begin = |line: usize| self.line_starts.get(line).copied().unwrap_or(self.text.len());
        let Some(index) = line.checked_sub(1) else { return "" };
        let (start, end) = (begin(index), begin(index + 1));
        self.text[start..end].trim_end_matches(['\n', '\r'])
    }

    pub(crate) fn slice(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or_default()
    }

    fn floor_char_boundary(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }
}

fn too_large() -> Problem {
    Problem::nowhere("the file is larger than 1 MiB, the limit for a pipeline file")
        .help("move long scripts and prompts to separate files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_from_one() {
        let source = Source::new("f", "ab\nä€x\r\n\nlast");
        let position = |at| source.position(at);
        assert_eq!(position(0), LineColumn { line: 1, column: 1 });
        assert_eq!(position(2), LineColumn { line: 1, column: 3 });
        assert_eq!(position(3 + "ä€".len()), LineColumn { line: 2, column: 3 });
        assert_eq!(position(4), LineColumn { line: 2, column: 1 });
        assert_eq!(position(9999), LineColumn { line: 4, column: 5 });
        assert_eq!(source.line(2), "ä€x");
        assert_eq!((source.line(0), source.line(3), source.line(4), source.line(5)), ("", "", "last", ""));
    }
}
