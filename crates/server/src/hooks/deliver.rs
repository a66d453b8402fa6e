//! The deliverers: one task for each hook that this server holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sprag_store::{Delivery, HookRow, Id, Subscription, Topic};
use tokio::task::JoinHandle;

use super::HookFilter;
use super::post::{Message, post, target};
use crate::app::App;
use crate::connections::told;
use crate::feed::Told;
use crate::problem::Answer;

/// How often the hooks are looked at: new ones begin, those of servers that are gone are taken over.
const LOOK: Duration = Duration::from_secs(2);
/// How long a server that does not say otherwise has a hook.
const LEASE: Duration = Duration::from_secs(20);
/// How many entries are read at once, and sent at once at most.
const PAGE: usize = 200;
/// After how many entries that nobody wanted the cursor is written down.
const UNWANTED: u64 = 2_000;
/// The first wait after a failure; each further one is twice as long.
const FIRST_WAIT_MS: i64 = 500;
/// The longest wait.
const LONGEST_WAIT_MS: i64 = 5 * 60_000;

/// Has every hook delivered, until the server ends.
pub(crate) async fn deliver(app: App) {
    let mut stop = app.stopping();
    let mut tasks: BTreeMap<Id, JoinHandle<()>> = BTreeMap::new();
    while !*stop.borrow() {
        tasks.retain(|_, task| !task.is_finished());
        match app.read(|db| db.hooks()).await {
            Ok(hooks) => {
                for hook in hooks.iter().filter(|hook| hook.parked.is_none() && !hook.is_relay()) {
                    tasks.entry(hook.id).or_insert_with(|| tokio::spawn(follow(app.clone(), hook.id)));
                }
            }
            Err(problem) => tracing::warn!(problem.message, "looking at hooks"),
        }
        let _ = tokio::time::timeout(LOOK, told(&mut stop)).await;
    }
    // Given back, so that another server goes on at once.
    for (hook, task) in tasks {
        task.abort();
        let _ = task.await;
        let _ = app.store().service().leave_hook(hook, app.id()).await;
    }
}

/// Delivers one hook for as long as this server has it.
async fn follow(app: App, id: Id) {
    let mut hook = Following {
        wake: app.store().subscribe_from(vec![Topic::Journal], sprag_store::Reach::Here),
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
                tracing::warn!(hook = id, problem.message, "delivering");
                hook.wake.wait(LOOK).await;
            }
        }
    }
}

struct Following {
    app: App,
    id: Id,
    wake: Subscription,
    /// Up to where the journal was looked through: the cursor in the store, and beyond it.
    seen: Option<(u64, u64)>,
    /// When the lease is to be renewed (steady).
    renew_at_ms: i64,
}

impl Following {
    /// Tells of what is next, or waits for it; says whether this server still has the hook.
    async fn go_on(&mut self) -> Answer<bool> {
        let (id, holder) = (self.id, self.app.id());
        // Renewed now and then, not with every entry: a lease is a write.
        let now_ms = self.app.store().now().steady_ms;
        if now_ms >= self.renew_at_ms {
            if !self.app.store().service().take_hook(id, holder, LEASE.as_millis() as i64).await? {
                return Ok(false);
            }
            self.renew_at_ms = now_ms + LEASE.as_millis() as i64 / 3;
        }
        let ours = move |hook: &HookRow| hook.id == id && hook.holder == holder && hook.parked.is_none();
        let Some(hook) = self.app.read(move |db| Ok(db.hooks()?.into_iter().find(ours))).await? else {
            return Ok(false);
        };
        let wait_ms = hook.next_try_ms - self.app.store().now().steady_ms;
        if wait_ms > 0 {
            // A retry that somebody asks for is noticed soon; what else happens does not make it earlier.
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

    /// The next entries that the hook wants; up to where that is all, and whether there may be more.
    async fn read(&mut self, hook: &HookRow, after: u64) -> Answer<(Vec<Told>, u64, bool)> {
        let filter: HookFilter = serde_json::from_str(&hook.filter).unwrap_or_default();
        let read = self.app.blocking(move |app| {
            let run = filter.run();
            let (entries, last_seq) =
                app.store().read(|db| Ok((db.journal(after, run, PAGE)?, db.last_seq()?)))?;
            let full = entries.len() == PAGE;
            let upto = match entries.last() {
                Some(last) if full => last.seq,
                _ => after.max(last_seq),
            };
            let told = app.feed().write_out(&entries)?;
            let wanted = told.into_iter().filter(|told| filter.wants(told)).collect();
            Ok((wanted, upto, full))
        });
        read.await
    }

    async fn tell(&mut self, hook: &HookRow, wanted: &[Told], upto: u64) -> Answer<()> {
        let body = body_of(self.id, wanted);
        let last = wanted.last().map_or(upto, |told| told.seq);
        let message =
            Message { secret: &hook.secret, event_id: last, wall_ms: self.app.store().now().wall_ms, body };
        let sent = match target(&hook.url) {
            Ok(target) => post(&target, message).await,
            Err(error) => Err(error),
        };
        let came = match sent {
            Ok(()) => Delivery::Done { cursor: upto },
            Err(error) => {
                let tries = hook.failures + 1;
                let wait_ms = (FIRST_WAIT_MS << hook.failures.min(16)).min(LONGEST_WAIT_MS);
                let park = tries >= self.app.options().hook_tries;
                tracing::warn!(hook = self.id, url = %hook.url, error, tries, park, "a hook was not told");
                let next_try_ms = self.app.store().now().steady_ms + wait_ms;
                Delivery::Failed { next_try_ms, error: Arc::from(error), park }
            }
        };
        self.note(hook, came).await
    }

    /// Writes down what came of it, if this server still has the hook.
    async fn note(&mut self, hook: &HookRow, came: Delivery) -> Answer<()> {
        let holder = self.app.id();
        if !self.app.store().service().hook_told(self.id, holder, hook.cursor, came).await? {
            tracing::warn!(hook = self.id, "another server has taken the hook over");
        }
        self.seen = None;
        Ok(())
    }
}

/// `{"hook": …, "events": […]}`.
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
