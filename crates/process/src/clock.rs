//! The only module of this crate that reads a clock.
//!
//! Deadlines use `CLOCK_BOOTTIME`. It never jumps, it advances while the machine sleeps (so does a lease), and
//! all processes of a machine read the same value, so that a deadline can be sent to another process.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the milliseconds since the machine started, including time asleep.
pub fn now_ms() -> u64 {
    millis(clock_gettime(ClockId::Boottime))
}

/// Returns the wall clock as RFC 3339 in UTC with milliseconds, for people who read the log.
pub(crate) fn timestamp() -> String {
    rfc3339(millis(clock_gettime(ClockId::Realtime)))
}

fn millis(time: Timespec) -> u64 {
    time.tv_sec.max(0) as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

fn rfc3339(unix_ms: u64) -> String {
    let seconds = (unix_ms / 1000) as libc::time_t;
    // SAFETY: `tm` is a plain C struct, for which all zeroes is a valid value.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call, and gmtime_r keeps neither.
    unsafe { libc::gmtime_r(&seconds, &mut parts) };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        parts.tm_year + 1900,
        parts.tm_mon + 1,
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec,
        unix_ms % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc3339() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_007, "2000-02-29T00:00:00.007Z"),
            (1_798_761_599_999, "2026-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(unix_ms), text);
        }
    }
}
