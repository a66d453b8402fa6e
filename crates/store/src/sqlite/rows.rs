//! The mapping of each row to its table: its three statements, and the binding and reading of its columns.
//!
//! The `UPDATE`s here are the only statements that change a status. Each changes the status only if it still equals
//! the one that was read.

use rusqlite::types::ValueRef;
use rusqlite::{Result as SqlResult, Row as Columns, Statement, params};
use sprag_lifecycle::{ExecutionId, Items, Lifecycle, Needs, RunId, Tally, Word};

use crate::error::Error;
use crate::rows::{
    EnforcementRow, EnvironmentRow, ExecutionRow, GateKind, GateRow, Id, ItemList, Row, RunRow, Status,
    StepKey, StepRow, ThreadRow, WorkerRow,
};

/// The reason why a row could not be read.
pub(super) enum ReadError {
    /// SQLite reported an error.
    Sql(rusqlite::Error),
    /// The row holds a value that this version does not know.
    Row(Error),
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        ReadError::Sql(error)
    }
}

/// A row that SQLite stores.
pub(super) trait Stored: Row {
    /// The statement that finds one row by its key.
    const LOAD: &'static str;
    /// The statement that adds one row.
    const INSERT: &'static str;
    /// The compare-and-set: it changes the row only if status and version are unchanged.
    const UPDATE: &'static str;

    fn load(statement: &mut Statement<'_>, key: Self::Key) -> Result<Option<Self>, ReadError>;
    fn insert(statement: &mut Statement<'_>, row: &Self) -> SqlResult<usize>;
    fn update(statement: &mut Statement<'_>, row: &Self, was: (Status<Self>, u32)) -> SqlResult<usize>;
    /// Reads the columns in the order of `LOAD`.
    fn read(r: &Columns<'_>) -> Result<Self, ReadError>;
}

/// Returns the one row that a statement finds, if any.
fn one<R: Stored>(rows: &mut rusqlite::Rows<'_>) -> Result<Option<R>, ReadError> {
    match rows.next()? {
        Some(columns) => R::read(columns).map(Some),
        None => Ok(None),
    }
}

/// Reads a status from a column. A word that this version does not know is an error that names the row.
fn word<R: Row>(r: &Columns<'_>, column: usize) -> Result<Status<R>, ReadError> {
    let text = r.get_ref(column)?.as_str().map_err(|_| rusqlite::Error::InvalidQuery)?;
    Status::<R>::parse(text).ok_or_else(|| {
        let keys: Vec<String> =
            (0..column).filter_map(|key| r.get::<_, i64>(key).ok()).map(|key| key.to_string()).collect();
        ReadError::Row(Error::UnknownWord {
            entity: <R::Life as Lifecycle>::NAME,
            id: keys.join("/"),
            field: "status",
            text: text.to_owned(),
        })
    })
}

/// Returns a fan-out's list in the format of its column.
fn items_text(list: ItemList) -> String {
    let ItemList { made_by, first, first_attempt, items } = list;
    let Items { total, created, settled, failed, cancelled, requeued, ending } = items;
    let ending = u8::from(ending);
    format!(
        "{made_by} {first} {total} {created} {settled} {failed} {cancelled} {requeued} {ending} {first_attempt}"
    )
}

fn read_items(text: &str) -> Option<ItemList> {
    let numbers: Vec<u32> = text.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [made_by, first, total, created, settled, failed, cancelled, requeued, ending, first_attempt] =
        numbers[..]
    else {
        return None;
    };
    let items = Items { total, created, settled, failed, cancelled, requeued, ending: ending == 1 };
    Some(ItemList { made_by, first, first_attempt, items })
}

fn some_unless_zero(pin: i64) -> Option<Id> {
    (pin != 0).then_some(pin)
}

#[rustfmt::skip]
impl Stored for RunRow {
    const LOAD: &'static str =
        "SELECT id, status, version, plan, pipeline, priority, grp, idempotency_key, inputs, context, \
         first_seq, created_ms, epoch, open, unsettled, broken, reworking, pin, reason, last_seq, \
         started_ms, ended_ms, parent_run, parent_step, root, steps FROM runs WHERE id = ?1";
    const INSERT: &'static str =
        "INSERT INTO runs (id, status, version, plan, pipeline, priority, grp, idempotency_key, inputs, \
         context, first_seq, created_ms, epoch, open, unsettled, broken, reworking, pin, reason, \
         last_seq, started_ms, ended_ms, parent_run, parent_step, root, steps) VALUES (?1, ?2, ?3, ?4, ?5, \
         ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26)";
    const UPDATE: &'static str =
        "UPDATE runs SET status = ?2, version = ?3, epoch = ?4, open = ?5, unsettled = ?6, broken = ?7, \
         reworking = ?8, pin = ?9, reason = ?10, last_seq = ?11, started_ms = ?12, ended_ms = ?13, \
         steps = ?14 WHERE id = ?1 AND status = ?15 AND version = ?16";

    fn load(statement: &mut Statement<'_>, key: RunId) -> Result<Option<Self>, ReadError> {
        one(&mut statement.query(params![key.to_i64()])?)
    }

    fn insert(statement: &mut Statement<'_>, row: &Self) -> SqlResult<usize> {
        statement.execute(params![
            row.id.to_i64(), row.status().as_str(), row.version(), row.plan, &*row.pipeline,
            row.priority, row.group.as_deref(), row.idempotency_key.as_deref(), &*row.inputs,
            &*row.context, row.first_seq as i64, row.created_ms, row.epoch, row.open,
            row.tally.unsettled, row.tally.broken, row.reworking, row.pin.unwrap_or(0),
            row.reason.as_deref(), row.last_seq as i64, row.started_ms, row.ended_ms,
            row.parent.map(|(run, _)| run.to_i64()), row.parent.map(|(_, step)| step), row.root.to_i64(),
            row.steps
        ])
    }

    fn update(statement: &mut Statement<'_>, row: &Self, was: (Status<Self>, u32)) -> SqlResult<usize> {
        statement.execute(params![
            row.id.to_i64(), row.status().as_str(), row.version(), row.epoch, row.open,
            row.tally.unsettled, row.tally.broken, row.reworking, row.pin.unwrap_or(0),
            row.reason.as_deref(), row.last_seq as i64, row.started_ms, row.ended_ms, row.steps,
            was.0.as_str(), was.1
        ])
    }

    fn read(r: &Columns<'_>) -> Result<Self, ReadError> {
        Ok(RunRow {
            id: RunId::from_i64(r.get(0)?),
            status: word::<Self>(r, 1)?,
            version: r.get(2)?,
            epoch: r.get(12)?,
            open: r.get(13)?,
            tally: Tally { unsettled: r.get(14)?, broken: r.get(15)? },
            reworking: r.get(16)?,
            plan: r.get(3)?,
            pipeline: r.get(4)?,
            pin: some_unless_zero(r.get(17)?),
            priority: r.get(5)?,
            group: r.get(6)?,
            idempotency_key: r.get(7)?,
            inputs: r.get(8)?,
            context: r.get(9)?,
            reason: r.get(18)?,
            parent: match r.get::<_, Option<i64>>(22)? {
                Some(run) => Some((RunId::from_i64(run), r.get(23)?)),
                None => None,
            },
            root: RunId::from_i64(r.get(24)?),
            steps: r.get(25)?,
            first_seq: r.get::<_, i64>(10)? as u64,
            last_seq: r.get::<_, i64>(19)? as u64,
            created_ms: r.get(11)?,
            started_ms: r.get(20)?,
            ended_ms: r.get(21)?,
        })
    }
}

#[rustfmt::skip]
impl Stored for StepRow {
    const LOAD: &'static str =
        "SELECT run, no, status, version, attempt, round, tries, losses, reworks, open_needs, \
         broken_needs, skipped_by_when, rework_pending, feedback, started_ms, ended_ms, work, items, \
         item_of, item FROM steps WHERE run = ?1 AND no = ?2";
    const INSERT: &'static str =
        "INSERT INTO steps (run, no, status, version, attempt, round, tries, losses, reworks, open_needs, \
         broken_needs, skipped_by_when, rework_pending, feedback, started_ms, ended_ms, work, items, \
         item_of, item) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, \
         ?18, ?19, ?20)";
    const UPDATE: &'static str =
        "UPDATE steps SET status = ?3, version = ?4, attempt = ?5, round = ?6, tries = ?7, losses = ?8, \
         reworks = ?9, open_needs = ?10, broken_needs = ?11, skipped_by_when = ?12, rework_pending = ?13, \
         feedback = ?14, started_ms = ?15, ended_ms = ?16, work = ?17, items = ?18 WHERE run = ?1 AND \
         no = ?2 AND status = ?19 AND version = ?20";

    fn load(statement: &mut Statement<'_>, key: StepKey) -> Result<Option<Self>, ReadError> {
        one(&mut statement.query(params![key.0.to_i64(), key.1])?)
    }

    fn insert(statement: &mut Statement<'_>, row: &Self) -> SqlResult<usize> {
        statement.execute(params![
            row.run.to_i64(), row.no, row.status().as_str(), row.version(), row.attempt, row.round,
            row.tries, row.losses, row.reworks, row.needs.open, row.needs.broken, row.skipped_by_when,
            row.rework_pending, row.feedback.as_deref(), row.started_ms, row.ended_ms, row.work,
            row.items.map(items_text), row.item_of, row.item
        ])
    }

    fn update(statement: &mut Statement<'_>, row: &Self, was: (Status<Self>, u32)) -> SqlResult<usize> {
        statement.execute(params![
            row.run.to_i64(), row.no, row.status().as_str(), row.version(), row.attempt, row.round,
            row.tries, row.losses, row.reworks, row.needs.open, row.needs.broken, row.skipped_by_when,
            row.rework_pending, row.feedback.as_deref(), row.started_ms, row.ended_ms, row.work,
            row.items.map(items_text), was.0.as_str(), was.1
        ])
    }

    fn read(r: &Columns<'_>) -> Result<Self, ReadError> {
        Ok(StepRow {
            run: RunId::from_i64(r.get(0)?),
            no: r.get(1)?,
            status: word::<Self>(r, 2)?,
            version: r.get(3)?,
            attempt: r.get(4)?,
            round: r.get(5)?,
            tries: r.get(6)?,
            losses: r.get(7)?,
            reworks: r.get(8)?,
            needs: Needs { open: r.get(9)?, broken: r.get(10)? },
            skipped_by_when: r.get(11)?,
            rework_pending: r.get(12)?,
            feedback: r.get(13)?,
            item_of: r.get(18)?,
            item: r.get(19)?,
            work: r.get(16)?,
            items: match r.get_ref(17)? {
                ValueRef::Null => None,
                text => text.as_str().ok().and_then(read_items),
            },
            started_ms: r.get(14)?,
            ended_ms: r.get(15)?,
        })
    }
}

#[rustfmt::skip]
impl Stored for ExecutionRow {
    const LOAD: &'static str =
        "SELECT run, step, attempt, status, version, epoch, queue, priority, not_before_ms, created_ms, \
         fence, pin, cancel_requested, published_ms, owner, lease_until_ms, nonce, retriable, result, \
         started_ms, ended_ms, blocked FROM executions WHERE run = ?1 AND step = ?2 AND attempt = ?3";
    const INSERT: &'static str =
        "INSERT INTO executions (run, step, attempt, status, version, epoch, queue, priority, \
         not_before_ms, created_ms, fence, pin, cancel_requested, published_ms, owner, lease_until_ms, \
         nonce, retriable, result, started_ms, ended_ms, blocked) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, \
         ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)";
    const UPDATE: &'static str =
        "UPDATE executions SET status = ?4, version = ?5, fence = ?6, pin = ?7, cancel_requested = ?8, \
         published_ms = ?9, owner = ?10, lease_until_ms = ?11, nonce = ?12, retriable = ?13, result = \
         ?14, started_ms = ?15, ended_ms = ?16, blocked = ?17 WHERE run = ?1 AND step = ?2 AND attempt = ?3 \
         AND status = ?18 AND version = ?19";

    fn load(statement: &mut Statement<'_>, key: ExecutionId) -> Result<Option<Self>, ReadError> {
        one(&mut statement.query(params![key.run.to_i64(), key.step, key.attempt])?)
    }

    fn insert(statement: &mut Statement<'_>, row: &Self) -> SqlResult<usize> {
        statement.execute(params![
            row.id.run.to_i64(), row.id.step, row.id.attempt, row.status().as_str(), row.version(),
            row.epoch, &*row.queue, row.priority, row.not_before_ms, row.created_ms, row.fence,
            row.pin.unwrap_or(0), row.cancel_requested, row.published_ms, row.owner, row.lease_until_ms,
            row.nonce, row.retriable, row.result.as_deref(), row.started_ms, row.ended_ms, row.blocked
        ])
    }

    fn update(statement: &mut Statement<'_>, row: &Self, was: (Status<Self>, u32)) -> SqlResult<usize> {
        statement.execute(params![
            row.id.run.to_i64(), row.id.step, row.id.attempt, row.status().as_str(), row.version(),
            row.fence, row.pin.unwrap_or(0), row.cancel_requested, row.published_ms, row.owner,
            row.lease_until_ms, row.nonce, row.retriable, row.result.as_deref(), row.started_ms,
            row.ended_ms, row.blocked, was.0.as_str(), was.1
        ])
    }

    fn read(r: &Columns<'_>) -> Result<Self, ReadError> {
        Ok(ExecutionRow {
            id: ExecutionId {
                run: RunId::from_i64(r.get(0)?),
                step: r.get(1)?,
                attempt: r.get(2)?,
            },
            status: word::<Self>(r, 3)?,
            version: r.get(4)?,
            fence: r.get(10)?,
            epoch: r.get(5)?,
            queue: r.get(6)?,
            pin: some_unless_zero(r.get(11)?),
            priority: r.get(7)?,
            cancel_requested: r.get(12)?,
            not_before_ms: r.get(8)?,
            published_ms: r.get(13)?,
            owner: r.get(14)?,
            lease_until_ms: r.get(15)?,
            nonce: r.get(16)?,
            retriable: r.get(17)?,
            result: r.get(18)?,
            created_ms: r.get(9)?,
            started_ms: r.get(19)?,
            ended_ms: r.get(20)?,
            blocked: r.get(21)?,
        })
    }
}

#[rustfmt::skip]
impl Stored for EnvironmentRow {
    const LOAD: &'static str =
        "SELECT id, status, version, run, host, managed, path, cleanup_requested, provision_attempt, \
         destroy_attempt, owner, reason, scope, details, created_ms FROM environments WHERE id = ?1";
    const INSERT: &'static str =
        "INSERT INTO environments (id, status, version, run, host, managed, path, cleanup_requested, \
         provision_attempt, destroy_attempt, owner, reason, scope, details, created_ms) VALUES (?1, \
         ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
    const UPDATE: &'static str =
        "UPDATE environments SET status = ?2, version = ?3, path = ?4, cleanup_requested = ?5, \
         provision_attempt = ?6, destroy_attempt = ?7, owner = ?8, reason = ?9, details = ?10, \
         host = ?11 WHERE id = ?1 AND status = ?12 AND version = ?13";

    fn load(statement: &mut Statement<'_>, key: Id) -> Result<Option<Self>, ReadError> {
        one(&mut statement.query(params![key])?)
    }

    fn insert(statement: &mut Statement<'_>, row: &Self) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), row.run.map(RunId::to_i64), &*row.host,
            row.managed, &*row.path, row.cleanup_requested, row.provision_attempt, row.destroy_attempt,
            row.owner, row.reason.as_deref(), row.scope, &*row.details, row.created_ms
        ])
    }

    fn update(statement: &mut Statement<'_>, row: &Self, was: (Status<Self>, u32)) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), &*row.path, row.cleanup_requested,
            row.provision_attempt, row.destroy_attempt, row.owner, row.reason.as_deref(),
            &*row.details, &*row.host, was.0.as_str(), was.1
        ])
    }

    fn read(r: &Columns<'_>) -> Result<Self, ReadError> {
        Ok(EnvironmentRow {
            id: r.get(0)?,
            status: word::<Self>(r, 1)?,
            version: r.get(2)?,
            run: r.get::<_, Option<i64>>(3)?.map(RunId::from_i64),
            host: r.get(4)?,
            path: r.get(6)?,
            managed: r.get(5)?,
            cleanup_requested: r.get(7)?,
            provision_attempt: r.get(8)?,
            destroy_attempt: r.get(9)?,
            owner: r.get(10)?,
            reason: r.get(11)?,
            scope: r.get(12)?,
            details: r.get(13)?,
            created_ms: r.get(14)?,
        })
    }
}

#[rustfmt::skip]
impl Stored for ThreadRow {
    const LOAD: &'static str =
        "SELECT id, status, version, environment, stop_requested, archived, deleted, turn, turn_open, \
         runtime FROM threads WHERE id = ?1";
    const INSERT: &'static str =
        "INSERT INTO threads (id, status, version, environment, stop_requested, archived, deleted, turn, \
         turn_open, runtime) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    const UPDATE: &'static str =
        "UPDATE threads SET status = ?2, version = ?3, environment = ?4, stop_requested = ?5, archived = \
         ?6, deleted = ?7, turn = ?8, turn_open = ?9, runtime = ?10 WHERE id = ?1 AND status = ?11 AND \
         version = ?12";

    fn load(statement: &mut Statement<'_>, key: Id) -> Result<Option<Self>, ReadError> {
        one(&mut statement.query(params![key])?)
    }

    fn insert(statement: &mut Statement<'_>, row: &Self) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), row.environment, row.stop_requested,
            row.archived, row.deleted, row.turn, row.turn_open, row.runtime
        ])
    }

    fn update(statement: &mut Statement<'_>, row: &Self, was: (Status<Self>, u32)) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), row.environment, row.stop_requested,
            row.archived, row.deleted, row.turn, row.turn_open, row.runtime, was.0.as_str(), was.1
        ])
    }

    fn read(r: &Columns<'_>) -> Result<Self, ReadError> {
        Ok(ThreadRow {
            id: r.get(0)?,
            status: word::<Self>(r, 1)?,
            version: r.get(2)?,
            environment: r.get(3)?,
            stop_requested: r.get(4)?,
            archived: r.get(5)?,
            deleted: r.get(6)?,
            turn: r.get(7)?,
            turn_open: r.get(8)?,
            runtime: r.get(9)?,
        })
    }
}

fn kind(r: &Columns<'_>, column: usize) -> Result<GateKind, ReadError> {
    let text: String = r.get(column)?;
    GateKind::parse(&text).ok_or_else(|| {
        let id = r.get::<_, i64>(0).unwrap_or_default().to_string();
        ReadError::Row(Error::UnknownWord { entity: "gate", id, field: "kind", text })
    })
}

#[rustfmt::skip]
impl Stored for GateRow {
    const LOAD: &'static str =
        "SELECT id, status, version, run, step, question, timeout_at_ms, answer, attempt, kind, until_ms, \
         opened_ms FROM gates WHERE id = ?1";
    const INSERT: &'static str =
        "INSERT INTO gates (id, status, version, run, step, question, timeout_at_ms, answer, attempt, kind, \
         until_ms, opened_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    const UPDATE: &'static str =
        "UPDATE gates SET status = ?2, version = ?3, answer = ?4, timeout_at_ms = ?5 WHERE id = ?1 AND \
         status = ?6 AND version = ?7";

    fn load(statement: &mut Statement<'_>, key: Id) -> Result<Option<Self>, ReadError> {
        one(&mut statement.query(params![key])?)
    }

    fn insert(statement: &mut Statement<'_>, row: &Self) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), row.run.to_i64(), row.step, &*row.question,
            row.timeout_at_ms, row.answer.as_deref(), row.attempt, row.kind.as_str(), row.until_ms,
            row.opened_ms
        ])
    }

    fn update(statement: &mut Statement<'_>, row: &Self, was: (Status<Self>, u32)) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), row.answer.as_deref(), row.timeout_at_ms,
            was.0.as_str(), was.1
        ])
    }

    fn read(r: &Columns<'_>) -> Result<Self, ReadError> {
        Ok(GateRow {
            id: r.get(0)?,
            status: word::<Self>(r, 1)?,
            version: r.get(2)?,
            run: RunId::from_i64(r.get(3)?),
            step: r.get(4)?,
            attempt: r.get(8)?,
            kind: kind(r, 9)?,
            question: r.get(5)?,
            until_ms: r.get(10)?,
            opened_ms: r.get(11)?,
            answer: r.get(7)?,
            timeout_at_ms: r.get(6)?,
        })
    }
}

#[rustfmt::skip]
impl Stored for WorkerRow {
    const LOAD: &'static str =
        "SELECT id, status, version, name, process, queues, slots, created_ms, heartbeat_until_ms, labels \
         FROM workers WHERE id = ?1";
    const INSERT: &'static str =
        "INSERT INTO workers (id, status, version, name, process, queues, slots, created_ms, \
         heartbeat_until_ms, labels) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    const UPDATE: &'static str =
        "UPDATE workers SET status = ?2, version = ?3, heartbeat_until_ms = ?4, queues = ?5 WHERE id = ?1 \
         AND status = ?6 AND version = ?7";

    fn load(statement: &mut Statement<'_>, key: Id) -> Result<Option<Self>, ReadError> {
        one(&mut statement.query(params![key])?)
    }

    fn insert(statement: &mut Statement<'_>, row: &Self) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), &*row.name, &*row.process, &*row.queues,
            row.slots, row.created_ms, row.heartbeat_until_ms, &*row.labels
        ])
    }

    fn update(statement: &mut Statement<'_>, row: &Self, was: (Status<Self>, u32)) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), row.heartbeat_until_ms, &*row.queues,
            was.0.as_str(), was.1
        ])
    }

    fn read(r: &Columns<'_>) -> Result<Self, ReadError> {
        Ok(WorkerRow {
            id: r.get(0)?,
            status: word::<Self>(r, 1)?,
            version: r.get(2)?,
            name: r.get(3)?,
            process: r.get(4)?,
            queues: r.get(5)?,
            labels: r.get(9)?,
            slots: r.get(6)?,
            heartbeat_until_ms: r.get(8)?,
            created_ms: r.get(7)?,
        })
    }
}

#[rustfmt::skip]
impl Stored for EnforcementRow {
    const LOAD: &'static str =
        "SELECT id, status, version, rule, event, run FROM enforcements WHERE id = ?1";
    const INSERT: &'static str =
        "INSERT INTO enforcements (id, status, version, rule, event, run) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    const UPDATE: &'static str =
        "UPDATE enforcements SET status = ?2, version = ?3, run = ?4 WHERE id = ?1 AND status = ?5 AND \
         version = ?6";

    fn load(statement: &mut Statement<'_>, key: Id) -> Result<Option<Self>, ReadError> {
        one(&mut statement.query(params![key])?)
    }

    fn insert(statement: &mut Statement<'_>, row: &Self) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), &*row.rule, &*row.event,
            row.run.map(RunId::to_i64)
        ])
    }

    fn update(statement: &mut Statement<'_>, row: &Self, was: (Status<Self>, u32)) -> SqlResult<usize> {
        statement.execute(params![
            row.id, row.status().as_str(), row.version(), row.run.map(RunId::to_i64), was.0.as_str(),
            was.1
        ])
    }

    fn read(r: &Columns<'_>) -> Result<Self, ReadError> {
        Ok(EnforcementRow {
            id: r.get(0)?,
            status: word::<Self>(r, 1)?,
            version: r.get(2)?,
            rule: r.get(3)?,
            event: r.get(4)?,
            run: r.get::<_, Option<i64>>(5)?.map(RunId::from_i64),
        })
    }
}
