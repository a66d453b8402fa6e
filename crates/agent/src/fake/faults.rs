//! Faults of a process, and the few things that the fake agent reads from its machine.

use std::io;

use rustix::process::{Signal, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::failure::Reset;

/// Lines that are not messages: colours, invalid UTF-8, other JSON, half a surrogate pair, an event inside a text.
pub(super) const GARBAGE: &[u8] =
    b"\x1b[31mnot a message\x1b[0m\n\xff\xfe\x00\n[1, 2]\n\"{\\\"type\\\":\\\"result\\\"}\"\n\
    {\"type\":\"unknown\\ud800\"}\n{\"type\":\n";

/// Hangs forever without reading or writing.
pub(super) fn hang() {
    loop {
        std::thread::park();
    }
}

/// Kills this process.
pub(super) fn kill_self() {
    // A process may always send itself a signal.
    kill_process(getpid(), Signal::KILL).ok();
}

/// Ignores SIGTERM from now on.
pub(super) fn ignore_term() -> io::Result<()> {
    // SAFETY: SIG_IGN is a valid disposition, and no other code of this process sets one for SIGTERM.
    let before = unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the time at which a scripted limit is reset (seconds since 1970).
pub(super) fn time_of(reset: Reset) -> i64 {
    let now = clock_gettime(ClockId::Realtime).tv_sec;
    reset.resolve(now, &jiff::tz::TimeZone::UTC).unwrap_or(now)
}

/// Returns a new id in the form of a UUID.
pub(super) fn new_id() -> String {
    let mut bytes = [0; 16];
    // The system's source does not fail after boot; zeros would only be a poor id.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_new_and_in_form() {
        let (first, second) = (new_id(), new_id());
        assert_ne!(first, second);
        assert_eq!(first.len(), 36);
        assert_eq!(&first[14..15], "4");
    }
}
