//! Tokens, hooks and counts in SQLite. The `UPDATE` itself decides between servers that contend for a hook.

use rusqlite::params;

use super::tx::SqliteTx;
use crate::backend::QueueRow;
use crate::error::Result;
use crate::rows::{GateRow, Id};
use crate::service::{ActRow, Delivery, HookRow, QueueCount, ServiceTables, TokenRow};

impl ServiceTables for SqliteTx<'_> {
    fn put_token(&mut self, token: &TokenRow) -> Result<()> {
        self.put(token)
    }

    fn tokens(&mut self) -> Result<Vec<TokenRow>> {
        self.rows("ORDER BY created_ms, id", &[])
    }

    fn token_by_hash(&mut self, hash: &str) -> Result<Option<TokenRow>> {
        Ok(self.rows("WHERE hash = ?1", params![hash])?.pop())
    }

    fn expire_token(&mut self, id: Id, at_ms: i64) -> Result<()> {
        self.run("UPDATE tokens SET expires_ms = ?2 WHERE id = ?1", params![id, at_ms]).map(drop)
    }

    fn drop_token(&mut self, id: Id) -> Result<bool> {
        Ok(self.run("DELETE FROM tokens WHERE id = ?1", params![id])? > 0)
    }

    fn put_act(&mut self, act: &ActRow) -> Result<()> {
        self.put(act)
    }

    fn acts(&mut self, limit: usize) -> Result<Vec<ActRow>> {
        self.rows("ORDER BY at_ms DESC, id DESC LIMIT ?1", params![limit as i64])
    }

    fn put_hook(&mut self, hook: &HookRow) -> Result<()> {
        self.put(hook)
    }

    fn hooks(&mut self) -> Result<Vec<HookRow>> {
        self.rows("ORDER BY id", &[])
    }

    fn drop_hook(&mut self, id: Id) -> Result<bool> {
        Ok(self.run("DELETE FROM hooks WHERE id = ?1", params![id])? > 0)
    }

    fn take_hook(&mut self, id: Id, holder: Id, now_ms: i64, until_ms: i64) -> Result<bool> {
        let taken = self.run(
            "UPDATE hooks SET holder = ?2, lease_until_ms = ?4 \
             WHERE id = ?1 AND parked IS NULL AND (holder = ?2 OR lease_until_ms <= ?3)",
            params![id, holder, now_ms, until_ms],
        )?;
        Ok(taken > 0)
    }

    fn leave_hook(&mut self, id: Id, holder: Id) -> Result<()> {
        self.run(
            "UPDATE hooks SET holder = 0, lease_until_ms = 0 WHERE id = ?1 AND holder = ?2",
            params![id, holder],
        )
        .map(drop)
    }

    fn hook_told(&mut self, id: Id, holder: Id, from: u64, came: &Delivery) -> Result<bool> {
        let noted = match came {
            Delivery::Done { cursor } => self.run(
                "UPDATE hooks SET seq = ?4, failures = 0, next_try_ms = 0, error = NULL \
                 WHERE id = ?1 AND holder = ?2 AND seq = ?3",
                params![id, holder, from as i64, *cursor as i64],
            ),
            Delivery::Failed { next_try_ms, error, park } => self.run(
                "UPDATE hooks SET failures = failures + 1, next_try_ms = ?4, error = ?5, \
                 parked = CASE WHEN ?6 THEN ?5 END WHERE id = ?1 AND holder = ?2 AND seq = ?3",
                params![id, holder, from as i64, next_try_ms, &**error, park],
            ),
        };
        Ok(noted? > 0)
    }

    fn retry_hook(&mut self, id: Id) -> Result<bool> {
        let sql = "UPDATE hooks SET parked = NULL, failures = 0, next_try_ms = 0 WHERE id = ?1";
        Ok(self.run(sql, params![id])? > 0)
    }

    fn queue_counts(&mut self) -> Result<Vec<QueueCount>> {
        // The conditions equal those of the index over live executions.
        let found = self.list(
            "SELECT queue, status, count(*), min(published_ms) FROM executions \
             WHERE status = 'requested' OR status = 'scheduling' OR status = 'scheduled' OR status = 'running' \
             GROUP BY queue, status ORDER BY queue",
            &[],
        )?;
        Ok(QueueCount::gather(found))
    }

    fn queues(&mut self) -> Result<Vec<QueueRow>> {
        self.rows("ORDER BY name", &[])
    }

    fn gates_open(&mut self, after: Id, limit: usize) -> Result<Vec<GateRow>> {
        let condition = "WHERE status = 'open' AND id > ?1 ORDER BY id LIMIT ?2";
        self.rows(condition, params![after, limit as i64])
    }
}
