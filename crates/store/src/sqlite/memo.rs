//! The rows that a connection caches between transactions, and the journal's words.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use sprag_lifecycle::{Actor, Plan};

use super::stall::LastCommit;
use crate::rows::JournalEntry;

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

/// The text of a journal entry, without its entity's number and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sentence {
    pub(super) entity: &'static str,
    pub(super) event: &'static str,
    pub(super) from: Option<&'static str>,
    pub(super) to: &'static str,
    pub(super) actor: Actor,
}

impl Sentence {
    pub(super) fn of(entry: &JournalEntry) -> Self {
        let JournalEntry { entity, event, from, to, actor, .. } = *entry;
        Sentence { entity, event, from, to, actor }
    }
}

/// The number of entries that one statement adds. The entries of a usual operation on a run fit.
pub(super) const JOURNAL_ROWS: usize = 16;

/// Returns the statement that adds `rows` journal entries, from one to `JOURNAL_ROWS`.
pub(super) fn append_sql(rows: usize) -> &'static str {
    static STATEMENTS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let of = |rows: usize| {
            let values = vec!["(?, ?, ?, ?, ?, ?, ?)"; rows].join(", ");
            format!("INSERT INTO journal (seq, at_ms, sentence, run, step, attempt, entity) VALUES {values}")
        };
        (1..=JOURNAL_ROWS).map(of).collect()
    });
    &STATEMENTS[rows - 1]
}

/// Returns a static copy of a word. The journal's words are few and live as long as the program, so each is kept once.
pub(crate) fn intern(text: String) -> &'static str {
    static WORDS: std::sync::Mutex<std::collections::BTreeSet<&'static str>> =
        std::sync::Mutex::new(std::collections::BTreeSet::new());
    let mut words = WORDS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    match words.get(text.as_str()) {
        Some(word) => word,
        None => {
            let word: &'static str = Box::leak(text.into_boxed_str());
            words.insert(word);
            word
        }
    }
}
