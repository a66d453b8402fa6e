//! The rows that a connection caches between transactions, and the journal entries of the present one.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::Plan;

use super::stall::LastCommit;
use crate::rows::JournalEntry;
use crate::words::Sentence;

/// The number of plans that a connection caches. Many runs share a few plans.
pub(super) const PLANS_KEPT: usize = 256;

/// The rows that a connection caches between transactions, which never change, and the present transaction's entries.
#[derive(Debug, Default)]
pub(super) struct Memo {
    /// The number of the last journal entry in the file, once this transaction has read or written it.
    pub(super) seq: Option<u64>,
    /// The entries that this transaction adds to the journal when it ends.
    pub(super) entries: Vec<JournalEntry>,
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
    /// Returns the number of the last journal entry, if this transaction has read the journal or added to it.
    pub(super) fn last_seq(&self) -> Option<u64> {
        self.entries.last().map(|entry| entry.seq).or(self.seq)
    }

    /// Forgets the data that may have been undone with a transaction.
    pub(super) fn forget(&mut self) {
        self.seq = None;
        self.plans.clear();
    }
}
