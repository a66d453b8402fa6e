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

pub(crate) use lines::{Lines, Piece};
pub(crate) use writer::{CaptureWriter, LogWriter};
