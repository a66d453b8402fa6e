//! The journal as it grows, read once for all readers that follow it.
//!
//! ```text
//!   journal ──one follower──▶ Feed (bounded) ──▶ each reader: what it wants, each entry once
//!      ▲                                            │ too slow for the bound
//!      └──────────── reads again from where it was ─┘
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sprag_app::{App, Error, Events, JournalEntry, Names, RefusedEvents};
use sprag_lifecycle::RunId;
use tokio::sync::{broadcast, watch};

use crate::metrics::Metrics;

/// The pause after a failed read of the store.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);
/// The number of batches that a reader may lag behind before it reads the journal itself.
const BATCHES: usize = 256;

/// The pause between two searches for refused events.
const REFUSALS_EVERY: std::time::Duration = std::time::Duration::from_millis(200);

/// An entry as readers get it: serialised once, shared by all.
#[derive(Debug)]
pub struct Told {
    /// The entry's number in the journal.
    pub seq: u64,
    /// The run that the entry belongs to, if any.
    pub run: Option<RunId>,
    /// The kind of entity that the event happened to.
    pub entity: &'static str,
    /// The name of the event.
    pub event: &'static str,
    /// The entry in JSON.
    pub json: Bytes,
}

impl Told {
    /// Serialises an entry.
    fn of(names: &mut Names, entry: &JournalEntry) -> Result<Told, Error> {
        let json = serde_json::to_vec(&names.view(entry)?).expect("an entry is plain data");
        let JournalEntry { seq, entity, event, .. } = *entry;
        Ok(Told { seq, run: entry.place.run, entity, event, json: json.into() })
    }
}

/// Several entries that came together: all that there are between two numbers.
#[derive(Debug)]
pub struct Batch {
    /// The number of the entry before the first one.
    pub after: u64,
    /// The number of the last entry that the batch covers.
    pub upto: u64,
    /// The entries, in order.
    pub entries: Vec<Told>,
}

/// Something beside the journal that readers may want to know at once.
#[derive(Debug)]
pub struct Hint {
    /// The kind of hint: `refused` or `review`.
    pub name: &'static str,
    /// The run that it belongs to, if any.
    pub run: Option<RunId>,
    /// The hint in JSON.
    pub json: Bytes,
}

/// The feed that readers subscribe to.
#[derive(Clone)]
pub struct Feed {
    sender: broadcast::Sender<Arc<Batch>>,
    hints: broadcast::Sender<Arc<Hint>>,
    /// Shared by all readers: a thousand readers do not each remember the plans of a thousand runs.
    names: Arc<Mutex<Names>>,
    /// The number up to which the journal was read.
    read_upto: Arc<AtomicU64>,
}

impl Feed {
    /// Follows the store's journal from now on, until told to stop.
    pub(crate) fn follow(
        app: &App,
        metrics: &Metrics,
        mut stop: watch::Receiver<bool>,
    ) -> Result<Feed, Error> {
        let (sender, _) = broadcast::channel(BATCHES);
        let since = app.last_seq()?;
        let names = Arc::new(Mutex::new(Names::new(app)));
        let (hints, _) = broadcast::channel(BATCHES);
        let feed = Feed { sender, hints, names, read_upto: Arc::new(AtomicU64::new(since)) };
        feed.follow_refusals(RefusedEvents::new(app)?, stop.clone());
        let mut events = Events::new(app, None, since);
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
                follower.read_upto.store(upto, Ordering::Release);
                // No reader is subscribed: nothing is serialised.
                if follower.sender.receiver_count() == 0 {
                    continue;
                }
                // Entries that cannot be serialised leave a gap, which readers notice and fill from the journal.
                if let Ok(entries) = follower.write_out(&entries) {
                    let _ = follower.sender.send(Arc::new(Batch { after: before, upto, entries }));
                }
            }
        });
        Ok(feed)
    }

    /// Tells of refused events from now on.
    fn follow_refusals(&self, mut refused: RefusedEvents, mut stop: watch::Receiver<bool>) {
        let hints = self.hints.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = refused.wait() => {}
                    () = crate::connections::told(&mut stop) => return,
                }
                // Refusals are rare: a busy journal is not a reason to look for them all the time.
                let stopped = crate::connections::told(&mut stop);
                if tokio::time::timeout(REFUSALS_EVERY, stopped).await.is_ok() {
                    return;
                }
                for view in refused.ready().unwrap_or_default() {
                    let run = view.run.as_deref().and_then(|run| run.parse().ok());
                    let json = serde_json::to_vec(&view).expect("a refusal is plain data").into();
                    let _ = hints.send(Arc::new(Hint { name: "refused", run, json }));
                }
            }
        });
    }

    /// Tells readers that the comments on a run's changes are different now.
    pub(crate) fn review_changed(&self, run: RunId) {
        let json = serde_json::json!({ "run": run.to_string() }).to_string().into();
        let _ = self.hints.send(Arc::new(Hint { name: "review", run: Some(run), json }));
    }

    /// Subscribes to the hints that come from now on.
    pub(crate) fn subscribe_to_hints(&self) -> broadcast::Receiver<Arc<Hint>> {
        self.hints.subscribe()
    }

    /// Serialises entries.
    pub fn write_out(&self, entries: &[JournalEntry]) -> Result<Vec<Told>, Error> {
        let mut names = self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        entries.iter().map(|entry| Told::of(&mut names, entry)).collect()
    }

    /// Returns the number up to which the journal was read: these entries are committed, so everything that is read from
    /// now on contains them.
    pub fn read_upto(&self) -> u64 {
        self.read_upto.load(Ordering::Acquire)
    }

    /// Subscribes to the batches that come from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Batch>> {
        self.sender.subscribe()
    }
}
