//! Packs: entries that belong together become one row, and a row becomes entries again.

use std::sync::Arc;

use sprag_lifecycle::{RunId, mutant};

use super::bytes;
use crate::columns::{Declared, Field, Reader};
use crate::error::{Error, Result};
use crate::rows::{Id, JournalEntry, Position, Row, RunRow};
use crate::words::Sentence;

/// The most entries of a pack. A reader that wants one of them reads them all.
pub(crate) const MOST_ENTRIES: usize = 256;
/// The bytes after which a pack is full. Its last entry may exceed them.
const MOST_BYTES: usize = 32 << 10;

/// A journal entry as it is stored: its text is a sentence's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryRow {
    pub(crate) seq: u64,
    pub(crate) at_ms: i64,
    pub(crate) sentence: i64,
    pub(crate) place: Position,
    pub(crate) worker: Option<Id>,
    pub(crate) fence: Option<u32>,
    pub(crate) by: Option<Arc<str>>,
    pub(crate) note: Option<Arc<str>>,
}

impl EntryRow {
    /// Returns the stored form of an entry whose sentence has this number.
    pub(crate) fn of(entry: &JournalEntry, sentence: i64) -> EntryRow {
        let JournalEntry { seq, at_ms, place, worker, fence, .. } = *entry;
        let (by, note) = (entry.by.clone(), entry.note.clone());
        EntryRow { seq, at_ms, sentence, place, worker, fence, by, note }
    }

    /// Reads an entry of the table that older schemas had, with its note: number, time, sentence, run, step, attempt,
    /// entity and note.
    pub(crate) fn read_unpacked(from: &mut Reader<'_>) -> Result<EntryRow> {
        let (seq, at_ms, sentence) = Field::read(from)?;
        let (place, note) = Field::read(from)?;
        Ok(EntryRow { seq, at_ms, sentence, place, worker: None, fence: None, by: None, note })
    }

    /// Returns the entry with its text. An entry without one is damaged.
    pub(crate) fn told(self, text: Option<&Sentence>) -> Result<JournalEntry> {
        let EntryRow { seq, at_ms, sentence, place, worker, fence, by, note } = self;
        let Some(Sentence { entity, event, from, to, actor }) = text.copied() else {
            return Err(Error::BadValue {
                entity: "journal entry",
                id: seq.to_string(),
                field: "sentence",
                reason: format!("there is no sentence {sentence}"),
            });
        };
        Ok(JournalEntry { seq, at_ms, entity, place, event, from, to, actor, worker, fence, by, note })
    }
}

/// Consecutive entries of one run, or of no run, as one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackRow {
    /// The number of its last entry, which finds it.
    pub(crate) last_seq: u64,
    /// The number of its first entry.
    pub(crate) first_seq: u64,
    /// The run of all its entries; absent if they belong to none.
    pub(crate) run: Option<RunId>,
    /// The entries, in the format that `bytes.rs` describes.
    pub(crate) body: Vec<u8>,
}

impl PackRow {
    /// Returns the entries. A pack that does not have exactly those that its numbers promise is damaged.
    pub(crate) fn unpack(&self) -> Result<Vec<EntryRow>> {
        let count = self.last_seq.checked_sub(self.first_seq).filter(|_| self.first_seq > 0);
        let Some(count) =
            count.and_then(|more| usize::try_from(more).ok()).filter(|more| *more < MOST_ENTRIES)
        else {
            let reason = format!("no pack has the entries {} to {}", self.first_seq, self.last_seq);
            return Err(self.damaged("first_seq", reason));
        };
        bytes::read(&self.body, self.run, self.first_seq, count + 1)
            .map_err(|reason| self.damaged("body", reason))
    }

    /// Returns the pack of its last entry alone; none if it has no other.
    pub(crate) fn only_last(&self) -> Result<Option<PackRow>> {
        if self.first_seq == self.last_seq {
            return Ok(None);
        }
        Ok(self.unpack()?.pop().and_then(|last| pack([last]).pop()))
    }

    fn damaged(&self, field: &'static str, reason: String) -> Error {
        Error::BadValue { entity: Self::ENTITY, id: self.last_seq.to_string(), field, reason }
    }
}

/// Packs entries that are in order: one pack for each stretch of consecutive entries of one run, and more if it would
/// become too large.
pub(crate) fn pack(entries: impl IntoIterator<Item = EntryRow>) -> Vec<PackRow> {
    let mut packs = Vec::new();
    let mut open: Option<(u64, EntryRow, bytes::Writer)> = None;
    for entry in entries {
        let (first, mut writer) = match open.take() {
            Some((first, last, writer)) if belongs(first, &last, &entry, writer.len()) => (first, writer),
            full => {
                packs.extend(full.map(close));
                (entry.seq, bytes::Writer::new(entry.at_ms))
            }
        };
        writer.push(&entry);
        open = Some((first, entry, writer));
    }
    packs.extend(open.map(close));
    if mutant!(PackDropsLast) {
        packs.iter_mut().for_each(drop_last);
    }
    packs
}

/// Whether an entry goes into the pack with these first and last entries.
fn belongs(first: u64, last: &EntryRow, entry: &EntryRow, bytes: usize) -> bool {
    entry.seq == last.seq + 1
        && entry.place.run == last.place.run
        && entry.seq - first < MOST_ENTRIES as u64
        && bytes < MOST_BYTES
}

fn close((first_seq, last, writer): (u64, EntryRow, bytes::Writer)) -> PackRow {
    PackRow { last_seq: last.seq, first_seq, run: last.place.run, body: writer.finish() }
}

/// The fault `PackDropsLast`: the pack ends one entry early.
fn drop_last(pack: &mut PackRow) {
    let entries = pack.unpack().unwrap_or_default();
    if let [kept @ .., _] = entries.as_slice()
        && let Some(last) = kept.last()
    {
        let mut writer = bytes::Writer::new(kept[0].at_ms);
        kept.iter().for_each(|entry| writer.push(entry));
        *pack = close((pack.first_seq, last.clone(), writer));
    }
}

/// The part of the journal that a reader asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    /// The number after which it starts.
    pub(crate) after: u64,
    /// The last number that it may have.
    pub(crate) to: u64,
    /// The most entries.
    pub(crate) limit: usize,
}

impl Page {
    /// Returns the page of one run: its entries are between its first one and, once it has ended, its last one.
    pub(crate) fn of_run(run: &RunRow, since: u64, limit: usize) -> Page {
        let to = if run.status().is_terminal() { run.last_seq } else { u64::MAX };
        Page { after: since.max(run.first_seq.saturating_sub(1)), to, limit }
    }

    /// Adds the pack's entries that belong to this page. Returns whether the page has room for more.
    pub(crate) fn take(&self, pack: &PackRow, entries: &mut Vec<EntryRow>) -> Result<bool> {
        let wanted = |entry: &EntryRow| entry.seq > self.after && entry.seq <= self.to;
        let room = self.limit.saturating_sub(entries.len());
        entries.extend(pack.unpack()?.into_iter().filter(wanted).take(room));
        Ok(entries.len() < self.limit)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
