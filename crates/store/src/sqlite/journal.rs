//! The journal in SQLite: an entry is a few numbers, and each sentence is stored once.

use std::sync::{Arc, LazyLock};

use rusqlite::params;
use sprag_lifecycle::RunId;

use super::memo::{JOURNAL_ROWS, append_sql};
use super::rows::Binder;
use super::tx::SqliteTx;
use crate::backend::Table;
use crate::columns::{Declared, EntryRow, Section, SentenceRow};
use crate::error::Result;
use crate::rows::{JournalEntry, Row, RunRow};
use crate::words::Sentence;

static ADD_SENTENCE: LazyLock<String> =
    LazyLock::new(|| format!("{} ON CONFLICT DO NOTHING", SentenceRow::statements().sqlite.add));
const FIND_SENTENCE: &str =
    "SELECT id FROM sentences WHERE entity = ?1 AND event = ?2 AND was = ?3 AND became = ?4 AND actor = ?5";
static ENTRIES: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, (SELECT note FROM journal_notes WHERE journal_notes.seq = journal.seq) FROM journal \
         WHERE seq > ?1 AND seq <= ?2 AND (?3 IS NULL OR run = ?3) ORDER BY seq LIMIT ?4",
        EntryRow::statements().names
    )
});

/// Returns a journal number in SQLite's type.
fn seq_of(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

impl SqliteTx<'_> {
    /// Returns the number of the last entry.
    pub(super) fn last_entry(&mut self) -> Result<u64> {
        if let Some(seq) = self.memo.borrow().seq {
            return Ok(seq);
        }
        let seq: u64 = self.one("SELECT coalesce(max(seq), 0) FROM journal", &[])?.unwrap_or(0);
        self.memo.borrow_mut().seq = Some(seq);
        Ok(seq)
    }

    /// Adds entries, each sentence by its number.
    pub(super) fn append_entries(&mut self, entries: &[JournalEntry]) -> Result<()> {
        for some in entries.chunks(JOURNAL_ROWS) {
            let sentences: Vec<i64> =
                some.iter().map(|entry| self.sentence_id(Sentence::of(entry))).collect::<Result<_>>()?;
            self.sql("writing", self.append_rows(some, &sentences))?;
        }
        for entry in entries {
            if let Some(note) = &entry.note {
                let values = params![seq_of(entry.seq), &**note];
                self.run("INSERT INTO journal_notes (seq, note) VALUES (?1, ?2)", values)?;
            }
        }
        if let Some(last) = entries.last() {
            self.memo.borrow_mut().seq = Some(last.seq);
        }
        Ok(())
    }

    fn sentence_id(&self, sentence: Sentence) -> Result<i64> {
        if let Some(id) = self.memo.borrow().sentences.get(&sentence) {
            return Ok(*id);
        }
        let row = SentenceRow { id: 0, sentence };
        self.write(&ADD_SENTENCE, &row, &[Section::Fixed])?;
        let mut statement = self.sql("reading", self.conn.prepare_cached(FIND_SENTENCE))?;
        let mut binder = Binder::new(&mut statement);
        binder.sections(&row, &[Section::Fixed]);
        let id = binder.query().and_then(|mut rows| match rows.next()? {
            Some(found) => found.get("id"),
            None => Err(rusqlite::Error::QueryReturnedNoRows),
        });
        let id = self.sql("reading", id)?;
        // The sentence is not cached yet: if this transaction is undone, the sentence is undone with it.
        self.memo.borrow_mut().has_news = true;
        Ok(id)
    }

    /// Adds at most `JOURNAL_ROWS` entries in one statement.
    fn append_rows(&self, entries: &[JournalEntry], sentences: &[i64]) -> rusqlite::Result<()> {
        let mut statement = self.conn.prepare_cached(append_sql(entries.len()))?;
        let mut binder = Binder::new(&mut statement);
        for (entry, sentence) in entries.iter().zip(sentences) {
            let JournalEntry { seq, at_ms, place, .. } = *entry;
            binder.sections(&EntryRow { seq, at_ms, sentence: *sentence, place }, &Section::ALL);
        }
        binder.execute().map(drop)
    }

    /// Caches the sentences that are committed to the file.
    pub(super) fn learn_sentences(&self) -> Result<()> {
        let known: Vec<SentenceRow> = self.rows("ORDER BY id", &[])?;
        let mut memo = self.memo.borrow_mut();
        for SentenceRow { id, sentence } in known {
            memo.sentences.insert(sentence, id);
            memo.by_id.insert(id, sentence);
        }
        Ok(())
    }

    /// Returns the entries after one, of one run or of all, in order.
    pub(super) fn read_journal(
        &mut self,
        since: u64,
        run: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<JournalEntry>> {
        // A run's entries are between its first one and, once it has ended, its last one.
        let (from, to) = match run {
            None => (seq_of(since), i64::MAX),
            Some(id) => match Table::<RunRow>::load(self, id)? {
                None => return Ok(Vec::new()),
                Some(row) => {
                    let ended = row.status().is_terminal();
                    let last = if ended { row.last_seq as i64 } else { i64::MAX };
                    (seq_of(since).max(row.first_seq as i64 - 1), last)
                }
            },
        };
        let wanted = run.map(RunId::to_i64);
        let raw: Vec<(EntryRow, Option<Arc<str>>)> =
            self.rows_and(&ENTRIES, params![from, to, wanted, limit as i64])?;
        let unknown = raw.iter().any(|(entry, _)| !self.memo.borrow().by_id.contains_key(&entry.sentence));
        if unknown {
            self.learn_sentences()?;
        }
        let memo = self.memo.borrow();
        raw.into_iter().map(|(entry, note)| entry.told(memo.by_id.get(&entry.sentence), note)).collect()
    }
}
