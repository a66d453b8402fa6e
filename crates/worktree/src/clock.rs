//! The only place of this crate that reads a clock, draws a number or lets time pass.

use rustix::{
    event::{Timespec, poll},
    rand::{GetRandomFlags, getrandom},
    time::{ClockId, clock_gettime},
};

/// Microseconds since the machine started; it never jumps.
pub(crate) fn now_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.max(0) as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Milliseconds since the machine started.
pub(crate) fn now_ms() -> u64 {
    now_us() / 1000
}

/// The wall clock, for people.
pub(crate) fn unix_ms() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec.max(0) as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Lets a short time pass, where nothing announces what is waited for.
pub(crate) fn pause_ms(ms: u64) {
    let timeout = Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as _ };
    // A signal only ends it earlier, and every caller looks again.
    let _ = poll(&mut [], Some(&timeout));
}

/// 16 hexadecimal digits that nobody else draws.
pub(crate) fn random_hex() -> String {
    let mut bytes = [0_u8; 8];
    // Eight bytes come whole once the machine has started; before, time and pid still differ.
    if getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(8) {
        bytes = (now_us() ^ u64::from(std::process::id()) << 40).to_ne_bytes();
    }
    format!("{:016x}", u64::from_ne_bytes(bytes))
}
