//! Writes entries to the log file, up to a limit, and continues after disk errors.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use super::{LogEntry, Piece, Stream};
use crate::{
    clock,
    files::{private_options, regular},
    order::Capture,
};

/// The size at which buffered entries are written to the file, unless the loop flushes earlier.
const BUFFER_BYTES: usize = 64 << 10;

/// The log file of one attempt.
pub(crate) struct LogWriter {
    file: File,
    buffer: Vec<u8>,
    limit_bytes: u64,
    written_bytes: u64,
    dropped_bytes: u64,
    /// The number of bytes lost to errors since the last successful write.
    lost_bytes: u64,
    /// The first error, for the report.
    error: Option<String>,
    /// Whether the file may end with an incomplete line.
    torn: bool,
}

impl LogWriter {
    /// Opens the file for appending.
    pub(crate) fn open(path: &Path, limit_bytes: u64) -> io::Result<Self> {
        LogWriter::append_to(
            regular(private_options().create(true).append(true).read(true).open(path)?)?,
            limit_bytes,
        )
    }

    /// Appends to a file that is open for appending.
    fn append_to(mut file: File, limit_bytes: u64) -> io::Result<Self> {
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

    /// Returns whether the limit is reached, so that no more output is written.
    pub(crate) fn is_full(&self) -> bool {
        self.dropped_bytes > 0
    }

    /// Counts output that was not passed to [`LogWriter::add`] because the log is full.
    pub(crate) fn drop_bytes(&mut self, bytes: usize) {
        self.dropped_bytes += bytes as u64;
    }

    /// Adds a note of the supervisor, to which the limit does not apply.
    pub(crate) fn note(&mut self, text: &str) {
        let line = line(Stream::Note, Piece { text: text.to_owned(), partial: false });
        self.put(line.as_bytes());
    }

    /// Writes the buffered entries to the file.
    pub(crate) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if self.torn {
            self.buffer.insert(0, b'\n');
        }
        if self.lost_bytes > 0 {
            let note = self.loss_note();
            self.buffer.splice(usize::from(self.torn)..usize::from(self.torn), note.into_bytes());
        }
        let space = check_space(&self.file);
        let started = space.is_ok();
        match space.and_then(|()| self.file.write_all(&self.buffer)) {
            Ok(()) => (self.torn, self.lost_bytes) = (false, 0),
            Err(error) => {
                // The command continues without its log. The next flush tries again.
                self.torn |= started;
                self.lost_bytes += self.buffer.len() as u64;
                self.error.get_or_insert_with(|| error.to_string());
            }
        }
        self.buffer.clear();
    }

    /// Returns the note about lost output.
    fn loss_note(&self) -> String {
        let why = self.error.as_deref().unwrap_or("the disk failed");
        let text = format!("sprag: {} bytes of the log were lost here ({why})", self.lost_bytes);
        line(Stream::Note, Piece { text, partial: false })
    }

    /// Writes the rest. Returns the number of bytes cut off by the limit, and the first error.
    pub(crate) fn finish(mut self) -> (u64, Option<String>) {
        if self.dropped_bytes > 0 {
            self.note(&format!(
                "sprag: log limit of {} reached, {} more bytes were dropped",
                size(self.limit_bytes),
                self.dropped_bytes
            ));
        }
        self.flush();
        if self.lost_bytes > 0 {
            // This note may use the reserved space: without it, the end of the log looks like the end of the
            // output.
            let torn = if self.torn { "\n" } else { "" };
            let _ = self.file.write_all(format!("{torn}{}", self.loss_note()).as_bytes());
        }
        (self.dropped_bytes, self.error)
    }

    fn put(&mut self, line: &[u8]) {
        self.buffer.extend_from_slice(line);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }
}

/// Returns an error if the free space is down to the reserve for the database.
fn check_space(file: &File) -> io::Result<()> {
    let Ok(stat) = rustix::fs::fstatvfs(file) else { return Ok(()) };
    let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
    let reserve_bytes = reserve(stat.f_blocks.saturating_mul(stat.f_frsize));
    if free_bytes >= reserve_bytes {
        return Ok(());
    }
    let text = format!("No space left on device: the last {} are kept for the database", size(reserve_bytes));
    Err(io::Error::new(io::ErrorKind::StorageFull, text))
}

/// Returns how much of a disk of this size logs leave free, so that the database can still record what
/// happened.
fn reserve(disk_bytes: u64) -> u64 {
    const MAX_BYTES: u64 = 16 << 20;
    const UNIT_BYTES: u64 = 64 << 10;
    (disk_bytes / 20 / UNIT_BYTES * UNIT_BYTES).min(MAX_BYTES)
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

/// Writes the first part of the command's stdout, unmodified.
pub(crate) struct CaptureWriter {
    file: File,
    room_bytes: u64,
    dropped_bytes: u64,
    error: Option<String>,
}

impl CaptureWriter {
    pub(crate) fn open(capture: &Capture) -> io::Result<Self> {
        let file = regular(private_options().create(true).write(true).truncate(true).open(&capture.path)?)?;
        Ok(CaptureWriter { file, room_bytes: capture.max_bytes, dropped_bytes: 0, error: None })
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(usize::try_from(self.room_bytes).unwrap_or(usize::MAX));
        self.dropped_bytes += (bytes.len() - kept) as u64;
        self.room_bytes -= kept as u64;
        // After an error nothing more is added, because a gap in the middle is worse than an early end.
        if kept > 0
            && self.error.is_none()
            && let Err(error) = check_space(&self.file).and_then(|()| self.file.write_all(&bytes[..kept]))
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
    fn a_full_disk_is_reported_and_does_not_stop_the_command() {
        let full = std::fs::OpenOptions::new().append(true).open("/dev/full").expect("a device");
        let mut log = LogWriter::append_to(full, 1 << 20).expect("a log");
        log.add(Stream::Out, piece("lost"));
        log.flush();
        log.add(Stream::Out, piece("lost too"));
        let (_, error) = log.finish();
        assert!(error.expect("an error").contains("No space left"));
    }

    #[test]
    fn the_reserve_is_fixed_on_a_large_disk_and_proportional_on_a_small_one() {
        assert_eq!(reserve(1 << 40), 16 << 20);
        assert_eq!(reserve(64 << 20), 3_342_336 / (64 << 10) * (64 << 10));
        assert_eq!(reserve(1 << 20), 0, "a file system of a megabyte has no room for one");
    }

    #[test]
    fn an_incomplete_line_of_an_earlier_attempt_is_terminated_first() {
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
