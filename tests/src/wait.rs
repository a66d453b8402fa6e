//! Bounded waits on conditions: the only place in these tests that waits.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

/// For what takes milliseconds on a quiet machine; tests share it with compilers.
pub const SOON: Duration = Duration::from_secs(60);
/// The shortest pause between two looks at a condition that nothing announces.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The longest pause. A look that starts a process takes tens of milliseconds of a core, which the tested processes need
/// too: the pause is as long as the look was.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Returns milliseconds on a clock that never jumps.
pub fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Waits for a condition; panics if it does not come soon.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_some(what, || condition().then_some(()));
}

/// Waits for a value; panics if it does not come soon.
pub fn until_some<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(SOON, look).unwrap_or_else(|| panic!("not within {SOON:?}: {what}"))
}

/// Polls until a value is there or the time is over.
pub fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline_ms = now_ms() + limit.as_millis() as u64;
    loop {
        let started_ms = now_ms();
        let found = look();
        if found.is_some() || now_ms() >= deadline_ms {
            return found;
        }
        let took = Duration::from_millis(now_ms() - started_ms);
        ready(&mut [], took.clamp(LOOK_AGAIN, LONGEST_PAUSE));
    }
}

/// Waits until a descriptor is ready or the time is over.
pub(crate) fn ready(fds: &mut [PollFd<'_>], limit: Duration) {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    // A signal only makes the caller look earlier.
    let _ = poll(fds, Some(&limit));
}
