//! The tables of triggers in SQLite.

use std::sync::Arc;

use rusqlite::params;

use super::tx::SqliteTx;
use crate::error::Result;
use crate::rows::{DeliveryRow, EnforcementRow, Id, RuleRow};
use crate::triggers::Triggers;

impl Triggers for SqliteTx<'_> {
    fn rules(&mut self) -> Result<Vec<RuleRow>> {
        self.rows("ORDER BY name", &[])
    }

    fn rule_called(&mut self, name: &str) -> Result<Option<RuleRow>> {
        Ok(self.rows("WHERE name = ?1", params![name])?.pop())
    }

    fn rules_due(&mut self, wall_ms: i64, limit: usize) -> Result<Vec<RuleRow>> {
        let condition = "WHERE status = 'active' AND source = 'schedule' AND next_ms <= ?1 \
                         ORDER BY next_ms, id LIMIT ?2";
        self.rows(condition, params![wall_ms, limit as i64])
    }

    fn next_tick(&mut self) -> Result<Option<i64>> {
        let sql = "SELECT min(next_ms) FROM rules WHERE status = 'active' AND next_ms IS NOT NULL";
        Ok(self.one::<Option<i64>>(sql, &[])?.flatten())
    }

    fn rules_about_runs(&mut self) -> Result<Vec<RuleRow>> {
        self.rows("WHERE status = 'active' AND source = 'run' ORDER BY id", &[])
    }

    fn looks_due(&mut self, wall_ms: i64, limit: usize) -> Result<Vec<RuleRow>> {
        let condition = "WHERE status = 'active' AND source = 'git' AND next_ms <= ?1 \
                         ORDER BY next_ms, id LIMIT ?2";
        self.rows(condition, params![wall_ms, limit as i64])
    }

    fn put_delivery(&mut self, delivery: &DeliveryRow) -> Result<()> {
        self.put(delivery)
    }

    fn delivery(&mut self, id: Id) -> Result<Option<DeliveryRow>> {
        Ok(self.rows("WHERE id = ?1", params![id])?.pop())
    }

    fn delivery_called(&mut self, rule: Id, key: &str) -> Result<Option<DeliveryRow>> {
        Ok(self.rows("WHERE rule = ?1 AND key = ?2", params![rule, key])?.pop())
    }

    fn deliveries(&mut self, rule: Option<Id>, limit: usize) -> Result<Vec<DeliveryRow>> {
        match rule {
            Some(rule) => {
                let condition = "WHERE rule = ?1 ORDER BY received_ms DESC, key DESC, id DESC LIMIT ?2";
                self.rows(condition, params![rule, limit as i64])
            }
            None => self.rows("ORDER BY received_ms DESC, key DESC, id DESC LIMIT ?1", params![limit as i64]),
        }
    }

    fn forget_deliveries(&mut self, before_ms: i64, limit: usize) -> Result<usize> {
        let old: Vec<i64> = self.list(
            "SELECT id FROM deliveries AS d WHERE received_ms < ?1 AND NOT EXISTS \
                 (SELECT 1 FROM enforcements WHERE event = d.id AND (status = 'created' OR status = 'held')) \
             ORDER BY received_ms, id LIMIT ?2",
            params![before_ms, limit as i64],
        )?;
        for id in &old {
            self.run("DELETE FROM enforcements WHERE event = ?1", params![id])?;
            self.run("DELETE FROM deliveries WHERE id = ?1", params![id])?;
        }
        Ok(old.len())
    }

    fn enforcements_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<EnforcementRow>> {
        let condition = "WHERE (status = 'created' OR status = 'held') AND due_ms <= ?1 \
                         ORDER BY due_ms, created_ms, id LIMIT ?2";
        self.rows(condition, params![now_ms, limit as i64])
    }

    fn next_enforcement(&mut self) -> Result<Option<i64>> {
        let sql = "SELECT min(due_ms) FROM enforcements WHERE status = 'created' OR status = 'held'";
        Ok(self.one::<Option<i64>>(sql, &[])?.flatten())
    }

    fn enforcements_of(&mut self, event: Id) -> Result<Vec<EnforcementRow>> {
        self.rows("WHERE event = ?1 ORDER BY generation DESC, id", params![event])
    }

    fn enforcements_by(&mut self, rule: Id, limit: usize) -> Result<Vec<EnforcementRow>> {
        let condition = "WHERE rule = ?1 ORDER BY created_ms DESC, id DESC LIMIT ?2";
        self.rows(condition, params![rule, limit as i64])
    }

    fn held_in(&mut self, rule: Id, window: &Arc<str>) -> Result<Option<EnforcementRow>> {
        let condition = "WHERE rule = ?1 AND win = ?2 AND status = 'held' ORDER BY id LIMIT 1";
        Ok(self.rows(condition, params![rule, &**window])?.pop())
    }

    fn held_for_rate(&mut self, rule: Id, first_ms: i64, id: Id) -> Result<Option<EnforcementRow>> {
        // The plus keeps SQLite from the index of all events of the rule: those that wait are few.
        let condition = "WHERE (status = 'created' OR status = 'held') AND +rule = ?1 AND status = 'held' \
                         AND win IS NULL AND (first_ms, id) < (?2, ?3) ORDER BY due_ms DESC, id DESC LIMIT 1";
        Ok(self.rows(condition, params![rule, first_ms, id])?.pop())
    }
}
