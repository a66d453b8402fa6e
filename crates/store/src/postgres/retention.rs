//! Forgetting in PostgreSQL.
//!
//! It takes the rows of runs that have ended and that it holds. So it waits for no writer, and does not take the
//! journal's head: live steps commit beside it.

use std::collections::BTreeSet;

use sprag_lifecycle::RunId;

use super::cells::Cell;
use super::tx::{Tx, held};
use super::wire::Ask;
use crate::columns::Value;
use crate::error::{Error, Result};
use crate::journal::{MOST_ENTRIES, PackRow};
use crate::retention::{Part, PlansForgotten, Retention, packs_in};
use crate::rows::{Row, RunRow};

/// The statements that run together with the deletion of the runs' rows. They affect few rows, or rows that other
/// operations find by something other than the run.
const WITH_THE_RUNS: &[&str] = &[
    "DELETE FROM boards WHERE run = ANY($1)",
    "DELETE FROM timers WHERE run = ANY($1)",
    "DELETE FROM refusals WHERE run = ANY($1)",
    // The group's name is a part of the key.
    "DELETE FROM places USING runs WHERE runs.id = ANY($1) AND places.grp = runs.grp AND places.run = runs.id",
    "UPDATE store_state SET \
     sweep_from = CASE WHEN sweep_from > sweep_to THEN r.first ELSE least(sweep_from, r.first) END, \
     sweep_to = CASE WHEN sweep_from > sweep_to THEN r.last ELSE greatest(sweep_to, r.last) END \
     FROM (SELECT min(first_seq) AS first, max(last_seq) AS last FROM runs WHERE id = ANY($1)) AS r \
     WHERE r.first IS NOT NULL",
    "DELETE FROM runs WHERE id = ANY($1)",
    "INSERT INTO forgotten (run, rows_left) SELECT unnest($1::bigint[]), true ON CONFLICT DO NOTHING",
];

/// The statements that run afterwards, each on at most `$2` rows at once. The runs' environments stay.
const AFTER_THE_RUNS: &[&str] = &[
    "WITH gone AS (DELETE FROM steps WHERE ctid = ANY(ARRAY( \
     SELECT ctid FROM steps WHERE run = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
    "WITH gone AS (DELETE FROM executions WHERE ctid = ANY(ARRAY( \
     SELECT ctid FROM executions WHERE run = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
    "WITH gone AS (DELETE FROM items WHERE ctid = ANY(ARRAY( \
     SELECT ctid FROM items WHERE run = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
    "WITH gone AS (DELETE FROM gates WHERE ctid = ANY(ARRAY( \
     SELECT ctid FROM gates WHERE run = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
    "WITH gone AS (DELETE FROM signals WHERE ctid = ANY(ARRAY( \
     SELECT ctid FROM signals WHERE run = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
    "WITH gone AS (DELETE FROM task_keys WHERE ctid = ANY(ARRAY( \
     SELECT ctid FROM task_keys WHERE run = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
    "WITH gone AS (DELETE FROM task_needs WHERE ctid = ANY(ARRAY( \
     SELECT ctid FROM task_needs WHERE run = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
    "WITH gone AS (DELETE FROM notes WHERE ctid = ANY(ARRAY( \
     SELECT ctid FROM notes WHERE run = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
];

fn ids<'a>(runs: &[RunId]) -> Cell<'a> {
    Cell::from(runs.iter().map(|run| run.to_i64()).collect::<Vec<i64>>())
}

impl Tx<'_> {
    /// Sends statements at once. If the job fails afterwards, the whole transaction is undone.
    fn send_now(&mut self, asks: Vec<Ask<'_>>) -> Result<Vec<i64>> {
        let answers = self.ask(asks, "writing")?;
        self.state.job_was_sent = true;
        self.state.wrote = true;
        let number = |rows: &Vec<tokio_postgres::Row>| rows.first().and_then(|row| row.try_get(0).ok());
        Ok(answers.iter().map(|rows| number(rows).unwrap_or(0)).collect())
    }

    fn put_on_the_list(&mut self, runs: &[RunId]) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        let asks = WITH_THE_RUNS.iter().map(|sql| Ask::new(sql, [ids(runs)]));
        self.send_now(asks.collect())?;
        self.state.runs.known.retain(|run, _| !runs.contains(run));
        self.state.steps.known.retain(|(of, _), _| !runs.contains(of));
        self.state.executions.known.retain(|id, _| !runs.contains(&id.run));
        self.state.whole.retain(|run, _| !runs.contains(run));
        Ok(())
    }

    /// Keeps only the last entry of the journal's last pack, if a forgotten run has it and it is in this part.
    fn shorten_last_pack(&mut self, from: i64, to: i64) -> Result<()> {
        let last = "WHERE run IS NOT NULL AND first_seq < last_seq AND last_seq >= $1 AND first_seq <= $2 \
                    AND last_seq = (SELECT max(last_seq) FROM journal_packs) \
                    AND NOT EXISTS (SELECT FROM runs WHERE id = journal_packs.run)";
        let Some(pack) = self.rows::<PackRow>(last, vec![from.into(), to.into()])?.pop() else {
            return Ok(());
        };
        let Some(PackRow { last_seq, first_seq, body, .. }) = pack.only_last()? else { return Ok(()) };
        let sql = "UPDATE journal_packs SET first_seq = $2, body = $3 WHERE last_seq = $1";
        let body = Value::Bytes(body.into());
        let cells = [Cell::from(last_seq), Cell::from(first_seq), Cell::One(body)];
        self.send_now(vec![Ask::new(sql, cells)]).map(drop)
    }

    fn those_with(&mut self, runs: &[RunId], sql: &str) -> Result<BTreeSet<RunId>> {
        Ok(self.list(sql, vec![ids(runs)])?.into_iter().collect())
    }
}

impl Retention for Tx<'_> {
    fn ended_before(&mut self, wall_ms: i64, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        // A run that was created later cannot have ended before.
        let born_by = RunId::new(wall_ms, u64::MAX).to_i64();
        self.list(
            "SELECT id FROM runs WHERE id > $1 AND id <= $4 AND parent_run IS NULL AND ended_ms < $2 \
             ORDER BY id LIMIT $3",
            vec![after.map_or(-1, RunId::to_i64).into(), wall_ms.into(), limit.into(), born_by.into()],
        )
    }

    fn all_children(&mut self, runs: &[RunId]) -> Result<Vec<RunId>> {
        self.list("SELECT id FROM runs WHERE parent_run = ANY($1) ORDER BY id", vec![ids(runs)])
    }

    fn with_environments(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        self.those_with(runs, "SELECT run FROM environments WHERE run = ANY($1) AND status <> 'destroyed'")
    }

    fn with_effects(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        self.those_with(runs, "SELECT run FROM outbox WHERE run = ANY($1)")
    }

    fn runs_there(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        self.those_with(runs, "SELECT id FROM runs WHERE id = ANY($1)")
    }

    fn prefetch_runs(&mut self, runs: &[RunId]) -> Result<()> {
        let sql = held::<RunRow>("id = ANY($1) ORDER BY id");
        let answers = self.ask(vec![Ask::new(&sql, [ids(runs)])], "reading")?;
        self.learn_all::<RunRow>(&answers[0], true);
        Ok(())
    }

    fn forget_runs(&mut self, runs: &[RunRow]) -> Result<()> {
        let runs: Vec<RunId> = runs.iter().map(Row::key).collect();
        self.put_on_the_list(&runs)
    }

    fn half_forgotten(&mut self, limit: usize) -> Result<Vec<RunId>> {
        let hold = if self.writes { "FOR UPDATE SKIP LOCKED" } else { "" };
        let sql = format!("SELECT run FROM forgotten WHERE rows_left ORDER BY run LIMIT $1 {hold}");
        self.list(&sql, vec![limit.into()])
    }

    fn forget_rows(&mut self, runs: &[RunId], part: Part) -> Result<Vec<RunId>> {
        // One round trip asks all tables. Each table gets its share of the part, and so do the runs.
        let most = part.rows / (AFTER_THE_RUNS.len() + 1);
        let sql = "SELECT id FROM runs WHERE parent_run = ANY($1) ORDER BY id LIMIT $2";
        let most_runs = most.div_ceil(Part::ROWS_OF_A_RUN);
        let children = self.list(sql, vec![ids(runs), most_runs.into()])?;
        self.put_on_the_list(&children)?;
        let asks = AFTER_THE_RUNS.iter().map(|sql| Ask::new(sql, [ids(runs), most.into()]));
        let counts = self.send_now(asks.collect())?;
        if children.len() < most_runs && counts.into_iter().all(|count| count < most as i64) {
            let sql = "UPDATE forgotten SET rows_left = false WHERE run = ANY($1)";
            self.send_now(vec![Ask::new(sql, [ids(runs)])])?;
        }
        Ok(children)
    }

    fn forgotten(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        let sql = "SELECT run FROM forgotten WHERE NOT rows_left AND run > $1 ORDER BY run LIMIT $2";
        self.list(sql, vec![after.map_or(-1, RunId::to_i64).into(), limit.into()])
    }

    fn drop_forgotten(&mut self, runs: &[RunId]) -> Result<()> {
        let sql = "DELETE FROM forgotten WHERE run = ANY($1) AND NOT rows_left";
        self.send_now(vec![Ask::new(sql, [ids(runs)])]).map(drop)
    }

    fn forget_entries(&mut self, most: usize) -> Result<bool> {
        let state = self.one("SELECT sweep_from, sweep_to FROM store_state FOR UPDATE", vec![])?;
        let (from, to): (i64, i64) = state.unwrap_or((1, 0));
        if from > to {
            return Ok(false);
        }
        // A pack with an entry of this part ends before this number.
        let end = to.saturating_add(MOST_ENTRIES as i64);
        // Counts existing packs: after earlier removals, consecutive packs may have numbers that are far apart.
        let sql = "SELECT last_seq FROM journal_packs WHERE last_seq >= $1 AND last_seq < $2 AND first_seq <= $3 \
                   ORDER BY last_seq LIMIT 1 OFFSET $4";
        let cells = vec![from.into(), end.into(), to.into(), packs_in(most).into()];
        let beyond: Option<i64> = self.one(sql, cells)?;
        self.send_now(vec![
            Ask::new(
                "DELETE FROM journal_packs WHERE last_seq >= $1 AND first_seq <= $2 AND last_seq < $3 \
                 AND run IS NOT NULL AND last_seq < (SELECT max(last_seq) FROM journal_packs) \
                 AND NOT EXISTS (SELECT FROM runs WHERE id = journal_packs.run)",
                [Cell::from(from), Cell::from(to), Cell::from(beyond.unwrap_or(end))],
            ),
            Ask::new("UPDATE store_state SET sweep_from = $1", [Cell::from(beyond.unwrap_or(to + 1))]),
        ])?;
        if beyond.is_none() {
            self.shorten_last_pack(from, to)?;
        }
        Ok(beyond.is_some())
    }

    /// Removes unused plans. If a run with one of these plans is created at the same moment, its foreign key undoes
    /// that transaction, and the retry stores the plan again.
    fn forget_plans(&mut self, after: Option<i64>, part: Part) -> Result<PlansForgotten> {
        let looked_at: Vec<(i64, bool)> = self.list(
            "SELECT hash, EXISTS (SELECT FROM runs WHERE runs.plan = plans.hash) FROM plans \
             WHERE hash > $1 OR $2 ORDER BY hash LIMIT $3",
            vec![after.unwrap_or(0).into(), after.is_none().into(), part.rows.into()],
        )?;
        let unused: Vec<i64> = looked_at.iter().filter(|(_, used)| !used).map(|(hash, _)| *hash).collect();
        let next = if looked_at.len() < part.rows { None } else { looked_at.last().map(|(hash, _)| *hash) };
        if unused.is_empty() {
            return Ok(PlansForgotten { gone: 0, next });
        }
        self.state.plans.clear();
        self.shared.plans().clear();
        let gone = self.send_now(vec![
            Ask::new(
                "WITH gone AS (DELETE FROM plans WHERE hash = ANY($1) \
                 AND NOT EXISTS (SELECT FROM runs WHERE runs.plan = plans.hash) RETURNING 1) \
                 SELECT count(*) FROM gone",
                [Cell::from(unused)],
            ),
            Ask::plain("UPDATE store_state SET plans_removed = plans_removed + 1"),
        ])?;
        Ok(PlansForgotten { gone: gone[0] as usize, next })
    }

    fn store_id(&mut self) -> Result<String> {
        let found = self.one("SELECT value FROM meta WHERE name = 'store_id'", vec![])?;
        found.ok_or_else(|| Error::Corrupt {
            path: self.shared.address.path(),
            reason: "it has no name of its own".into(),
        })
    }
}
