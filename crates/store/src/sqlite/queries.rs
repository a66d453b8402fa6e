//! The queries of operations, answered by SQLite inside a transaction.

use std::sync::Arc;

use rusqlite::{OptionalExtension, Row as Columns, params};
use sprag_lifecycle::{Actor, ExecutionId, Plan, RunId, RunStatus, StepNo, Word, mutant};

use super::memo::{PLANS_KEPT, intern};
use super::stall::LastCommit;
use super::tx::SqliteTx;
use crate::backend::{Backend, Candidate, QueueRow};
use crate::clock::Now;
use crate::error::{Error, Result};
use crate::evaluator::{NoEvaluator, SpecEvaluator};
use crate::memory::REFUSALS_KEPT;
use crate::rows::{
    EnvironmentRow, ExecutionRow, GateRow, Id, JournalEntry, OutboxRow, Position, Refusal, RunRow, StepRow,
    TimerRow, WorkerRow,
};

fn execution_id(columns: &Columns<'_>, first: usize) -> rusqlite::Result<ExecutionId> {
    Ok(ExecutionId {
        run: RunId::from_i64(columns.get(first)?),
        step: columns.get(first + 1)?,
        attempt: columns.get(first + 2)?,
    })
}

pub(super) fn run_id(columns: &Columns<'_>) -> rusqlite::Result<RunId> {
    columns.get(0).map(RunId::from_i64)
}

impl Backend for SqliteTx<'_> {
    fn now(&mut self) -> Now {
        self.clock.now()
    }

    fn lease_is_certain_for_ms(&mut self, left_ms: i64) -> Result<Option<i64>> {
        if !self.clock.prolong_leases {
            return Ok(None);
        }
        let last = self.conn.prepare_cached("SELECT committed_ms, grace_until_ms FROM store_state").and_then(
            |mut statement| {
                statement.query_row([], |columns| {
                    Ok(LastCommit { at_ms: columns.get(0)?, grace_until_ms: columns.get(1)? })
                })
            },
        );
        Ok(self.sql("reading", last)?.certain_ms(self.clock.machine_ms(), left_ms))
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
        self.append_entries(entries)
    }

    fn plan(&mut self, hash: i64) -> Result<Option<Arc<Plan>>> {
        if let Some(plan) = self.memo.borrow().plans.get(&hash) {
            return Ok(Some(Arc::clone(plan)));
        }
        let body: Option<String> = self.sql(
            "reading",
            self.conn
                .query_row("SELECT body FROM plans WHERE hash = ?1", [hash], |columns| columns.get(0))
                .optional(),
        )?;
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
        self.run(
            "INSERT INTO outbox (kind, run, payload, attempts, not_before_ms, error) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                &*row.kind,
                row.run.to_i64(),
                &*row.payload,
                row.attempts,
                row.not_before_ms,
                row.error.as_deref()
            ],
        )
        .map(drop)
    }

    fn outbox_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<OutboxRow>> {
        self.list(
            "SELECT id, kind, run, payload, attempts, not_before_ms, error FROM outbox \
             WHERE not_before_ms <= ?1 ORDER BY id LIMIT ?2",
            params![now_ms, limit as i64],
            |columns| {
                Ok(OutboxRow {
                    id: columns.get(0)?,
                    kind: columns.get(1)?,
                    run: RunId::from_i64(columns.get(2)?),
                    payload: columns.get(3)?,
                    attempts: columns.get(4)?,
                    not_before_ms: columns.get(5)?,
                    error: columns.get(6)?,
                })
            },
        )
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
        let ExecutionId { run, step, attempt } = timer.execution;
        self.run(
            "INSERT OR IGNORE INTO timers (due_ms, run, step, attempt) VALUES (?1, ?2, ?3, ?4)",
            params![timer.due_ms, run.to_i64(), step, attempt],
        )
        .map(drop)
    }

    fn drop_timer(&mut self, execution: ExecutionId) -> Result<()> {
        self.run(
            "DELETE FROM timers WHERE run = ?1 AND step = ?2 AND attempt = ?3",
            params![execution.run.to_i64(), execution.step, execution.attempt],
        )
        .map(drop)
    }

    fn timers_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<TimerRow>> {
        self.list(
            "SELECT due_ms, run, step, attempt FROM timers WHERE due_ms <= ?1 \
             ORDER BY due_ms, run, step, attempt LIMIT ?2",
            params![now_ms, limit as i64],
            |columns| Ok(TimerRow { due_ms: columns.get(0)?, execution: execution_id(columns, 1)? }),
        )
    }

    fn next_due(&mut self) -> Result<Option<i64>> {
        let due = self
            .conn
            .prepare_cached(
                "SELECT min(due) FROM ( \
                     SELECT min(due_ms) AS due FROM timers \
                     UNION ALL SELECT min(lease_until_ms) FROM executions WHERE status = 'running' \
                     UNION ALL SELECT min(not_before_ms) FROM outbox)",
            )
            .and_then(|mut statement| statement.query_row([], |columns| columns.get(0)));
        self.sql("reading", due)
    }

    fn keep_refusal(&mut self, refusal: &Refusal) -> Result<()> {
        let run = refusal.place.run.map_or(0, RunId::to_i64);
        self.run(
            "INSERT INTO refusals (run, at_ms, entity, step, attempt, number, event, actor, reason, detail) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            params![
                run,
                refusal.at_ms,
                refusal.entity,
                refusal.place.step,
                refusal.place.attempt,
                refusal.place.id,
                refusal.event,
                refusal.actor.as_str(),
                refusal.reason,
                refusal.detail
            ],
        )?;
        self.run(
            "DELETE FROM refusals WHERE run = ?1 AND id <= \
                 (SELECT id FROM refusals WHERE run = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
            params![run, REFUSALS_KEPT as i64],
        )
        .map(drop)
    }

    fn refusals(&mut self, run: RunId) -> Result<Vec<Refusal>> {
        self.list(
            "SELECT at_ms, entity, step, attempt, number, event, actor, reason, detail FROM refusals \
             WHERE run = ?1 ORDER BY id",
            params![run.to_i64()],
            |columns| {
                let text = |at: usize| columns.get::<_, String>(at).map(intern);
                Ok(Refusal {
                    at_ms: columns.get(0)?,
                    entity: text(1)?,
                    place: Position {
                        run: Some(run),
                        step: columns.get(2)?,
                        attempt: columns.get(3)?,
                        id: columns.get(4)?,
                    },
                    event: text(5)?,
                    actor: Actor::parse(text(6)?).unwrap_or(Actor::Person),
                    reason: text(7)?,
                    detail: columns.get(8)?,
                })
            },
        )
    }

    fn unsettled(&mut self, run: RunId) -> Result<Vec<StepNo>> {
        self.list(
            "SELECT no FROM steps WHERE run = ?1 \
             AND (status NOT IN ('done', 'failed', 'skipped', 'cancelled') OR rework_pending) ORDER BY no",
            params![run.to_i64()],
            |columns| columns.get(0),
        )
    }

    fn steps(&mut self, run: RunId) -> Result<Vec<StepRow>> {
        self.rows(&Self::select::<StepRow>("WHERE run = ?1 ORDER BY no"), params![run.to_i64()])
    }

    fn item_steps(&mut self, run: RunId, of: StepNo, first: StepNo) -> Result<Vec<StepNo>> {
        self.list(
            "SELECT no FROM steps WHERE run = ?1 AND item_of = ?2 AND no >= ?3 ORDER BY no",
            params![run.to_i64(), of, first],
            |columns| columns.get(0),
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
            |columns| columns.get(0),
        )
    }

    fn last_item_attempt(&mut self, run: RunId, of: StepNo) -> Result<u32> {
        let found = self
            .conn
            .prepare_cached("SELECT coalesce(max(attempt), 0) FROM steps WHERE run = ?1 AND item_of = ?2")
            .and_then(|mut statement| {
                statement.query_row(params![run.to_i64(), of], |columns| columns.get(0))
            });
        self.sql("reading", found)
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
        let found = self
            .conn
            .prepare_cached(
                "SELECT value FROM items WHERE run = ?1 AND step = ?2 AND attempt = ?3 AND no = ?4",
            )
            .and_then(|mut statement| {
                let key = params![of.run.to_i64(), of.step, of.attempt, index];
                statement.query_row(key, |columns| columns.get(0)).optional()
            });
        self.sql("reading", found)
    }

    fn open_gates(&mut self, run: RunId) -> Result<Vec<GateRow>> {
        self.rows(
            &Self::select::<GateRow>("WHERE run = ?1 AND status = 'open' ORDER BY opened_ms, step, attempt"),
            params![run.to_i64()],
        )
    }

    fn environments_of(&mut self, run: RunId) -> Result<Vec<EnvironmentRow>> {
        self.rows(&Self::select::<EnvironmentRow>("WHERE run = ?1 ORDER BY id"), params![run.to_i64()])
    }

    fn environments(&mut self, all: bool) -> Result<Vec<EnvironmentRow>> {
        let wanted = if all { "ORDER BY id" } else { "WHERE status <> 'destroyed' ORDER BY id" };
        self.rows(&Self::select::<EnvironmentRow>(wanted), &[])
    }

    fn put_signal(&mut self, run: RunId, name: &str, payload: &str) -> Result<()> {
        self.run(
            "INSERT INTO signals (run, name, payload) VALUES (?1, ?2, ?3)",
            params![run.to_i64(), name, payload],
        )
        .map(drop)
    }

    fn take_signal(&mut self, run: RunId, name: &str) -> Result<Option<Arc<str>>> {
        let taken = self
            .conn
            .prepare_cached(
                "DELETE FROM signals WHERE id = \
                     (SELECT id FROM signals WHERE run = ?1 AND name = ?2 ORDER BY id LIMIT 1) \
                 RETURNING payload",
            )
            .and_then(|mut statement| {
                statement.query_row(params![run.to_i64(), name], |columns| columns.get(0)).optional()
            });
        self.sql("writing", taken)
    }

    fn children(&mut self, run: RunId) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE parent_run = ?1 \
             AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             ORDER BY id",
            params![run.to_i64()],
            run_id,
        )
    }

    fn executions(&mut self, run: RunId) -> Result<Vec<ExecutionRow>> {
        self.rows(
            &Self::select::<ExecutionRow>("WHERE run = ?1 ORDER BY step, attempt"),
            params![run.to_i64()],
        )
    }

    fn run_by_key(&mut self, key: &str) -> Result<Option<RunId>> {
        let found = self
            .conn
            .prepare_cached("SELECT id FROM runs WHERE idempotency_key = ?1")
            .and_then(|mut statement| statement.query_row([key], run_id).optional());
        self.sql("reading", found)
    }

    fn runs(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunRow>> {
        let words: Vec<String> = statuses.iter().map(|status| format!("'{status}'")).collect();
        let wanted =
            if words.is_empty() { String::new() } else { format!("AND status IN ({})", words.join(", ")) };
        self.rows(
            &Self::select::<RunRow>(&format!(
                "WHERE id < ?1 AND parent_run IS NULL {wanted} ORDER BY id DESC LIMIT ?2"
            )),
            params![before.map_or(i64::MAX, RunId::to_i64), limit as i64],
        )
    }

    fn live_runs(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE id > ?1 AND \
             (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             ORDER BY id LIMIT ?2",
            params![after.map_or(-1, RunId::to_i64), limit as i64],
            run_id,
        )
    }

    fn pinned_runs(&mut self, worker: Id) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE pin = ?1 AND pin <> 0 \
             AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             ORDER BY id",
            params![worker],
            run_id,
        )
    }

    fn pinned_plans(&mut self, worker: Id) -> Result<Vec<i64>> {
        self.list(
            "SELECT DISTINCT plan FROM runs WHERE pin = ?1 AND pin <> 0 \
             AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             ORDER BY plan",
            params![worker],
            |columns| columns.get(0),
        )
    }

    fn orphaned_runs(&mut self, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs INDEXED BY runs_pinned WHERE pin <> 0 \
             AND (status = 'queued' OR status = 'running' OR status = 'failing' OR status = 'cancelling') \
             AND NOT EXISTS (SELECT 1 FROM workers WHERE workers.id = runs.pin AND workers.status <> 'offline') \
             ORDER BY id LIMIT ?1",
            params![limit as i64],
            run_id,
        )
    }

    fn claimable(&mut self, queue: &str, pin: Id, limit: usize) -> Result<Vec<Candidate>> {
        let pin = if mutant!(ReservationIgnored) { 0 } else { pin };
        self.list(
            "SELECT priority, published_ms, run, step, attempt FROM executions \
             WHERE status = 'scheduled' AND queue = ?1 AND pin = ?2 \
             ORDER BY priority DESC, published_ms, run, step, attempt LIMIT ?3",
            params![queue, pin, limit as i64],
            |columns| {
                Ok(Candidate {
                    rank: -columns.get::<_, i32>(0)?,
                    published_ms: columns.get(1)?,
                    execution: execution_id(columns, 2)?,
                })
            },
        )
    }

    fn in_flight(&mut self, queue: &str) -> Result<u32> {
        let count = self
            .conn
            .prepare_cached(
                "SELECT (SELECT count(*) FROM executions WHERE status = 'scheduled' AND queue = ?1) \
                      + (SELECT count(*) FROM executions WHERE status = 'running' AND queue = ?1)",
            )
            .and_then(|mut statement| statement.query_row([queue], |columns| columns.get(0)));
        self.sql("reading", count)
    }

    fn queue(&mut self, name: &str) -> Result<Option<QueueRow>> {
        let found = self
            .conn
            .prepare_cached("SELECT name, maximum, held FROM queues WHERE name = ?1")
            .and_then(|mut statement| {
                statement
                    .query_row([name], |columns| {
                        Ok(QueueRow { name: columns.get(0)?, limit: columns.get(1)?, held: columns.get(2)? })
                    })
                    .optional()
            });
        self.sql("reading", found)
    }

    fn put_queue(&mut self, queue: &QueueRow) -> Result<()> {
        self.run(
            "INSERT INTO queues (name, maximum, held) VALUES (?1, ?2, ?3) \
             ON CONFLICT (name) DO UPDATE SET maximum = excluded.maximum, held = excluded.held",
            params![&*queue.name, queue.limit, queue.held],
        )
        .map(drop)
    }

    fn requested(&mut self, queue: &str, now_ms: i64, limit: usize) -> Result<Vec<ExecutionId>> {
        self.list(
            "SELECT run, step, attempt FROM executions \
             WHERE status = 'requested' AND queue = ?1 AND not_before_ms <= ?2 \
             ORDER BY priority DESC, created_ms, run, step, attempt LIMIT ?3",
            params![queue, now_ms, limit as i64],
            |columns| execution_id(columns, 0),
        )
    }

    fn crowded_queues(&mut self, now_ms: i64) -> Result<Vec<Arc<str>>> {
        self.list(
            "SELECT DISTINCT queue FROM executions \
             WHERE status = 'requested' AND not_before_ms <= ?1 AND NOT cancel_requested ORDER BY queue",
            params![now_ms],
            |columns| columns.get(0),
        )
    }

    fn unclaimed_since(&mut self, before_ms: i64, limit: usize) -> Result<Vec<ExecutionId>> {
        self.list(
            "SELECT run, step, attempt FROM executions WHERE status = 'scheduled' AND lease_until_ms <= ?1 \
             ORDER BY lease_until_ms, run, step, attempt LIMIT ?2",
            params![before_ms, limit as i64],
            |columns| execution_id(columns, 0),
        )
    }

    fn lapsed(&mut self, now_ms: i64, limit: usize) -> Result<Vec<(ExecutionId, u32)>> {
        self.list(
            "SELECT run, step, attempt, fence FROM executions \
             WHERE status = 'running' AND lease_until_ms <= ?1 \
             ORDER BY lease_until_ms, run, step, attempt LIMIT ?2",
            params![now_ms, limit as i64],
            |columns| Ok((execution_id(columns, 0)?, columns.get(3)?)),
        )
    }

    fn held_by(&mut self, worker: Id) -> Result<Vec<ExecutionRow>> {
        self.rows(
            &Self::select::<ExecutionRow>(
                "WHERE status = 'running' AND owner = ?1 ORDER BY run, step, attempt",
            ),
            params![worker],
        )
    }

    fn places(&mut self, group: &str) -> Result<Vec<RunId>> {
        self.list("SELECT run FROM places WHERE grp = ?1 ORDER BY run", params![group], run_id)
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
            run_id,
        )
    }

    fn crowded_groups(&mut self) -> Result<Vec<Arc<str>>> {
        self.list(
            "SELECT DISTINCT grp FROM runs WHERE status = 'queued' AND grp IS NOT NULL ORDER BY grp",
            &[],
            |columns| columns.get(0),
        )
    }

    fn workers(&mut self) -> Result<Vec<WorkerRow>> {
        self.rows(&Self::select::<WorkerRow>("WHERE status <> 'offline' ORDER BY id"), &[])
    }

    fn journal(&mut self, since: u64, run: Option<RunId>, limit: usize) -> Result<Vec<JournalEntry>> {
        self.read_journal(since, run, limit)
    }
}
