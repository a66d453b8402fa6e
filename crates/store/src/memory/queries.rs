//! The queries of operations, answered by the store in memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use sprag_lifecycle::{
    EnvironmentStatus, ExecutionId, ExecutionStatus, GateStatus, Plan, RunId, RunStatus, SERVICE_PRIORITY,
    StepNo, StepStatus, WorkerStatus,
};

use super::{MemoryTx, REFUSALS_KEPT};
use crate::backend::{Backend, Candidate, QueueRow};
use crate::clock::Now;
use crate::error::Result;
use crate::evaluator::SpecEvaluator;
use crate::rows::{
    AccountRow, EnvironmentRow, ExecutionRow, GateRow, Id, JournalEntry, OutboxRow, Refusal, Row, RunRow,
    StepRow, TimerRow, WorkerRow,
};

fn is_open(status: ExecutionStatus) -> bool {
    matches!(status, ExecutionStatus::Scheduled | ExecutionStatus::Running)
}

impl Backend for MemoryTx<'_> {
    fn now(&mut self) -> Now {
        self.now
    }

    fn random(&mut self) -> u64 {
        (self.random)()
    }

    fn evaluator(&self) -> Arc<dyn SpecEvaluator> {
        Arc::clone(&self.tables.evaluator.0)
    }

    fn last_seq(&mut self) -> Result<u64> {
        Ok(self.tables.journal.last().map_or(0, |entry| entry.seq))
    }

    fn append(&mut self, entries: &[JournalEntry]) -> Result<()> {
        let before = self.tables.journal.len();
        self.tables.journal.extend_from_slice(entries);
        self.undo.push(Box::new(move |tables| tables.journal.truncate(before)));
        Ok(())
    }

    fn plan(&mut self, hash: i64) -> Result<Option<Arc<Plan>>> {
        Ok(self.tables.plans.get(&hash).cloned())
    }

    fn put_plan(&mut self, hash: i64, plan: &Arc<Plan>) -> Result<()> {
        // A plan is stored under the hash of its content, so keeping it does no harm when the operation fails.
        self.tables.plans.insert(hash, Arc::clone(plan));
        Ok(())
    }

    fn put_outbox(&mut self, row: &OutboxRow) -> Result<()> {
        self.tables.outbox_last += 1;
        let id = self.tables.outbox_last;
        self.tables.outbox.insert(id, OutboxRow { id, ..row.clone() });
        self.undo.push(Box::new(move |tables| {
            tables.outbox.remove(&id);
            tables.outbox_last = id - 1;
        }));
        Ok(())
    }

    fn outbox_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<OutboxRow>> {
        let due = self.tables.outbox.values().filter(|row| row.not_before_ms <= now_ms);
        Ok(due.take(limit).cloned().collect())
    }

    fn drop_outbox(&mut self, id: i64) -> Result<()> {
        if let Some(row) = self.tables.outbox.remove(&id) {
            self.undo.push(Box::new(move |tables| {
                tables.outbox.insert(id, row);
            }));
        }
        Ok(())
    }

    fn postpone_outbox(&mut self, id: i64, not_before_ms: i64, error: &str) -> Result<()> {
        if let Some(row) = self.tables.outbox.get_mut(&id) {
            let before = row.clone();
            self.undo.push(Box::new(move |tables| {
                tables.outbox.insert(id, before);
            }));
            row.attempts += 1;
            row.not_before_ms = not_before_ms;
            row.error = Some(error.into());
        }
        Ok(())
    }

    fn put_timer(&mut self, timer: &TimerRow) -> Result<()> {
        let timer = *timer;
        if self.tables.timers.insert(timer) {
            self.undo.push(Box::new(move |tables| {
                tables.timers.remove(&timer);
            }));
        }
        Ok(())
    }

    fn drop_timer(&mut self, execution: ExecutionId) -> Result<()> {
        let gone: Vec<TimerRow> =
            self.tables.timers.iter().filter(|timer| timer.execution == execution).copied().collect();
        for timer in gone {
            self.tables.timers.remove(&timer);
            self.undo.push(Box::new(move |tables| {
                tables.timers.insert(timer);
            }));
        }
        Ok(())
    }

    fn timers_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<TimerRow>> {
        Ok(self
            .tables
            .timers
            .iter()
            .take_while(|timer| timer.due_ms <= now_ms)
            .take(limit)
            .copied()
            .collect())
    }

    fn next_due(&mut self) -> Result<Option<i64>> {
        let timer = self.tables.timers.first().map(|timer| timer.due_ms);
        let running = self.tables.executions.values().filter(|row| row.status() == ExecutionStatus::Running);
        let lease = running.map(|row| row.lease_until_ms).min();
        let outbox = self.tables.outbox.values().map(|row| row.not_before_ms).min();
        Ok([timer, lease, outbox].into_iter().flatten().min())
    }

    fn keep_refusal(&mut self, refusal: &Refusal) -> Result<()> {
        self.tables.refusal_last += 1;
        let id = self.tables.refusal_last;
        let kept = self.tables.refusals.entry(refusal.place.run).or_default();
        kept.push_back((id, refusal.clone()));
        if kept.len() > REFUSALS_KEPT {
            kept.pop_front();
        }
        Ok(())
    }

    fn refusals(&mut self, run: RunId) -> Result<Vec<Refusal>> {
        let kept = self.tables.refusals.get(&Some(run)).into_iter().flatten();
        Ok(kept.map(|(_, refusal)| refusal.clone()).collect())
    }

    fn refusals_after(&mut self, after: i64, limit: usize) -> Result<Vec<(i64, Refusal)>> {
        let kept = self.tables.refusals.values().flatten().filter(|(id, _)| *id > after);
        let mut found: Vec<(i64, Refusal)> = kept.cloned().collect();
        found.sort_by_key(|(id, _)| *id);
        found.truncate(limit);
        Ok(found)
    }

    fn last_refusal(&mut self) -> Result<i64> {
        Ok(self.tables.refusals.values().flatten().map(|(id, _)| *id).max().unwrap_or(0))
    }

    fn unsettled(&mut self, run: RunId) -> Result<Vec<StepNo>> {
        let steps = self.tables.steps.range((run, 0)..=(run, StepNo::MAX));
        let open = steps.filter(|(_, step)| !step.status().is_settled() || step.rework_pending);
        Ok(open.map(|((_, no), _)| *no).collect())
    }

    fn steps(&mut self, run: RunId) -> Result<Vec<StepRow>> {
        Ok(self.tables.steps.range((run, 0)..=(run, StepNo::MAX)).map(|(_, step)| step.clone()).collect())
    }

    fn item_steps(&mut self, run: RunId, of: StepNo, first: StepNo) -> Result<Vec<StepNo>> {
        let from_first = self.tables.steps.range((run, first)..=(run, StepNo::MAX));
        Ok(from_first.filter(|(_, row)| row.item_of == Some(of)).map(|((_, no), _)| *no).collect())
    }

    fn waiting_item_steps(
        &mut self,
        run: RunId,
        of: StepNo,
        first: StepNo,
        limit: usize,
    ) -> Result<Vec<StepNo>> {
        let from_first = self.tables.steps.range((run, first)..=(run, StepNo::MAX));
        let waiting =
            from_first.filter(|(_, row)| row.item_of == Some(of) && row.status() == StepStatus::Waiting);
        Ok(waiting.map(|((_, no), _)| *no).take(limit).collect())
    }

    fn last_item_attempt(&mut self, run: RunId, of: StepNo) -> Result<u32> {
        let of_run = self.tables.steps.range((run, 0)..=(run, StepNo::MAX));
        let items = of_run.filter(|(_, row)| row.item_of == Some(of));
        Ok(items.map(|(_, row)| row.attempt).max().unwrap_or(0))
    }

    fn put_items(&mut self, of: ExecutionId, first: u32, values: &[Arc<str>]) -> Result<()> {
        let list = self.tables.items.entry(of).or_default();
        debug_assert_eq!(list.len(), first as usize, "a list grows at its end");
        list.extend_from_slice(values);
        self.undo.push(Box::new(move |tables| {
            if let Some(list) = tables.items.get_mut(&of) {
                list.truncate(first as usize);
            }
        }));
        Ok(())
    }

    fn item(&mut self, of: ExecutionId, index: u32) -> Result<Option<Arc<str>>> {
        Ok(self.tables.items.get(&of).and_then(|values| values.get(index as usize)).cloned())
    }

    fn open_gates(&mut self, run: RunId) -> Result<Vec<GateRow>> {
        let open = self.tables.gates.values().filter(|gate| gate.run == run);
        let mut open: Vec<GateRow> = open.filter(|gate| gate.status() == GateStatus::Open).cloned().collect();
        open.sort_by_key(|gate| (gate.opened_ms, gate.step, gate.attempt));
        Ok(open)
    }

    fn environments_of(&mut self, run: RunId) -> Result<Vec<EnvironmentRow>> {
        Ok(self.tables.environments.values().filter(|row| row.run == Some(run)).cloned().collect())
    }

    fn environments(&mut self, all: bool) -> Result<Vec<EnvironmentRow>> {
        let there = self.tables.environments.values();
        Ok(there.filter(|row| all || row.status() != EnvironmentStatus::Destroyed).cloned().collect())
    }

    fn put_signal(&mut self, run: RunId, name: &str, payload: &str) -> Result<()> {
        self.tables.signals.push((run, name.into(), payload.into()));
        self.undo.push(Box::new(move |tables| {
            tables.signals.pop();
        }));
        Ok(())
    }

    fn take_signal(&mut self, run: RunId, name: &str) -> Result<Option<Arc<str>>> {
        let found = self.tables.signals.iter().position(|(of, called, _)| *of == run && &**called == name);
        let Some(at) = found else { return Ok(None) };
        let signal = self.tables.signals.remove(at);
        let payload = Arc::clone(&signal.2);
        self.undo.push(Box::new(move |tables| tables.signals.insert(at, signal)));
        Ok(Some(payload))
    }

    fn children(&mut self, run: RunId) -> Result<Vec<RunId>> {
        let of_run = self.tables.runs.values().filter(|row| row.parent.is_some_and(|(of, _)| of == run));
        Ok(of_run.filter(|row| !row.status().is_terminal()).map(|row| row.id).collect())
    }

    fn executions(&mut self, run: RunId) -> Result<Vec<ExecutionRow>> {
        let first = ExecutionId { run, step: 0, attempt: 0 };
        let last = ExecutionId { run, step: StepNo::MAX, attempt: u32::MAX };
        Ok(self.tables.executions.range(first..=last).map(|(_, row)| row.clone()).collect())
    }

    fn run_by_key(&mut self, key: &str) -> Result<Option<RunId>> {
        Ok(self
            .tables
            .runs
            .values()
            .find(|run| run.idempotency_key.as_deref() == Some(key))
            .map(|run| run.id))
    }

    fn runs(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunRow>> {
        let newest_first = self.tables.runs.values().rev();
        let wanted = newest_first.filter(|run| {
            run.parent.is_none()
                && before.is_none_or(|before| run.id < before)
                && (statuses.is_empty() || statuses.contains(&run.status()))
        });
        Ok(wanted.take(limit).cloned().collect())
    }

    fn run_ids(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunId>> {
        Ok(self.runs(before, statuses, limit)?.iter().map(|run| run.id).collect())
    }

    fn live_runs(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        let live = self.tables.runs.values().filter(|run| !run.status().is_terminal());
        Ok(live.map(|run| run.id).filter(|id| after.is_none_or(|after| *id > after)).take(limit).collect())
    }

    fn pinned_runs(&mut self, worker: Id) -> Result<Vec<RunId>> {
        let pinned = self.tables.runs.values().filter(|run| run.pin == Some(worker));
        Ok(pinned.filter(|run| !run.status().is_terminal()).map(|run| run.id).collect())
    }

    fn pinned_plans(&mut self, worker: Id) -> Result<Vec<i64>> {
        let pinned = self.tables.runs.values().filter(|run| run.pin == Some(worker));
        let plans: BTreeSet<i64> =
            pinned.filter(|run| !run.status().is_terminal()).map(|run| run.plan).collect();
        Ok(plans.into_iter().collect())
    }

    fn orphaned_runs(&mut self, limit: usize) -> Result<Vec<RunId>> {
        let is_gone = |worker: &Id| {
            self.tables.workers.get(worker).is_none_or(|row| row.status() == WorkerStatus::Offline)
        };
        let live = self.tables.runs.values().filter(|run| !run.status().is_terminal());
        let orphans = live.filter(|run| run.pin.as_ref().is_some_and(is_gone));
        Ok(orphans.map(|run| run.id).take(limit).collect())
    }

    fn claimable(&mut self, queue: &str, pin: Id, limit: usize) -> Result<Vec<Candidate>> {
        let waiting = self.tables.executions.values().filter(|row| {
            row.status() == ExecutionStatus::Scheduled && &*row.queue == queue && row.pin.unwrap_or(0) == pin
        });
        let mut found: Vec<Candidate> = waiting
            .map(|row| Candidate { rank: -row.priority, published_ms: row.published_ms, execution: row.id })
            .collect();
        found.sort_unstable();
        found.truncate(limit);
        Ok(found)
    }

    fn in_flight(&mut self, queue: &str) -> Result<u32> {
        let counts = |row: &&ExecutionRow| {
            &*row.queue == queue && is_open(row.status()) && row.priority != SERVICE_PRIORITY
        };
        let out = self.tables.executions.values().filter(counts);
        Ok(out.count() as u32)
    }

    fn queue(&mut self, name: &str) -> Result<Option<QueueRow>> {
        Ok(self.tables.queues.get(name).cloned())
    }

    fn put_queue(&mut self, queue: &QueueRow) -> Result<()> {
        let name = Arc::clone(&queue.name);
        let before = self.tables.queues.insert(Arc::clone(&name), queue.clone());
        self.undo.push(Box::new(move |tables| {
            match before {
                Some(before) => tables.queues.insert(name, before),
                None => tables.queues.remove(&name),
            };
        }));
        Ok(())
    }

    fn accounts(&mut self) -> Result<Vec<AccountRow>> {
        let mut all: Vec<AccountRow> = self.tables.accounts.values().cloned().collect();
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    fn out_of_account(&mut self, account: Id) -> Result<Vec<(ExecutionId, u32)>> {
        let of = |row: &&ExecutionRow| row.account == Some(account) && is_open(row.status());
        let out = self.tables.executions.values().filter(of);
        Ok(out.map(|row| (row.id, row.account_generation)).collect())
    }

    fn waiting_for_account(&mut self, account: Id, limit: usize) -> Result<Vec<ExecutionId>> {
        let of = |row: &&ExecutionRow| {
            row.account == Some(account)
                && row.status() == ExecutionStatus::Requested
                && !row.cancel_requested
        };
        let waiting = self.tables.executions.values().filter(of);
        let mut waiting: Vec<_> = waiting.map(|row| (-row.priority, row.created_ms, row.id)).collect();
        waiting.sort_unstable();
        Ok(waiting.into_iter().map(|(_, _, id)| id).take(limit).collect())
    }

    fn requested(
        &mut self,
        queue: &str,
        now_ms: i64,
        without: &[Id],
        limit: usize,
    ) -> Result<Vec<ExecutionId>> {
        let mut waiting: Vec<(i32, i64, ExecutionId)> = self
            .tables
            .executions
            .values()
            .filter(|row| {
                row.status() == ExecutionStatus::Requested
                    && &*row.queue == queue
                    && row.not_before_ms <= now_ms
                    && row.account.is_none_or(|account| !without.contains(&account))
            })
            .map(|row| (-row.priority, row.created_ms, row.id))
            .collect();
        waiting.sort_unstable();
        Ok(waiting.into_iter().map(|(_, _, id)| id).take(limit).collect())
    }

    fn crowded_queues(&mut self, now_ms: i64) -> Result<Vec<Arc<str>>> {
        let waiting = self.tables.executions.values().filter(|row| {
            row.status() == ExecutionStatus::Requested && row.not_before_ms <= now_ms && !row.cancel_requested
        });
        Ok(waiting.map(|row| Arc::clone(&row.queue)).collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn unclaimed_since(&mut self, before_ms: i64, limit: usize) -> Result<Vec<ExecutionId>> {
        let mut waiting: Vec<(i64, ExecutionId)> = self
            .tables
            .executions
            .values()
            .filter(|row| row.status() == ExecutionStatus::Scheduled && row.lease_until_ms <= before_ms)
            .map(|row| (row.lease_until_ms, row.id))
            .collect();
        waiting.sort_unstable();
        Ok(waiting.into_iter().map(|(_, id)| id).take(limit).collect())
    }

    fn lapsed(&mut self, now_ms: i64, limit: usize) -> Result<Vec<(ExecutionId, u32)>> {
        let mut lapsed: Vec<(i64, ExecutionId, u32)> = self
            .tables
            .executions
            .values()
            .filter(|row| row.status() == ExecutionStatus::Running && row.lease_until_ms <= now_ms)
            .map(|row| (row.lease_until_ms, row.id, row.fence))
            .collect();
        lapsed.sort_unstable();
        Ok(lapsed.into_iter().map(|(_, id, fence)| (id, fence)).take(limit).collect())
    }

    fn held_by(&mut self, worker: Id) -> Result<Vec<ExecutionRow>> {
        let held = self.tables.executions.values().filter(|row| row.owner == Some(worker));
        Ok(held.filter(|row| row.status() == ExecutionStatus::Running).cloned().collect())
    }

    fn places(&mut self, group: &str) -> Result<Vec<RunId>> {
        Ok(self.tables.places.iter().filter(|(name, _)| &**name == group).map(|(_, run)| *run).collect())
    }

    fn put_place(&mut self, group: &str, run: RunId) -> Result<()> {
        let place: (Arc<str>, RunId) = (group.into(), run);
        if self.tables.places.insert(place.clone()) {
            self.undo.push(Box::new(move |tables| {
                tables.places.remove(&place);
            }));
        }
        Ok(())
    }

    fn drop_place(&mut self, group: &str, run: RunId) -> Result<()> {
        let place: (Arc<str>, RunId) = (group.into(), run);
        if self.tables.places.remove(&place) {
            self.undo.push(Box::new(move |tables| {
                tables.places.insert(place);
            }));
        }
        Ok(())
    }

    fn queued(&mut self, group: &str, limit: usize) -> Result<Vec<RunId>> {
        let mut waiting: Vec<(i32, RunId)> = self
            .tables
            .runs
            .values()
            .filter(|run| run.status() == RunStatus::Queued && run.group.as_deref() == Some(group))
            .map(|run| (-run.priority, run.id))
            .collect();
        waiting.sort_unstable();
        Ok(waiting.into_iter().map(|(_, id)| id).take(limit).collect())
    }

    fn crowded_groups(&mut self) -> Result<Vec<Arc<str>>> {
        let queued = self.tables.runs.values().filter(|run| run.status() == RunStatus::Queued);
        Ok(queued.filter_map(|run| run.group.clone()).collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn workers(&mut self) -> Result<Vec<WorkerRow>> {
        let there = self.tables.workers.values().filter(|worker| worker.status() != WorkerStatus::Offline);
        Ok(there.cloned().collect())
    }

    fn journal(&mut self, since: u64, run: Option<RunId>, limit: usize) -> Result<Vec<JournalEntry>> {
        let from = self.tables.journal.partition_point(|entry| entry.seq <= since);
        let wanted =
            self.tables.journal[from..].iter().filter(|entry| run.is_none() || entry.place.run == run);
        Ok(wanted.take(limit).cloned().collect())
    }
}
