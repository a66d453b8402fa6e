//! The journal's words. The store keeps each distinct sentence once, under the hash of its words. So an entry is a few
//! numbers, and a new sentence gets its number without a query.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tokio_postgres::Row as Columns;

use super::cells::{Table, owned};
use super::wire::Ask;
use crate::clock::fnv;
use crate::columns::{Declared, EntryRow, Field, Reader, SentenceRow, Type};
use crate::error::Result;
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
const ADD_NOTES: &str =
    "INSERT INTO journal_notes (seq, note) SELECT * FROM unnest($1::bigint[], $2::text[])";

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

    /// Appends the statements that add these entries.
    pub(super) fn asks<'a>(&self, entries: &'a [JournalEntry], asks: &mut Vec<Ask<'a>>) {
        if entries.is_empty() {
            return;
        }
        let new = self.new_in(entries);
        if !new.is_empty() {
            let rows = new.into_iter().map(|(id, sentence)| SentenceRow { id, sentence });
            asks.push(over(&ADD_SENTENCES, rows));
        }
        let rows = entries.iter().map(|entry| {
            let JournalEntry { seq, at_ms, place, .. } = *entry;
            EntryRow { seq, at_ms, sentence: id_of(&Sentence::of(entry)), place }
        });
        asks.push(over(&EntryRow::statements().postgres_insert, rows));
        let notes = entries.iter().filter_map(|entry| Some((entry.seq, entry.note.as_deref()?)));
        let mut table = Table::new(&[], &[Type::Int, Type::Text]);
        let mut told = false;
        for (seq, note) in notes {
            table.push(seq.into());
            table.push(note.into());
            told = true;
        }
        if told {
            asks.push(Ask::over(ADD_NOTES, table));
        }
    }

    /// Returns the entries in these rows, in order; none if this process does not know all of their sentences yet.
    pub(super) fn read(&self, rows: &[Columns]) -> Result<Option<Vec<JournalEntry>>> {
        let known = self.known();
        let mut entries = Vec::with_capacity(rows.len());
        for row in rows {
            let (entry, note) = entry(row)?;
            let Some(sentence) = known.get(&entry.sentence) else { return Ok(None) };
            entries.push(entry.told(Some(sentence), note)?);
        }
        Ok(Some(entries))
    }

    /// Returns the entries in these rows, in order, after all sentences were learned.
    pub(super) fn read_all(&self, rows: &[Columns]) -> Result<Vec<JournalEntry>> {
        let known = self.known();
        let told = |row| {
            let (entry, note) = entry(row)?;
            entry.told(known.get(&entry.sentence), note)
        };
        rows.iter().map(told).collect()
    }
}

fn entry(row: &Columns) -> Result<(EntryRow, Option<Arc<str>>)> {
    let from = &mut Reader::of::<EntryRow>(row);
    Ok((EntryRow::read_fields(from)?, Field::read(from)?))
}

/// Returns a statement that adds rows which hold no borrowed data.
fn over<'a, R: Declared + 'a>(sql: &'a str, rows: impl Iterator<Item = R>) -> Ask<'a> {
    let mut table = Table::new(&R::statements().columns, &[]);
    for row in rows {
        row.write_all(&mut |value| table.push(owned(value)));
    }
    Ask::over(sql, table)
}
