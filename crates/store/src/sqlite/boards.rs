//! The tables of boards in SQLite.

use std::sync::Arc;

use rusqlite::{OptionalExtension, Row as Columns, params};
use sprag_lifecycle::{RunId, StepNo, StepStatus, TaskNeed, Word};

use super::tx::SqliteTx;
use crate::boards::{BoardRow, Boards, NoteRow};
use crate::error::{Error, Result};

const BOARD: &str = "SELECT run, name, goal, plan, queue, open, created_ms FROM boards";

fn board(columns: &Columns<'_>) -> rusqlite::Result<BoardRow> {
    Ok(BoardRow {
        run: RunId::from_i64(columns.get(0)?),
        name: columns.get(1)?,
        goal: columns.get(2)?,
        plan: columns.get(3)?,
        queue: columns.get(4)?,
        open: columns.get(5)?,
        created_ms: columns.get(6)?,
    })
}

fn following(columns: &Columns<'_>) -> rusqlite::Result<TaskNeed> {
    Ok(TaskNeed { item: columns.get(0)?, tolerant: columns.get(1)? })
}

impl Boards for SqliteTx<'_> {
    fn put_board(&mut self, board: &BoardRow) -> Result<()> {
        self.run(
            "INSERT INTO boards (run, name, goal, plan, queue, open, created_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                board.run.to_i64(),
                &*board.name,
                &*board.goal,
                &*board.plan,
                &*board.queue,
                board.open,
                board.created_ms
            ],
        )
        .map(drop)
    }

    fn board(&mut self, run: RunId) -> Result<Option<BoardRow>> {
        let found = self.list(&format!("{BOARD} WHERE run = ?1"), params![run.to_i64()], board)?;
        Ok(found.into_iter().next())
    }

    fn board_called(&mut self, name: &str) -> Result<Option<BoardRow>> {
        let sql = format!("{BOARD} WHERE name = ?1 ORDER BY open DESC, run DESC LIMIT 1");
        Ok(self.list(&sql, params![name], board)?.into_iter().next())
    }

    fn boards(&mut self, all: bool, limit: usize) -> Result<Vec<BoardRow>> {
        let sql = format!("{BOARD} WHERE ?1 OR open ORDER BY run DESC LIMIT ?2");
        self.list(&sql, params![all, limit as i64], board)
    }

    fn change_board(&mut self, board: &BoardRow) -> Result<()> {
        self.run(
            "UPDATE boards SET goal = ?2, plan = ?3, open = ?4 WHERE run = ?1",
            params![board.run.to_i64(), &*board.goal, &*board.plan, board.open],
        )
        .map(drop)
    }

    fn task_counts(&mut self, run: RunId) -> Result<Vec<(StepStatus, u32)>> {
        let counted = self.list(
            "SELECT status, count(*) FROM steps WHERE run = ?1 AND item_of IS NOT NULL \
             GROUP BY status ORDER BY status",
            params![run.to_i64()],
            |columns| Ok((columns.get::<_, String>(0)?, columns.get(1)?)),
        )?;
        counted
            .into_iter()
            .map(|(word, count)| match StepStatus::parse(&word) {
                Some(status) => Ok((status, count)),
                None => Err(Error::UnknownWord {
                    entity: "step",
                    id: run.to_string(),
                    field: "status",
                    text: word,
                }),
            })
            .collect()
    }

    fn put_task_key(&mut self, run: RunId, key: &str, no: StepNo) -> Result<()> {
        self.run("INSERT INTO task_keys (run, key, no) VALUES (?1, ?2, ?3)", params![run.to_i64(), key, no])
            .map(drop)
    }

    fn task_by_key(&mut self, run: RunId, key: &str) -> Result<Option<StepNo>> {
        let found = self
            .conn
            .prepare_cached("SELECT no FROM task_keys WHERE run = ?1 AND key = ?2")
            .and_then(|mut statement| {
                statement.query_row(params![run.to_i64(), key], |columns| columns.get(0)).optional()
            });
        self.sql("reading", found)
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
            following,
        )
    }

    fn task_followers(&mut self, run: RunId, need: StepNo) -> Result<Vec<TaskNeed>> {
        self.list(
            "SELECT no, tolerant FROM task_needs WHERE run = ?1 AND need = ?2 ORDER BY no",
            params![run.to_i64(), need],
            following,
        )
    }

    fn token_key(&mut self) -> Result<Arc<str>> {
        let found = self
            .conn
            .prepare_cached("SELECT value FROM meta WHERE name = 'token_key'")
            .and_then(|mut statement| statement.query_row([], |columns| columns.get(0)));
        self.sql("reading", found)
    }

    fn put_note(&mut self, note: &NoteRow) -> Result<i64> {
        self.run(
            "INSERT INTO notes (run, author, tag, text, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![note.run.to_i64(), &*note.author, &*note.tag, &*note.text, note.at_ms],
        )?;
        Ok(self.conn.last_insert_rowid())
    }

    fn notes(&mut self, run: RunId, tag: Option<&str>, after: i64, limit: usize) -> Result<Vec<NoteRow>> {
        self.list(
            "SELECT id, author, tag, text, at_ms FROM notes \
             WHERE run = ?1 AND id > ?2 AND (?3 IS NULL OR tag = ?3) ORDER BY id LIMIT ?4",
            params![run.to_i64(), after, tag, limit as i64],
            |columns| {
                Ok(NoteRow {
                    id: columns.get(0)?,
                    run,
                    author: columns.get(1)?,
                    tag: columns.get(2)?,
                    text: columns.get(3)?,
                    at_ms: columns.get(4)?,
                })
            },
        )
    }
}
