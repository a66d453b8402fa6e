//! The queries of operations, answered by SQLite inside a transaction.

use std::sync::{Arc, LazyLock};

use rusqlite::params;
use sprag_lifecycle::{ExecutionId, Plan, RunId, RunStatus, SERVICE_PRIORITY, StepNo, mutant};

use super::memo::PLANS_KEPT;
use super::stall::LastCommit;
use super::tx::SqliteTx;
use crate::backend::{Backend, Candidate, QueueRow};
use crate::clock::Now;
use crate::columns::{Declared, Section};
use crate::error::{Error, Result};
use crate::evaluator::{NoEvaluator, SpecEvaluator};
use crate::memory::REFUSALS_KEPT;
use crate::rows::{
    AccountRow, EnvironmentRow, ExecutionRow, GateRow, Id, JournalEntry, OutboxRow, Refusal, RunRow, StepRow,
    TimerRow, WorkerRow,
};

/// The statement that sets a queue's settings, whether it has some or not.
static PUT_QUEUE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} ON CONFLICT (name) DO UPDATE SET maximum = excluded.maximum, held = excluded.held",
        QueueRow::statements().sqlite.insert
    )
});
static PUT_TIMER: LazyLock<String> =
    LazyLock::new(|| format!("{} ON CONFLICT DO NOTHING", TimerRow::statements().sqlite.insert));

impl Backend for SqliteTx<'_> {
    fn now(&mut self) -> Now {
        self.clock.now()
    }

    fn lease_is_certain_for_ms(&mut self, left_ms: i64) -> Result<Option<i64>> {
        if !self.clock.prolong_leases {
            return Ok(None);
        }
        let last = self.one("SELECT committed_ms, grace_until_ms FROM store_state", &[])?;
        let (at_ms, grace_until_ms) = last.unwrap_or_default();
        Ok(LastCommit { at_ms, grace_until_ms }.certain_ms(self.clock.machine_ms(), left_ms))
    }

    fn random(&mut self) -> u64 {
        self.entropy.next_u64()
    }

    fn evaluator(&self) -> Arc<dyn SpecEvaluator> {
        self.evaluator.get().cloned().unwrap_or_else(|| Arc::new(NoEvaluator))
    }

    fn last_seq(&mut self) -> Result<u64> {
        self.last_entry()
    }

    fn append(&mut self, entries: &[JournalEntry]) -> Result<()> {
        self.append_entries(entries);
        Ok(())
    }

    fn plan(&mut self, hash: i64) -> Result<Option<Arc<Plan>>> {
        if let Some(plan) = self.memo.borrow().plans.get(&hash) {
            return Ok(Some(Arc::clone(plan)));
        }
        let body: Option<String> = self.one("SELECT body FROM plans WHERE hash = ?1", params![hash])?;
        let Some(body) = body else { return Ok(None) };
        let plan: Arc<Plan> = serde_json::from_str(&body).map(Arc::new).map_err(|error| Error::Corrupt {
            path: self.path.to_owned(),
            reason: format!("plan {hash}: {error}"),
        })?;
        let plans = &mut self.memo.borrow_mut().plans;
        if plans.len() >= PLANS_KEPT {
            plans.clear();
        }
        plans.insert(hash, Arc::clone(&plan));
        Ok(Some(plan))
    }

    fn put_plan(&mut self, hash: i64, plan: &Arc<Plan>) -> Result<()> {
        let body = serde_json::to_string(&**plan).expect("a plan is plain data");
        self.run("INSERT OR IGNORE INTO plans (hash, body) VALUES (?1, ?2)", params![hash, body]).map(drop)
    }

    fn put_outbox(&mut self, row: &OutboxRow) -> Result<()> {
        self.add(row)
    }

    fn outbox_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<OutboxRow>> {
        self.rows("WHERE not_before_ms <= ?1 ORDER BY id LIMIT ?2", params![now_ms, limit as i64])
    }

    fn drop_outbox(&mut self, id: i64) -> Result<()> {
        self.run("DELETE FROM outbox WHERE id = ?1", params![id]).map(drop)
    }

    fn postpone_outbox(&mut self, id: i64, not_before_ms: i64, error: &str) -> Result<()> {
        self.run(
            "UPDATE outbox SET attempts = attempts + 1, not_before_ms = ?2, error = ?3 WHERE id = ?1",
            params![id, not_before_ms, error],
        )
        .map(drop)
    }

    fn put_timer(&mut self, timer: &TimerRow) -> Result<()> {
        self.write(&PUT_TIMER, timer, &[Section::Key]).map(drop)
    }

    fn drop_timer(&mut self, execution: ExecutionId) -> Result<()> {
        self.run(
            "DELETE FROM timers WHERE run = ?1 AND step = ?2 AND attempt = ?3",
            params![execution.run.to_i64(), execution.step, execution.attempt],
        )
        .map(drop)
    }

    fn timers_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<TimerRow>> {
        let condition = "WHERE due_ms <= ?1 ORDER BY due_ms, run, step, attempt LIMIT ?2";
        self.rows(condition, params![now_ms, limit as i64])
    }

    fn next_due(&mut self) -> Result<Option<i64>> {
        let due: Option<Option<i64>> = self.one(
            "SELECT min(due) FROM ( \
                 SELECT min(due_ms) AS due FROM timers \
                 UNION ALL SELECT min(lease_until_ms) FROM executions WHERE status = 'running' \
                 UNION ALL SELECT min(not_before_ms) FROM outbox)",
            &[],
        )?;
        Ok(due.flatten())
    }

    fn keep_refusal(&mut self, refusal: &Refusal) -> Result<()> {
        self.put(refusal)?;
        let run = refusal.place.run.map_or(0, RunId::to_i64);
        self.run(
            "DELETE FROM refusals WHERE run = ?1 AND id <= \
                 (SELECT id FROM refusals WHERE run = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
            params![run, REFUSALS_KEPT as i64],
        )
        .map(drop)
    }

    fn refusals(&mut self, run: RunId) -> Result<Vec<Refusal>> {
        self.rows("WHERE run = ?1 ORDER BY id", params![run.to_i64()])
    }

    fn refusals_after(&mut self, after: i64, limit: usize) -> Result<Vec<(i64, Refusal)>> {
        let limit = limit as i64;
        let ids: Vec<i64> =
            self.list("SELECT id FROM refusals WHERE id > ?1 ORDER BY id LIMIT ?2", params![after, limit])?;
        let rows: Vec<Refusal> = self.rows("WHERE id > ?1 ORDER BY id LIMIT ?2", params![after, limit])?;
        Ok(ids.into_iter().zip(rows).collect())
    }

    fn last_refusal(&mut self) -> Result<i64> {
        Ok(self.one("SELECT coalesce(max(id), 0) FROM refusals", &[])?.unwrap_or(0))
    }

    fn unsettled(&mut self, run: RunId) -> Result<Vec<StepNo>> {
        self.list(
            "SELECT no FROM steps WHERE run = ?1 \
             AND (status NOT IN ('done', 'failed', 'skipped', 'cancelled') OR rework_pending) ORDER BY no",
            params![run.to_i64()],
        )
    }

    fn steps(&mut self, run: RunId) -> Result<Vec<StepRow>> {
        self.rows("WHERE run = ?1 ORDER BY no", params![run.to_i64()])
    }

    fn item_steps(&mut self, run: RunId, of: StepNo, first: StepNo) -> Result<Vec<StepNo>> {
        self.list(
            "SELECT no FROM steps WHERE run = ?1 AND item_of = ?2 AND no >= ?3 ORDER BY no",
            params![run.to_i64(), of, first],
        )
    }

    fn waiting_item_steps(
        &mut self,
        run: RunId,
        of: StepNo,
        first: StepNo,
        limit: usize,
    ) -> Result<Vec<StepNo>> {
        self.list(
            "SELECT no FROM steps WHERE run = ?1 AND item_of = ?2 AND no >= ?3 AND status = 'waiting' \
             ORDER BY no LIMIT ?4",
            params![run.to_i64(), of, first, limit as i64],
        )
    }

    fn last_item_attempt(&mut self, run: RunId, of: StepNo) -> Result<u32> {
        let sql = "SELECT coalesce(max(attempt), 0) FROM steps WHERE run = ?1 AND item_of = ?2";
        Ok(self.one(sql, params![run.to_i64(), of])?.unwrap_or(0))
    }

    fn put_items(&mut self, of: ExecutionId, first: u32, values: &[Arc<str>]) -> Result<()> {
        for (no, value) in (first..).zip(values) {
            self.run(
                "INSERT INTO items (run, step, attempt, no, value) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![of.run.to_i64(), of.step, of.attempt, no, &**value],
            )?;
        }
        Ok(())
    }

    fn item(&mut self, of: ExecutionId, index: u32) -> Result<Option<Arc<str>>> {
        self.one(
            "SELECT value FROM items WHERE run = ?1 AND step = ?2 AND attempt = ?3 AND no = ?4",
            params![of.run.to_i64(), of.step, of.attempt, index],
        )
    }

    fn open_gates(&mut self, run: RunId) -> Result<Vec<GateRow>> {
        self.rows(
            "WHERE run = ?1 AND status = 'open' ORDER BY opened_ms, step, attempt",
            params![run.to_i64()],
        )
    }

    fn environments_of(&mut self, run: RunId) -> Result<Vec<EnvironmentRow>> {
        self.rows("WHERE run = ?1 ORDER BY id", params![run.to_i64()])
    }

    fn environments(&mut self, all: bool) -> Result<Vec<EnvironmentRow>> {
        let wanted = if all { "ORDER BY id" } else { "WHERE status <> 'destroyed' ORDER BY id" };
        self.rows(wanted, &[])
    }

    fn put_signal(&mut self, run: RunId, name: &str, payload: &str) -> Result<()> {
        self.run(
            "INSERT INTO signals (run, name, payload) VALUES (?1, ?2, ?3)",
            params![run.to_i64(), name, payload],
        )
        .map(drop)
    }

    fn take_signal(&mut self, run: RunId, name: &str) -> Result<Option<Arc<str>>> {
        self.one(
            "DELETE FROM signals WHERE id = \
                 (SELECT id FROM signals WHERE run = ?1 AND name = ?2 ORDER BY id LIMIT 1) \
             RETURNING payload",
            params![run.to_i64(), name],
        )
    }

    fn children(&mut self, run: RunId) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE parent_run = ?1 \
             AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             ORDER BY id",
            params![run.to_i64()],
        )
    }

    fn executions(&mut self, run: RunId) -> Result<Vec<ExecutionRow>> {
        self.rows("WHERE run = ?1 ORDER BY step, attempt", params![run.to_i64()])
    }

    fn run_by_key(&mut self, key: &str) -> Result<Option<RunId>> {
        self.one("SELECT id FROM runs WHERE idempotency_key = ?1", params![key])
    }

    fn runs(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunRow>> {
        self.rows(&newest_runs(statuses), params![before.map_or(i64::MAX, RunId::to_i64), limit as i64])
    }

    fn run_ids(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunId>> {
        self.list(
            &format!("SELECT id FROM runs {}", newest_runs(statuses)),
            params![before.map_or(i64::MAX, RunId::to_i64), limit as i64],
        )
    }

    fn live_runs(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE id > ?1 AND \
             (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             ORDER BY id LIMIT ?2",
            params![after.map_or(-1, RunId::to_i64), limit as i64],
        )
    }

    fn pinned_runs(&mut self, worker: Id) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE pin = ?1 AND pin <> 0 \
             AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             ORDER BY id",
            params![worker],
        )
    }

    fn pinned_plans(&mut self, worker: Id) -> Result<Vec<i64>> {
        self.list(
            "SELECT DISTINCT plan FROM runs WHERE pin = ?1 AND pin <> 0 \
             AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             ORDER BY plan",
            params![worker],
        )
    }

    fn orphaned_runs(&mut self, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs INDEXED BY runs_pinned WHERE pin <> 0 \
             AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             AND NOT EXISTS (SELECT 1 FROM workers WHERE workers.id = runs.pin AND workers.status <> 'offline') \
             ORDER BY id LIMIT ?1",
            params![limit as i64],
        )
    }

    fn claimable(&mut self, queue: &str, pin: Id, limit: usize) -> Result<Vec<Candidate>> {
        let pin = if mutant!(ReservationIgnored) { 0 } else { pin };
        let found: Vec<(i32, i64, ExecutionId)> = self.list(
            "SELECT priority, published_ms, run, step, attempt FROM executions \
             WHERE status = 'scheduled' AND queue = ?1 AND pin = ?2 \
             ORDER BY priority DESC, published_ms, run, step, attempt LIMIT ?3",
            params![queue, pin, limit as i64],
        )?;
        Ok(found.into_iter().map(Candidate::from).collect())
    }

    fn in_flight(&mut self, queue: &str) -> Result<u32> {
        let sql = "SELECT (SELECT count(*) FROM executions WHERE status = 'scheduled' AND queue = ?1 AND priority <> ?2) \
                 + (SELECT count(*) FROM executions WHERE status = 'running' AND queue = ?1 AND priority <> ?2)";
        Ok(self.one(sql, params![queue, SERVICE_PRIORITY])?.unwrap_or(0))
    }

    fn queue(&mut self, name: &str) -> Result<Option<QueueRow>> {
        Ok(self.rows("WHERE name = ?1", params![name])?.pop())
    }

    fn put_queue(&mut self, queue: &QueueRow) -> Result<()> {
        self.write(&PUT_QUEUE, queue, &Section::ALL).map(drop)
    }

    fn requested(
        &mut self,
        queue: &str,
        now_ms: i64,
        without: &[Id],
        limit: usize,
    ) -> Result<Vec<ExecutionId>> {
        let without: Vec<String> = without.iter().map(Id::to_string).collect();
        self.list(
            &format!(
                "SELECT run, step, attempt FROM executions \
                 WHERE status = 'requested' AND queue = ?1 AND not_before_ms <= ?2 AND account NOT IN ({}) \
                 ORDER BY priority DESC, created_ms, run, step, attempt LIMIT ?3",
                without.join(", ")
            ),
            params![queue, now_ms, limit as i64],
        )
    }

    fn accounts(&mut self) -> Result<Vec<AccountRow>> {
        self.rows("ORDER BY name", &[])
    }

    fn out_of_account(&mut self, account: Id) -> Result<Vec<(ExecutionId, u32)>> {
        self.list(
            "SELECT run, step, attempt, account_generation FROM executions \
             WHERE account = ?1 AND account > 0 AND (status = 'scheduled' OR status = 'running') \
             ORDER BY run, step, attempt",
            params![account],
        )
    }

    fn waiting_for_account(&mut self, account: Id, limit: usize) -> Result<Vec<ExecutionId>> {
        self.list(
            "SELECT run, step, attempt FROM executions \
             WHERE account = ?1 AND account > 0 AND status = 'requested' AND NOT cancel_requested \
             ORDER BY priority DESC, created_ms, run, step, attempt LIMIT ?2",
            params![account, limit as i64],
        )
    }

    fn crowded_queues(&mut self, now_ms: i64) -> Result<Vec<Arc<str>>> {
        self.list(
            "SELECT DISTINCT queue FROM executions \
             WHERE status = 'requested' AND not_before_ms <= ?1 AND NOT cancel_requested ORDER BY queue",
            params![now_ms],
        )
    }

    fn unclaimed_since(&mut self, before_ms: i64, limit: usize) -> Result<Vec<ExecutionId>> {
        self.list(
            "SELECT run, step, attempt FROM executions WHERE status = 'scheduled' AND lease_until_ms <= ?1 \
             ORDER BY lease_until_ms, run, step, attempt LIMIT ?2",
            params![before_ms, limit as i64],
        )
    }

    fn lapsed(&mut self, now_ms: i64, limit: usize) -> Result<Vec<(ExecutionId, u32)>> {
        self.list(
            "SELECT run, step, attempt, fence FROM executions \
             WHERE status = 'running' AND lease_until_ms <= ?1 \
             ORDER BY lease_until_ms, run, step, attempt LIMIT ?2",
            params![now_ms, limit as i64],
        )
    }

    fn held_by(&mut self, worker: Id) -> Result<Vec<ExecutionRow>> {
        self.rows("WHERE status = 'running' AND owner = ?1 ORDER BY run, step, attempt", params![worker])
    }

    fn places(&mut self, group: &str) -> Result<Vec<RunId>> {
        self.list("SELECT run FROM places WHERE grp = ?1 ORDER BY run", params![group])
    }

    fn put_place(&mut self, group: &str, run: RunId) -> Result<()> {
        self.run("INSERT OR IGNORE INTO places (grp, run) VALUES (?1, ?2)", params![group, run.to_i64()])
            .map(drop)
    }

    fn drop_place(&mut self, group: &str, run: RunId) -> Result<()> {
        self.run("DELETE FROM places WHERE grp = ?1 AND run = ?2", params![group, run.to_i64()]).map(drop)
    }

    fn queued(&mut self, group: &str, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE status = 'queued' AND grp = ?1 ORDER BY priority DESC, id LIMIT ?2",
            params![group, limit as i64],
        )
    }

    fn crowded_groups(&mut self) -> Result<Vec<Arc<str>>> {
        self.list(
            "SELECT DISTINCT grp FROM runs WHERE status = 'queued' AND grp IS NOT NULL ORDER BY grp",
            &[],
        )
    }

    fn workers(&mut self) -> Result<Vec<WorkerRow>> {
        self.rows("WHERE status <> 'offline' ORDER BY id", &[])
    }

    fn journal(&mut self, since: u64, run: Option<RunId>, limit: usize) -> Result<Vec<JournalEntry>> {
        self.read_journal(since, run, limit)
    }
}

/// Returns the condition and the order of a list of runs.
fn newest_runs(statuses: &[RunStatus]) -> String {
    let words: Vec<String> = statuses.iter().map(|status| format!("'{status}'")).collect();
    let wanted =
        if words.is_empty() { String::new() } else { format!("AND status IN ({})", words.join(", ")) };
    format!("WHERE id < ?1 AND parent_run IS NULL {wanted} ORDER BY id DESC LIMIT ?2")
}
