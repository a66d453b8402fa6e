//! The rows that a connection caches between transactions, and the statements that add to the journal.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use sprag_lifecycle::Plan;

use super::stall::LastCommit;
use crate::columns::{Declared, EntryRow, Statements};
use crate::words::Sentence;

/// The number of plans that a connection caches. Many runs share a few plans.
pub(super) const PLANS_KEPT: usize = 256;

/// The rows that a connection caches between transactions. These rows never change.
#[derive(Debug, Default)]
pub(super) struct Memo {
    /// The last journal entry's number, once this transaction has read it.
    pub(super) seq: Option<u64>,
    pub(super) plans: BTreeMap<i64, Arc<Plan>>,
    /// The store's count of removed plans when these plans were read. Another process may remove a plan and store a
    /// different plan under the same number.
    pub(super) plans_removed: i64,
    /// The record of the last commit, as read when this transaction began.
    pub(super) last_commit: LastCommit,
    pub(super) sentences: BTreeMap<Sentence, i64>,
    pub(super) by_id: BTreeMap<i64, Sentence>,
    /// Whether sentences were added that are not cached yet.
    pub(super) has_news: bool,
}

impl Memo {
    /// Forgets the data that may have been undone with a transaction.
    pub(super) fn forget(&mut self) {
        self.seq = None;
        self.plans.clear();
    }
}

/// The number of entries that one statement adds. The entries of a usual operation on a run fit.
pub(super) const JOURNAL_ROWS: usize = 16;

/// Returns the statement that adds `rows` journal entries, from one to `JOURNAL_ROWS`.
pub(super) fn append_sql(rows: usize) -> &'static str {
    static STATEMENTS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let of = |rows: usize| {
            let Statements { names, columns, .. } = EntryRow::statements();
            let one = format!("({})", vec!["?"; columns.len()].join(", "));
            format!("INSERT INTO {} ({names}) VALUES {}", EntryRow::TABLE, vec![one; rows].join(", "))
        };
        (1..=JOURNAL_ROWS).map(of).collect()
    });
    &STATEMENTS[rows - 1]
}
