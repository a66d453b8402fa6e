//! Forgetting in SQLite.

use rusqlite::params;
use sprag_lifecycle::RunId;

use super::queries::run_id;
use super::tx::SqliteTx;
use crate::error::Result;
use crate::retention::Retention;

/// What is kept of a run, by the column that names it. Its environments stay: they tell in which repositories there
/// may be something to clean up.
const OF_A_RUN: &[(&str, &str)] = &[
    ("steps", "run"),
    ("executions", "run"),
    ("items", "run"),
    ("gates", "run"),
    ("signals", "run"),
    ("timers", "run"),
    ("refusals", "run"),
    ("task_keys", "run"),
    ("task_needs", "run"),
    ("notes", "run"),
    ("boards", "run"),
    ("places", "run"),
    ("runs", "id"),
];

impl Retention for SqliteTx<'_> {
    fn ended_before(&mut self, wall_ms: i64, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE id > ?1 AND parent_run IS NULL AND ended_ms < ?2 ORDER BY id LIMIT ?3",
            params![after.map_or(-1, RunId::to_i64), wall_ms, limit as i64],
            run_id,
        )
    }

    fn all_children(&mut self, run: RunId) -> Result<Vec<RunId>> {
        self.list("SELECT id FROM runs WHERE parent_run = ?1 ORDER BY id", params![run.to_i64()], run_id)
    }

    fn has_effects(&mut self, run: RunId) -> Result<bool> {
        let found: Vec<i64> =
            self.list("SELECT id FROM outbox WHERE run = ?1 LIMIT 1", params![run.to_i64()], |columns| {
                columns.get(0)
            })?;
        Ok(!found.is_empty())
    }

    fn forget_run(&mut self, run: RunId) -> Result<()> {
        let id = run.to_i64();
        let entries = "SELECT seq FROM journal WHERE run = ?1 AND seq < (SELECT max(seq) FROM journal) \
                       AND seq BETWEEN (SELECT first_seq FROM runs WHERE id = ?1) \
                       AND (SELECT last_seq FROM runs WHERE id = ?1)";
        self.run(&format!("DELETE FROM journal_notes WHERE seq IN ({entries})"), params![id])?;
        self.run(&format!("DELETE FROM journal WHERE seq IN ({entries})"), params![id])?;
        for (table, column) in OF_A_RUN {
            self.run(&format!("DELETE FROM {table} WHERE {column} = ?1"), params![id])?;
        }
        Ok(())
    }

    fn forget_plans(&mut self) -> Result<usize> {
        self.memo.borrow_mut().forget();
        self.run("DELETE FROM plans WHERE hash NOT IN (SELECT plan FROM runs)", &[])
    }
}
