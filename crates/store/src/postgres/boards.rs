//! The tables of boards in PostgreSQL. The row of a board's run covers everything that belongs to the board.

use std::sync::Arc;

use sprag_lifecycle::{RunId, StepNo, StepStatus, TaskNeed};

use super::tx::Tx;
use crate::boards::{BoardRow, Boards, NoteRow};
use crate::columns::{Declared, Section};
use crate::error::{Error, Result};

impl Boards for Tx<'_> {
    fn put_board(&mut self, board: &BoardRow) -> Result<()> {
        self.state.put(board);
        Ok(())
    }

    fn board(&mut self, run: RunId) -> Result<Option<BoardRow>> {
        Ok(self.rows("WHERE run = $1", vec![run.to_i64().into()])?.pop())
    }

    fn board_called(&mut self, name: &str) -> Result<Option<BoardRow>> {
        let condition = "WHERE name = $1 ORDER BY open DESC, run DESC LIMIT 1";
        Ok(self.rows(condition, vec![name.into()])?.pop())
    }

    fn boards(&mut self, all: bool, limit: usize) -> Result<Vec<BoardRow>> {
        self.rows("WHERE $1 OR open ORDER BY run DESC LIMIT $2", vec![all.into(), limit.into()])
    }

    fn change_board(&mut self, board: &BoardRow) -> Result<()> {
        let sql = &BoardRow::statements().postgres.change;
        self.state.extra_of(sql, board, &[Section::Changes, Section::Key]);
        Ok(())
    }

    fn task_counts(&mut self, run: RunId) -> Result<Vec<(StepStatus, u32)>> {
        self.list(
            "SELECT status, count(*) FROM steps WHERE run = $1 AND item_of IS NOT NULL \
             GROUP BY status ORDER BY status",
            vec![run.to_i64().into()],
        )
    }

    fn put_task_key(&mut self, run: RunId, key: &str, no: StepNo) -> Result<()> {
        self.state.extra(
            "INSERT INTO task_keys (run, key, no) VALUES ($1, $2, $3)",
            vec![run.to_i64().into(), key.into(), no.into()],
        );
        Ok(())
    }

    fn task_by_key(&mut self, run: RunId, key: &str) -> Result<Option<StepNo>> {
        let sql = "SELECT no FROM task_keys WHERE run = $1 AND key = $2";
        self.one(sql, vec![run.to_i64().into(), key.into()])
    }

    fn put_task_need(&mut self, run: RunId, no: StepNo, need: TaskNeed) -> Result<()> {
        self.state.extra(
            "INSERT INTO task_needs (run, no, need, tolerant) VALUES ($1, $2, $3, $4)",
            vec![run.to_i64().into(), no.into(), need.item.into(), need.tolerant.into()],
        );
        Ok(())
    }

    fn task_needs(&mut self, run: RunId, no: StepNo) -> Result<Vec<TaskNeed>> {
        let sql = "SELECT need, tolerant FROM task_needs WHERE run = $1 AND no = $2 ORDER BY need";
        self.list(sql, vec![run.to_i64().into(), no.into()])
    }

    fn task_followers(&mut self, run: RunId, need: StepNo) -> Result<Vec<TaskNeed>> {
        let sql = "SELECT no, tolerant FROM task_needs WHERE run = $1 AND need = $2 ORDER BY no";
        self.list(sql, vec![run.to_i64().into(), need.into()])
    }

    fn token_key(&mut self) -> Result<Arc<str>> {
        let found = self.one("SELECT value FROM meta WHERE name = 'token_key'", vec![])?;
        found.ok_or_else(|| Error::Corrupt {
            path: self.shared.address.path(),
            reason: "it has no key for the tokens of tasks".into(),
        })
    }

    fn put_note(&mut self, note: &NoteRow) -> Result<i64> {
        let sql = "SELECT nextval(pg_get_serial_sequence('notes', 'id'))";
        let id: i64 = self.one(sql, vec![])?.unwrap_or_default();
        self.state.put(&NoteRow { id, ..note.clone() });
        Ok(id)
    }

    fn notes(&mut self, run: RunId, tag: Option<&str>, after: i64, limit: usize) -> Result<Vec<NoteRow>> {
        self.rows(
            "WHERE run = $1 AND id > $2 AND ($3::text IS NULL OR tag = $3) ORDER BY id LIMIT $4",
            vec![run.to_i64().into(), after.into(), tag.into(), limit.into()],
        )
    }

    fn note_count(&mut self, run: RunId, tag: &str) -> Result<i64> {
        let sql = "SELECT count(*) FROM notes WHERE run = $1 AND tag = $2";
        Ok(self.one(sql, vec![run.to_i64().into(), tag.into()])?.unwrap_or(0))
    }
}
