//! The relay: reads the journal, which serves as the outbox, and publishes it.
//!
//! ```text
//!   row in the store: cursor, lease ──▶ one of several relays publishes
//!   journal after the cursor ──▶ messages ──▶ broker confirms ──▶ cursor advances (in batches)
//! ```
//!
//! A relay that is killed after publishing and before storing the cursor publishes the same entries again. The
//! broker drops messages with an id it has seen. Messages that it no longer recognises do no harm, because
//! their fence is outdated.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use serde_json::Value;
use sprag_store::{
    Delivery, EntryWithExecutions, HookRow, Id, JournalEntry, Result, Store, Subscription, Topic,
};
use tokio::sync::watch;

use crate::bus::Bus;
use crate::counts::PUBLISHED;
use crate::health::Role;
use crate::message::{Outgoing, cancel, events, handoff};
use crate::subjects::Subjects;

/// Renders a journal entry as JSON, as all programs see it.
pub type RenderEntry = Box<dyn FnMut(&JournalEntry) -> Result<Value> + Send + Sync>;

/// The lease of the publishing relay. Another relay takes over when it expires.
const LEASE: Duration = Duration::from_secs(6);
/// The interval in which a standby relay checks the lease.
const STANDBY_POLL: Duration = Duration::from_secs(1);
/// The most entries that are read and published at once.
const PAGE: usize = 500;
/// The relay stores its cursor after this many entries or milliseconds. The cursor only saves work after a
/// crash.
const CURSOR_ENTRIES: u64 = 2_000;
const CURSOR_INTERVAL_MS: i64 = 1_000;
/// The delay after an error of the broker. It is long enough for another relay to take over.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Publishes a store's journal, if no other relay does.
pub struct Relay {
    store: Store,
    bus: Bus,
    id: Id,
    render: Option<RenderEntry>,
    leading: Option<Leading>,
}

/// The state of the relay while it holds the lease.
struct Leading {
    wake: Subscription,
    /// The last published entry.
    seen: u64,
    /// The cursor in the store; at most `seen`.
    stored: u64,
    stored_ms: i64,
    renew_ms: i64,
    streams: bool,
}

impl Relay {
    /// Creates a relay; `id` identifies it as the holder of the lease.
    pub fn new(store: Store, bus: Bus, id: Id, render: RenderEntry) -> Self {
        Relay { store, bus, id, render: Some(render), leading: None }
    }

    /// Publishes, or waits while another relay does, until `stop` changes.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            _ = stop.changed() => {}
            () = self.bus.first_connection() => {}
        }
        while !*stop.borrow() {
            let pause = match self.run_once().await {
                Ok(Pause::None) => continue,
                Ok(pause) => pause,
                Err(error) => {
                    self.bus.health().unreachable(Role::Relay, &error.to_string());
                    // Another relay may still reach the broker.
                    self.release().await;
                    Pause::For(RETRY_DELAY)
                }
            };
            tokio::select! {
                biased;
                _ = stop.changed() => {}
                () = self.pause(pause) => {}
            }
        }
        // Publish the last commits, so that the next relay need not publish them.
        let _ = tokio::time::timeout(RETRY_DELAY, self.run_once()).await;
        self.release().await;
    }

    async fn pause(&self, pause: Pause) {
        match (pause, &self.leading) {
            (Pause::None, _) => {}
            (Pause::UntilMore, Some(leading)) => leading.wake.wait(RETRY_DELAY).await,
            (Pause::UntilConnected, _) => {
                let _ = tokio::time::timeout(RETRY_DELAY, self.bus.connection_becomes(true)).await;
            }
            (Pause::For(wait), _) => self.store.runtime().pause(wait).await,
            (Pause::UntilMore, None) => {}
        }
    }

    /// Publishes one page if this relay holds the lease. Returns how long to wait before the next call.
    async fn run_once(&mut self) -> std::result::Result<Pause, crate::Error> {
        if !self.bus.is_connected() {
            self.bus.health().unreachable(Role::Relay, &format!("no connection to {}", self.bus.shown()));
            self.release().await;
            return Ok(Pause::UntilConnected);
        }
        if !self.holds_lease().await.map_err(store_error)? {
            // Only the relay with the lease can tell whether the broker works.
            self.bus.health().reachable(Role::Relay);
            return Ok(Pause::For(STANDBY_POLL));
        }
        let Some(mut leading) = self.leading.take() else { return Ok(Pause::For(STANDBY_POLL)) };
        let published = self.publish_page(&mut leading).await;
        self.leading = Some(leading);
        published
    }

    async fn publish_page(&mut self, leading: &mut Leading) -> std::result::Result<Pause, crate::Error> {
        if !leading.streams {
            self.bus.ensure_streams().await?;
            leading.streams = true;
        }
        let page = self.page(leading.seen).await.map_err(store_error)?;
        let is_empty = page.upto == leading.seen;
        if !is_empty {
            if let Err(error) = publish(&self.bus, page.messages).await {
                // An operator may have removed the streams.
                leading.streams = false;
                return Err(error);
            }
            leading.seen = page.upto;
        }
        self.bus.health().reachable(Role::Relay);
        let now_ms = self.store.now().steady_ms;
        let behind = leading.seen - leading.stored;
        if behind >= CURSOR_ENTRIES || (behind > 0 && now_ms >= leading.stored_ms + CURSOR_INTERVAL_MS) {
            self.store_cursor(leading).await.map_err(store_error)?;
        }
        Ok(if page.full { Pause::None } else { Pause::UntilMore })
    }

    /// Returns whether this relay holds the lease; acquires or renews it if that is possible and due.
    async fn holds_lease(&mut self) -> Result<bool> {
        let now_ms = self.store.now().steady_ms;
        if self.leading.as_ref().is_some_and(|leading| now_ms < leading.renew_ms) {
            return Ok(true);
        }
        let row = match read_row(&self.store).await? {
            Some(row) => row,
            None => self.create_row().await?,
        };
        let ours = row.holder == self.id || row.lease_until_ms <= now_ms;
        if !ours || !self.store.service().take_hook(row.id, self.id, LEASE.as_millis() as i64).await? {
            self.leading = None;
            return Ok(false);
        }
        let renew_ms = now_ms + LEASE.as_millis() as i64 / 3;
        match &mut self.leading {
            Some(leading) => leading.renew_ms = renew_ms,
            None => {
                // The previous holder may have moved the cursor before the lease was acquired.
                let cursor = read_row(&self.store).await?.map_or(row.cursor, |row| row.cursor);
                let wake = self.store.subscribe(vec![Topic::Journal]);
                let leading = Leading {
                    wake,
                    seen: cursor,
                    stored: cursor,
                    stored_ms: now_ms,
                    renew_ms,
                    streams: false,
                };
                self.leading = Some(leading);
            }
        }
        Ok(true)
    }

    /// Creates the relay's row. Publishing starts at the current end of the journal; workers find older work by
    /// polling.
    async fn create_row(&self) -> Result<HookRow> {
        let row = HookRow::relay(self.bus.shown(), self.store.now().wall_ms);
        self.store.service().relay_or(row).await
    }

    async fn store_cursor(&self, leading: &mut Leading) -> Result<()> {
        let delivered = Delivery::Done { cursor: leading.seen };
        let stored =
            self.store.service().hook_told(HookRow::RELAY, self.id, leading.stored, delivered).await?;
        leading.stored_ms = self.store.now().steady_ms;
        if stored {
            leading.stored = leading.seen;
        } else {
            // Another relay took over, or an operator moved the cursor: read both again.
            leading.renew_ms = 0;
        }
        Ok(())
    }

    /// Stores the cursor and releases the lease, if this relay holds it.
    async fn release(&mut self) {
        let Some(mut leading) = self.leading.take() else { return };
        let stored =
            if leading.seen > leading.stored { self.store_cursor(&mut leading).await } else { Ok(()) };
        let released = stored.and(self.store.service().leave_hook(HookRow::RELAY, self.id).await);
        if let Err(error) = released {
            tracing::debug!(%error, "releasing the relay's lease failed: it expires by itself");
        }
    }

    /// Reads the entries after a sequence number and renders their messages.
    async fn page(&mut self, after: u64) -> Result<Page> {
        let (store, subjects) = (self.store.clone(), self.bus.subjects().clone());
        // Absent only after a panic in an earlier call.
        let Some(mut render) = self.render.take() else { return Err(sprag_store::Error::Closed) };
        let read = tokio::task::spawn_blocking(move || {
            let page = read_page(&store, &subjects, &mut render, after);
            (page, render)
        });
        let (page, render) = read.await.map_err(|_| sprag_store::Error::Closed)?;
        self.render = Some(render);
        page
    }
}

/// The time until the relay's next round.
#[derive(Debug, Clone, Copy)]
enum Pause {
    None,
    UntilMore,
    UntilConnected,
    For(Duration),
}

struct Page {
    messages: Vec<Outgoing>,
    upto: u64,
    full: bool,
}

fn store_error(error: sprag_store::Error) -> crate::Error {
    crate::Error::new("reading the journal", error)
}

async fn read_row(store: &Store) -> Result<Option<HookRow>> {
    let store = store.clone();
    let read = tokio::task::spawn_blocking(move || store.queries().relay());
    read.await.unwrap_or(Err(sprag_store::Error::Closed))
}

fn read_page(store: &Store, subjects: &Subjects, render: &mut RenderEntry, after: u64) -> Result<Page> {
    // The rows are as recent as the entries.
    let entries = store.queries().journal_with_executions(after, PAGE)?;
    let upto = entries.last().map_or(after, |last| last.entry.seq);
    let full = entries.len() == PAGE;
    let (mut urgent, mut events_after, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for EntryWithExecutions { entry, executions } in entries {
        let rows = skip_unreadable(executions, &entry)?.unwrap_or_default();
        let Some(view) = skip_unreadable(render(&entry), &entry)? else { continue };
        let step = view["step"].as_str();
        for row in &rows {
            let message = handoff(subjects, &entry, step, row).or_else(|| cancel(subjects, row));
            urgent.extend(message.filter(|message| seen.insert(message.id.clone())));
        }
        events_after.extend(events(subjects, &entry, &view));
    }
    // Handoffs and cancel requests first: workers wait for them.
    urgent.append(&mut events_after);
    Ok(Page { messages: urgent, upto, full })
}

/// Skips entries that a newer version wrote and this version cannot read, so that they do not block later
/// entries.
fn skip_unreadable<T>(read: Result<T>, entry: &JournalEntry) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error @ sprag_store::Error::UnknownWord { .. }) => {
            tracing::warn!(seq = entry.seq, %error, "cannot read a journal entry: it is not published");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Publishes the messages in order. Returns after the broker has confirmed all of them.
async fn publish(bus: &Bus, messages: Vec<Outgoing>) -> std::result::Result<(), crate::Error> {
    let mut sent = Vec::with_capacity(messages.len());
    for Outgoing { subject, id, payload } in messages {
        let message = PublishMessage::build().payload(payload).message_id(&id);
        match bus.context().send_publish(subject.clone(), message).await {
            Ok(confirmed) => sent.push(confirmed),
            // Skipped: retrying can never succeed and would block all later entries.
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                tracing::error!(subject, %error, "message exceeds the broker's max_payload: not published");
            }
            Err(error) => return Err(crate::Error::new("publishing", error)),
        }
    }
    let count = sent.len();
    for confirmed in sent {
        confirmed.await.map_err(|error| crate::Error::new("publishing", error))?;
    }
    PUBLISHED.add(count);
    Ok(())
}
