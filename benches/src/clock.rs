//! The clock of the benchmarks.

use std::time::{Duration, Instant};

/// The start of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts a measurement.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    pub(crate) fn start() -> Self {
        Stopwatch(Instant::now())
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
