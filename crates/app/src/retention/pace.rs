//! The pace of forgetting: how much is done in one transaction, and how long the store is then left to other
//! processes.

use std::time::Duration;

use sprag_store::{Bite, Error, Result, Store};

/// The longest that a transaction should hold the store, including the wait for the disk.
const LONGEST: Duration = Duration::from_millis(20);
/// The working time of a transaction while no other process writes.
const BRISK: Duration = Duration::from_millis(8);
/// The working time of a transaction while other processes write. A live step waits at most this long for it.
const GENTLE: Duration = Duration::from_micros(700);
/// The shortest working time of a transaction.
const LEAST: Duration = Duration::from_micros(300);
/// The shortest pause between transactions: processes that wait for the lock look for it at least every two
/// milliseconds.
const GAP: Duration = Duration::from_millis(5);
/// The time after the journal's last change during which other processes count as active.
const BUSY_MS: u64 = 2_000;
/// The number of tries for a transaction that could not begin, with this pause between them.
const TRIES: usize = 30;
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The pace of forgetting: see the module's documentation.
pub(super) struct Pace {
    budget: Duration,
    /// The journal's last entry. Forgetting writes no entries, so a new one comes from another process.
    last_seq: Option<u64>,
    /// The time of the last write by another process, by this machine's boot clock.
    others_ms: Option<u64>,
}

impl Pace {
    pub(super) fn new(store: &Store) -> Self {
        let mut pace = Pace { budget: GENTLE, last_seq: None, others_ms: None };
        pace.look(store);
        pace
    }

    /// Returns the share of the next transaction.
    pub(super) fn bite(&self) -> Bite {
        Bite::lasting(self.budget)
    }

    /// Leaves the store to other processes after a transaction that held it for `held`.
    pub(super) async fn rest(&mut self, store: &Store, held: Duration) {
        self.look(store);
        let now_ms = store.runtime().boot_ms();
        let busy = self.others_ms.is_some_and(|others_ms| now_ms < others_ms + BUSY_MS);
        let most = if busy { GENTLE } else { BRISK };
        self.budget =
            if held > LONGEST * 3 / 4 { self.budget / 2 } else { self.budget * 5 / 4 }.clamp(LEAST, most);
        let gap = if busy { GAP.max(held * 4) } else { GAP.max(held / 2) };
        store.runtime().pause(gap).await;
    }

    /// Checks whether another process has written.
    fn look(&mut self, store: &Store) {
        let Ok(seq) = store.queries().last_seq() else { return };
        if self.last_seq.is_some_and(|last| last != seq) {
            self.others_ms = Some(store.runtime().boot_ms());
        }
        self.last_seq = Some(seq);
    }
}

/// Retries a transaction that could not begin because other processes had the lock: they go first.
pub(super) async fn insist<T, F>(store: &Store, mut write: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut tries = 0;
    loop {
        match write().await {
            Err(error @ Error::Locked { .. }) if tries < TRIES => {
                tracing::info!(%error, "the store is busy: retention continues later");
                tries += 1;
                store.runtime().pause(TRY_AGAIN).await;
            }
            done => return done,
        }
    }
}
