//! The journal in SQLite: a transaction's entries are packed at its end, and each sentence is stored once.

use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension};
use sprag_lifecycle::RunId;

use super::rows::Binder;
use super::tx::SqliteTx;
use crate::backend::Table;
use crate::columns::{Declared, Section, SentenceRow};
use crate::error::Result;
use crate::journal::{EntryRow, PackRow, Page, pack};
use crate::rows::{JournalEntry, RunRow};
use crate::words::Sentence;

static ADD_SENTENCE: LazyLock<String> =
    LazyLock::new(|| format!("{} ON CONFLICT DO NOTHING", SentenceRow::statements().sqlite.add));
const FIND_SENTENCE: &str =
    "SELECT id FROM sentences WHERE entity = ?1 AND event = ?2 AND was = ?3 AND became = ?4 AND actor = ?5";
static PACKS: LazyLock<String> = LazyLock::new(|| {
    format!("{} WHERE last_seq > ?1 AND first_seq <= ?2 ORDER BY last_seq", PackRow::statements().select)
});
static PACKS_OF_RUN: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} WHERE last_seq > ?1 AND first_seq <= ?2 AND run = ?3 ORDER BY last_seq",
        PackRow::statements().select
    )
});
/// The condition that finds the pack with the journal's last entry.
pub(super) const LAST_PACK: &str = "ORDER BY last_seq DESC LIMIT 1";

/// Returns a journal number in SQLite's type.
fn seq_of(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

/// Adds packs to the journal.
pub(super) fn insert_packs(conn: &Connection, packs: &[PackRow]) -> rusqlite::Result<()> {
    let mut statement = conn.prepare_cached(&PackRow::statements().sqlite.insert)?;
    for pack in packs {
        let mut binder = Binder::new(&mut statement);
        binder.sections(pack, &Section::ALL);
        binder.execute()?;
    }
    Ok(())
}

/// Returns the time of the journal's last entry (wall clock), if it has one.
pub(super) fn last_entry_ms(conn: &Connection) -> rusqlite::Result<Option<Result<i64>>> {
    let sql = format!("{} {LAST_PACK}", PackRow::statements().select);
    let last = conn.query_row(&sql, [], |columns| Ok(PackRow::read(columns))).optional()?;
    let at_ms = |pack: PackRow| Ok(pack.unpack()?.last().map_or(0, |entry| entry.at_ms));
    Ok(last.map(|pack| pack.and_then(at_ms)))
}

impl SqliteTx<'_> {
    /// Returns the number of the last entry.
    pub(super) fn last_entry(&mut self) -> Result<u64> {
        if let Some(seq) = self.memo.borrow().last_seq() {
            return Ok(seq);
        }
        let seq: u64 = self.one("SELECT coalesce(max(last_seq), 0) FROM journal_packs", &[])?.unwrap_or(0);
        self.memo.borrow_mut().seq = Some(seq);
        Ok(seq)
    }

    /// Adds entries, which are written at the end of the transaction.
    pub(super) fn append_entries(&mut self, entries: &[JournalEntry]) {
        self.memo.borrow_mut().entries.extend_from_slice(entries);
    }

    /// Writes the entries that the transaction has added so far.
    pub(super) fn write_packs(&self) -> Result<()> {
        let entries = std::mem::take(&mut self.memo.borrow_mut().entries);
        let Some(last) = entries.last() else { return Ok(()) };
        let stored = |entry| Ok(EntryRow::of(entry, self.sentence_id(Sentence::of(entry))?));
        let rows: Vec<EntryRow> = entries.iter().map(stored).collect::<Result<_>>()?;
        self.sql("writing", insert_packs(self.conn, &pack(rows)))?;
        self.memo.borrow_mut().seq = Some(last.seq);
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
        self.write_packs()?;
        let page = match run {
            None => Page { after: since, to: u64::MAX, limit },
            Some(id) => match Table::<RunRow>::load(self, id)? {
                None => return Ok(Vec::new()),
                Some(row) => Page::of_run(&row, since, limit),
            },
        };
        let entries = self.read_page(page, run)?;
        let unknown = entries.iter().any(|entry| !self.memo.borrow().by_id.contains_key(&entry.sentence));
        if unknown {
            self.learn_sentences()?;
        }
        let memo = self.memo.borrow();
        let told = |entry: EntryRow| {
            let sentence = memo.by_id.get(&entry.sentence);
            entry.told(sentence)
        };
        entries.into_iter().map(told).collect()
    }

    /// Reads packs until the page is full.
    fn read_page(&self, page: Page, run: Option<RunId>) -> Result<Vec<EntryRow>> {
        let (after, to) = (seq_of(page.after), seq_of(page.to));
        let sql = if run.is_some() { &PACKS_OF_RUN } else { &PACKS };
        let mut statement = self.sql("reading", self.conn.prepare_cached(sql))?;
        let mut binder = Binder::new(&mut statement);
        [after, to].into_iter().chain(run.map(RunId::to_i64)).for_each(|number| binder.bind(&number));
        let mut packs = self.sql("reading", binder.query())?;
        let mut entries = Vec::new();
        let mut has_room = page.limit > 0;
        while has_room && let Some(columns) = self.sql("reading", packs.next())? {
            has_room = page.take(&PackRow::read(columns)?, &mut entries)?;
        }
        Ok(entries)
    }
}
