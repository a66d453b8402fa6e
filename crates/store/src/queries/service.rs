//! The journal, tokens, hooks, queues, and what is left of forgotten runs.

use std::collections::BTreeSet;

use sprag_lifecycle::{ExecutionId, RunId};

use super::{Queries, shown_workers};
use crate::backend::{Backend, QueueRow, Table};
use crate::error::Result;
use crate::rows::{AccountRow, ExecutionRow, JournalEntry, Refusal, WorkerRow};
use crate::service::{ActRow, HookRow, QueueCount, TokenRow};

/// Entries of the journal, and the journal's end at that moment.
#[derive(Debug, Clone)]
pub struct JournalPage {
    /// The entries, in order.
    pub entries: Vec<JournalEntry>,
    /// The number of the journal's last entry; 0 if there is none.
    pub last_seq: u64,
}

/// An entry of the journal, with the executions of which workers must be notified.
#[derive(Debug)]
pub struct EntryWithExecutions {
    /// The entry.
    pub entry: JournalEntry,
    /// The execution that the entry hands off, or those that it asks to stop. An error if a row cannot be read.
    pub executions: Result<Vec<ExecutionRow>>,
}

/// All queues: their settings, what they hold, and the workers that serve them.
#[derive(Debug, Clone)]
pub struct QueueOverview {
    /// The queues that have settings, in order.
    pub settings: Vec<QueueRow>,
    /// The counts of each queue that holds something, in order.
    pub counts: Vec<QueueCount>,
    /// The workers that people are shown.
    pub workers: Vec<WorkerRow>,
}

/// An account, and the numbers of its executions.
#[derive(Debug, Clone)]
pub struct AccountState {
    /// The account.
    pub row: AccountRow,
    /// The number of its executions that are handed over or running.
    pub out: usize,
    /// The number of its executions that wait, at most 10,000.
    pub waiting: usize,
}

/// The most waiting executions of an account that are counted.
const MOST_WAITING: usize = 10_000;

impl Queries<'_> {
    /// Returns the number of the journal's last entry; 0 if there is none.
    pub fn last_seq(self) -> Result<u64> {
        self.look(|db| db.last_seq())
    }

    /// Returns the journal after `after`, of one run or all, and the journal's end.
    pub fn journal(self, after: u64, run: Option<RunId>, limit: usize) -> Result<JournalPage> {
        self.look(|db| Ok(JournalPage { entries: db.journal(after, run, limit)?, last_seq: db.last_seq()? }))
    }

    /// Returns the journal after `after`, with the executions of which workers must be notified.
    pub fn journal_with_executions(self, after: u64, limit: usize) -> Result<Vec<EntryWithExecutions>> {
        self.look(|db| {
            let entries = db.journal(after, None, limit)?.into_iter();
            Ok(entries
                .map(|entry| EntryWithExecutions { executions: affected_executions(db, &entry), entry })
                .collect())
        })
    }

    /// Returns stored refused events after number `after`, with their numbers, in order. Each run keeps its last few.
    pub fn refusals_after(self, after: i64, limit: usize) -> Result<Vec<(i64, Refusal)>> {
        self.look(|db| db.refusals_after(after, limit))
    }

    /// Returns the highest number of a stored refused event; 0 if there is none.
    pub fn last_refusal(self) -> Result<i64> {
        self.look(|db| db.last_refusal())
    }

    /// Returns the tokens, in order.
    pub fn tokens(self) -> Result<Vec<TokenRow>> {
        self.look(|db| db.tokens())
    }

    /// Returns the newest acts of administration, newest first.
    pub fn acts(self, limit: usize) -> Result<Vec<ActRow>> {
        self.look(|db| db.acts(limit))
    }

    /// Returns the token with this hash.
    pub fn token_by_hash(self, hash: &str) -> Result<Option<TokenRow>> {
        self.look(|db| db.token_by_hash(hash))
    }

    /// Returns the hooks and the relay to a broker, in order.
    pub fn hooks(self) -> Result<Vec<HookRow>> {
        self.look(|db| db.hooks())
    }

    /// Returns the row of the relay to a broker.
    pub fn relay(self) -> Result<Option<HookRow>> {
        Ok(self.hooks()?.into_iter().find(HookRow::is_relay))
    }

    /// Returns all queues with their settings, what they hold, and the workers that people are shown.
    pub fn queue_overview(self) -> Result<QueueOverview> {
        self.look(|db| {
            Ok(QueueOverview {
                settings: db.queues()?,
                counts: db.queue_counts()?,
                workers: shown_workers(db)?,
            })
        })
    }

    /// Returns the accounts, with the numbers of their executions that are out and that wait, by name.
    pub fn accounts(self) -> Result<Vec<AccountState>> {
        self.look(|db| {
            let mut all = Vec::new();
            for row in db.accounts()? {
                let out = db.out_of_account(row.id)?.len();
                let waiting = db.waiting_for_account(row.id, MOST_WAITING)?.len();
                all.push(AccountState { row, out, waiting });
            }
            Ok(all)
        })
    }

    /// Returns the number of forgotten runs of which rows or files may be left, as far as `most` of each.
    pub fn half_forgotten(self, most: usize) -> Result<usize> {
        self.look(|db| Ok(db.half_forgotten(most)?.len() + db.forgotten(None, most)?.len()))
    }

    /// Returns the forgotten runs of which files may be left, after `after`, in order.
    pub fn forgotten(self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        self.look(|db| db.forgotten(after, limit))
    }

    /// Returns those of these runs that are in the store.
    pub fn runs_there(self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        self.look(|db| db.runs_there(runs))
    }

    /// Returns the id that this store drew for itself when it was created.
    pub fn store_id(self) -> Result<String> {
        self.look(|db| db.store_id())
    }
}

/// Returns the execution that an entry hands off, or those that it asks to stop.
fn affected_executions(db: &mut dyn Backend, entry: &JournalEntry) -> Result<Vec<ExecutionRow>> {
    let Some(run) = entry.place.run else { return Ok(Vec::new()) };
    match (entry.entity, entry.event, entry.to) {
        ("execution", "handoff.published", _) => {
            let (Some(step), Some(attempt)) = (entry.place.step, entry.place.attempt) else {
                return Ok(Vec::new());
            };
            let id = ExecutionId { run, step, attempt };
            Ok(Table::<ExecutionRow>::load(db, id)?.into_iter().collect())
        }
        // A cancelling or failing run stops its executions. Workers learn of other reasons to stop from the
        // heartbeat.
        ("run", _, "cancelling" | "failing") => {
            Ok(db.executions(run)?.into_iter().filter(|row| row.cancel_requested).collect())
        }
        _ => Ok(Vec::new()),
    }
}
