//! The journal's words. The store keeps each distinct sentence once, under the hash of its words. So an entry is a few
//! numbers, and a new sentence gets its number without a query.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use tokio_postgres::Row as Columns;

use super::cells::{Table, owned};
use super::wire::Ask;
use crate::clock::fnv;
use crate::columns::{Declared, SentenceRow};
use crate::error::Result;
use crate::journal::{EntryRow, PackRow, pack};
use crate::rows::JournalEntry;
use crate::words::Sentence;

/// Returns the number under which a sentence is stored.
fn id_of(sentence: &Sentence) -> i64 {
    let Sentence { entity, event, from, to, actor } = sentence;
    fnv(&format!("{entity} {event} {} {to} {actor}", from.unwrap_or(""))) as i64
}

/// The sentences that are committed to the database.
#[derive(Default)]
pub(super) struct Sentences(Mutex<BTreeMap<i64, Sentence>>);

pub(super) static ALL: LazyLock<String> =
    LazyLock::new(|| format!("{} ORDER BY id", SentenceRow::statements().select));
static ADD_SENTENCES: LazyLock<String> =
    LazyLock::new(|| format!("{} ON CONFLICT (id) DO NOTHING", SentenceRow::statements().postgres_insert));

impl Sentences {
    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<i64, Sentence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sentences of these entries that are not known to be stored.
    pub(super) fn new_in(&self, entries: &[JournalEntry]) -> BTreeMap<i64, Sentence> {
        let known = self.known();
        let said = entries.iter().map(Sentence::of).map(|sentence| (id_of(&sentence), sentence));
        said.filter(|(id, _)| !known.contains_key(id)).collect()
    }

    /// Remembers sentences that are committed to the database.
    pub(super) fn learn(&self, sentences: BTreeMap<i64, Sentence>) {
        self.known().extend(sentences);
    }

    /// Remembers the rows of a query for all sentences.
    pub(super) fn learn_rows(&self, rows: &[Columns]) -> Result<()> {
        for row in rows {
            let SentenceRow { id, sentence } = SentenceRow::read(row)?;
            self.known().insert(id, sentence);
        }
        Ok(())
    }

    /// Appends the statements that add these entries: one for new sentences, and one for all packs.
    pub(super) fn asks<'a>(&self, entries: &[JournalEntry], asks: &mut Vec<Ask<'a>>) {
        if entries.is_empty() {
            return;
        }
        let new = self.new_in(entries);
        if !new.is_empty() {
            let rows = new.into_iter().map(|(id, sentence)| SentenceRow { id, sentence });
            asks.push(over(&ADD_SENTENCES, rows));
        }
        let rows = entries.iter().map(|entry| EntryRow::of(entry, id_of(&Sentence::of(entry))));
        asks.push(over(&PackRow::statements().postgres_insert, pack(rows).into_iter()));
    }

    /// Returns whether this process knows the sentences of all these entries.
    pub(super) fn has_all(&self, entries: &[EntryRow]) -> bool {
        let known = self.known();
        entries.iter().all(|entry| known.contains_key(&entry.sentence))
    }

    /// Returns the entries with their words.
    pub(super) fn tell(&self, entries: Vec<EntryRow>) -> Result<Vec<JournalEntry>> {
        let known = self.known();
        let told = |entry: EntryRow| {
            let sentence = known.get(&entry.sentence);
            entry.told(sentence)
        };
        entries.into_iter().map(told).collect()
    }
}

/// Returns a statement that adds rows which hold no borrowed data.
fn over<'a, R: Declared + 'a>(sql: &'a str, rows: impl Iterator<Item = R>) -> Ask<'a> {
    let mut table = Table::new(&R::statements().columns, &[]);
    for row in rows {
        row.write_all(&mut |value| table.push(owned(value)));
    }
    Ask::over(sql, table)
}
