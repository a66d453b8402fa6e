//! The log of a command: what it wrote to stdout and stderr, with times, masked, bounded.
//!
//! ```text
//!   bytes of one stream ─▶ Masker ─▶ Lines ─▶ LogWriter ─▶ file ─▶ LogReader
//!                          `***`     pieces    times, limit
//! ```

mod entry;
mod lines;
mod mask;
mod reader;
mod writer;

pub use entry::{LogEntry, Stream};
pub use reader::LogReader;

pub(crate) use lines::{Lines, Piece};
pub(crate) use mask::{Masker, Secrets};
pub(crate) use writer::{CaptureWriter, LogWriter};
