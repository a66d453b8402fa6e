//! The journal in SQLite: an entry is a few numbers, and each sentence is stored once.

use std::sync::Arc;

use rusqlite::params;
use sprag_lifecycle::{Actor, RunId, Word};

use super::memo::{JOURNAL_ROWS, Sentence, append_sql, intern};
use super::tx::SqliteTx;
use crate::backend::Table;
use crate::error::Result;
use crate::rows::{JournalEntry, Position, Row, RunRow};

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
        let last = self
            .conn
            .prepare_cached("SELECT coalesce(max(seq), 0) FROM journal")
            .and_then(|mut statement| statement.query_row([], |columns| columns.get::<_, i64>(0)));
        let seq = self.sql("reading", last)? as u64;
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
        let Sentence { entity, event, from, to, actor } = sentence;
        let values = params![entity, event, from.unwrap_or(""), to, actor.as_str()];
        self.run(
            "INSERT OR IGNORE INTO sentences (entity, event, was, became, actor) VALUES (?1, ?2, ?3, ?4, ?5)",
            values,
        )?;
        let id = self.sql(
            "reading",
            self.conn.query_row(
                "SELECT id FROM sentences \
                 WHERE entity = ?1 AND event = ?2 AND was = ?3 AND became = ?4 AND actor = ?5",
                values,
                |columns| columns.get(0),
            ),
        )?;
        // The sentence is not cached yet: if this transaction is undone, the sentence is undone with it.
        self.memo.borrow_mut().has_news = true;
        Ok(id)
    }

    /// Adds at most `JOURNAL_ROWS` entries in one statement.
    fn append_rows(&self, entries: &[JournalEntry], sentences: &[i64]) -> rusqlite::Result<()> {
        let mut statement = self.conn.prepare_cached(append_sql(entries.len()))?;
        let mut at = 0;
        let mut bind = |value: Option<i64>| {
            at += 1;
            statement.raw_bind_parameter(at, value)
        };
        for (entry, sentence) in entries.iter().zip(sentences) {
            let Position { run, step, attempt, id } = entry.place;
            bind(Some(entry.seq as i64))?;
            bind(Some(entry.at_ms))?;
            bind(Some(*sentence))?;
            bind(run.map(RunId::to_i64))?;
            bind(step.map(i64::from))?;
            bind(attempt.map(i64::from))?;
            bind(id)?;
        }
        statement.raw_execute().map(drop)
    }

    /// Caches the sentences that are committed to the file.
    pub(super) fn learn_sentences(&self) -> Result<()> {
        let known: Vec<(i64, Option<Sentence>)> = self.list(
            "SELECT id, entity, event, was, became, actor FROM sentences ORDER BY id",
            &[],
            |columns| {
                let text = |at: usize| columns.get::<_, String>(at).map(intern);
                let was = text(3)?;
                let actor = Actor::parse(text(5)?);
                let sentence = actor.map(|actor| {
                    Ok::<_, rusqlite::Error>(Sentence {
                        entity: text(1)?,
                        event: text(2)?,
                        from: (!was.is_empty()).then_some(was),
                        to: text(4)?,
                        actor,
                    })
                });
                Ok((columns.get(0)?, sentence.transpose()?))
            },
        )?;
        let mut memo = self.memo.borrow_mut();
        for (id, sentence) in known {
            if let Some(sentence) = sentence {
                memo.sentences.insert(sentence, id);
                memo.by_id.insert(id, sentence);
            }
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
        type Raw = (i64, i64, i64, Option<i64>, Option<u32>, Option<u32>, Option<i64>, Option<Arc<str>>);
        let raw: Vec<Raw> = self.list(
            "SELECT seq, at_ms, sentence, run, step, attempt, entity, \
             (SELECT note FROM journal_notes WHERE seq = journal.seq) FROM journal \
             WHERE seq > ?1 AND seq <= ?2 AND (?3 IS NULL OR run = ?3) ORDER BY seq LIMIT ?4",
            params![from, to, wanted, limit as i64],
            |columns| {
                Ok((
                    columns.get(0)?,
                    columns.get(1)?,
                    columns.get(2)?,
                    columns.get(3)?,
                    columns.get(4)?,
                    columns.get(5)?,
                    columns.get(6)?,
                    columns.get(7)?,
                ))
            },
        )?;
        let unknown = raw.iter().any(|entry| !self.memo.borrow().by_id.contains_key(&entry.2));
        if unknown {
            self.learn_sentences()?;
        }
        let memo = self.memo.borrow();
        let told = raw.into_iter().filter_map(|(seq, at_ms, sentence, run, step, attempt, id, note)| {
            let sentence = memo.by_id.get(&sentence)?;
            Some(JournalEntry {
                seq: seq as u64,
                at_ms,
                entity: sentence.entity,
                place: Position { run: run.map(RunId::from_i64), step, attempt, id },
                event: sentence.event,
                from: sentence.from,
                to: sentence.to,
                actor: sentence.actor,
                note,
            })
        });
        Ok(told.collect())
    }
}
