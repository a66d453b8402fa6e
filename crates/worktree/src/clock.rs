//! The only module of this crate that reads a clock, draws a random number or pauses.

use rustix::{
    event::{Timespec, poll},
    rand::{GetRandomFlags, getrandom},
    time::{ClockId, clock_gettime},
};

/// Returns the microseconds since the machine started; they never jump.
pub(crate) fn now_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.max(0) as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Returns the milliseconds since the machine started.
pub(crate) fn now_ms() -> u64 {
    now_us() / 1000
}

/// Returns the milliseconds of the wall clock, for people.
pub(crate) fn unix_ms() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec.max(0) as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Pauses for a short time, where no event announces the awaited change.
pub(crate) fn pause_ms(ms: u64) {
    let timeout = Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as _ };
    // A signal may end it earlier, and every caller checks its condition again.
    let _ = poll(&mut [], Some(&timeout));
}

/// Returns a random number below `bound`; zero if `bound` is zero.
pub(crate) fn random_below(bound: u64) -> u64 {
    u64::from_str_radix(&random_hex(), 16).unwrap_or(0).checked_rem(bound).unwrap_or(0)
}

/// Returns 16 random hexadecimal digits.
pub(crate) fn random_hex() -> String {
    let mut bytes = [0_u8; 8];
    // The call returns all eight bytes once the machine has started. Before that, time and pid still differ.
    if getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(8) {
        bytes = (now_us() ^ u64::from(std::process::id()) << 40).to_ne_bytes();
    }
    format!("{:016x}", u64::from_ne_bytes(bytes))
}
