//! What a server keeps beside runs: who may call it, whom it calls, and how much there is to do.
//!
//! A hook follows the journal from its own cursor: the journal is its outbox. Which process delivers it is
//! decided by a lease on its row, so that two servers on one file never send the same entry at once.

use std::sync::Arc;

use crate::backend::QueueRow;
use crate::error::Result;
use crate::handle::Store;
use crate::rows::{GateRow, Id};

/// A caller's token. Only the hash of its secret is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// Its number.
    pub id: Id,
    /// What people call it.
    pub name: Arc<str>,
    /// SHA-256 of the secret, in hexadecimal digits.
    pub hash: Arc<str>,
    /// What it may do, words separated by commas.
    pub scopes: Arc<str>,
    /// When it was made (wall clock).
    pub created_ms: i64,
    /// When it ends (wall clock); none for never.
    pub expires_ms: Option<i64>,
}

/// Somebody who is told of what happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRow {
    /// Its number.
    pub id: Id,
    /// Where it is told.
    pub url: Arc<str>,
    /// What its messages are signed with.
    pub secret: Arc<str>,
    /// Which entries it wants, as JSON.
    pub filter: Arc<str>,
    /// The last journal entry that it has been told of, or that it did not want.
    pub cursor: u64,
    /// How often in a row it could not be told.
    pub failures: u32,
    /// Not before this moment (steady).
    pub next_try_ms: i64,
    /// Why nobody tries any more.
    pub parked: Option<Arc<str>>,
    /// What went wrong last.
    pub error: Option<Arc<str>>,
    /// The server that delivers it; 0 for none.
    pub holder: Id,
    /// Until when that server may be silent (steady).
    pub lease_until_ms: i64,
    /// When it was made (wall clock).
    pub created_ms: i64,
}

impl HookRow {
    /// The number of the one row that is no hook: where the relay to a broker stands in the journal. It is kept like a
    /// hook because it is one in all but its way of telling.
    pub const RELAY: Id = 1;

    /// Whether it stands for the relay to a broker.
    pub fn is_relay(&self) -> bool {
        self.id == Self::RELAY
    }

    /// One that has been told of nothing yet.
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

    /// Where the relay to a broker begins.
    pub fn relay(url: &Arc<str>, created_ms: i64) -> HookRow {
        HookRow::new(Self::RELAY, Arc::clone(url), "".into(), "{}".into(), created_ms)
    }
}

/// What came of telling a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// It has been told of everything up to here.
    Done {
        /// The last entry.
        cursor: u64,
    },
    /// It could not be told.
    Failed {
        /// Not again before this moment (steady).
        next_try_ms: i64,
        /// What went wrong.
        error: Arc<str>,
        /// Nobody tries again by itself.
        park: bool,
    },
}

/// How much of a queue there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueCount {
    /// Its name.
    pub name: Arc<str>,
    /// Executions that wait for a place in it.
    pub requested: u64,
    /// Executions that wait for a worker.
    pub scheduled: u64,
    /// Executions that a worker has.
    pub running: u64,
    /// Since when the longest of those that wait for a worker has waited (steady).
    pub oldest_ms: Option<i64>,
}

/// Is told of what the writer does. It must not take long: everybody waits for the writer.
pub trait Observer: Send + Sync + 'static {
    /// So many operations were committed together, in so many microseconds.
    fn committed(&self, operations: usize, took_us: u64);
    /// An event on this kind of thing was refused, for this kind of reason.
    fn refused(&self, entity: &'static str, reason: &'static str);
    /// A transaction was undone.
    fn undone(&self);
}

/// What a database keeps for servers.
pub trait ServiceTables {
    /// Keeps a token.
    fn put_token(&mut self, token: &TokenRow) -> Result<()>;
    /// The tokens, in order.
    fn tokens(&mut self) -> Result<Vec<TokenRow>>;
    /// The token with this hash.
    fn token_by_hash(&mut self, hash: &str) -> Result<Option<TokenRow>>;
    /// Forgets a token; says whether it was there.
    fn drop_token(&mut self, id: Id) -> Result<bool>;

    /// Keeps a new hook.
    fn put_hook(&mut self, hook: &HookRow) -> Result<()>;
    /// The hooks, in order.
    fn hooks(&mut self) -> Result<Vec<HookRow>>;
    /// Forgets a hook; says whether it was there.
    fn drop_hook(&mut self, id: Id) -> Result<bool>;
    /// Takes or keeps the delivery of a hook, unless another server has it or it is parked.
    fn take_hook(&mut self, id: Id, holder: Id, now_ms: i64, until_ms: i64) -> Result<bool>;
    /// Gives the delivery of a hook back.
    fn leave_hook(&mut self, id: Id, holder: Id) -> Result<()>;
    /// Notes what came of telling a hook, if this server has it and it was told of what comes after `from`.
    fn hook_told(&mut self, id: Id, holder: Id, from: u64, came: &Delivery) -> Result<bool>;
    /// Has a parked or postponed hook tried again at once; says whether it is there.
    fn retry_hook(&mut self, id: Id) -> Result<bool>;

    /// How much there is in each queue that holds anything, in order.
    fn queue_counts(&mut self) -> Result<Vec<QueueCount>>;
    /// The queues that have settings, in order.
    fn queues(&mut self) -> Result<Vec<QueueRow>>;
    /// Open gates of all runs, after this number, in order.
    fn gates_open(&mut self, after: Id, limit: usize) -> Result<Vec<GateRow>>;
}

/// What a server may do beside what everybody may.
#[derive(Clone, Copy)]
pub struct Service<'s>(&'s Store);

impl Store {
    /// Has somebody told of what the writer does. The first one to be named stays.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.set_observer(observer);
    }

    /// What a server may do beside what everybody may.
    pub fn service(&self) -> Service<'_> {
        Service(self)
    }
}

impl Service<'_> {
    /// Keeps a token.
    pub async fn add_token(self, token: TokenRow) -> Result<()> {
        self.0.write(move |session| session.db().put_token(&token)).await
    }

    /// Forgets a token; says whether it was there.
    pub async fn remove_token(self, id: Id) -> Result<bool> {
        self.0.write(move |session| session.db().drop_token(id)).await
    }

    /// Keeps a hook that is told of what happens from now on, or after `since`.
    pub async fn add_hook(self, hook: HookRow, since: Option<u64>) -> Result<()> {
        self.0
            .write(move |session| {
                let cursor = match since {
                    Some(since) => since,
                    None => session.db().last_seq()?,
                };
                session.db().put_hook(&HookRow { cursor, ..hook.clone() })
            })
            .await
    }

    /// Forgets a hook; says whether it was there.
    pub async fn remove_hook(self, id: Id) -> Result<bool> {
        self.0.write(move |session| session.db().drop_hook(id)).await
    }

    /// Takes or keeps the delivery of a hook for `lease_ms`; says whether this server has it.
    pub async fn take_hook(self, id: Id, holder: Id, lease_ms: i64) -> Result<bool> {
        self.0
            .write(move |session| {
                let now_ms = session.now().steady_ms;
                session.db().take_hook(id, holder, now_ms, now_ms + lease_ms)
            })
            .await
    }

    /// Gives the delivery of a hook back.
    pub async fn leave_hook(self, id: Id, holder: Id) -> Result<()> {
        self.0.write(move |session| session.db().leave_hook(id, holder)).await
    }

    /// Notes what came of telling a hook; says whether this server still had it.
    pub async fn hook_told(self, id: Id, holder: Id, from: u64, came: Delivery) -> Result<bool> {
        self.0.write(move |session| session.db().hook_told(id, holder, from, &came)).await
    }

    /// Has a parked or postponed hook tried again at once; says whether it is there.
    pub async fn retry_hook(self, id: Id) -> Result<bool> {
        self.0.write(move |session| session.db().retry_hook(id)).await
    }
}

impl QueueCount {
    /// Nothing of this queue.
    pub(crate) fn empty(name: &Arc<str>) -> QueueCount {
        QueueCount { name: Arc::clone(name), requested: 0, scheduled: 0, running: 0, oldest_ms: None }
    }
}
