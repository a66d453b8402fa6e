//! The queries in their order, and the tables without statuses.

use std::sync::{Arc, LazyLock};

use sprag_lifecycle::{ExecutionId, Plan, RunId, RunStatus, SERVICE_PRIORITY, StepNo};

use super::cells::Cell;
use super::tx::Tx;
use crate::backend::{Backend, Candidate, QueueRow};
use crate::clock::Now;
use crate::columns::{Declared, Section};
use crate::error::{Error, Result};
use crate::evaluator::{NoEvaluator, SpecEvaluator};
use crate::memory::REFUSALS_KEPT;
use crate::rows::{
    AccountRow, EnvironmentRow, ExecutionRow, GateRow, Id, JournalEntry, OutboxRow, Refusal, Row, RunRow,
    StepRow, TimerRow, WorkerRow,
};

/// The statement that sets a queue's settings, whether it has some or not.
static PUT_QUEUE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} ON CONFLICT (name) DO UPDATE SET maximum = excluded.maximum, held = excluded.held",
        QueueRow::statements().postgres.insert
    )
});
static PUT_TIMER: LazyLock<String> =
    LazyLock::new(|| format!("{} ON CONFLICT DO NOTHING", TimerRow::statements().postgres.insert));

fn cells_of(id: ExecutionId) -> Vec<Cell<'static>> {
    vec![id.run.to_i64().into(), id.step.into(), id.attempt.into()]
}

impl Backend for Tx<'_> {
    fn now(&mut self) -> Now {
        self.now
    }

    fn random(&mut self) -> u64 {
        self.shared.entropy.next_u64()
    }

    fn evaluator(&self) -> Arc<dyn SpecEvaluator> {
        self.shared.evaluator.get().cloned().unwrap_or_else(|| Arc::new(NoEvaluator))
    }

    fn hold(&mut self, run: RunId) -> Result<()> {
        if self.is_held(run) { Ok(()) } else { Err(self.busy(super::state::Lock::Run(run.to_i64()))) }
    }

    fn is_held(&mut self, run: RunId) -> bool {
        !self.writes || self.state.runs.get(run).is_none_or(|(_, held)| held)
    }

    fn look_later(&mut self, run: RunId, step: StepNo) {
        self.state.staged_later.push((run, step));
    }

    fn last_seq(&mut self) -> Result<u64> {
        if self.writes {
            return self.take_head();
        }
        Ok(self.one("SELECT seq FROM journal_head", vec![])?.unwrap_or(0))
    }

    fn append(&mut self, entries: &[JournalEntry]) -> Result<()> {
        self.state.append(entries);
        Ok(())
    }

    fn plan(&mut self, hash: i64) -> Result<Option<Arc<Plan>>> {
        if let Some(plan) = self.state.plans.get(&hash).cloned().or_else(|| self.shared.plan(hash)) {
            return Ok(Some(plan));
        }
        let found: Option<Arc<str>> =
            self.one("SELECT body FROM plans WHERE hash = $1", vec![hash.into()])?;
        let Some(body) = found else { return Ok(None) };
        let plan: Arc<Plan> = serde_json::from_str(&body).map(Arc::new).map_err(|error| Error::Corrupt {
            path: self.shared.address.path(),
            reason: format!("plan {hash}: {error}"),
        })?;
        // The process caches the plan only if this transaction cannot have inserted it.
        if self.writes {
            self.state.plans.insert(hash, Arc::clone(&plan));
        } else {
            self.shared.keep_plan(self.state.plans_removed, hash, &plan);
        }
        Ok(Some(plan))
    }

    fn put_plan(&mut self, hash: i64, plan: &Arc<Plan>) -> Result<()> {
        // Another transaction may have inserted the plan first. Then this transaction is undone, and the retry finds
        // the plan.
        let body = serde_json::to_string(&**plan).expect("a plan is plain data");
        let sql = "INSERT INTO plans (hash, body) VALUES ($1, $2)";
        self.state.extra(sql, vec![hash.into(), body.into()]);
        self.state.plans.insert(hash, Arc::clone(plan));
        Ok(())
    }

    fn put_outbox(&mut self, row: &OutboxRow) -> Result<()> {
        self.state.add(row);
        Ok(())
    }

    fn outbox_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<OutboxRow>> {
        self.rows("WHERE not_before_ms <= $1 ORDER BY id LIMIT $2", vec![now_ms.into(), limit.into()])
    }

    fn drop_outbox(&mut self, id: i64) -> Result<()> {
        self.state.extra("DELETE FROM outbox WHERE id = $1", vec![id.into()]);
        Ok(())
    }

    fn postpone_outbox(&mut self, id: i64, not_before_ms: i64, error: &str) -> Result<()> {
        self.state.extra(
            "UPDATE outbox SET attempts = attempts + 1, not_before_ms = $2, error = $3 WHERE id = $1",
            vec![id.into(), not_before_ms.into(), error.into()],
        );
        Ok(())
    }

    fn put_timer(&mut self, timer: &TimerRow) -> Result<()> {
        self.state.extra_of(&PUT_TIMER, timer, &[Section::Key]);
        Ok(())
    }

    fn drop_timer(&mut self, execution: ExecutionId) -> Result<()> {
        let sql = "DELETE FROM timers WHERE run = $1 AND step = $2 AND attempt = $3";
        self.state.extra(sql, cells_of(execution));
        Ok(())
    }

    fn timers_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<TimerRow>> {
        let condition = "WHERE due_ms <= $1 ORDER BY due_ms, run, step, attempt LIMIT $2";
        self.rows(condition, vec![now_ms.into(), limit.into()])
    }

    fn next_due(&mut self) -> Result<Option<i64>> {
        let due: Option<Option<i64>> = self.one(
            "SELECT least((SELECT min(due_ms) FROM timers), \
                 (SELECT min(lease_until_ms) FROM executions WHERE status = 'running'), \
                 (SELECT min(not_before_ms) FROM outbox))",
            vec![],
        )?;
        Ok(due.flatten())
    }

    fn keep_refusal(&mut self, refusal: &Refusal) -> Result<()> {
        self.state.put(refusal);
        let run = refusal.place.run.map_or(0, RunId::to_i64);
        // This statement does not wait for another transaction that removes the same rows at the same moment.
        self.state.extra(
            "DELETE FROM refusals WHERE id IN (SELECT id FROM refusals WHERE run = $1 AND id <= \
                 (SELECT id FROM refusals WHERE run = $1 ORDER BY id DESC LIMIT 1 OFFSET $2) \
                 FOR UPDATE SKIP LOCKED)",
            vec![run.into(), REFUSALS_KEPT.into()],
        );
        Ok(())
    }

    fn refusals(&mut self, run: RunId) -> Result<Vec<Refusal>> {
        self.rows("WHERE run = $1 ORDER BY id", vec![run.to_i64().into()])
    }

    fn refusals_after(&mut self, after: i64, limit: usize) -> Result<Vec<(i64, Refusal)>> {
        let range = || vec![after.into(), limit.into()];
        let ids: Vec<i64> =
            self.list("SELECT id FROM refusals WHERE id > $1 ORDER BY id LIMIT $2", range())?;
        let rows: Vec<Refusal> = self.rows("WHERE id > $1 ORDER BY id LIMIT $2", range())?;
        Ok(ids.into_iter().zip(rows).collect())
    }

    fn last_refusal(&mut self) -> Result<i64> {
        Ok(self.one("SELECT coalesce(max(id), 0) FROM refusals", vec![])?.unwrap_or(0))
    }

    fn unsettled(&mut self, run: RunId) -> Result<Vec<StepNo>> {
        if self.state.whole.contains_key(&run) {
            let open = |row: &&StepRow| !row.status().is_settled() || row.rework_pending;
            return Ok(self.known_steps(run).filter(open).map(|row| row.no).collect());
        }
        self.list(
            "SELECT no FROM steps WHERE run = $1 \
             AND (status NOT IN ('done', 'failed', 'skipped', 'cancelled') OR rework_pending) ORDER BY no",
            vec![run.to_i64().into()],
        )
    }

    fn steps(&mut self, run: RunId) -> Result<Vec<StepRow>> {
        if self.state.whole.contains_key(&run) {
            return Ok(self.known_steps(run).cloned().collect());
        }
        self.rows("WHERE run = $1 ORDER BY no", vec![run.to_i64().into()])
    }

    fn item_steps(&mut self, run: RunId, of: StepNo, first: StepNo) -> Result<Vec<StepNo>> {
        self.list(
            "SELECT no FROM steps WHERE run = $1 AND item_of = $2 AND no >= $3 ORDER BY no",
            vec![run.to_i64().into(), of.into(), first.into()],
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
            "SELECT no FROM steps WHERE run = $1 AND item_of = $2 AND no >= $3 AND status = 'waiting' \
             ORDER BY no LIMIT $4",
            vec![run.to_i64().into(), of.into(), first.into(), limit.into()],
        )
    }

    fn last_item_attempt(&mut self, run: RunId, of: StepNo) -> Result<u32> {
        let last = self.one(
            "SELECT coalesce(max(attempt), 0) FROM steps WHERE run = $1 AND item_of = $2",
            vec![run.to_i64().into(), of.into()],
        )?;
        Ok(last.unwrap_or(0))
    }

    fn put_items(&mut self, of: ExecutionId, first: u32, values: &[Arc<str>]) -> Result<()> {
        for (no, value) in (first..).zip(values) {
            let mut cells = cells_of(of);
            cells.extend([no.into(), (&**value).into()]);
            self.state.extra(
                "INSERT INTO items (run, step, attempt, no, value) VALUES ($1, $2, $3, $4, $5)",
                cells,
            );
            self.state.items.insert((of, no), Arc::clone(value));
        }
        Ok(())
    }

    fn item(&mut self, of: ExecutionId, index: u32) -> Result<Option<Arc<str>>> {
        if let Some(value) = self.state.items.get(&(of, index)) {
            return Ok(Some(Arc::clone(value)));
        }
        let mut cells = cells_of(of);
        cells.push(index.into());
        self.one("SELECT value FROM items WHERE run = $1 AND step = $2 AND attempt = $3 AND no = $4", cells)
    }

    fn open_gates(&mut self, run: RunId) -> Result<Vec<GateRow>> {
        let condition = "WHERE run = $1 AND status = 'open' ORDER BY opened_ms, step, attempt";
        self.rows(condition, vec![run.to_i64().into()])
    }

    fn environments_of(&mut self, run: RunId) -> Result<Vec<EnvironmentRow>> {
        self.rows("WHERE run = $1 ORDER BY id", vec![run.to_i64().into()])
    }

    fn environments(&mut self, all: bool) -> Result<Vec<EnvironmentRow>> {
        self.rows(if all { "ORDER BY id" } else { "WHERE status <> 'destroyed' ORDER BY id" }, vec![])
    }

    fn put_signal(&mut self, run: RunId, name: &str, payload: &str) -> Result<()> {
        self.state.extra(
            "INSERT INTO signals (run, name, payload) VALUES ($1, $2, $3)",
            vec![run.to_i64().into(), name.into(), payload.into()],
        );
        Ok(())
    }

    fn take_signal(&mut self, run: RunId, name: &str) -> Result<Option<Arc<str>>> {
        let kept: Vec<(i64, Arc<str>)> = self.list(
            "SELECT id, payload FROM signals WHERE run = $1 AND name = $2 ORDER BY id",
            vec![run.to_i64().into(), name.into()],
        )?;
        let Some((id, payload)) = kept.into_iter().find(|(id, _)| !self.state.signals_taken.contains(id))
        else {
            return Ok(None);
        };
        self.state.signals_taken.insert(id);
        self.state.extra("DELETE FROM signals WHERE id = $1", vec![id.into()]);
        Ok(Some(payload))
    }

    fn children(&mut self, run: RunId) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE parent_run = $1 \
             AND status IN ('queued', 'running', 'failing', 'cancelling') ORDER BY id",
            vec![run.to_i64().into()],
        )
    }

    fn executions(&mut self, run: RunId) -> Result<Vec<ExecutionRow>> {
        self.rows("WHERE run = $1 ORDER BY step, attempt", vec![run.to_i64().into()])
    }

    fn run_by_key(&mut self, key: &str) -> Result<Option<RunId>> {
        self.one("SELECT id FROM runs WHERE idempotency_key = $1", vec![key.into()])
    }

    fn runs(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunRow>> {
        self.rows(&newest_runs(statuses), vec![before.map_or(i64::MAX, RunId::to_i64).into(), limit.into()])
    }

    fn run_ids(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunId>> {
        self.list(
            &format!("SELECT id FROM runs {}", newest_runs(statuses)),
            vec![before.map_or(i64::MAX, RunId::to_i64).into(), limit.into()],
        )
    }

    fn live_runs(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE id > $1 AND status IN ('queued', 'running', 'failing', 'cancelling') \
             ORDER BY id LIMIT $2",
            vec![after.map_or(-1, RunId::to_i64).into(), limit.into()],
        )
    }

    fn pinned_runs(&mut self, worker: Id) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE pin = $1 AND pin <> 0 \
             AND status IN ('queued', 'running', 'failing', 'cancelling') ORDER BY id",
            vec![worker.into()],
        )
    }

    fn pinned_plans(&mut self, worker: Id) -> Result<Vec<i64>> {
        self.list(
            "SELECT DISTINCT plan FROM runs WHERE pin = $1 AND pin <> 0 \
             AND status IN ('queued', 'running', 'failing', 'cancelling') ORDER BY plan",
            vec![worker.into()],
        )
    }

    fn orphaned_runs(&mut self, limit: usize) -> Result<Vec<RunId>> {
        self.list(
            "SELECT id FROM runs WHERE pin <> 0 AND status IN ('queued', 'running', 'failing', 'cancelling') \
             AND NOT EXISTS (SELECT FROM workers WHERE workers.id = runs.pin AND workers.status <> 'offline') \
             ORDER BY id LIMIT $1",
            vec![limit.into()],
        )
    }

    fn claimable(&mut self, queue: &str, pin: Id, limit: usize) -> Result<Vec<Candidate>> {
        if self.writes {
            self.hold_claimable(queue, pin, limit)
        } else {
            self.look_at_claimable(queue, pin, limit)
        }
    }

    fn in_flight(&mut self, queue: &str) -> Result<u32> {
        let sql = "SELECT (SELECT count(*) FROM executions WHERE status = 'scheduled' AND queue = $1 AND priority <> $2) \
                 + (SELECT count(*) FROM executions WHERE status = 'running' AND queue = $1 AND priority <> $2)";
        Ok(self.one(sql, vec![queue.into(), SERVICE_PRIORITY.into()])?.unwrap_or(0))
    }

    fn queue(&mut self, name: &str) -> Result<Option<QueueRow>> {
        if let Some(queues) = &self.state.queues
            && !queues.contains_key(name)
        {
            return Ok(None);
        }
        // Only one transaction at a time may ask about a queue with a limit.
        let condition = "WHERE name = $1";
        if self.rows::<QueueRow>(condition, vec![name.into()])?.is_empty() {
            return Ok(None);
        }
        self.hold_name("queue", name)?;
        Ok(self.rows(condition, vec![name.into()])?.pop())
    }

    fn put_queue(&mut self, queue: &QueueRow) -> Result<()> {
        self.hold_name("queue", &queue.name)?;
        self.state.queues = None;
        self.state.extra_of(&PUT_QUEUE, queue, &Section::ALL);
        Ok(())
    }

    fn requested(
        &mut self,
        queue: &str,
        now_ms: i64,
        without: &[Id],
        limit: usize,
    ) -> Result<Vec<ExecutionId>> {
        self.list(
            "SELECT run, step, attempt FROM executions \
             WHERE status = 'requested' AND queue = $1 AND not_before_ms <= $2 AND account <> ALL($3) \
             ORDER BY priority DESC, created_ms, run, step, attempt LIMIT $4",
            vec![queue.into(), now_ms.into(), without.to_vec().into(), limit.into()],
        )
    }

    fn accounts(&mut self) -> Result<Vec<AccountRow>> {
        self.rows("ORDER BY name COLLATE \"C\"", Vec::new())
    }

    fn out_of_account(&mut self, account: Id) -> Result<Vec<(ExecutionId, u32)>> {
        self.list(
            "SELECT run, step, attempt, account_generation FROM executions \
             WHERE account = $1 AND account > 0 AND status IN ('scheduled', 'running') \
             ORDER BY run, step, attempt",
            vec![account.into()],
        )
    }

    fn waiting_for_account(&mut self, account: Id, limit: usize) -> Result<Vec<ExecutionId>> {
        self.list(
            "SELECT run, step, attempt FROM executions \
             WHERE account = $1 AND account > 0 AND status = 'requested' AND NOT cancel_requested \
             ORDER BY priority DESC, created_ms, run, step, attempt LIMIT $2",
            vec![account.into(), limit.into()],
        )
    }

    fn crowded_queues(&mut self, now_ms: i64) -> Result<Vec<Arc<str>>> {
        self.list(
            "SELECT DISTINCT queue FROM executions \
             WHERE status = 'requested' AND not_before_ms <= $1 AND NOT cancel_requested ORDER BY queue",
            vec![now_ms.into()],
        )
    }

    fn unclaimed_since(&mut self, before_ms: i64, limit: usize) -> Result<Vec<ExecutionId>> {
        self.list(
            "SELECT run, step, attempt FROM executions WHERE status = 'scheduled' AND lease_until_ms <= $1 \
             ORDER BY lease_until_ms, run, step, attempt LIMIT $2",
            vec![before_ms.into(), limit.into()],
        )
    }

    fn lapsed(&mut self, now_ms: i64, limit: usize) -> Result<Vec<(ExecutionId, u32)>> {
        self.list(
            "SELECT run, step, attempt, fence FROM executions \
             WHERE status = 'running' AND lease_until_ms <= $1 \
             ORDER BY lease_until_ms, run, step, attempt LIMIT $2",
            vec![now_ms.into(), limit.into()],
        )
    }

    fn held_by(&mut self, worker: Id) -> Result<Vec<ExecutionRow>> {
        let condition = "WHERE status = 'running' AND owner = $1 ORDER BY run, step, attempt";
        self.rows(condition, vec![worker.into()])
    }

    fn places(&mut self, group: &str) -> Result<Vec<RunId>> {
        self.hold_name("group", group)?;
        self.list("SELECT run FROM places WHERE grp = $1 ORDER BY run", vec![group.into()])
    }

    fn put_place(&mut self, group: &str, run: RunId) -> Result<()> {
        self.state.extra(
            "INSERT INTO places (grp, run) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            vec![group.into(), run.to_i64().into()],
        );
        Ok(())
    }

    fn drop_place(&mut self, group: &str, run: RunId) -> Result<()> {
        let sql = "DELETE FROM places WHERE grp = $1 AND run = $2";
        self.state.extra(sql, vec![group.into(), run.to_i64().into()]);
        Ok(())
    }

    fn queued(&mut self, group: &str, limit: usize) -> Result<Vec<RunId>> {
        self.hold_name("group", group)?;
        self.list(
            "SELECT id FROM runs WHERE status = 'queued' AND grp = $1 ORDER BY priority DESC, id LIMIT $2",
            vec![group.into(), limit.into()],
        )
    }

    fn crowded_groups(&mut self) -> Result<Vec<Arc<str>>> {
        let sql = "SELECT DISTINCT grp FROM runs WHERE status = 'queued' AND grp IS NOT NULL ORDER BY grp";
        self.list(sql, vec![])
    }

    fn workers(&mut self) -> Result<Vec<WorkerRow>> {
        self.rows("WHERE status <> 'offline' ORDER BY id", vec![])
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
    format!("WHERE id < $1 AND parent_run IS NULL {wanted} ORDER BY id DESC LIMIT $2")
}
