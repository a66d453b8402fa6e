//! The wait before a retry: it grows with each try, and is random, so that many clients do not retry at the same
//! moment.

use std::time::Duration;

/// The upper bound of the first wait.
const FIRST_MS: u64 = 200;
/// The longest wait, unless the server asks for a longer one.
const LONGEST_MS: u64 = 10_000;
/// The longest wait that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(60);

/// The state of a wait that grows with each try.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// Returns the next wait, which is at least as long as the server asked for, up to a bound.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let whole_ms = (FIRST_MS << self.tries.min(16)).min(LONGEST_MS);
        self.tries += 1;
        // Between half of the wait and all of it, so that many workers that lost one server do not come back at once.
        let chance = random() % (whole_ms / 2 + 1);
        Duration::from_millis(whole_ms / 2 + chance).max(asked.unwrap_or_default().min(LONGEST_ASKED))
    }
}

/// Returns a random number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Fills a buffer with unpredictable bytes.
pub(crate) fn fill(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        // At most a signal interrupts the call; the kernel's source is available from early boot on.
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_bound_and_heed_the_server() {
        let mut backoff = Backoff::default();
        let waits: Vec<u64> = (0..12).map(|_| backoff.next(None).as_millis() as u64).collect();
        assert!(waits[0] >= FIRST_MS / 2 && waits[0] <= FIRST_MS, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= LONGEST_MS), "{waits:?}");
        assert!(waits[11] >= LONGEST_MS / 2, "{waits:?}");
        assert_eq!(Backoff::default().next(Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert_eq!(Backoff::default().next(Some(Duration::from_secs(7_000))), LONGEST_ASKED);
    }
}
