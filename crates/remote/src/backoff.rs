//! How long to wait before something is tried again: longer from time to time, and never all at once.

use std::time::Duration;

/// The first wait.
const FIRST_MS: u64 = 200;
/// The longest wait, unless the server asks for more.
const LONGEST_MS: u64 = 10_000;
/// The longest wait that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(60);

/// Grows with each try.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// How long to wait now; at least as long as the server asked for.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let whole_ms = (FIRST_MS << self.tries.min(16)).min(LONGEST_MS);
        self.tries += 1;
        // Between half of it and all of it, so that many who lost one server come back one by one.
        let chance = random() % (whole_ms / 2 + 1);
        Duration::from_millis(whole_ms / 2 + chance).max(asked.unwrap_or_default().min(LONGEST_ASKED))
    }
}

/// Any number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Fills with what nobody can guess.
pub(crate) fn fill(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        // Interrupted by a signal at most; the kernel's source is there from early on.
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags).unwrap_or(0);
    }
}

/// Lets a while pass.
pub(crate) async fn pause(for_a_while: Duration) {
    let _ = tokio::time::timeout(for_a_while, std::future::pending::<()>()).await;
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
