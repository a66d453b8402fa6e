//! The tables of boards in SQLite.

use std::sync::Arc;

use rusqlite::params;
use sprag_lifecycle::{RunId, StepNo, StepStatus, TaskNeed};

use super::tx::SqliteTx;
use crate::boards::{BoardRow, Boards, NoteRow};
use crate::columns::{Declared, Section};
use crate::error::{Error, Result};

impl Boards for SqliteTx<'_> {
    fn put_board(&mut self, board: &BoardRow) -> Result<()> {
        self.put(board)
    }

    fn board(&mut self, run: RunId) -> Result<Option<BoardRow>> {
        Ok(self.rows("WHERE run = ?1", params![run.to_i64()])?.pop())
    }

    fn board_called(&mut self, name: &str) -> Result<Option<BoardRow>> {
        Ok(self.rows("WHERE name = ?1 ORDER BY open DESC, run DESC LIMIT 1", params![name])?.pop())
    }

    fn boards(&mut self, all: bool, limit: usize) -> Result<Vec<BoardRow>> {
        self.rows("WHERE ?1 OR open ORDER BY run DESC LIMIT ?2", params![all, limit as i64])
    }

    fn change_board(&mut self, board: &BoardRow) -> Result<()> {
        let sql = &BoardRow::statements().sqlite.change;
        self.write(sql, board, &[Section::Changes, Section::Key]).map(drop)
    }

    fn task_counts(&mut self, run: RunId) -> Result<Vec<(StepStatus, u32)>> {
        self.list(
            "SELECT status, count(*) FROM steps WHERE run = ?1 AND item_of IS NOT NULL \
             GROUP BY status ORDER BY status",
            params![run.to_i64()],
        )
    }

    fn put_task_key(&mut self, run: RunId, key: &str, no: StepNo) -> Result<()> {
        self.run("INSERT INTO task_keys (run, key, no) VALUES (?1, ?2, ?3)", params![run.to_i64(), key, no])
            .map(drop)
    }

    fn task_by_key(&mut self, run: RunId, key: &str) -> Result<Option<StepNo>> {
        self.one("SELECT no FROM task_keys WHERE run = ?1 AND key = ?2", params![run.to_i64(), key])
    }

    fn put_task_need(&mut self, run: RunId, no: StepNo, need: TaskNeed) -> Result<()> {
        self.run(
            "INSERT INTO task_needs (run, no, need, tolerant) VALUES (?1, ?2, ?3, ?4)",
            params![run.to_i64(), no, need.item, need.tolerant],
        )
        .map(drop)
    }

    fn task_needs(&mut self, run: RunId, no: StepNo) -> Result<Vec<TaskNeed>> {
        self.list(
            "SELECT need, tolerant FROM task_needs WHERE run = ?1 AND no = ?2 ORDER BY need",
            params![run.to_i64(), no],
        )
    }

    fn task_followers(&mut self, run: RunId, need: StepNo) -> Result<Vec<TaskNeed>> {
        self.list(
            "SELECT no, tolerant FROM task_needs WHERE run = ?1 AND need = ?2 ORDER BY no",
            params![run.to_i64(), need],
        )
    }

    fn token_key(&mut self) -> Result<Arc<str>> {
        let found = self.one("SELECT value FROM meta WHERE name = 'token_key'", &[])?;
        found.ok_or_else(|| Error::Corrupt {
            path: self.path.to_owned(),
            reason: "it has no key for the tokens of tasks".into(),
        })
    }

    fn put_note(&mut self, note: &NoteRow) -> Result<i64> {
        self.add(note)?;
        Ok(self.conn.last_insert_rowid())
    }

    fn notes(&mut self, run: RunId, tag: Option<&str>, after: i64, limit: usize) -> Result<Vec<NoteRow>> {
        self.rows(
            "WHERE run = ?1 AND id > ?2 AND (?3 IS NULL OR tag = ?3) ORDER BY id LIMIT ?4",
            params![run.to_i64(), after, tag, limit as i64],
        )
    }

    fn note_count(&mut self, run: RunId, tag: &str) -> Result<i64> {
        let sql = "SELECT count(*) FROM notes WHERE run = ?1 AND tag = ?2";
        Ok(self.one(sql, params![run.to_i64(), tag])?.unwrap_or(0))
    }
}
