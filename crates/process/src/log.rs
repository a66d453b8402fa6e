//! The log of a command: what it wrote to stdout and stderr, with times, masked, bounded.
//!
//! ```text
//!   bytes of one stream ─▶ Masker ─▶ Lines ─▶ LogWriter ─▶ file ─▶ LogReader ─▶ WholeLines
//!                          `***`     pieces    times, limit                    lines again
//! ```

mod entry;
mod lines;
mod mask;
mod reader;
mod whole;
mod writer;

pub use entry::{LogEntry, Stream};
pub use reader::LogReader;
pub use whole::WholeLines;

/// Adds remarks to a log that no supervisor writes to now.
pub fn remark(log: &std::path::Path, remarks: &[String]) -> std::io::Result<()> {
    let mut writer = LogWriter::open(log, u64::MAX)?;
    remarks.iter().for_each(|text| writer.note(text));
    writer.flush();
    Ok(())
}

pub(crate) use lines::{Lines, Piece};
pub(crate) use mask::{Masker, Secrets};
pub(crate) use writer::{CaptureWriter, LogWriter};
