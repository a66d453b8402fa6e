//! Forgetting in SQLite.

use std::collections::BTreeSet;

use rusqlite::params;
use sprag_lifecycle::RunId;

use super::journal::LAST_PACK;
use super::tx::SqliteTx;
use crate::error::{Error, Result};
use crate::journal::{MOST_ENTRIES, PackRow};
use crate::retention::{Part, PlansForgotten, Retention, packs_in};
use crate::rows::RunRow;

/// The statements that run together with the deletion of the run's row. They affect few rows, or rows that other
/// operations find by something other than the run.
const WITH_THE_RUN: &[&str] = &[
    "DELETE FROM boards WHERE run = ?1",
    "DELETE FROM timers WHERE run = ?1",
    "DELETE FROM refusals WHERE run = ?1",
    // The group's name is a part of the key.
    "DELETE FROM places WHERE grp = (SELECT grp FROM runs WHERE id = ?1) AND run = ?1",
    "DELETE FROM runs WHERE id = ?1",
    "INSERT OR IGNORE INTO forgotten (run, rows_left) VALUES (?1, 1)",
];

/// Rows of one table that belong to a run.
struct RowsOfRun {
    /// The statement that reads the sizes of the first `?2` rows of run `?1`, in bytes. SQLite reads them without the
    /// values.
    sizes: &'static str,
    /// The statement that removes the first `?2` rows of run `?1`.
    remove: &'static str,
}

macro_rules! rows_of_run {
    ($table:literal, $key:literal, $bytes:literal) => {
        RowsOfRun {
            sizes: concat!(
                "SELECT ",
                $bytes,
                " FROM ",
                $table,
                " WHERE run = ?1 ORDER BY ",
                $key,
                " LIMIT ?2"
            ),
            remove: concat!(
                "DELETE FROM ",
                $table,
                " WHERE run = ?1 AND (",
                $key,
                ") IN (SELECT ",
                $key,
                " FROM ",
                $table,
                " WHERE run = ?1 ORDER BY ",
                $key,
                " LIMIT ?2)"
            ),
        }
    };
}

/// The tables whose rows are deleted afterwards, part by part. The run's environments stay.
const AFTER_THE_RUN: &[RowsOfRun] = &[
    rows_of_run!("steps", "no", "coalesce(octet_length(feedback), 0) + coalesce(octet_length(items), 0)"),
    rows_of_run!("executions", "step, attempt", "coalesce(octet_length(result), 0)"),
    rows_of_run!("items", "step, attempt, no", "octet_length(value)"),
    rows_of_run!("gates", "id", "octet_length(question) + coalesce(octet_length(answer), 0)"),
    rows_of_run!("signals", "name, id", "octet_length(payload)"),
    rows_of_run!("task_keys", "key", "octet_length(key)"),
    rows_of_run!("task_needs", "no, need", "0"),
    rows_of_run!("notes", "id", "octet_length(text)"),
];

impl SqliteTx<'_> {
    /// Returns those of these runs for which a query with one parameter finds a row.
    fn those_with(&self, runs: &[RunId], sql: &str) -> Result<BTreeSet<RunId>> {
        let mut found = BTreeSet::new();
        for run in runs {
            let there = self
                .conn
                .prepare_cached(sql)
                .and_then(|mut statement| statement.exists(params![run.to_i64()]));
            if self.sql("reading", there)? {
                found.insert(*run);
            }
        }
        Ok(found)
    }

    fn put_on_the_list(&self, run: RunId, first_seq: u64, last_seq: u64) -> Result<()> {
        for sql in WITH_THE_RUN {
            self.run(sql, params![run.to_i64()])?;
        }
        self.run(
            "UPDATE store_state SET \
             sweep_from = CASE WHEN sweep_from > sweep_to THEN ?1 ELSE min(sweep_from, ?1) END, \
             sweep_to = CASE WHEN sweep_from > sweep_to THEN ?2 ELSE max(sweep_to, ?2) END",
            params![first_seq as i64, last_seq as i64],
        )
        .map(drop)
    }

    /// Removes rows of one table that belong to a run. Returns whether all of them are gone.
    fn forget_rows_of(&self, rows: &RowsOfRun, run: RunId, left: &mut Part) -> Result<bool> {
        let sizes: Vec<i64> = self.list(rows.sizes, params![run.to_i64(), left.rows as i64])?;
        let fitting = left.take(sizes.iter().copied());
        if fitting > 0 {
            self.run(rows.remove, params![run.to_i64(), fitting as i64])?;
        }
        Ok(fitting == sizes.len() && !left.is_empty())
    }

    /// Keeps only the last entry of the journal's last pack, if a forgotten run has it and it is in this part.
    fn shorten_last_pack(&self, from: i64, to: i64) -> Result<()> {
        let last: Option<PackRow> = self.rows(LAST_PACK, &[])?.pop();
        let Some(pack) = last.filter(|pack| pack.last_seq as i64 >= from && pack.first_seq as i64 <= to)
        else {
            return Ok(());
        };
        let Some(run) = pack.run.filter(|_| pack.first_seq < pack.last_seq) else { return Ok(()) };
        if !self.those_with(&[run], "SELECT 1 FROM runs WHERE id = ?1")?.is_empty() {
            return Ok(());
        }
        let Some(PackRow { last_seq, first_seq, body, .. }) = pack.only_last()? else { return Ok(()) };
        self.run(
            "UPDATE journal_packs SET first_seq = ?2, body = ?3 WHERE last_seq = ?1",
            params![last_seq as i64, first_seq as i64, body],
        )
        .map(drop)
    }

    fn forget_children(&self, run: RunId, most: usize) -> Result<Vec<RunId>> {
        let children: Vec<(RunId, u64, u64)> = self.list(
            "SELECT id, first_seq, last_seq FROM runs WHERE parent_run = ?1 ORDER BY id LIMIT ?2",
            params![run.to_i64(), most as i64],
        )?;
        for (child, first_seq, last_seq) in &children {
            self.put_on_the_list(*child, *first_seq, *last_seq)?;
        }
        Ok(children.into_iter().map(|(child, ..)| child).collect())
    }
}

impl Retention for SqliteTx<'_> {
    fn ended_before(&mut self, wall_ms: i64, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        // A run that was created later cannot have ended before.
        self.list(
            "SELECT id FROM runs WHERE id > ?1 AND id <= ?4 AND parent_run IS NULL AND ended_ms < ?2 \
             ORDER BY id LIMIT ?3",
            params![
                after.map_or(-1, RunId::to_i64),
                wall_ms,
                limit as i64,
                RunId::new(wall_ms, u64::MAX).to_i64()
            ],
        )
    }

    fn all_children(&mut self, runs: &[RunId]) -> Result<Vec<RunId>> {
        let mut children = Vec::new();
        for run in runs {
            let sql = "SELECT id FROM runs WHERE parent_run = ?1 ORDER BY id";
            children.extend(self.list::<RunId>(sql, params![run.to_i64()])?);
        }
        children.sort_unstable();
        Ok(children)
    }

    fn with_environments(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        self.those_with(runs, "SELECT 1 FROM environments WHERE run = ?1 AND status <> 'destroyed'")
    }

    fn with_effects(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        self.those_with(runs, "SELECT 1 FROM outbox WHERE run = ?1")
    }

    fn runs_there(&mut self, runs: &[RunId]) -> Result<BTreeSet<RunId>> {
        self.those_with(runs, "SELECT 1 FROM runs WHERE id = ?1")
    }

    fn forget_runs(&mut self, runs: &[RunRow]) -> Result<()> {
        runs.iter().try_for_each(|run| self.put_on_the_list(run.id, run.first_seq, run.last_seq))
    }

    fn half_forgotten(&mut self, limit: usize) -> Result<Vec<RunId>> {
        let sql = "SELECT run FROM forgotten WHERE rows_left = 1 ORDER BY run LIMIT ?1";
        self.list(sql, params![limit as i64])
    }

    fn forget_rows(&mut self, runs: &[RunId], part: Part) -> Result<Vec<RunId>> {
        let mut left = part;
        let mut children = Vec::new();
        for run in runs {
            let of_run = self.forget_children(*run, left.runs())?;
            let sizes = of_run.iter().flat_map(|_| [0; Part::ROWS_OF_A_RUN]);
            left.take(sizes);
            children.extend(of_run);
            let mut all = !left.is_empty();
            for rows in AFTER_THE_RUN {
                all = all && self.forget_rows_of(rows, *run, &mut left)?;
            }
            if !all {
                break;
            }
            self.run("UPDATE forgotten SET rows_left = 0 WHERE run = ?1", params![run.to_i64()])?;
        }
        Ok(children)
    }

    fn forgotten(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT run FROM forgotten WHERE rows_left = 0 AND run > ?1 ORDER BY run LIMIT ?2",
            params![after.map_or(-1, RunId::to_i64), limit as i64],
        )
    }

    fn drop_forgotten(&mut self, runs: &[RunId]) -> Result<()> {
        for run in runs {
            self.run("DELETE FROM forgotten WHERE run = ?1 AND rows_left = 0", params![run.to_i64()])?;
        }
        Ok(())
    }

    fn forget_entries(&mut self, most: usize) -> Result<bool> {
        let state = self.one("SELECT sweep_from, sweep_to FROM store_state", &[])?;
        let (from, to): (i64, i64) = state.unwrap_or((1, 0));
        if from > to {
            return Ok(false);
        }
        // A pack with an entry of this part ends before this number.
        let end = to.saturating_add(MOST_ENTRIES as i64);
        // Counts existing packs: after earlier removals, consecutive packs may have numbers that are far apart. A
        // limit bounds the work, not a range: with statistics from when the journal was small, SQLite reads a range of
        // it to the end of the journal. At most `MOST_ENTRIES` packs end after this part and before `end`.
        let packs = packs_in(most);
        let sql = "SELECT last_seq, first_seq, run FROM journal_packs WHERE last_seq >= ?1 ORDER BY last_seq LIMIT ?2";
        let mut found: Vec<(i64, i64, Option<i64>)> =
            self.list(sql, params![from, (packs + 1 + MOST_ENTRIES) as i64])?;
        found.retain(|(last_seq, first_seq, _)| *last_seq < end && *first_seq <= to);
        let beyond = found.get(packs).map(|(last_seq, ..)| *last_seq);
        for (last_seq, _, run) in found.iter().take(packs) {
            if let Some(run) = run {
                self.run(
                    "DELETE FROM journal_packs WHERE last_seq = ?1 \
                     AND last_seq < (SELECT max(last_seq) FROM journal_packs) \
                     AND NOT EXISTS (SELECT 1 FROM runs WHERE id = ?2)",
                    params![last_seq, run],
                )?;
            }
        }
        if beyond.is_none() {
            self.shorten_last_pack(from, to)?;
        }
        self.run("UPDATE store_state SET sweep_from = ?1", params![beyond.unwrap_or(to + 1)])?;
        Ok(beyond.is_some())
    }

    fn forget_plans(&mut self, after: Option<i64>, part: Part) -> Result<PlansForgotten> {
        let mut looked_at: Vec<(i64, bool, i64)> = self.list(
            "SELECT hash, EXISTS (SELECT 1 FROM runs WHERE plan = plans.hash), octet_length(body) FROM plans \
             WHERE hash > ?1 OR ?2 ORDER BY hash LIMIT ?3",
            params![after.unwrap_or(0), after.is_none(), part.rows as i64],
        )?;
        let all = looked_at.len() < part.rows;
        let mut left = part;
        let fitting = left.take(looked_at.iter().map(|(_, used, bytes)| if *used { 0 } else { *bytes }));
        let all = all && fitting == looked_at.len();
        looked_at.truncate(fitting);
        let mut gone = 0;
        for (hash, ..) in looked_at.iter().filter(|(_, used, _)| !used) {
            gone += self.run("DELETE FROM plans WHERE hash = ?1", params![hash])?;
        }
        if gone > 0 {
            self.memo.borrow_mut().plans.clear();
            self.run("UPDATE store_state SET plans_removed = plans_removed + 1", &[])?;
        }
        let next = if all { None } else { looked_at.last().map(|(hash, ..)| *hash) };
        Ok(PlansForgotten { gone, next })
    }

    fn store_id(&mut self) -> Result<String> {
        let id = self.one("SELECT value FROM meta WHERE name = 'store_id'", &[])?;
        id.ok_or_else(|| Error::Corrupt {
            path: self.path.to_owned(),
            reason: "it has no name of its own".into(),
        })
    }
}
