//! The log of a command: its stdout and stderr, with timestamps, masked, limited in size.
//!
//! ```text
//!   bytes of one stream ─▶ Masker ─▶ Lines ─▶ LogWriter ─▶ file ─▶ LogReader ─▶ LineJoiner
//!                          `***`     pieces    times, limit                    whole lines
//! ```

mod entry;
mod joiner;
mod lines;
mod reader;
mod writer;

pub use entry::{LogEntry, Stream};
pub use joiner::LineJoiner;
pub use reader::LogReader;

/// Appends notes to a log that no supervisor writes to at the moment.
pub fn append_notes(log: &std::path::Path, notes: &[String]) -> std::io::Result<()> {
    let mut writer = LogWriter::open(log, u64::MAX)?;
    notes.iter().for_each(|text| writer.note(text));
    writer.flush();
    Ok(())
}

/// The log of work inside this process, which writes line by line.
pub struct LineLog(Option<LogWriter>);

impl LineLog {
    /// Opens the file for appending. Creates it if it does not exist.
    pub fn open(path: &std::path::Path) -> std::io::Result<Self> {
        Ok(LineLog(Some(LogWriter::open(path, crate::order::DEFAULT_LOG_LIMIT_BYTES)?)))
    }

    /// Writes a text, each of its lines as an entry of its own. The limit of a command's log applies.
    pub fn write(&mut self, text: &str) {
        let Some(writer) = &mut self.0 else { return };
        let mut add = |piece| writer.add(Stream::Out, piece);
        let mut lines = Lines::default();
        lines.push(text.as_bytes(), &mut add);
        lines.finish(&mut add);
        writer.flush();
    }
}

impl Drop for LineLog {
    fn drop(&mut self) {
        if let Some(writer) = self.0.take() {
            writer.finish();
        }
    }
}

pub(crate) use lines::{Lines, Piece};
pub(crate) use writer::{CaptureWriter, LogWriter};
