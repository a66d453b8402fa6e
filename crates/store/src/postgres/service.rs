//! Tokens, hooks and counts in PostgreSQL. Servers that contend for a hook decide while they hold its row.

use std::sync::Arc;

use super::cells::Reader;
use super::state::Lock;
use super::tx::{QUEUES, Tx};
use super::wire::Ask;
use crate::backend::QueueRow;
use crate::error::Result;
use crate::rows::{GateRow, Id};
use crate::service::{Delivery, HookRow, QueueCount, ServiceTables, TokenRow};

const TOKEN: &str = "SELECT id, name, hash, scopes, created_ms, expires_ms FROM tokens";

fn token(r: &mut Reader<'_>) -> Result<TokenRow> {
    Ok(TokenRow {
        id: r.int()?,
        name: r.text()?,
        hash: r.text()?,
        scopes: r.text()?,
        created_ms: r.int()?,
        expires_ms: r.opt_int()?,
    })
}

const HOOK: &str = "SELECT id, url, secret, filter, seq, failures, next_try_ms, parked, error, holder, \
                    lease_until_ms, created_ms FROM hooks";

fn hook(r: &mut Reader<'_>) -> Result<HookRow> {
    Ok(HookRow {
        id: r.int()?,
        url: r.text()?,
        secret: r.text()?,
        filter: r.text()?,
        cursor: r.int()?,
        failures: r.int()?,
        next_try_ms: r.int()?,
        parked: r.opt_text()?,
        error: r.opt_text()?,
        holder: r.int()?,
        lease_until_ms: r.int()?,
        created_ms: r.int()?,
    })
}

impl Tx<'_> {
    /// Loads a hook and holds it until this transaction ends.
    fn held_hook(&mut self, id: Id) -> Result<Option<HookRow>> {
        let plain = format!("{HOOK} WHERE id = $1");
        let held = format!("{plain} FOR UPDATE SKIP LOCKED");
        let asks = vec![Ask::new(&held, [id.into()]), Ask::new(&plain, [id.into()])];
        let answers = self.ask(asks, "reading")?;
        match (answers[0].first(), answers[1].first()) {
            (Some(row), _) => hook(&mut Reader::new(row)).map(Some),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(self.busy(Lock::Row("hooks", id))),
        }
    }
}

impl ServiceTables for Tx<'_> {
    fn put_token(&mut self, token: &TokenRow) -> Result<()> {
        let TokenRow { id, name, hash, scopes, created_ms, expires_ms } = token;
        self.state.extra(
            "INSERT INTO tokens (id, name, hash, scopes, created_ms, expires_ms) VALUES ($1, $2, $3, $4, $5, $6)",
            vec![
                (*id).into(),
                (&**name).into(),
                (&**hash).into(),
                (&**scopes).into(),
                (*created_ms).into(),
                (*expires_ms).into(),
            ],
        );
        Ok(())
    }

    fn tokens(&mut self) -> Result<Vec<TokenRow>> {
        self.list(&format!("{TOKEN} ORDER BY created_ms, id"), vec![], token)
    }

    fn token_by_hash(&mut self, hash: &str) -> Result<Option<TokenRow>> {
        self.one(&format!("{TOKEN} WHERE hash = $1"), vec![hash.into()], token)
    }

    fn drop_token(&mut self, id: Id) -> Result<bool> {
        let there = self.one(&format!("{TOKEN} WHERE id = $1"), vec![id.into()], token)?.is_some();
        self.state.extra("DELETE FROM tokens WHERE id = $1", vec![id.into()]);
        Ok(there)
    }

    fn put_hook(&mut self, hook: &HookRow) -> Result<()> {
        self.state.extra(
            "INSERT INTO hooks (id, url, secret, filter, seq, failures, next_try_ms, parked, error, holder, \
             lease_until_ms, created_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            vec![
                hook.id.into(),
                (&*hook.url).into(),
                (&*hook.secret).into(),
                (&*hook.filter).into(),
                hook.cursor.into(),
                hook.failures.into(),
                hook.next_try_ms.into(),
                hook.parked.as_deref().into(),
                hook.error.as_deref().into(),
                hook.holder.into(),
                hook.lease_until_ms.into(),
                hook.created_ms.into(),
            ],
        );
        Ok(())
    }

    fn hooks(&mut self) -> Result<Vec<HookRow>> {
        self.list(&format!("{HOOK} ORDER BY id"), vec![], hook)
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
            |r| Ok((r.text()?, r.text()?, r.int::<u64>()?, r.int::<i64>()?)),
        )?;
        let mut counts: Vec<QueueCount> = Vec::new();
        for (name, status, number, oldest_ms) in found {
            let name: Arc<str> = name;
            if counts.last().is_none_or(|last| last.name != name) {
                counts.push(QueueCount::empty(&name));
            }
            let Some(count) = counts.last_mut() else { continue };
            match &*status {
                "scheduled" => {
                    count.scheduled = number;
                    count.oldest_ms = Some(oldest_ms);
                }
                "running" => count.running = number,
                _ => count.requested += number,
            }
        }
        Ok(counts)
    }

    fn queues(&mut self) -> Result<Vec<QueueRow>> {
        self.list(QUEUES, vec![], super::queries::queue)
    }

    fn gates_open(&mut self, after: Id, limit: usize) -> Result<Vec<GateRow>> {
        let condition = "WHERE status = 'open' AND id > $1 ORDER BY id LIMIT $2";
        self.rows(condition, vec![after.into(), limit.into()])
    }
}
