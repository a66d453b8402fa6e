//! The journal's words. The store keeps each distinct sentence once, under the hash of its words. So an entry is a few
//! numbers, and a new sentence gets its number without a query.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use sprag_lifecycle::{Actor, RunId, Word};
use tokio_postgres::Row as Columns;

use super::cells::{Cell, Reader, columns};
use super::wire::{Ask, Param};
use crate::clock::fnv;
use crate::error::Result;
use crate::rows::{JournalEntry, Position};
use crate::sqlite::intern;

/// The text of a journal entry, without its entity's number and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sentence {
    entity: &'static str,
    event: &'static str,
    from: Option<&'static str>,
    to: &'static str,
    actor: Actor,
}

impl Sentence {
    fn of(entry: &JournalEntry) -> Self {
        let JournalEntry { entity, event, from, to, actor, .. } = *entry;
        Sentence { entity, event, from, to, actor }
    }

    /// Returns the number under which the sentence is stored.
    fn id(&self) -> i64 {
        let Sentence { entity, event, from, to, actor } = self;
        fnv(&format!("{entity} {event} {} {to} {actor}", from.unwrap_or(""))) as i64
    }
}

/// The sentences that are committed to the database.
#[derive(Default)]
pub(super) struct Sentences(Mutex<BTreeMap<i64, Sentence>>);

pub(super) const ALL: &str = "SELECT id, entity, event, was, became, actor FROM sentences ORDER BY id";
const ADD_SENTENCES: &str = "INSERT INTO sentences (id, entity, event, was, became, actor) \
     SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) \
     ON CONFLICT (id) DO NOTHING";
const ADD_ENTRIES: &str = "INSERT INTO journal (seq, at_ms, sentence, run, step, attempt, entity) \
     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], \
     $7::bigint[])";
const ADD_NOTES: &str =
    "INSERT INTO journal_notes (seq, note) SELECT * FROM unnest($1::bigint[], $2::text[])";

impl Sentences {
    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<i64, Sentence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sentences of these entries that are not known to be stored.
    pub(super) fn new_in(&self, entries: &[JournalEntry]) -> BTreeMap<i64, Sentence> {
        let known = self.known();
        let said = entries.iter().map(Sentence::of).map(|sentence| (sentence.id(), sentence));
        said.filter(|(id, _)| !known.contains_key(id)).collect()
    }

    /// Remembers sentences that are committed to the database.
    pub(super) fn learn(&self, sentences: BTreeMap<i64, Sentence>) {
        self.known().extend(sentences);
    }

    /// Remembers the rows of a query for all sentences.
    pub(super) fn learn_rows(&self, rows: &[Columns]) -> Result<()> {
        for row in rows {
            let r = &mut Reader::new(row);
            let id = r.int()?;
            let mut word = || r.str().map(|text| intern(text.to_owned()));
            let (entity, event, was, to, actor) = (word()?, word()?, word()?, word()?, word()?);
            if let Some(actor) = Actor::parse(actor) {
                let from = (!was.is_empty()).then_some(was);
                self.known().insert(id, Sentence { entity, event, from, to, actor });
            }
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
            let rows = new.into_iter().map(|(id, sentence)| {
                let Sentence { entity, event, from, to, actor } = sentence;
                let words = [entity, event, from.unwrap_or(""), to, actor.as_str()];
                std::iter::once(Cell::from(id)).chain(words.into_iter().map(Cell::from)).collect()
            });
            asks.push(over(ADD_SENTENCES, rows));
        }
        let rows = entries.iter().map(|entry| {
            let Position { run, step, attempt, id } = entry.place;
            vec![
                entry.seq.into(),
                entry.at_ms.into(),
                Sentence::of(entry).id().into(),
                run.map(RunId::to_i64).into(),
                step.into(),
                attempt.into(),
                id.into(),
            ]
        });
        asks.push(over(ADD_ENTRIES, rows));
        let notes = entries.iter().filter_map(|entry| Some((entry.seq, entry.note.as_deref()?)));
        let notes: Vec<Vec<Cell<'a>>> = notes.map(|(seq, note)| vec![seq.into(), note.into()]).collect();
        if !notes.is_empty() {
            asks.push(over(ADD_NOTES, notes.into_iter()));
        }
    }

    /// Returns the entries in these rows, in order, and the numbers of the sentences that this process does not know
    /// yet.
    pub(super) fn read(&self, rows: &[Columns]) -> Result<(Vec<JournalEntry>, BTreeSet<i64>)> {
        let known = self.known();
        let (mut entries, mut unknown) = (Vec::with_capacity(rows.len()), BTreeSet::new());
        for row in rows {
            let r = &mut Reader::new(row);
            let (seq, at_ms, sentence) = (r.int()?, r.int()?, r.int::<i64>()?);
            let run = r.opt_int::<i64>()?.map(RunId::from_i64);
            let place = Position { run, step: r.opt_int()?, attempt: r.opt_int()?, id: r.opt_int()? };
            let note = r.opt_text()?;
            match known.get(&sentence) {
                Some(Sentence { entity, event, from, to, actor }) => entries.push(JournalEntry {
                    seq,
                    at_ms,
                    entity,
                    place,
                    event,
                    from: *from,
                    to,
                    actor: *actor,
                    note,
                }),
                None => drop(unknown.insert(sentence)),
            }
        }
        Ok((entries, unknown))
    }
}

fn over<'a>(sql: &'a str, rows: impl Iterator<Item = Vec<Cell<'a>>>) -> Ask<'a> {
    Ask { sql, params: columns(rows).into_iter().map(|column| Box::new(column) as Param<'a>).collect() }
}
