//! Reads a log file, from its start or from where the last read stopped.

use std::{
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::LogEntry;
use crate::files::open_regular;

/// The longest line that can be an entry. The supervisor writes shorter lines; another writer of the file may
/// not.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Reads entries in order. To follow a log, call [`LogReader::read`] again: it returns complete entries only.
pub struct LogReader {
    path: PathBuf,
    offset: u64,
}

impl LogReader {
    /// Creates a reader at the start of the log. The file need not exist yet.
    pub fn new(path: impl AsRef<Path>) -> Self {
        LogReader::at(path, 0)
    }

    /// Creates a reader at an offset from [`LogReader::offset`].
    pub fn at(path: impl AsRef<Path>, offset: u64) -> Self {
        LogReader { path: path.as_ref().to_owned(), offset }
    }

    /// Returns the offset of the next read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next entries, at most `max`; none if there are none yet. Skips lines that a crash cut off.
    pub fn read(&mut self, max: usize) -> io::Result<Vec<LogEntry>> {
        let mut file = match open_regular(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut lines = BufReader::new(file);
        let (mut entries, mut line) = (Vec::new(), Vec::new());
        while entries.len() < max {
            line.clear();
            let length = (&mut lines).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? as u64;
            match line.pop() {
                Some(b'\n') => {
                    self.offset += length;
                    entries.extend(LogEntry::parse(&String::from_utf8_lossy(&line)));
                }
                // The line is too long for an entry: skip it in pieces.
                Some(_) if length == MAX_LINE_BYTES => {
                    self.offset += length;
                    break;
                }
                _ => break,
            }
        }
        Ok(entries)
    }

    /// Returns all entries from here on, up to a line that is too long for an entry.
    pub fn read_all(&mut self) -> io::Result<Vec<LogEntry>> {
        self.read(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    #[test]
    fn e03_a_line_without_end_is_skipped_in_pieces() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut file = File::create(&path).expect("a file");
        let line = "2026-01-01T00:00:00.000Z out fine\n";
        file.write_all(line.as_bytes()).expect("written");
        file.write_all(&vec![b'x'; 3 * MAX_LINE_BYTES as usize]).expect("written");
        file.write_all(format!("\n{line}").as_bytes()).expect("written");
        let mut reader = LogReader::new(&path);
        let mut found = 0;
        for _ in 0..5 {
            found += reader.read(100).expect("a log").len();
        }
        assert_eq!(found, 2);
    }

    #[test]
    fn following_gives_each_entry_once_and_only_when_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut reader = LogReader::new(&path);
        assert!(reader.read_all().expect("no file yet").is_empty());
        let mut file = File::create(&path).expect("a file");
        file.write_all(b"2026-01-31T10:00:00.123Z out one\n2026-01-31T10:00:00.124Z err tw")
            .expect("written");
        let texts = |reader: &mut LogReader| -> Vec<String> {
            reader.read(1).expect("a log").into_iter().map(|entry| entry.text).collect()
        };
        assert_eq!(texts(&mut reader), ["one"]);
        assert!(texts(&mut reader).is_empty());
        file.write_all(b"o\n").expect("written");
        assert_eq!(texts(&mut reader), ["two"]);
        let mut again = LogReader::at(&path, reader.offset());
        assert!(again.read_all().expect("a log").is_empty());
    }
}
