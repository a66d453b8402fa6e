//! Tokens, hooks and counts in SQLite. The `UPDATE` itself decides between servers that contend for a hook.

use std::sync::Arc;

use rusqlite::{OptionalExtension, Row as Columns, params};

use super::tx::SqliteTx;
use crate::backend::QueueRow;
use crate::error::Result;
use crate::rows::{GateRow, Id};
use crate::service::{Delivery, HookRow, QueueCount, ServiceTables, TokenRow};

const TOKEN: &str = "SELECT id, name, hash, scopes, created_ms, expires_ms FROM tokens";

fn token(columns: &Columns<'_>) -> rusqlite::Result<TokenRow> {
    Ok(TokenRow {
        id: columns.get(0)?,
        name: columns.get(1)?,
        hash: columns.get(2)?,
        scopes: columns.get(3)?,
        created_ms: columns.get(4)?,
        expires_ms: columns.get(5)?,
    })
}

const HOOK: &str = "SELECT id, url, secret, filter, seq, failures, next_try_ms, parked, error, holder, \
                    lease_until_ms, created_ms FROM hooks ORDER BY id";

fn hook(columns: &Columns<'_>) -> rusqlite::Result<HookRow> {
    Ok(HookRow {
        id: columns.get(0)?,
        url: columns.get(1)?,
        secret: columns.get(2)?,
        filter: columns.get(3)?,
        cursor: columns.get::<_, i64>(4)? as u64,
        failures: columns.get(5)?,
        next_try_ms: columns.get(6)?,
        parked: columns.get(7)?,
        error: columns.get(8)?,
        holder: columns.get(9)?,
        lease_until_ms: columns.get(10)?,
        created_ms: columns.get(11)?,
    })
}

impl ServiceTables for SqliteTx<'_> {
    fn put_token(&mut self, token: &TokenRow) -> Result<()> {
        let TokenRow { id, name, hash, scopes, created_ms, expires_ms } = token;
        self.run(
            "INSERT INTO tokens (id, name, hash, scopes, created_ms, expires_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![id, &**name, &**hash, &**scopes, created_ms, expires_ms],
        )
        .map(drop)
    }

    fn tokens(&mut self) -> Result<Vec<TokenRow>> {
        self.list(&format!("{TOKEN} ORDER BY created_ms, id"), &[], token)
    }

    fn token_by_hash(&mut self, hash: &str) -> Result<Option<TokenRow>> {
        let sql = format!("{TOKEN} WHERE hash = ?1");
        let found =
            self.conn.prepare_cached(&sql).and_then(|mut one| one.query_row([hash], token).optional());
        self.sql("reading", found)
    }

    fn drop_token(&mut self, id: Id) -> Result<bool> {
        Ok(self.run("DELETE FROM tokens WHERE id = ?1", params![id])? > 0)
    }

    fn put_hook(&mut self, hook: &HookRow) -> Result<()> {
        self.run(
            "INSERT INTO hooks (id, url, secret, filter, seq, failures, next_try_ms, parked, error, holder, \
             lease_until_ms, created_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            params![
                hook.id,
                &*hook.url,
                &*hook.secret,
                &*hook.filter,
                hook.cursor as i64,
                hook.failures,
                hook.next_try_ms,
                hook.parked.as_deref(),
                hook.error.as_deref(),
                hook.holder,
                hook.lease_until_ms,
                hook.created_ms
            ],
        )
        .map(drop)
    }

    fn hooks(&mut self) -> Result<Vec<HookRow>> {
        self.list(HOOK, &[], hook)
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
            |columns| {
                let name: Arc<str> = columns.get(0)?;
                let status: String = columns.get(1)?;
                Ok((name, status, columns.get::<_, i64>(2)? as u64, columns.get::<_, i64>(3)?))
            },
        )?;
        let mut counts: Vec<QueueCount> = Vec::new();
        for (name, status, number, oldest_ms) in found {
            if counts.last().is_none_or(|last| last.name != name) {
                counts.push(QueueCount::empty(&name));
            }
            let Some(count) = counts.last_mut() else { continue };
            match status.as_str() {
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
        self.list("SELECT name, maximum, held FROM queues ORDER BY name", &[], |columns| {
            Ok(QueueRow { name: columns.get(0)?, limit: columns.get(1)?, held: columns.get(2)? })
        })
    }

    fn gates_open(&mut self, after: Id, limit: usize) -> Result<Vec<GateRow>> {
        let sql = Self::select::<GateRow>("WHERE status = 'open' AND id > ?1 ORDER BY id LIMIT ?2");
        self.rows(&sql, params![after, limit as i64])
    }
}
