//! Forgetting in PostgreSQL.

use sprag_lifecycle::RunId;

use super::queries::run_id;
use super::tx::Tx;
use crate::error::Result;
use crate::retention::Retention;

/// What is kept of a run, and goes with it. Its environments stay: they tell in which repositories there may be
/// something to clean up.
const OF_A_RUN: &[&str] = &[
    "DELETE FROM steps WHERE run = $1",
    "DELETE FROM executions WHERE run = $1",
    "DELETE FROM items WHERE run = $1",
    "DELETE FROM gates WHERE run = $1",
    "DELETE FROM signals WHERE run = $1",
    "DELETE FROM timers WHERE run = $1",
    "DELETE FROM refusals WHERE run = $1",
    "DELETE FROM task_keys WHERE run = $1",
    "DELETE FROM task_needs WHERE run = $1",
    "DELETE FROM notes WHERE run = $1",
    "DELETE FROM boards WHERE run = $1",
    "DELETE FROM places WHERE run = $1",
    "DELETE FROM runs WHERE id = $1",
];

/// The entries of a run, but for the journal's last.
const ENTRIES: &str = "SELECT seq FROM journal WHERE run = $1 AND seq < (SELECT max(seq) FROM journal) \
     AND seq BETWEEN (SELECT first_seq FROM runs WHERE id = $1) AND (SELECT last_seq FROM runs WHERE id = $1)";

const UNUSED_PLANS: &str = "FROM plans WHERE NOT EXISTS (SELECT FROM runs WHERE runs.plan = plans.hash)";

impl Retention for Tx<'_> {
    fn ended_before(&mut self, wall_ms: i64, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE id > $1 AND parent_run IS NULL AND ended_ms < $2 ORDER BY id LIMIT $3",
            vec![after.map_or(-1, RunId::to_i64).into(), wall_ms.into(), limit.into()],
            run_id,
        )
    }

    fn all_children(&mut self, run: RunId) -> Result<Vec<RunId>> {
        let sql = "SELECT id FROM runs WHERE parent_run = $1 ORDER BY id";
        self.list(sql, vec![run.to_i64().into()], run_id)
    }

    fn has_effects(&mut self, run: RunId) -> Result<bool> {
        let sql = "SELECT id FROM outbox WHERE run = $1 LIMIT 1";
        Ok(self.one(sql, vec![run.to_i64().into()], |r| r.int::<i64>())?.is_some())
    }

    fn forget_run(&mut self, run: RunId) -> Result<()> {
        // Like all who write, after the journal's head was taken.
        self.take_head()?;
        for (sql, of) in [("journal_notes", "seq"), ("journal", "seq")] {
            let sql = format!("DELETE FROM {sql} WHERE {of} IN ({ENTRIES})");
            self.ask_for_nothing(&sql, run.to_i64())?;
        }
        for sql in OF_A_RUN {
            self.state.extra(sql, vec![run.to_i64().into()]);
        }
        self.state.runs.known.remove(&run);
        self.state.steps.known.retain(|(of, _), _| *of != run);
        self.state.executions.known.retain(|id, _| id.run != run);
        self.state.whole.remove(&run);
        Ok(())
    }

    /// A run that is made at the same moment with one of them is undone by its foreign key, and keeps the plan anew.
    fn forget_plans(&mut self) -> Result<usize> {
        self.take_head()?;
        self.state.plans.clear();
        self.shared.plans().clear();
        let count = self.one(&format!("SELECT count(*) {UNUSED_PLANS}"), vec![], |r| r.int::<i64>())?;
        self.state.extra(
            "DELETE FROM plans WHERE NOT EXISTS (SELECT FROM runs WHERE runs.plan = plans.hash)",
            vec![],
        );
        Ok(count.unwrap_or(0) as usize)
    }
}

impl Tx<'_> {
    /// Sends a statement at once; the job is then undone with the whole transaction, if it fails.
    fn ask_for_nothing(&mut self, sql: &str, id: i64) -> Result<()> {
        self.list(sql, vec![id.into()], |_| Ok(()))?;
        self.state.job_was_sent = true;
        self.state.wrote = true;
        Ok(())
    }
}
