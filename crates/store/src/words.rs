//! The journal's words: each distinct sentence is stored once, and each word is kept once in this process.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use sprag_lifecycle::Actor;

use crate::rows::JournalEntry;

/// The text of a journal entry, without its entity's number and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sentence {
    pub(crate) entity: &'static str,
    pub(crate) event: &'static str,
    pub(crate) from: Option<&'static str>,
    pub(crate) to: &'static str,
    pub(crate) actor: Actor,
}

impl Sentence {
    pub(crate) fn of(entry: &JournalEntry) -> Self {
        let JournalEntry { entity, event, from, to, actor, .. } = *entry;
        Sentence { entity, event, from, to, actor }
    }
}

/// Returns a static copy of a word. The journal's words and the columns' names are few and live as long as the program,
/// so each is kept once.
pub(crate) fn intern(text: String) -> &'static str {
    static WORDS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    match words.get(text.as_str()) {
        Some(word) => word,
        None => {
            let word: &'static str = Box::leak(text.into_boxed_str());
            words.insert(word);
            word
        }
    }
}
