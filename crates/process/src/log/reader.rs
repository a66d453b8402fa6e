//! Reads a log file, from the beginning or from where the last read stopped.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::LogEntry;

/// Reads entries in order. To follow a log, read again later: only complete entries are given.
pub struct LogReader {
    path: PathBuf,
    offset: u64,
}

impl LogReader {
    /// A reader at the beginning of the log; the file need not be there yet.
    pub fn new(path: impl AsRef<Path>) -> Self {
        LogReader::at(path, 0)
    }

    /// A reader at an offset that [`LogReader::offset`] gave before.
    pub fn at(path: impl AsRef<Path>, offset: u64) -> Self {
        LogReader { path: path.as_ref().to_owned(), offset }
    }

    /// Where the next read starts.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next entries, at most `max`; empty if there are none yet. Lines that a crash tore are left out.
    pub fn read(&mut self, max: usize) -> io::Result<Vec<LogEntry>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut lines = BufReader::new(file);
        let (mut entries, mut line) = (Vec::new(), Vec::new());
        while entries.len() < max {
            line.clear();
            let length = lines.read_until(b'\n', &mut line)?;
            if line.pop() != Some(b'\n') {
                break;
            }
            self.offset += length as u64;
            entries.extend(LogEntry::parse(&String::from_utf8_lossy(&line)));
        }
        Ok(entries)
    }

    /// All entries there are from here on.
    pub fn read_all(&mut self) -> io::Result<Vec<LogEntry>> {
        self.read(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

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
