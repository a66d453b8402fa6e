//! The mapping of environments, threads, gates, workers and enforcements to their tables.

use sprag_lifecycle::{RunId, Word};
use tokio_postgres::Row as Columns;

use super::cells::{Cell, Reader};
use super::rows::{Stored, status};
use crate::error::{Error, Result};
use crate::rows::{EnforcementRow, EnvironmentRow, GateKind, GateRow, Id, Row, ThreadRow, WorkerRow};

#[rustfmt::skip]
impl Stored for EnvironmentRow {
    const SELECT: &'static str =
        "SELECT id, status, version, path, cleanup_requested, provision_attempt, destroy_attempt, \
         owner, reason, details, host, run, scope, managed, created_ms FROM environments";
    const KEY: &'static str = "id = $1";
    const INSERT: &'static str =
        "INSERT INTO environments (id, status, version, path, cleanup_requested, provision_attempt, \
         destroy_attempt, owner, reason, details, host, run, scope, managed, created_ms) SELECT * FROM \
         unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::boolean[], $6::bigint[], \
         $7::bigint[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::bigint[], \
         $13::bigint[], $14::boolean[], $15::bigint[])";
    const UPDATE: &'static str =
        "WITH done AS (UPDATE environments AS t SET status = n.status, version = n.version, path = \
         n.path, cleanup_requested = n.cleanup_requested, provision_attempt = n.provision_attempt, \
         destroy_attempt = n.destroy_attempt, owner = n.owner, reason = n.reason, details = n.details, host = n.host \
         FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::boolean[], $6::bigint[], \
         $7::bigint[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[]) AS n (id, \
         status, version, path, cleanup_requested, provision_attempt, destroy_attempt, owner, reason, \
         details, host, was, was_version) WHERE t.id = n.id AND t.status = n.was AND t.version = \
         n.was_version RETURNING 1) SELECT sprag_expect(count(*), $14::bigint, 'environments') FROM \
         done";

    fn keys(key: Id) -> Vec<Cell<'static>> {
        vec![key.into()]
    }

    fn changing(&self) -> Vec<Cell<'_>> {
        vec![
            self.status().as_str().into(), self.version().into(), (&*self.path).into(),
            self.cleanup_requested.into(), self.provision_attempt.into(), self.destroy_attempt.into(),
            self.owner.into(), self.reason.as_deref().into(), (&*self.details).into(), (&*self.host).into(),
        ]
    }

    fn fixed(&self) -> Vec<Cell<'_>> {
        vec![
            self.run.map(RunId::to_i64).into(), self.scope.into(), self.managed.into(),
            self.created_ms.into(),
        ]
    }

    fn read(columns: &Columns) -> Result<Self> {
        let r = &mut Reader::new(columns);
        let id = r.int()?;
        Ok(EnvironmentRow {
            id,
            status: status::<Self>(r, &[id])?,
            version: r.int()?,
            path: r.text()?,
            cleanup_requested: r.bool()?,
            provision_attempt: r.int()?,
            destroy_attempt: r.int()?,
            owner: r.opt_int()?,
            reason: r.opt_text()?,
            details: r.text()?,
            host: r.text()?,
            run: r.opt_int::<i64>()?.map(RunId::from_i64),
            scope: r.opt_int()?,
            managed: r.bool()?,
            created_ms: r.int()?,
        })
    }
}

#[rustfmt::skip]
impl Stored for ThreadRow {
    const SELECT: &'static str =
        "SELECT id, status, version, environment, stop_requested, archived, deleted, turn, turn_open, \
         runtime FROM threads";
    const KEY: &'static str = "id = $1";
    const INSERT: &'static str =
        "INSERT INTO threads (id, status, version, environment, stop_requested, archived, deleted, \
         turn, turn_open, runtime) SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], \
         $4::bigint[], $5::boolean[], $6::boolean[], $7::boolean[], $8::bigint[], $9::boolean[], \
         $10::bigint[])";
    const UPDATE: &'static str =
        "WITH done AS (UPDATE threads AS t SET status = n.status, version = n.version, environment = \
         n.environment, stop_requested = n.stop_requested, archived = n.archived, deleted = n.deleted, \
         turn = n.turn, turn_open = n.turn_open, runtime = n.runtime FROM unnest($1::bigint[], \
         $2::text[], $3::bigint[], $4::bigint[], $5::boolean[], $6::boolean[], $7::boolean[], \
         $8::bigint[], $9::boolean[], $10::bigint[], $11::text[], $12::bigint[]) AS n (id, status, \
         version, environment, stop_requested, archived, deleted, turn, turn_open, runtime, was, \
         was_version) WHERE t.id = n.id AND t.status = n.was AND t.version = n.was_version RETURNING \
         1) SELECT sprag_expect(count(*), $13::bigint, 'threads') FROM done";

    fn keys(key: Id) -> Vec<Cell<'static>> {
        vec![key.into()]
    }

    fn changing(&self) -> Vec<Cell<'_>> {
        vec![
            self.status().as_str().into(), self.version().into(), self.environment.into(),
            self.stop_requested.into(), self.archived.into(), self.deleted.into(), self.turn.into(),
            self.turn_open.into(), self.runtime.into(),
        ]
    }

    fn fixed(&self) -> Vec<Cell<'_>> {
        Vec::new()
    }

    fn read(columns: &Columns) -> Result<Self> {
        let r = &mut Reader::new(columns);
        let id = r.int()?;
        Ok(ThreadRow {
            id,
            status: status::<Self>(r, &[id])?,
            version: r.int()?,
            environment: r.opt_int()?,
            stop_requested: r.bool()?,
            archived: r.bool()?,
            deleted: r.bool()?,
            turn: r.int()?,
            turn_open: r.bool()?,
            runtime: r.int()?,
        })
    }
}

#[rustfmt::skip]
impl Stored for GateRow {
    const SELECT: &'static str =
        "SELECT id, status, version, answer, timeout_at_ms, run, step, attempt, kind, question, \
         until_ms, opened_ms FROM gates";
    const KEY: &'static str = "id = $1";
    const INSERT: &'static str =
        "INSERT INTO gates (id, status, version, answer, timeout_at_ms, run, step, attempt, kind, \
         question, until_ms, opened_ms) SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], \
         $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[], $10::text[], \
         $11::bigint[], $12::bigint[])";
    const UPDATE: &'static str =
        "WITH done AS (UPDATE gates AS t SET status = n.status, version = n.version, answer = \
         n.answer, timeout_at_ms = n.timeout_at_ms FROM unnest($1::bigint[], $2::text[], $3::bigint[], \
         $4::text[], $5::bigint[], $6::text[], $7::bigint[]) AS n (id, status, version, answer, \
         timeout_at_ms, was, was_version) WHERE t.id = n.id AND t.status = n.was AND t.version = \
         n.was_version RETURNING 1) SELECT sprag_expect(count(*), $8::bigint, 'gates') FROM done";

    fn keys(key: Id) -> Vec<Cell<'static>> {
        vec![key.into()]
    }

    fn changing(&self) -> Vec<Cell<'_>> {
        vec![
            self.status().as_str().into(), self.version().into(), self.answer.as_deref().into(),
            self.timeout_at_ms.into(),
        ]
    }

    fn fixed(&self) -> Vec<Cell<'_>> {
        vec![
            self.run.to_i64().into(), self.step.into(), self.attempt.into(), self.kind.as_str().into(),
            (&*self.question).into(), self.until_ms.into(), self.opened_ms.into(),
        ]
    }

    fn read(columns: &Columns) -> Result<Self> {
        let r = &mut Reader::new(columns);
        let id: Id = r.int()?;
        Ok(GateRow {
            id,
            status: status::<Self>(r, &[id])?,
            version: r.int()?,
            answer: r.opt_text()?,
            timeout_at_ms: r.int()?,
            run: RunId::from_i64(r.int()?),
            step: r.int()?,
            attempt: r.int()?,
            kind: {
                let text = r.str()?;
                GateKind::parse(text).ok_or_else(|| Error::UnknownWord {
                    entity: "gate",
                    id: id.to_string(),
                    field: "kind",
                    text: text.to_owned(),
                })?
            },
            question: r.text()?,
            until_ms: r.int()?,
            opened_ms: r.int()?,
        })
    }
}

#[rustfmt::skip]
impl Stored for WorkerRow {
    const SELECT: &'static str =
        "SELECT id, status, version, queues, heartbeat_until_ms, name, process, slots, created_ms, labels \
         FROM workers";
    const KEY: &'static str = "id = $1";
    const INSERT: &'static str =
        "INSERT INTO workers (id, status, version, queues, heartbeat_until_ms, name, process, slots, \
         created_ms, labels) SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], \
         $5::bigint[], $6::text[], $7::text[], $8::bigint[], $9::bigint[], $10::text[])";
    const UPDATE: &'static str =
        "WITH done AS (UPDATE workers AS t SET status = n.status, version = n.version, queues = \
         n.queues, heartbeat_until_ms = n.heartbeat_until_ms FROM unnest($1::bigint[], $2::text[], \
         $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::bigint[]) AS n (id, status, version, \
         queues, heartbeat_until_ms, was, was_version) WHERE t.id = n.id AND t.status = n.was AND \
         t.version = n.was_version RETURNING 1) SELECT sprag_expect(count(*), $8::bigint, 'workers') \
         FROM done";

    fn keys(key: Id) -> Vec<Cell<'static>> {
        vec![key.into()]
    }

    fn changing(&self) -> Vec<Cell<'_>> {
        vec![
            self.status().as_str().into(), self.version().into(), (&*self.queues).into(),
            self.heartbeat_until_ms.into(),
        ]
    }

    fn fixed(&self) -> Vec<Cell<'_>> {
        vec![
            (&*self.name).into(), (&*self.process).into(), self.slots.into(), self.created_ms.into(),
            (&*self.labels).into(),
        ]
    }

    fn read(columns: &Columns) -> Result<Self> {
        let r = &mut Reader::new(columns);
        let id = r.int()?;
        Ok(WorkerRow {
            id,
            status: status::<Self>(r, &[id])?,
            version: r.int()?,
            queues: r.text()?,
            heartbeat_until_ms: r.int()?,
            name: r.text()?,
            process: r.text()?,
            slots: r.int()?,
            created_ms: r.int()?,
            labels: r.text()?,
        })
    }
}

#[rustfmt::skip]
impl Stored for EnforcementRow {
    const SELECT: &'static str =
        "SELECT id, status, version, run, rule, event FROM enforcements";
    const KEY: &'static str = "id = $1";
    const INSERT: &'static str =
        "INSERT INTO enforcements (id, status, version, run, rule, event) SELECT * FROM \
         unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[])";
    const UPDATE: &'static str =
        "WITH done AS (UPDATE enforcements AS t SET status = n.status, version = n.version, run = \
         n.run FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], \
         $6::bigint[]) AS n (id, status, version, run, was, was_version) WHERE t.id = n.id AND \
         t.status = n.was AND t.version = n.was_version RETURNING 1) SELECT sprag_expect(count(*), \
         $7::bigint, 'enforcements') FROM done";

    fn keys(key: Id) -> Vec<Cell<'static>> {
        vec![key.into()]
    }

    fn changing(&self) -> Vec<Cell<'_>> {
        vec![self.status().as_str().into(), self.version().into(), self.run.map(RunId::to_i64).into()]
    }

    fn fixed(&self) -> Vec<Cell<'_>> {
        vec![(&*self.rule).into(), (&*self.event).into()]
    }

    fn read(columns: &Columns) -> Result<Self> {
        let r = &mut Reader::new(columns);
        let id = r.int()?;
        Ok(EnforcementRow {
            id,
            status: status::<Self>(r, &[id])?,
            version: r.int()?,
            run: r.opt_int::<i64>()?.map(RunId::from_i64),
            rule: r.text()?,
            event: r.text()?,
        })
    }
}
