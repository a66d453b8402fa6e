//! The triggers of the store in memory.

use std::sync::Arc;

use sprag_lifecycle::{EnforcementStatus, RuleStatus};

use super::MemoryTx;
use crate::error::Result;
use crate::rows::{DeliveryRow, EnforcementRow, Id, Row, RuleRow};
use crate::triggers::Triggers;

/// Whether an enforcement waits for a decision.
fn is_open(row: &EnforcementRow) -> bool {
    matches!(row.status(), EnforcementStatus::Created | EnforcementStatus::Held)
}

/// Returns the newest rows first, by a key that begins with their times.
fn newest<T: Clone, K: Ord>(mut rows: Vec<T>, order: impl Fn(&T) -> K, limit: usize) -> Vec<T> {
    rows.sort_by_key(|row| std::cmp::Reverse(order(row)));
    rows.truncate(limit);
    rows
}

impl MemoryTx<'_> {
    /// Returns the active rules with this source that are due, earliest first.
    fn due_with(&self, source: &str, wall_ms: i64, limit: usize) -> Vec<RuleRow> {
        let due = |rule: &&RuleRow| {
            rule.status() == RuleStatus::Active
                && &*rule.source == source
                && rule.next_ms.is_some_and(|next_ms| next_ms <= wall_ms)
        };
        let mut rules: Vec<RuleRow> = self.tables.rules.values().filter(due).cloned().collect();
        rules.sort_by_key(|rule| (rule.next_ms, rule.id));
        rules.truncate(limit);
        rules
    }
}

impl Triggers for MemoryTx<'_> {
    fn rules(&mut self) -> Result<Vec<RuleRow>> {
        let mut rules: Vec<RuleRow> = self.tables.rules.values().cloned().collect();
        rules.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(rules)
    }

    fn rule_called(&mut self, name: &str) -> Result<Option<RuleRow>> {
        Ok(self.tables.rules.values().find(|rule| &*rule.name == name).cloned())
    }

    fn rules_due(&mut self, wall_ms: i64, limit: usize) -> Result<Vec<RuleRow>> {
        Ok(self.due_with("schedule", wall_ms, limit))
    }

    fn next_tick(&mut self) -> Result<Option<i64>> {
        let active = self.tables.rules.values().filter(|rule| rule.status() == RuleStatus::Active);
        Ok(active.filter_map(|rule| rule.next_ms).min())
    }

    fn rules_about_runs(&mut self) -> Result<Vec<RuleRow>> {
        let about = |rule: &&RuleRow| rule.status() == RuleStatus::Active && &*rule.source == "run";
        Ok(self.tables.rules.values().filter(about).cloned().collect())
    }

    fn looks_due(&mut self, wall_ms: i64, limit: usize) -> Result<Vec<RuleRow>> {
        Ok(self.due_with("git", wall_ms, limit))
    }

    fn put_delivery(&mut self, delivery: &DeliveryRow) -> Result<()> {
        let id = delivery.id;
        self.tables.deliveries.insert(id, delivery.clone());
        self.undo.push(Box::new(move |tables| {
            tables.deliveries.remove(&id);
        }));
        Ok(())
    }

    fn delivery(&mut self, id: Id) -> Result<Option<DeliveryRow>> {
        Ok(self.tables.deliveries.get(&id).cloned())
    }

    fn delivery_called(&mut self, rule: Id, key: &str) -> Result<Option<DeliveryRow>> {
        let is = |row: &&DeliveryRow| row.rule == rule && &*row.key == key;
        Ok(self.tables.deliveries.values().find(is).cloned())
    }

    fn deliveries(&mut self, rule: Option<Id>, limit: usize) -> Result<Vec<DeliveryRow>> {
        let of = |row: &&DeliveryRow| rule.is_none_or(|rule| row.rule == rule);
        let rows = self.tables.deliveries.values().filter(of).cloned().collect();
        Ok(newest(rows, |row: &DeliveryRow| (row.received_ms, Arc::clone(&row.key), row.id), limit))
    }

    fn forget_deliveries(&mut self, before_ms: i64, limit: usize) -> Result<usize> {
        let tables = &self.tables;
        let waits = |event: Id| tables.enforcements.values().any(|row| row.event == event && is_open(row));
        let old = tables.deliveries.values().filter(|row| row.received_ms < before_ms && !waits(row.id));
        let mut old: Vec<(i64, Id)> = old.map(|row| (row.received_ms, row.id)).collect();
        old.sort_unstable();
        old.truncate(limit);
        let before = (self.tables.deliveries.clone(), self.tables.enforcements.clone());
        self.undo.push(Box::new(move |tables| (tables.deliveries, tables.enforcements) = before));
        for (_, event) in &old {
            self.tables.deliveries.remove(event);
            self.tables.enforcements.retain(|_, row| row.event != *event);
        }
        Ok(old.len())
    }

    fn enforcements_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<EnforcementRow>> {
        let due = |row: &&EnforcementRow| is_open(row) && row.due_ms <= now_ms;
        let mut rows: Vec<EnforcementRow> = self.tables.enforcements.values().filter(due).cloned().collect();
        rows.sort_by_key(|row| (row.due_ms, row.created_ms, row.id));
        rows.truncate(limit);
        Ok(rows)
    }

    fn next_enforcement(&mut self) -> Result<Option<i64>> {
        Ok(self.tables.enforcements.values().filter(|row| is_open(row)).map(|row| row.due_ms).min())
    }

    fn enforcements_of(&mut self, event: Id) -> Result<Vec<EnforcementRow>> {
        let of = self.tables.enforcements.values().filter(|row| row.event == event);
        let mut rows: Vec<EnforcementRow> = of.cloned().collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.generation), row.id));
        Ok(rows)
    }

    fn enforcements_by(&mut self, rule: Id, limit: usize) -> Result<Vec<EnforcementRow>> {
        let rows = self.tables.enforcements.values().filter(|row| row.rule == rule).cloned().collect();
        Ok(newest(rows, |row: &EnforcementRow| (row.created_ms, row.id), limit))
    }

    fn held_in(&mut self, rule: Id, window: &Arc<str>) -> Result<Option<EnforcementRow>> {
        let is = |row: &&EnforcementRow| {
            row.rule == rule && row.status() == EnforcementStatus::Held && row.window.as_ref() == Some(window)
        };
        Ok(self.tables.enforcements.values().find(is).cloned())
    }

    fn held_for_rate(&mut self, rule: Id, first_ms: i64, id: Id) -> Result<Option<EnforcementRow>> {
        let is = |row: &&EnforcementRow| {
            row.rule == rule
                && row.status() == EnforcementStatus::Held
                && row.window.is_none()
                && (row.first_ms, row.id) < (first_ms, id)
        };
        Ok(self.tables.enforcements.values().filter(is).max_by_key(|row| (row.due_ms, row.id)).cloned())
    }
}
