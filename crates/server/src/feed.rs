//! The journal as it grows, read once for everybody who follows it.
//!
//! ```text
//!   journal ──one follower──▶ Feed (bounded) ──▶ each reader: what it wants, each entry once
//!      ▲                                            │ too slow for the bound
//!      └──────────── reads again from where it was ─┘
//! ```

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sprag::{Events, Names};
use sprag_lifecycle::RunId;
use sprag_store::{JournalEntry, Store};
use tokio::sync::{broadcast, watch};

use crate::metrics::Metrics;

/// How long to leave a store alone that failed.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);
/// How many batches a reader may lag behind before it reads the journal itself.
const BATCHES: usize = 256;

/// An entry as readers get it: written out once, shared by all.
#[derive(Debug)]
pub struct Told {
    /// Its number.
    pub seq: u64,
    /// The run it belongs to.
    pub run: Option<RunId>,
    /// What kind of thing it happened to.
    pub entity: &'static str,
    /// What happened.
    pub event: &'static str,
    /// The entry in JSON.
    pub json: Bytes,
}

impl Told {
    /// An entry, written out.
    fn of(names: &mut Names, entry: &JournalEntry) -> sprag_store::Result<Told> {
        let json = serde_json::to_vec(&names.view(entry)?).expect("an entry is plain data");
        let JournalEntry { seq, entity, event, .. } = *entry;
        Ok(Told { seq, run: entry.place.run, entity, event, json: json.into() })
    }
}

/// Several entries that came together: all that there are between two numbers.
#[derive(Debug)]
pub struct Batch {
    /// They come after this number.
    pub after: u64,
    /// Up to this number.
    pub upto: u64,
    /// What there is.
    pub entries: Vec<Told>,
}

/// Where readers come in.
#[derive(Clone)]
pub struct Feed {
    sender: broadcast::Sender<Arc<Batch>>,
    /// Shared by all: a thousand readers do not each remember the plans of a thousand runs.
    names: Arc<Mutex<Names>>,
}

impl Feed {
    /// Follows the store's journal from now on, until told to stop.
    pub(crate) fn follow(
        store: &Store,
        metrics: &Metrics,
        mut stop: watch::Receiver<bool>,
    ) -> sprag_store::Result<Feed> {
        let (sender, _) = broadcast::channel(BATCHES);
        let feed = Feed { sender, names: Arc::new(Mutex::new(Names::new(store))) };
        let since = store.read(|db| db.last_seq())?;
        let mut events = Events::new(store, None, since);
        let metrics = metrics.clone();
        let follower = feed.clone();
        tokio::spawn(async move {
            let mut after = since;
            loop {
                let entries = tokio::select! {
                    entries = events.next() => entries,
                    () = crate::connections::told(&mut stop) => return,
                };
                let Ok(entries) = entries else {
                    events.wait(LOOK_AGAIN).await;
                    continue;
                };
                metrics.transitions(&entries);
                let upto = entries.last().map_or(after, |entry| entry.seq);
                let before = std::mem::replace(&mut after, upto);
                // Nobody follows: nothing is written out.
                if follower.sender.receiver_count() == 0 {
                    continue;
                }
                // What cannot be written out leaves a gap, which readers notice and fill from the journal.
                if let Ok(entries) = follower.write_out(&entries) {
                    let _ = follower.sender.send(Arc::new(Batch { after: before, upto, entries }));
                }
            }
        });
        Ok(feed)
    }

    /// Entries, written out.
    pub fn write_out(&self, entries: &[JournalEntry]) -> sprag_store::Result<Vec<Told>> {
        let mut names = self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        entries.iter().map(|entry| Told::of(&mut names, entry)).collect()
    }

    /// What comes from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Batch>> {
        self.sender.subscribe()
    }
}
