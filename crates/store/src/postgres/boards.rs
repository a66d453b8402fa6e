//! The tables of boards in PostgreSQL. The row of a board's run covers everything that belongs to the board.

use std::sync::Arc;

use sprag_lifecycle::{RunId, StepNo, StepStatus, TaskNeed, Word};

use super::cells::Reader;
use super::tx::Tx;
use crate::boards::{BoardRow, Boards, NoteRow};
use crate::error::{Error, Result};

const BOARD: &str = "SELECT run, name, goal, plan, queue, open, created_ms FROM boards";

fn board(r: &mut Reader<'_>) -> Result<BoardRow> {
    Ok(BoardRow {
        run: RunId::from_i64(r.int()?),
        name: r.text()?,
        goal: r.text()?,
        plan: r.text()?,
        queue: r.text()?,
        open: r.bool()?,
        created_ms: r.int()?,
    })
}

fn following(r: &mut Reader<'_>) -> Result<TaskNeed> {
    Ok(TaskNeed { item: r.int()?, tolerant: r.bool()? })
}

impl Boards for Tx<'_> {
    fn put_board(&mut self, board: &BoardRow) -> Result<()> {
        self.state.extra(
            "INSERT INTO boards (run, name, goal, plan, queue, open, created_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
            vec![
                board.run.to_i64().into(),
                (&*board.name).into(),
                (&*board.goal).into(),
                (&*board.plan).into(),
                (&*board.queue).into(),
                board.open.into(),
                board.created_ms.into(),
            ],
        );
        Ok(())
    }

    fn board(&mut self, run: RunId) -> Result<Option<BoardRow>> {
        self.one(&format!("{BOARD} WHERE run = $1"), vec![run.to_i64().into()], board)
    }

    fn board_called(&mut self, name: &str) -> Result<Option<BoardRow>> {
        let sql = format!("{BOARD} WHERE name = $1 ORDER BY open DESC, run DESC LIMIT 1");
        self.one(&sql, vec![name.into()], board)
    }

    fn boards(&mut self, all: bool, limit: usize) -> Result<Vec<BoardRow>> {
        let sql = format!("{BOARD} WHERE $1 OR open ORDER BY run DESC LIMIT $2");
        self.list(&sql, vec![all.into(), limit.into()], board)
    }

    fn change_board(&mut self, board: &BoardRow) -> Result<()> {
        self.state.extra(
            "UPDATE boards SET goal = $2, plan = $3, open = $4 WHERE run = $1",
            vec![board.run.to_i64().into(), (&*board.goal).into(), (&*board.plan).into(), board.open.into()],
        );
        Ok(())
    }

    fn task_counts(&mut self, run: RunId) -> Result<Vec<(StepStatus, u32)>> {
        self.list(
            "SELECT status, count(*) FROM steps WHERE run = $1 AND item_of IS NOT NULL \
             GROUP BY status ORDER BY status",
            vec![run.to_i64().into()],
            |r| {
                let word = r.str()?;
                let status = StepStatus::parse(word).ok_or_else(|| Error::UnknownWord {
                    entity: "step",
                    id: run.to_string(),
                    field: "status",
                    text: word.to_owned(),
                })?;
                Ok((status, r.int()?))
            },
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
        self.one(sql, vec![run.to_i64().into(), key.into()], |r| r.int())
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
        self.list(sql, vec![run.to_i64().into(), no.into()], following)
    }

    fn task_followers(&mut self, run: RunId, need: StepNo) -> Result<Vec<TaskNeed>> {
        let sql = "SELECT no, tolerant FROM task_needs WHERE run = $1 AND need = $2 ORDER BY no";
        self.list(sql, vec![run.to_i64().into(), need.into()], following)
    }

    fn token_key(&mut self) -> Result<Arc<str>> {
        let found = self.one("SELECT value FROM meta WHERE name = 'token_key'", vec![], |r| r.text())?;
        found.ok_or_else(|| Error::Corrupt {
            path: self.shared.address.path(),
            reason: "it has no key for the tokens of tasks".into(),
        })
    }

    fn put_note(&mut self, note: &NoteRow) -> Result<i64> {
        let sql = "SELECT nextval(pg_get_serial_sequence('notes', 'id'))";
        let id: i64 = self.one(sql, vec![], |r| r.int())?.unwrap_or_default();
        self.state.extra(
            "INSERT INTO notes (id, run, author, tag, text, at_ms) VALUES ($1, $2, $3, $4, $5, $6)",
            vec![
                id.into(),
                note.run.to_i64().into(),
                (&*note.author).into(),
                (&*note.tag).into(),
                (&*note.text).into(),
                note.at_ms.into(),
            ],
        );
        Ok(id)
    }

    fn notes(&mut self, run: RunId, tag: Option<&str>, after: i64, limit: usize) -> Result<Vec<NoteRow>> {
        self.list(
            "SELECT id, author, tag, text, at_ms FROM notes \
             WHERE run = $1 AND id > $2 AND ($3::text IS NULL OR tag = $3) ORDER BY id LIMIT $4",
            vec![run.to_i64().into(), after.into(), tag.into(), limit.into()],
            |r| {
                Ok(NoteRow {
                    id: r.int()?,
                    run,
                    author: r.text()?,
                    tag: r.text()?,
                    text: r.text()?,
                    at_ms: r.int()?,
                })
            },
        )
    }
}
