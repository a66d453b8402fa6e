//! Writes entries to the log file, up to a limit, and whatever happens to the disk.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use super::{LogEntry, Piece, Stream};
use crate::{clock, order::Capture};

/// Entries are collected up to here before they go to the file, unless the loop flushes earlier.
const BUFFER_BYTES: usize = 64 << 10;

/// The log file of one attempt.
pub(crate) struct LogWriter {
    file: File,
    buffer: Vec<u8>,
    limit_bytes: u64,
    written_bytes: u64,
    dropped_bytes: u64,
    /// Bytes lost to errors since the last write that worked.
    lost_bytes: u64,
    /// The first error, kept for the report.
    error: Option<String>,
    /// Whether the file may end within a line.
    torn: bool,
}

impl LogWriter {
    /// Opens the file to append to it.
    pub(crate) fn open(path: &Path, limit_bytes: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
        let torn = file.metadata()?.len() > 0 && {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            last != *b"\n"
        };
        Ok(LogWriter {
            file,
            buffer: Vec::new(),
            limit_bytes,
            written_bytes: 0,
            dropped_bytes: 0,
            lost_bytes: 0,
            error: None,
            torn,
        })
    }

    /// Adds output of the command.
    pub(crate) fn add(&mut self, stream: Stream, piece: Piece) {
        let output_bytes = piece.text.len() as u64 + u64::from(!piece.partial);
        if self.is_full() {
            self.dropped_bytes += output_bytes;
            return;
        }
        let line = line(stream, piece);
        if self.written_bytes + line.len() as u64 > self.limit_bytes {
            self.dropped_bytes = output_bytes;
            self.note(&format!(
                "sprag: log limit of {} reached, further output is dropped",
                size(self.limit_bytes)
            ));
            return;
        }
        self.written_bytes += line.len() as u64;
        self.put(line.as_bytes());
    }

    /// Whether the limit is reached: nothing more of the command's output will be written.
    pub(crate) fn is_full(&self) -> bool {
        self.dropped_bytes > 0
    }

    /// Counts output that was not even offered, because the log is full.
    pub(crate) fn drop_bytes(&mut self, bytes: usize) {
        self.dropped_bytes += bytes as u64;
    }

    /// Adds a remark of the supervisor, which no limit cuts.
    pub(crate) fn note(&mut self, text: &str) {
        let line = line(Stream::Note, Piece { text: text.to_owned(), partial: false });
        self.put(line.as_bytes());
    }

    /// Brings to the file what was added.
    pub(crate) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if self.torn {
            self.buffer.insert(0, b'\n');
        }
        if self.lost_bytes > 0 {
            let text = format!("sprag: {} bytes of the log were lost here", self.lost_bytes);
            let remark = line(Stream::Note, Piece { text, partial: false });
            self.buffer.splice(usize::from(self.torn)..usize::from(self.torn), remark.into_bytes());
        }
        match self.file.write_all(&self.buffer) {
            Ok(()) => (self.torn, self.lost_bytes) = (false, 0),
            Err(error) => {
                // The command goes on without its log; whether the disk has room again shows next time.
                self.torn = true;
                self.lost_bytes += self.buffer.len() as u64;
                self.error.get_or_insert_with(|| error.to_string());
            }
        }
        self.buffer.clear();
    }

    /// Writes the rest; says how much the limit cut off, and the first error.
    pub(crate) fn finish(mut self) -> (u64, Option<String>) {
        if self.dropped_bytes > 0 {
            self.note(&format!(
                "sprag: log limit of {} reached, {} more bytes were dropped",
                size(self.limit_bytes),
                self.dropped_bytes
            ));
        }
        self.flush();
        (self.dropped_bytes, self.error)
    }

    fn put(&mut self, line: &[u8]) {
        self.buffer.extend_from_slice(line);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }
}

fn line(stream: Stream, piece: Piece) -> String {
    let entry = LogEntry { at: clock::timestamp(), stream, text: piece.text, partial: piece.partial };
    format!("{entry}\n")
}

fn size(bytes: u64) -> String {
    match bytes {
        0 => "0 bytes".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// Keeps the beginning of the command's stdout as it is.
pub(crate) struct CaptureWriter {
    file: File,
    room_bytes: u64,
    dropped_bytes: u64,
    error: Option<String>,
}

impl CaptureWriter {
    pub(crate) fn open(capture: &Capture) -> io::Result<Self> {
        let file = File::create(&capture.path)?;
        Ok(CaptureWriter { file, room_bytes: capture.max_bytes, dropped_bytes: 0, error: None })
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(usize::try_from(self.room_bytes).unwrap_or(usize::MAX));
        self.dropped_bytes += (bytes.len() - kept) as u64;
        self.room_bytes -= kept as u64;
        // A file with a hole in the middle is worse than one that ends: after an error nothing is added.
        if kept > 0
            && self.error.is_none()
            && let Err(error) = self.file.write_all(&bytes[..kept])
        {
            self.error = Some(error.to_string());
        }
    }

    pub(crate) fn finish(self) -> (u64, Option<String>) {
        (self.dropped_bytes, self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;

    fn piece(text: &str) -> Piece {
        Piece { text: text.to_owned(), partial: false }
    }

    #[test]
    fn the_limit_cuts_once_and_counts_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = LogWriter::open(&path, 1 << 10).expect("a file");
        for _ in 0..100 {
            log.add(Stream::Out, piece(&"x".repeat(99)));
        }
        let (dropped, error) = log.finish();
        assert_eq!((dropped, error), (9300, None));
        let texts: Vec<String> =
            LogReader::new(&path).read_all().expect("a log").into_iter().map(|entry| entry.text).collect();
        assert_eq!(texts.len(), 7 + 2);
        assert_eq!(texts[7], "sprag: log limit of 1 KiB reached, further output is dropped");
        assert_eq!(texts[8], "sprag: log limit of 1 KiB reached, 9300 more bytes were dropped");
    }

    #[test]
    fn a_full_disk_is_noted_and_survived() {
        let mut log = LogWriter::open(Path::new("/dev/full"), 1 << 20).expect("a device");
        log.add(Stream::Out, piece("lost"));
        log.flush();
        log.add(Stream::Out, piece("lost too"));
        let (_, error) = log.finish();
        assert!(error.expect("an error").contains("No space left"));
    }

    #[test]
    fn a_torn_line_of_a_former_attempt_is_closed_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        std::fs::write(&path, "2026-01-").expect("a file");
        let mut log = LogWriter::open(&path, 1 << 20).expect("a file");
        log.add(Stream::Err, piece("next"));
        log.finish();
        let entries = LogReader::new(&path).read_all().expect("a log");
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].stream, entries[0].text.as_str()), (Stream::Err, "next"));
    }
}
