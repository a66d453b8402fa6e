//! The deliverers: one task for each hook that this server holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sprag_app::hooks::{HookFilter, HookTarget};
use sprag_app::{Delivery, HookRow, Id, JournalPage, Subscription, Topic};
use tokio::task::JoinHandle;

use super::post::{Message, PostError, post};
use crate::connections::told;
use crate::feed::Told;
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
/// The first wait after a failure; each further one is twice as long.
const FIRST_WAIT_MS: i64 = 500;
/// The longest wait between two tries.
const LONGEST_WAIT_MS: i64 = 5 * 60_000;

/// Delivers all hooks, until the server ends.
pub(crate) async fn deliver(app: ServerState) {
    let mut stop = app.stopping();
    let mut tasks: BTreeMap<Id, JoinHandle<()>> = BTreeMap::new();
    while !*stop.borrow() {
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
        let (wanted, upto, full) = self.read(&hook, after).await?;
        self.seen = Some((hook.cursor, upto));
        if wanted.is_empty() {
            if upto - hook.cursor >= UNWANTED {
                self.note(&hook, Delivery::Done { cursor: upto }).await?;
            }
            if !full {
                self.wake.wait(LEASE / 4).await;
            }
            return Ok(true);
        }
        self.tell(&hook, &wanted, upto).await?;
        Ok(true)
    }

    /// Returns the next entries that the hook wants, the number up to which these are all, and whether there may be
    /// more.
    async fn read(&mut self, hook: &HookRow, after: u64) -> Answer<(Vec<Told>, u64, bool)> {
        let filter: HookFilter = serde_json::from_str(&hook.filter).unwrap_or_default();
        let read = self.app.blocking(move |app| {
            let run = filter.run();
            let JournalPage { entries, last_seq } = app.core().journal(after, run, PAGE)?;
            let full = entries.len() == PAGE;
            let upto = match entries.last() {
                Some(last) if full => last.seq,
                _ => after.max(last_seq),
            };
            let told = app.feed().write_out(&entries)?;
            let wanted = told.into_iter().filter(|told| filter.allows(told.entity, told.event)).collect();
            Ok((wanted, upto, full))
        });
        read.await
    }

    async fn tell(&mut self, hook: &HookRow, wanted: &[Told], upto: u64) -> Answer<()> {
        let body = body_of(self.id, wanted);
        let last = wanted.last().map_or(upto, |told| told.seq);
        let message =
            Message { secret: &hook.secret, event_id: last, wall_ms: self.app.core().now().wall_ms, body };
        let sent = match HookTarget::parse(&hook.url) {
            Ok(target) => post(&target, message, self.app.options()).await,
            Err(error) => Err(PostError::Address(error)),
        };
        let came = match sent {
            Ok(()) => Delivery::Done { cursor: upto },
            Err(error) => {
                let tries = hook.failures + 1;
                let wait_ms = (FIRST_WAIT_MS << hook.failures.min(16)).min(LONGEST_WAIT_MS);
                let park = tries >= self.app.options().hook_tries;
                tracing::warn!(hook = self.id, url = %hook.url, %error, tries, park, "a webhook did not accept a message");
                let next_try_ms = self.app.core().now().steady_ms + wait_ms;
                Delivery::Failed { next_try_ms, error: Arc::from(error.to_string()), park }
            }
        };
        self.note(hook, came).await
    }

    /// Records the result of a delivery, if this server still has the hook.
    async fn note(&mut self, hook: &HookRow, came: Delivery) -> Answer<()> {
        let holder = self.app.id();
        if !self.app.core().hook_delivered(self.id, holder, hook.cursor, came).await? {
            tracing::warn!(hook = self.id, "another server delivers this webhook now");
        }
        self.seen = None;
        Ok(())
    }
}

/// Returns the body of a message: `{"hook": …, "events": […]}`.
fn body_of(hook: Id, told: &[Told]) -> Bytes {
    let mut body = format!("{{\"hook\":\"{hook}\",\"events\":[").into_bytes();
    for (nth, told) in told.iter().enumerate() {
        if nth > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&told.json);
    }
    body.extend_from_slice(b"]}");
    body.into()
}
