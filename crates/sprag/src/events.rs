//! The journal as it grows.

use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::{JournalEntry, Result, Store, Subscription, Topic};

/// How many entries are read at once.
const PAGE: usize = 1_000;
/// Should every wake-up be lost, one looks again after this.
const LOOK_ANYWAY: Duration = Duration::from_secs(2);

/// Follows the journal: every entry once, in order, those of other processes included.
pub struct Events {
    store: Store,
    run: Option<RunId>,
    since: u64,
    wake: Subscription,
}

impl Events {
    /// The entries after `since`, of one run or all.
    pub fn new(store: &Store, run: Option<RunId>, since: u64) -> Self {
        let wake = store.subscribe(vec![run.map_or(Topic::Journal, Topic::Run)]);
        Events { store: store.clone(), run, since, wake }
    }

    /// What is there already, perhaps nothing.
    pub fn ready(&mut self) -> Result<Vec<JournalEntry>> {
        let (run, since) = (self.run, self.since);
        let (entries, last_seq) =
            self.store.read(|db| Ok((db.journal(since, run, PAGE)?, db.last_seq()?)))?;
        // Fewer than asked for: there is nothing between them and the journal's end.
        self.since = match entries.last() {
            Some(last) if entries.len() >= PAGE => last.seq,
            _ => since.max(last_seq),
        };
        Ok(entries)
    }

    /// Waits until there may be more, at most for `limit`.
    pub async fn wait(&self, limit: Duration) {
        self.wake.wait(limit.min(LOOK_ANYWAY)).await;
    }

    /// The next entries; waits until there are some.
    pub async fn next(&mut self) -> Result<Vec<JournalEntry>> {
        loop {
            let entries = self.ready()?;
            if !entries.is_empty() {
                return Ok(entries);
            }
            self.wait(LOOK_ANYWAY).await;
        }
    }
}
