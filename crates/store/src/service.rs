//! The data of a server besides runs: access tokens, webhooks, and the lengths of queues.
//!
//! A hook follows the journal from its own cursor: the journal is its outbox. A lease on its row decides which
//! process delivers to it, so that two servers on one file never send the same entry at once.

use std::sync::Arc;

use sprag_lifecycle::ExecutionStatus;

use crate::backend::QueueRow;
use crate::error::Result;
use crate::handle::Store;
use crate::rows::{GateRow, Id};
use crate::session::Session;

/// An access token. Only the hash of its secret is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// The token's number.
    pub id: Id,
    /// The token's name, for people.
    pub name: Arc<str>,
    /// SHA-256 of the secret, in hexadecimal digits.
    pub hash: Arc<str>,
    /// The scopes of the token: words separated by commas, or JSON if the token also has limits.
    pub scopes: Arc<str>,
    /// The time of creation (wall clock).
    pub created_ms: i64,
    /// The time at which it expires (wall clock); absent means never.
    pub expires_ms: Option<i64>,
}

/// An act of administration, which no table decides: a token, a webhook or a queue was made, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActRow {
    /// The act's number.
    pub id: Id,
    /// The time of the act (wall clock).
    pub at_ms: i64,
    /// The author, as `KIND:NAME`, if the request had one.
    pub by: Option<Arc<str>>,
    /// The kind of act, such as `token.created`.
    pub act: Arc<str>,
    /// The name of what was made, changed or removed.
    pub subject: Arc<str>,
}

/// A webhook: an address to which servers deliver journal entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRow {
    /// The hook's number.
    pub id: Id,
    /// The address to which servers deliver.
    pub url: Arc<str>,
    /// The key that signs its messages.
    pub secret: Arc<str>,
    /// The filter for entries, as JSON.
    pub filter: Arc<str>,
    /// The number of the last journal entry that was delivered, or that the filter excluded.
    pub cursor: u64,
    /// The number of failed deliveries in a row.
    pub failures: u32,
    /// The earliest time of the next delivery (steady).
    pub next_try_ms: i64,
    /// The reason why no server tries any more; absent while servers try.
    pub parked: Option<Arc<str>>,
    /// The error of the last failed delivery.
    pub error: Option<Arc<str>>,
    /// The server that delivers it; 0 for none.
    pub holder: Id,
    /// The time until which that server need not renew its lease (steady).
    pub lease_until_ms: i64,
    /// The time of creation (wall clock).
    pub created_ms: i64,
}

impl HookRow {
    /// The number of the one row that is no hook: the relay to a broker, with its cursor in the journal. It is stored
    /// like a hook because only the way of delivery differs.
    pub const RELAY: Id = 1;

    /// Returns the hook's number and address without the part that may hold a secret, as acts name it.
    fn described(&self) -> String {
        let address = self.url.split(['?', '#']).next().unwrap_or_default();
        format!("{} {address}", self.id)
    }

    /// Whether it is the relay to a broker.
    pub fn is_relay(&self) -> bool {
        self.id == Self::RELAY
    }

    /// Creates a hook to which nothing was delivered yet.
    pub fn new(id: Id, url: Arc<str>, secret: Arc<str>, filter: Arc<str>, created_ms: i64) -> HookRow {
        HookRow {
            id,
            url,
            secret,
            filter,
            cursor: 0,
            failures: 0,
            next_try_ms: 0,
            parked: None,
            error: None,
            holder: 0,
            lease_until_ms: 0,
            created_ms,
        }
    }

    /// Creates the row of the relay to a broker, with its cursor at the start of the journal.
    pub fn relay(url: &Arc<str>, created_ms: i64) -> HookRow {
        HookRow::new(Self::RELAY, Arc::clone(url), "".into(), "{}".into(), created_ms)
    }
}

/// The result of a delivery to a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// All entries up to the cursor were delivered.
    Done {
        /// The number of the last entry.
        cursor: u64,
    },
    /// The delivery failed.
    Failed {
        /// The earliest time of the next try (steady).
        next_try_ms: i64,
        /// The error, in words.
        error: Arc<str>,
        /// Whether servers stop trying until a person asks for a retry.
        park: bool,
    },
}

/// The number of a queue's executions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueCount {
    /// The queue's name.
    pub name: Arc<str>,
    /// The executions that wait for a place in it.
    pub requested: u64,
    /// The executions that wait for a worker.
    pub scheduled: u64,
    /// The executions that a worker holds.
    pub running: u64,
    /// The time since which the oldest of those that wait for a worker has waited (steady); absent if there is none.
    pub oldest_ms: Option<i64>,
}

/// An observer of the writer. Its functions must be fast, because all operations wait for the writer.
pub trait Observer: Send + Sync + 'static {
    /// Receives the number of operations that were committed together, and the microseconds that this took.
    fn committed(&self, operations: usize, took_us: u64);
    /// Receives a refused event: the kind of entity and the kind of reason.
    fn refused(&self, entity: &'static str, reason: &'static str);
    /// Is called after a transaction was rolled back.
    fn undone(&self);
}

/// The tables that a database keeps for servers.
pub trait ServiceTables {
    /// Stores a token.
    fn put_token(&mut self, token: &TokenRow) -> Result<()>;
    /// Returns the tokens, in order.
    fn tokens(&mut self) -> Result<Vec<TokenRow>>;
    /// Returns the token with this hash.
    fn token_by_hash(&mut self, hash: &str) -> Result<Option<TokenRow>>;
    /// Sets the time at which a token expires (wall clock).
    fn expire_token(&mut self, id: Id, at_ms: i64) -> Result<()>;
    /// Removes a token. Returns whether it existed.
    fn drop_token(&mut self, id: Id) -> Result<bool>;

    /// Stores an act of administration.
    fn put_act(&mut self, act: &ActRow) -> Result<()>;
    /// Returns the newest acts, newest first.
    fn acts(&mut self, limit: usize) -> Result<Vec<ActRow>>;

    /// Stores a new hook.
    fn put_hook(&mut self, hook: &HookRow) -> Result<()>;
    /// Returns the hooks, in order.
    fn hooks(&mut self) -> Result<Vec<HookRow>>;
    /// Removes a hook. Returns whether it existed.
    fn drop_hook(&mut self, id: Id) -> Result<bool>;
    /// Takes or renews the lease on a hook, unless another server has it or the hook is parked.
    fn take_hook(&mut self, id: Id, holder: Id, now_ms: i64, until_ms: i64) -> Result<bool>;
    /// Releases the lease on a hook.
    fn leave_hook(&mut self, id: Id, holder: Id) -> Result<()>;
    /// Records the result of a delivery, if this server has the lease and the delivery started after entry `from`.
    fn hook_told(&mut self, id: Id, holder: Id, from: u64, came: &Delivery) -> Result<bool>;
    /// Makes a parked or postponed hook due immediately. Returns whether it exists.
    fn retry_hook(&mut self, id: Id) -> Result<bool>;

    /// Returns the counts of each queue that contains anything, in order.
    fn queue_counts(&mut self) -> Result<Vec<QueueCount>>;
    /// Returns the queues that have settings, in order.
    fn queues(&mut self) -> Result<Vec<QueueRow>>;
    /// Returns the open gates of all runs, after this number, in order.
    fn gates_open(&mut self, after: Id, limit: usize) -> Result<Vec<GateRow>>;
}

/// The operations of a server in addition to the roles.
#[derive(Clone, Copy)]
pub struct Service<'s>(&'s Store);

impl Store {
    /// Sets the observer of the writer. Only the first call has an effect.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.set_observer(observer);
    }

    /// Returns the operations of a server in addition to the roles.
    pub fn service(&self) -> Service<'_> {
        Service(self)
    }
}

impl Service<'_> {
    /// Stores a token. Returns false if there is one of the same name. `may` describes in words what the token permits.
    pub async fn add_token(self, token: TokenRow, may: String) -> Result<bool> {
        self.0
            .write_as_person(Vec::new(), move |session| {
                if session.db().tokens()?.iter().any(|other| other.name == token.name) {
                    return Ok(false);
                }
                session.db().put_token(&token)?;
                session.note_act("token.created", &format!("{} ({may})", token.name))?;
                Ok(true)
            })
            .await
    }

    /// Stores the new secret of a token, and has all earlier ones expire at `until_ms` (wall clock) at the latest. Secrets
    /// of the token that have expired are removed. Returns false, and changes nothing, if there is no token `old`, or one
    /// of its name is newer.
    pub async fn rotate_token(self, old: Id, new: TokenRow, until_ms: i64) -> Result<bool> {
        self.0
            .write_as_person(Vec::new(), move |session| {
                let now_ms = session.now().wall_ms;
                let mut same = session.db().tokens()?;
                same.retain(|token| token.name == new.name);
                let Some(token) = same.iter().find(|token| token.id == old) else { return Ok(false) };
                if same.iter().any(|other| other.created_ms > token.created_ms) {
                    return Ok(false);
                }
                for other in &same {
                    match other.expires_ms {
                        Some(at) if at <= now_ms => drop(session.db().drop_token(other.id)?),
                        Some(at) if at <= until_ms => {}
                        _ => session.db().expire_token(other.id, until_ms)?,
                    }
                }
                session.db().put_token(&new)?;
                session.note_act("token.rotated", &new.name)?;
                Ok(true)
            })
            .await
    }

    /// Removes a token with all its secrets. Returns whether it existed.
    pub async fn remove_token(self, id: Id) -> Result<bool> {
        self.0
            .write_as_person(Vec::new(), move |session| {
                let tokens = session.db().tokens()?;
                let Some(token) = tokens.iter().find(|token| token.id == id) else { return Ok(false) };
                session.note_act("token.removed", &token.name)?;
                for same in tokens.iter().filter(|other| other.name == token.name) {
                    session.db().drop_token(same.id)?;
                }
                Ok(true)
            })
            .await
    }

    /// Stores a hook that gets the entries from now on, or after `since`.
    pub async fn add_hook(self, hook: HookRow, since: Option<u64>) -> Result<()> {
        self.0
            .write_as_person(Vec::new(), move |session| {
                let cursor = match since {
                    Some(since) => since,
                    None => session.db().last_seq()?,
                };
                session.note_act("hook.created", &hook.described())?;
                session.db().put_hook(&HookRow { cursor, ..hook.clone() })
            })
            .await
    }

    /// Returns the row of the relay to a broker. Stores `row` with its cursor at the journal's end if there is none.
    pub async fn relay_or(self, row: HookRow) -> Result<HookRow> {
        self.0
            .write(move |session| {
                if let Some(existing) = session.db().hooks()?.into_iter().find(HookRow::is_relay) {
                    return Ok(existing);
                }
                let row = HookRow { cursor: session.db().last_seq()?, ..row.clone() };
                session.db().put_hook(&row)?;
                Ok(row)
            })
            .await
    }

    /// Removes a hook. Returns whether it existed.
    pub async fn remove_hook(self, id: Id) -> Result<bool> {
        self.note_hook(id, "hook.removed", move |session| session.db().drop_hook(id)).await
    }

    /// Takes or renews the lease on a hook for `lease_ms`. Returns whether this server has it.
    pub async fn take_hook(self, id: Id, holder: Id, lease_ms: i64) -> Result<bool> {
        self.0
            .write(move |session| {
                let now_ms = session.now().steady_ms;
                session.db().take_hook(id, holder, now_ms, now_ms + lease_ms)
            })
            .await
    }

    /// Releases the lease on a hook.
    pub async fn leave_hook(self, id: Id, holder: Id) -> Result<()> {
        self.0.write(move |session| session.db().leave_hook(id, holder)).await
    }

    /// Records the result of a delivery. Returns whether this server still had the lease.
    pub async fn hook_told(self, id: Id, holder: Id, from: u64, came: Delivery) -> Result<bool> {
        self.0.write(move |session| session.db().hook_told(id, holder, from, &came)).await
    }

    /// Makes a parked or postponed hook due immediately. Returns whether it exists.
    pub async fn retry_hook(self, id: Id) -> Result<bool> {
        self.note_hook(id, "hook.retried", move |session| session.db().retry_hook(id)).await
    }

    /// Changes a hook, and records the act if the hook existed.
    async fn note_hook(
        self,
        id: Id,
        act: &'static str,
        mut change: impl FnMut(&mut Session<'_>) -> Result<bool> + Send + 'static,
    ) -> Result<bool> {
        self.0
            .write_as_person(Vec::new(), move |session| {
                let hook = session.db().hooks()?.into_iter().find(|hook| hook.id == id);
                let changed = change(session)?;
                if let Some(hook) = hook.filter(|_| changed) {
                    session.note_act(act, &hook.described())?;
                }
                Ok(changed)
            })
            .await
    }
}

impl QueueCount {
    /// Creates the count of an empty queue.
    pub(crate) fn empty(name: &Arc<str>) -> QueueCount {
        QueueCount { name: Arc::clone(name), requested: 0, scheduled: 0, running: 0, oldest_ms: None }
    }

    /// Gathers the counts of queues from the number and the oldest publication of their live executions in each status,
    /// in the order of the queues.
    pub(crate) fn gather(found: Vec<(Arc<str>, ExecutionStatus, u64, i64)>) -> Vec<QueueCount> {
        let mut counts: Vec<QueueCount> = Vec::new();
        for (name, status, number, oldest_ms) in found {
            if counts.last().is_none_or(|last| last.name != name) {
                counts.push(QueueCount::empty(&name));
            }
            let Some(count) = counts.last_mut() else { continue };
            match status {
                ExecutionStatus::Scheduled => {
                    count.scheduled = number;
                    count.oldest_ms = Some(oldest_ms);
                }
                ExecutionStatus::Running => count.running = number,
                _ => count.requested += number,
            }
        }
        counts
    }
}
