//! The data that the store in memory keeps for servers.

use std::collections::BTreeMap;

use sprag_lifecycle::{ExecutionStatus, GateStatus};

use super::MemoryTx;
use crate::backend::QueueRow;
use crate::error::Result;
use crate::rows::{GateRow, Id, Row};
use crate::service::{ActRow, Delivery, HookRow, QueueCount, ServiceTables, TokenRow};

/// Tokens and hooks. There are few of them.
#[derive(Debug, Clone, Default)]
pub(super) struct ServiceRows {
    tokens: BTreeMap<Id, TokenRow>,
    hooks: BTreeMap<Id, HookRow>,
    acts: Vec<ActRow>,
}

impl MemoryTx<'_> {
    /// Changes these rows; the end of the transaction may undo the change.
    fn change<T>(&mut self, change: impl FnOnce(&mut ServiceRows) -> T) -> T {
        let before = self.tables.service.clone();
        self.undo.push(Box::new(move |tables| tables.service = before));
        change(&mut self.tables.service)
    }

    fn change_hook(&mut self, id: Id, change: impl FnOnce(&mut HookRow) -> bool) -> bool {
        self.change(|rows| rows.hooks.get_mut(&id).is_some_and(change))
    }
}

impl ServiceTables for MemoryTx<'_> {
    fn put_token(&mut self, token: &TokenRow) -> Result<()> {
        self.change(|rows| rows.tokens.insert(token.id, token.clone()));
        Ok(())
    }

    fn tokens(&mut self) -> Result<Vec<TokenRow>> {
        Ok(self.tables.service.tokens.values().cloned().collect())
    }

    fn token_by_hash(&mut self, hash: &str) -> Result<Option<TokenRow>> {
        Ok(self.tables.service.tokens.values().find(|token| &*token.hash == hash).cloned())
    }

    fn expire_token(&mut self, id: Id, at_ms: i64) -> Result<()> {
        self.change(|rows| {
            if let Some(token) = rows.tokens.get_mut(&id) {
                token.expires_ms = Some(at_ms);
            }
        });
        Ok(())
    }

    fn drop_token(&mut self, id: Id) -> Result<bool> {
        Ok(self.change(|rows| rows.tokens.remove(&id).is_some()))
    }

    fn put_act(&mut self, act: &ActRow) -> Result<()> {
        self.change(|rows| rows.acts.push(act.clone()));
        Ok(())
    }

    fn acts(&mut self, limit: usize) -> Result<Vec<ActRow>> {
        let mut acts = self.tables.service.acts.clone();
        acts.sort_by_key(|act| std::cmp::Reverse((act.at_ms, act.id)));
        acts.truncate(limit);
        Ok(acts)
    }

    fn put_hook(&mut self, hook: &HookRow) -> Result<()> {
        self.change(|rows| rows.hooks.insert(hook.id, hook.clone()));
        Ok(())
    }

    fn hooks(&mut self) -> Result<Vec<HookRow>> {
        Ok(self.tables.service.hooks.values().cloned().collect())
    }

    fn drop_hook(&mut self, id: Id) -> Result<bool> {
        Ok(self.change(|rows| rows.hooks.remove(&id).is_some()))
    }

    fn take_hook(&mut self, id: Id, holder: Id, now_ms: i64, until_ms: i64) -> Result<bool> {
        Ok(self.change_hook(id, |hook| {
            let free = hook.parked.is_none() && (hook.holder == holder || hook.lease_until_ms <= now_ms);
            if free {
                hook.holder = holder;
                hook.lease_until_ms = until_ms;
            }
            free
        }))
    }

    fn leave_hook(&mut self, id: Id, holder: Id) -> Result<()> {
        self.change_hook(id, |hook| {
            if hook.holder == holder {
                hook.holder = 0;
                hook.lease_until_ms = 0;
            }
            true
        });
        Ok(())
    }

    fn hook_told(&mut self, id: Id, holder: Id, from: u64, came: &Delivery) -> Result<bool> {
        Ok(self.change_hook(id, |hook| {
            let ours = hook.holder == holder && hook.cursor == from;
            match came {
                _ if !ours => {}
                Delivery::Done { cursor } => {
                    hook.cursor = *cursor;
                    hook.failures = 0;
                    hook.next_try_ms = 0;
                    hook.error = None;
                }
                Delivery::Failed { next_try_ms, error, park } => {
                    hook.failures += 1;
                    hook.next_try_ms = *next_try_ms;
                    hook.error = Some(error.clone());
                    hook.parked = park.then(|| error.clone());
                }
            }
            ours
        }))
    }

    fn retry_hook(&mut self, id: Id) -> Result<bool> {
        Ok(self.change_hook(id, |hook| {
            hook.parked = None;
            hook.failures = 0;
            hook.next_try_ms = 0;
            true
        }))
    }

    fn queue_counts(&mut self) -> Result<Vec<QueueCount>> {
        let mut counts: BTreeMap<_, QueueCount> = BTreeMap::new();
        for row in self.tables.executions.values().filter(|row| !row.status().is_terminal()) {
            let count = counts.entry(row.queue.clone()).or_insert_with(|| QueueCount::empty(&row.queue));
            match row.status() {
                ExecutionStatus::Requested | ExecutionStatus::Scheduling => count.requested += 1,
                ExecutionStatus::Scheduled => {
                    count.scheduled += 1;
                    let oldest = count.oldest_ms.unwrap_or(i64::MAX);
                    count.oldest_ms = Some(oldest.min(row.published_ms));
                }
                _ => count.running += 1,
            }
        }
        Ok(counts.into_values().collect())
    }

    fn queues(&mut self) -> Result<Vec<QueueRow>> {
        Ok(self.tables.queues.values().cloned().collect())
    }

    fn gates_open(&mut self, after: Id, limit: usize) -> Result<Vec<GateRow>> {
        let open = self.tables.gates.range(after.saturating_add(1)..).map(|(_, gate)| gate);
        Ok(open.filter(|gate| gate.status() == GateStatus::Open).take(limit).cloned().collect())
    }
}
