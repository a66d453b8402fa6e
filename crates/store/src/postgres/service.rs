//! Tokens, hooks and counts in PostgreSQL. Servers that contend for a hook decide while they hold its row.

use super::state::Lock;
use super::tx::Tx;
use super::wire::Ask;
use crate::backend::QueueRow;
use crate::columns::Declared;
use crate::error::Result;
use crate::rows::{GateRow, Id};
use crate::service::{ActRow, Delivery, HookRow, QueueCount, ServiceTables, TokenRow};

impl Tx<'_> {
    /// Loads a hook and holds it until this transaction ends.
    fn held_hook(&mut self, id: Id) -> Result<Option<HookRow>> {
        let plain = HookRow::statements().postgres.load.as_str();
        let held = format!("{plain} FOR UPDATE SKIP LOCKED");
        let asks = vec![Ask::new(&held, [id.into()]), Ask::new(plain, [id.into()])];
        let answers = self.ask(asks, "reading")?;
        match (answers[0].first(), answers[1].first()) {
            (Some(row), _) => HookRow::read(row).map(Some),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(self.busy(Lock::Row("hooks", id))),
        }
    }
}

impl ServiceTables for Tx<'_> {
    fn put_token(&mut self, token: &TokenRow) -> Result<()> {
        self.state.put(token);
        Ok(())
    }

    fn tokens(&mut self) -> Result<Vec<TokenRow>> {
        self.rows("ORDER BY created_ms, id", vec![])
    }

    fn token_by_hash(&mut self, hash: &str) -> Result<Option<TokenRow>> {
        Ok(self.rows("WHERE hash = $1", vec![hash.into()])?.pop())
    }

    fn expire_token(&mut self, id: Id, at_ms: i64) -> Result<()> {
        self.state.extra("UPDATE tokens SET expires_ms = $2 WHERE id = $1", vec![id.into(), at_ms.into()]);
        Ok(())
    }

    fn drop_token(&mut self, id: Id) -> Result<bool> {
        let there = !self.rows::<TokenRow>("WHERE id = $1", vec![id.into()])?.is_empty();
        self.state.extra("DELETE FROM tokens WHERE id = $1", vec![id.into()]);
        Ok(there)
    }

    fn put_act(&mut self, act: &ActRow) -> Result<()> {
        self.state.put(act);
        Ok(())
    }

    fn acts(&mut self, limit: usize) -> Result<Vec<ActRow>> {
        self.rows("ORDER BY at_ms DESC, id DESC LIMIT $1", vec![(limit as i64).into()])
    }

    fn put_hook(&mut self, hook: &HookRow) -> Result<()> {
        self.state.put(hook);
        Ok(())
    }

    fn hooks(&mut self) -> Result<Vec<HookRow>> {
        self.rows("ORDER BY id", vec![])
    }

    fn drop_hook(&mut self, id: Id) -> Result<bool> {
        let there = self.held_hook(id)?.is_some();
        self.state.extra("DELETE FROM hooks WHERE id = $1", vec![id.into()]);
        Ok(there)
    }

    fn take_hook(&mut self, id: Id, holder: Id, now_ms: i64, until_ms: i64) -> Result<bool> {
        let Some(row) = self.held_hook(id)? else { return Ok(false) };
        let free = row.parked.is_none() && (row.holder == holder || row.lease_until_ms <= now_ms);
        if free {
            let sql = "UPDATE hooks SET holder = $2, lease_until_ms = $3 WHERE id = $1";
            self.state.extra(sql, vec![id.into(), holder.into(), until_ms.into()]);
        }
        Ok(free)
    }

    fn leave_hook(&mut self, id: Id, holder: Id) -> Result<()> {
        if self.held_hook(id)?.is_some_and(|row| row.holder == holder) {
            let sql = "UPDATE hooks SET holder = 0, lease_until_ms = 0 WHERE id = $1";
            self.state.extra(sql, vec![id.into()]);
        }
        Ok(())
    }

    fn hook_told(&mut self, id: Id, holder: Id, from: u64, came: &Delivery) -> Result<bool> {
        if self.held_hook(id)?.is_none_or(|row| (row.holder, row.cursor) != (holder, from)) {
            return Ok(false);
        }
        match came {
            Delivery::Done { cursor } => self.state.extra(
                "UPDATE hooks SET seq = $2, failures = 0, next_try_ms = 0, error = NULL WHERE id = $1",
                vec![id.into(), (*cursor).into()],
            ),
            Delivery::Failed { next_try_ms, error, park } => self.state.extra(
                "UPDATE hooks SET failures = failures + 1, next_try_ms = $2, error = $3, \
                 parked = CASE WHEN $4 THEN $3 END WHERE id = $1",
                vec![id.into(), (*next_try_ms).into(), (&**error).into(), (*park).into()],
            ),
        }
        Ok(true)
    }

    fn retry_hook(&mut self, id: Id) -> Result<bool> {
        let there = self.held_hook(id)?.is_some();
        let sql = "UPDATE hooks SET parked = NULL, failures = 0, next_try_ms = 0 WHERE id = $1";
        self.state.extra(sql, vec![id.into()]);
        Ok(there)
    }

    fn queue_counts(&mut self) -> Result<Vec<QueueCount>> {
        // The conditions equal those of the index over live executions.
        let found = self.list(
            "SELECT queue, status, count(*), min(published_ms) FROM executions \
             WHERE status IN ('requested', 'scheduling', 'scheduled', 'running') \
             GROUP BY queue, status ORDER BY queue",
            vec![],
        )?;
        Ok(QueueCount::gather(found))
    }

    fn queues(&mut self) -> Result<Vec<QueueRow>> {
        self.rows("ORDER BY name", vec![])
    }

    fn gates_open(&mut self, after: Id, limit: usize) -> Result<Vec<GateRow>> {
        let condition = "WHERE status = 'open' AND id > $1 ORDER BY id LIMIT $2";
        self.rows(condition, vec![after.into(), limit.into()])
    }
}
