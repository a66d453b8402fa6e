//! What a connection remembers between transactions, and the journal's words.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use sprag_lifecycle::{Actor, Plan};

use crate::rows::JournalEntry;

/// How many plans are remembered: many runs share a few.
pub(super) const PLANS_KEPT: usize = 256;

/// What a connection remembers between transactions: rows that never change.
#[derive(Debug, Default)]
pub(super) struct Memo {
    /// The last journal entry's number, once this transaction has looked.
    pub(super) seq: Option<u64>,
    pub(super) plans: BTreeMap<i64, Arc<Plan>>,
    pub(super) sentences: BTreeMap<Sentence, i64>,
    pub(super) by_id: BTreeMap<i64, Sentence>,
    /// Sentences were said that are not remembered yet.
    pub(super) has_news: bool,
}

impl Memo {
    /// Forgets what may have been undone with a transaction.
    pub(super) fn forget(&mut self) {
        self.seq = None;
        self.plans.clear();
    }
}

/// What a journal entry says, apart from of whom and when.
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

/// How many entries one statement adds: what an operation on a run usually has to tell fits.
pub(super) const JOURNAL_ROWS: usize = 16;

/// The statement that adds `rows` journal entries, from one to `JOURNAL_ROWS`.
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

/// The journal's words are few and live as long as the program, so each is kept once.
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
