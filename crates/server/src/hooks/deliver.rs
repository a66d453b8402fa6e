//! The deliverers: one task for each hook that this server holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sprag_app::hooks::{HookEvent, HookMessage, HookSettings, messages};
use sprag_app::view::RunView;
use sprag_app::{Delivery, HookRow, Id, JournalPage, RunId, RunWithPlan, Subscription, Topic};
use tokio::task::JoinHandle;

use super::send::{Means, send};
use crate::connections::told;
use crate::problem::Answer;
use crate::state::ServerState;

/// The interval at which the server looks for hooks to deliver: new ones, and those of servers that are gone.
const LOOK: Duration = Duration::from_secs(2);
/// The lease on a hook. A server that does not renew it loses the hook after this time.
const LEASE: Duration = Duration::from_secs(20);
/// The most entries that are read at once, and sent at once.
const PAGE: usize = 200;
/// The number of entries that the hook did not want after which its cursor is stored anyway.
const UNWANTED: u64 = 2_000;
/// The most failures of a run that a message tells of.
const MOST_FAILURES: usize = 5;
/// The first wait after a failure; each further one is twice as long.
const FIRST_WAIT_MS: i64 = 500;
/// The longest wait between two tries.
const LONGEST_WAIT_MS: i64 = 5 * 60_000;

/// Delivers all hooks, until the server ends.
pub(crate) async fn deliver(app: ServerState) {
    let mut stop = app.stopping();
    let mut tasks: BTreeMap<Id, JoinHandle<()>> = BTreeMap::new();
    let mut presence = None;
    while !*stop.borrow() {
        presence = presence.or_else(|| app.core().show_delivery());
        tasks.retain(|_, task| !task.is_finished());
        match app.blocking(|app| Ok(app.core().hooks()?)).await {
            Ok(hooks) => {
                for hook in hooks.iter().filter(|hook| hook.parked.is_none() && !hook.is_relay()) {
                    tasks.entry(hook.id).or_insert_with(|| tokio::spawn(follow(app.clone(), hook.id)));
                }
            }
            Err(problem) => tracing::warn!(problem.message, "reading the webhooks failed"),
        }
        let _ = tokio::time::timeout(LOOK, told(&mut stop)).await;
    }
    // The leases are given back, so that another server continues at once.
    for (hook, task) in tasks {
        task.abort();
        let _ = task.await;
        let _ = app.core().leave_hook(hook, app.id()).await;
    }
}

/// Delivers one hook for as long as this server has its lease.
async fn follow(app: ServerState, id: Id) {
    let mut hook = Following {
        wake: app.core().subscribe_here(vec![Topic::Journal]),
        seen: None,
        renew_at_ms: 0,
        app,
        id,
    };
    loop {
        match hook.go_on().await {
            Ok(true) => {}
            Ok(false) => return,
            Err(problem) => {
                tracing::warn!(hook = id, problem.message, "delivering to a webhook failed");
                hook.wake.wait(LOOK).await;
            }
        }
    }
}

struct Following {
    app: ServerState,
    id: Id,
    wake: Subscription,
    /// The progress in the journal: the cursor in the store, and the number up to which entries were read beyond it.
    seen: Option<(u64, u64)>,
    /// The time at which the lease is to be renewed, in milliseconds of the steady clock.
    renew_at_ms: i64,
}

impl Following {
    /// Delivers the next entries, or waits for some. Returns whether this server still has the hook.
    async fn go_on(&mut self) -> Answer<bool> {
        let (id, holder) = (self.id, self.app.id());
        // Renewed now and then, not with every entry: renewing a lease is a write.
        let now_ms = self.app.core().now().steady_ms;
        if now_ms >= self.renew_at_ms {
            if !self.app.core().take_hook(id, holder, LEASE.as_millis() as i64).await? {
                return Ok(false);
            }
            self.renew_at_ms = now_ms + LEASE.as_millis() as i64 / 3;
        }
        let ours = move |hook: &HookRow| hook.id == id && hook.holder == holder && hook.parked.is_none();
        let Some(hook) = self.app.blocking(move |app| Ok(app.core().hooks()?.into_iter().find(ours))).await?
        else {
            return Ok(false);
        };
        let wait_ms = hook.next_try_ms - self.app.core().now().steady_ms;
        if wait_ms > 0 {
            // The wait is short enough to notice soon when a person asks for a retry. Other events do not shorten it.
            let wait = Duration::from_millis(wait_ms as u64).min(LOOK);
            let _ = tokio::time::timeout(wait, told(&mut self.app.stopping())).await;
            return Ok(true);
        }
        let after = match self.seen {
            Some((cursor, seen)) if cursor == hook.cursor => seen,
            _ => hook.cursor,
        };
        let page = match HookSettings::of(&hook) {
            Ok(settings) => self.read(&hook, settings, after).await?,
            // It is tried again and parked like any other failure, and `hook ls` shows why.
            Err(error) => return self.failed(&hook, hook.cursor, &error.message).await.map(|()| true),
        };
        self.seen = Some((hook.cursor, page.upto));
        match page.messages {
            Ok(wanted) if wanted.is_empty() => {
                if page.upto - hook.cursor >= UNWANTED {
                    self.note(hook.cursor, Delivery::Done { cursor: page.upto }).await?;
                }
                if !page.is_full {
                    self.wake.wait(LEASE / 4).await;
                }
            }
            Ok(wanted) => self.tell(&hook, &wanted, page.upto).await?,
            Err(why) => self.failed(&hook, hook.cursor, &why).await?,
        }
        Ok(true)
    }

    /// Reads the next entries, and writes the messages about those that the hook wants.
    async fn read(&mut self, hook: &HookRow, settings: HookSettings, after: u64) -> Answer<Page> {
        let id = hook.id;
        let read = self.app.blocking(move |app| {
            let HookSettings { filter, delivery } = settings;
            let JournalPage { entries, last_seq } = app.core().journal(after, filter.run(), PAGE)?;
            let is_full = entries.len() == PAGE;
            let upto = match entries.last() {
                Some(last) if is_full => last.seq,
                _ => after.max(last_seq),
            };
            let wanted: Vec<_> = entries
                .into_iter()
                .filter(|entry| filter.allows(entry.entity, entry.event, entry.to))
                .collect();
            let mut runs: BTreeMap<RunId, Option<RunView>> = BTreeMap::new();
            for run in wanted.iter().filter_map(|entry| entry.place.run) {
                if let std::collections::btree_map::Entry::Vacant(place) = runs.entry(run) {
                    place.insert(app.core().run(run)?.map(|row| RunView::of(&row)));
                }
            }
            let told = app.feed().write_out(&wanted)?;
            let mut events = Vec::new();
            for (entry, told) in wanted.iter().zip(&told) {
                let run = entry.place.run.and_then(|run| runs.get(&run)?.as_ref());
                // A filter about runs leaves out what has no run, and runs that were forgotten.
                if filter.asks_about_runs() && !run.is_some_and(|run| filter.allows_run(run)) {
                    continue;
                }
                let failures = failures_of(app, entry)?;
                events.push(HookEvent { seq: told.seq, json: &told.json, run, failures });
            }
            let messages = messages(id, &delivery, &events).map_err(|error| error.message);
            Ok(Page { messages, upto, is_full })
        });
        read.await
    }

    /// Sends messages in order. The cursor moves on with each of them.
    async fn tell(&mut self, hook: &HookRow, wanted: &[HookMessage], upto: u64) -> Answer<()> {
        let mut from = hook.cursor;
        let mut renewals = tokio::time::interval(LEASE / 3);
        renewals.reset();
        for (nth, message) in wanted.iter().enumerate() {
            let means = Means {
                allow_private: self.app.options().private_hooks,
                outgoing: self.app.options().outgoing.clone(),
                program: self.app.options().program.clone(),
                data: self.app.core().data().to_owned(),
            };
            let wall_ms = self.app.core().now().wall_ms;
            let mut sending = std::pin::pin!(send(hook, message, wall_ms, &means));
            let sent = loop {
                tokio::select! {
                    sent = &mut sending => break sent,
                    // Without the lease another server sends it: what was begun here is given up.
                    _ = renewals.tick() => {
                        let lease_ms = LEASE.as_millis() as i64;
                        if !self.app.core().take_hook(self.id, self.app.id(), lease_ms).await? {
                            return Ok(());
                        }
                    }
                }
            };
            if let Err(error) = sent {
                return self.failed(hook, from, &error.to_string()).await;
            }
            let cursor = if nth + 1 == wanted.len() { upto } else { message.seq };
            if !self.note(from, Delivery::Done { cursor }).await? {
                return Ok(());
            }
            from = cursor;
        }
        Ok(())
    }

    /// Records a failure: the delivery is tried again later, or parked.
    async fn failed(&mut self, hook: &HookRow, from: u64, error: &str) -> Answer<()> {
        let tries = hook.failures + 1;
        let wait_ms = (FIRST_WAIT_MS << hook.failures.min(16)).min(LONGEST_WAIT_MS);
        let park = tries >= self.app.options().hook_tries;
        tracing::warn!(hook = self.id, url = %hook.url, %error, tries, park, "a webhook did not accept a message");
        let next_try_ms = self.app.core().now().steady_ms + wait_ms;
        let came = Delivery::Failed { next_try_ms, error: Arc::from(error), park };
        self.note(from, came).await.map(drop)
    }

    /// Records the result of a delivery, if this server still has the hook. Returns whether it has.
    async fn note(&mut self, from: u64, came: Delivery) -> Answer<bool> {
        let holder = self.app.id();
        let is_ours = self.app.core().hook_delivered(self.id, holder, from, came).await?;
        if !is_ours {
            tracing::warn!(hook = self.id, "another server delivers this webhook now");
        }
        self.seen = None;
        Ok(is_ours)
    }
}

/// A part of the journal, as the messages about it.
struct Page {
    /// The messages; the reason if they cannot be written.
    messages: Result<Vec<HookMessage>, String>,
    /// The number up to which the messages tell of everything.
    upto: u64,
    /// Whether there may be more entries.
    is_full: bool,
}

/// Returns the failures of a run, if an entry says that it failed.
fn failures_of(app: &ServerState, entry: &sprag_app::JournalEntry) -> Answer<Vec<String>> {
    let Some(run) = entry.place.run.filter(|_| (entry.entity, entry.to) == ("run", "failed")) else {
        return Ok(Vec::new());
    };
    // A run that was forgotten since has no failures to tell of.
    let Ok(known) = RunWithPlan::load(app.core(), run) else { return Ok(Vec::new()) };
    let failures = sprag_app::failures(app.core(), &known)?;
    Ok(failures.iter().take(MOST_FAILURES).map(sprag_app::FailedStep::line).collect())
}
