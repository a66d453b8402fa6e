//! The relay: follows the journal, which is the outbox, and publishes it.
//!
//! ```text
//!   row in the store: cursor, lease ──▶ of several relays one publishes
//!   journal after the cursor ──▶ messages ──▶ broker confirms ──▶ cursor moves on (in steps)
//! ```
//!
//! One that is killed between the two publishes again: the broker drops what it has under the same id, and what
//! it does not drop is inert, because the fence in it was used.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use serde_json::Value;
use sprag_store::{
    Backend, Delivery, ExecutionRow, HookRow, Id, JournalEntry, Result, Store, Subscription, Table, Topic,
};
use tokio::sync::watch;

use crate::bus::{Bus, Trouble};
use crate::counts::PUBLISHED;
use crate::health::Part;
use crate::message::{Outgoing, cancel, events, handoff};
use crate::subjects::Subjects;

/// How a journal entry is shown to programs.
pub type WriteOut = Box<dyn FnMut(&JournalEntry) -> Result<Value> + Send + Sync>;

/// A relay that says nothing for so long is taken for dead, and another goes on.
const LEASE: Duration = Duration::from_secs(6);
/// How often somebody who does not publish looks whether the one who does is gone.
const LOOK: Duration = Duration::from_secs(1);
/// How many entries are read, and published, at once.
const PAGE: usize = 500;
/// The cursor is written down after so many entries, or so long: it only saves work after a crash.
const NOTE_ENTRIES: u64 = 2_000;
const NOTE_EVERY_MS: i64 = 1_000;
/// After the broker refused something: long enough for another to take the turn.
const WAIT: Duration = Duration::from_secs(2);

/// Publishes a store's journal.
pub struct Relay {
    store: Store,
    bus: Bus,
    id: Id,
    write_out: Option<WriteOut>,
    turn: Option<Turn>,
}

/// While this relay is the one that publishes.
struct Turn {
    wake: Subscription,
    /// Everything up to here has been published.
    seen: u64,
    /// What the store knows of that.
    noted: u64,
    noted_ms: i64,
    renew_ms: i64,
    streams: bool,
}

impl Relay {
    /// A relay of this store; `id` tells it apart from others.
    pub fn new(store: Store, bus: Bus, id: Id, write_out: WriteOut) -> Self {
        Relay { store, bus, id, write_out: Some(write_out), turn: None }
    }

    /// Publishes, or stands by while another does, until told to stop.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            _ = stop.changed() => {}
            () = self.bus.first_connection() => {}
        }
        while !*stop.borrow() {
            let rest = match self.go_on().await {
                Ok(Rest::Not) => continue,
                Ok(rest) => rest,
                Err(trouble) => {
                    self.bus.health().lost(Part::Relay, &trouble.to_string());
                    // Another may be nearer to the broker.
                    self.give_up().await;
                    Rest::For(WAIT)
                }
            };
            tokio::select! {
                biased;
                _ = stop.changed() => {}
                () = self.rest(rest) => {}
            }
        }
        // What the last commits told of, so that the next relay need not.
        let _ = tokio::time::timeout(WAIT, self.go_on()).await;
        self.give_up().await;
    }

    async fn rest(&self, rest: Rest) {
        match (rest, &self.turn) {
            (Rest::Not, _) => {}
            (Rest::UntilMore, Some(turn)) => turn.wake.wait(WAIT).await,
            (Rest::UntilConnected, _) => {
                let _ = tokio::time::timeout(WAIT, self.bus.becomes(true)).await;
            }
            (Rest::For(wait), _) => drop(tokio::time::timeout(wait, std::future::pending::<()>()).await),
            (Rest::UntilMore, None) => {}
        }
    }

    /// One round: says how long there is nothing to do.
    async fn go_on(&mut self) -> std::result::Result<Rest, Trouble> {
        if !self.bus.is_connected() {
            self.bus.health().lost(Part::Relay, &format!("no connection to {}", self.bus.shown()));
            self.give_up().await;
            return Ok(Rest::UntilConnected);
        }
        if !self.has_turn().await.map_err(stored)? {
            // Whoever has the turn says whether the broker is of use.
            self.bus.health().found(Part::Relay);
            return Ok(Rest::For(LOOK));
        }
        let Some(mut turn) = self.turn.take() else { return Ok(Rest::For(LOOK)) };
        let gone_on = self.publish_page(&mut turn).await;
        self.turn = Some(turn);
        gone_on
    }

    async fn publish_page(&mut self, turn: &mut Turn) -> std::result::Result<Rest, Trouble> {
        if !turn.streams {
            self.bus.make_streams().await?;
            turn.streams = true;
        }
        let page = self.page(turn.seen).await.map_err(stored)?;
        let nothing = page.upto == turn.seen;
        if !nothing {
            if let Err(trouble) = publish(&self.bus, page.messages).await {
                // Somebody may have removed the streams.
                turn.streams = false;
                return Err(trouble);
            }
            turn.seen = page.upto;
        }
        self.bus.health().found(Part::Relay);
        let now_ms = self.store.now().steady_ms;
        let behind = turn.seen - turn.noted;
        if behind >= NOTE_ENTRIES || (behind > 0 && now_ms >= turn.noted_ms + NOTE_EVERY_MS) {
            self.note(turn).await.map_err(stored)?;
        }
        Ok(if page.full { Rest::Not } else { Rest::UntilMore })
    }

    /// Whether this relay is the one that publishes; takes the turn if nobody has it.
    async fn has_turn(&mut self) -> Result<bool> {
        let now_ms = self.store.now().steady_ms;
        if self.turn.as_ref().is_some_and(|turn| now_ms < turn.renew_ms) {
            return Ok(true);
        }
        let row = match reading(&self.store, |db| db.hooks()).await?.into_iter().find(HookRow::is_relay) {
            Some(row) => row,
            None => self.make_row().await?,
        };
        let ours = row.holder == self.id || row.lease_until_ms <= now_ms;
        if !ours || !self.store.service().take_hook(row.id, self.id, LEASE.as_millis() as i64).await? {
            self.turn = None;
            return Ok(false);
        }
        let renew_ms = now_ms + LEASE.as_millis() as i64 / 3;
        match &mut self.turn {
            Some(turn) => turn.renew_ms = renew_ms,
            None => {
                // The one before may have moved it between the two.
                let rows = reading(&self.store, |db| db.hooks()).await?;
                let cursor = rows.iter().find(|row| row.is_relay()).map_or(row.cursor, |row| row.cursor);
                let wake = self.store.subscribe(vec![Topic::Journal]);
                let turn =
                    Turn { wake, seen: cursor, noted: cursor, noted_ms: now_ms, renew_ms, streams: false };
                self.turn = Some(turn);
            }
        }
        Ok(true)
    }

    /// From now on the journal is published. What came before is left to those who look by themselves.
    async fn make_row(&self) -> Result<HookRow> {
        let row = HookRow::relay(self.bus.shown(), self.store.now().wall_ms);
        self.store
            .write(move |session| {
                if let Some(there) = session.db().hooks()?.into_iter().find(HookRow::is_relay) {
                    return Ok(there);
                }
                let row = HookRow { cursor: session.db().last_seq()?, ..row.clone() };
                session.db().put_hook(&row)?;
                Ok(row)
            })
            .await
    }

    async fn note(&self, turn: &mut Turn) -> Result<()> {
        let came = Delivery::Done { cursor: turn.seen };
        let noted = self.store.service().hook_told(HookRow::RELAY, self.id, turn.noted, came).await?;
        turn.noted_ms = self.store.now().steady_ms;
        match noted {
            true => turn.noted = turn.seen,
            // Taken over, or moved by hand: whoever has it next reads the cursor again.
            false => turn.renew_ms = 0,
        }
        Ok(())
    }

    /// Lets another go on, if this one has the turn.
    async fn give_up(&mut self) {
        let Some(mut turn) = self.turn.take() else { return };
        let noted = if turn.seen > turn.noted { self.note(&mut turn).await } else { Ok(()) };
        let left = noted.and(self.store.service().leave_hook(HookRow::RELAY, self.id).await);
        if let Err(error) = left {
            tracing::debug!(%error, "giving the relay's turn back: its lease ends it");
        }
    }

    /// What comes after a number, as messages.
    async fn page(&mut self, after: u64) -> Result<Page> {
        let (store, subjects) = (self.store.clone(), self.bus.subjects().clone());
        // Gone only if it has panicked.
        let Some(mut write_out) = self.write_out.take() else { return Err(sprag_store::Error::Closed) };
        let read = tokio::task::spawn_blocking(move || {
            let page = read_page(&store, &subjects, &mut write_out, after);
            (page, write_out)
        });
        let (page, write_out) = read.await.map_err(|_| sprag_store::Error::Closed)?;
        self.write_out = Some(write_out);
        page
    }
}

/// How long there is nothing to do.
#[derive(Debug, Clone, Copy)]
enum Rest {
    Not,
    UntilMore,
    UntilConnected,
    For(Duration),
}

struct Page {
    messages: Vec<Outgoing>,
    upto: u64,
    full: bool,
}

fn stored(error: sprag_store::Error) -> Trouble {
    Trouble::new("reading the journal", error)
}

async fn reading<T: Send + 'static>(
    store: &Store,
    look: impl FnOnce(&mut dyn Backend) -> Result<T> + Send + 'static,
) -> Result<T> {
    let store = store.clone();
    let read = tokio::task::spawn_blocking(move || store.read(look));
    read.await.unwrap_or(Err(sprag_store::Error::Closed))
}

fn read_page(store: &Store, subjects: &Subjects, write_out: &mut WriteOut, after: u64) -> Result<Page> {
    // One look at the database: rows are as new as the entries that tell of them.
    let (entries, upto, rows) = store.read(|db| {
        let entries = db.journal(after, None, PAGE)?;
        let upto = entries.last().map_or(after, |last| last.seq);
        let rows = entries.iter().map(|entry| Ok(readable(rows_of(db, entry), entry)?.unwrap_or_default()));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        Ok((entries, upto, rows))
    })?;
    let (mut first, mut rest, mut told) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (entry, rows) in entries.iter().zip(rows) {
        let Some(view) = readable(write_out(entry), entry)? else { continue };
        let step = view["step"].as_str();
        for row in &rows {
            let urgent = handoff(subjects, entry, step, row).or_else(|| cancel(subjects, row));
            first.extend(urgent.filter(|message| told.insert(message.id.clone())));
        }
        rest.extend(events(subjects, entry, &view));
    }
    // What somebody waits for goes before what somebody may read.
    first.append(&mut rest);
    Ok(Page { messages: first, upto, full: entries.len() == PAGE })
}

/// What a newer version wrote and this one cannot read is passed over: it must not hold up everything behind it.
fn readable<T>(read: Result<T>, entry: &JournalEntry) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error @ sprag_store::Error::UnknownWord { .. }) => {
            tracing::warn!(seq = entry.seq, %error, "passed over: it is not published");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The executions that a worker is to hear of because of an entry.
fn rows_of(db: &mut dyn Backend, entry: &JournalEntry) -> Result<Vec<ExecutionRow>> {
    let Some(run) = entry.place.run else { return Ok(Vec::new()) };
    match (entry.entity, entry.event, entry.to) {
        ("execution", "handoff.published", _) => {
            let (Some(step), Some(attempt)) = (entry.place.step, entry.place.attempt) else {
                return Ok(Vec::new());
            };
            let id = sprag_lifecycle::ExecutionId { run, step, attempt };
            Ok(Table::<ExecutionRow>::load(db, id)?.into_iter().collect())
        }
        // Whatever goes on in it may have to end. Other reasons to end something come with the heartbeat.
        ("run", _, "cancelling" | "failing") => {
            Ok(db.executions(run)?.into_iter().filter(|row| row.cancel_requested).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// Publishes in order; returns when the broker has confirmed all of it.
async fn publish(bus: &Bus, messages: Vec<Outgoing>) -> std::result::Result<(), Trouble> {
    let mut sent = Vec::with_capacity(messages.len());
    for Outgoing { subject, id, payload } in messages {
        let message = PublishMessage::build().payload(payload).message_id(&id);
        match bus.context().send_publish(subject.clone(), message).await {
            Ok(confirmed) => sent.push(confirmed),
            // It would be refused for ever, and everything behind it with it.
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                tracing::error!(subject, %error, "too large for the broker: not published");
            }
            Err(error) => return Err(Trouble::new("publishing", error)),
        }
    }
    let count = sent.len();
    for confirmed in sent {
        confirmed.await.map_err(|error| Trouble::new("publishing", error))?;
    }
    PUBLISHED.add(count);
    Ok(())
}
