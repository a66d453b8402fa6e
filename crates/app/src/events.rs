//! Following the journal as it grows.

use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::{JournalEntry, JournalPage, Store, Subscription, Topic};

use crate::App;
use crate::error::Error;

/// The number of entries that are read at once.
const PAGE: usize = 1_000;
/// The time after which a follower reads again even if every wake-up was lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(2);

/// A follower of the journal. It returns every entry once, in order, including those of other processes.
pub struct Events {
    store: Store,
    run: Option<RunId>,
    since: u64,
    wake: Subscription,
}

impl Events {
    /// Follows the entries after `since`, of one run or all.
    pub fn new(app: &App, run: Option<RunId>, since: u64) -> Self {
        let wake = app.store.subscribe(vec![run.map_or(Topic::Journal, Topic::Run)]);
        Events { store: app.store.clone(), run, since, wake }
    }

    /// Returns the entries that are already there, which may be none.
    pub fn ready(&mut self) -> Result<Vec<JournalEntry>, Error> {
        let (run, since) = (self.run, self.since);
        let JournalPage { entries, last_seq } = self.store.queries().journal(since, run, PAGE)?;
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

    /// Returns the next entries; waits until there are some.
    pub async fn next(&mut self) -> Result<Vec<JournalEntry>, Error> {
        loop {
            let entries = self.ready()?;
            if !entries.is_empty() {
                return Ok(entries);
            }
            self.wait(LOOK_ANYWAY).await;
        }
    }
}

/// Refuses a number that no entry of the journal can have.
pub fn check_seq(number: u64) -> Result<u64, Error> {
    match i64::try_from(number) {
        Ok(_) => Ok(number),
        Err(_) => Err(Error::invalid(format!("{number} is larger than any number there is"))),
    }
}
