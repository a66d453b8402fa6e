//! The mapping of runs, steps and executions to their tables; `entities.rs` has the other kinds.
//!
//! Each kind has one `INSERT` and one `UPDATE` over any number of rows. The `UPDATE`s are the only statements that
//! change a status. Each changes the status only if it still equals the one that was read.

use sprag_lifecycle::{ExecutionId, Items, Lifecycle, Needs, RunId, Tally, Word};
use tokio_postgres::Row as Columns;

use super::cells::{Cell, Reader};
use crate::error::{Error, Result};
use crate::rows::{ExecutionRow, Id, ItemList, Row, RunRow, Status, StepKey, StepRow};

/// A row that PostgreSQL stores. Its columns are its key, then the changing columns, then the fixed ones.
pub(super) trait Stored: Row {
    /// The statement that selects all columns.
    const SELECT: &'static str;
    /// The condition that finds one row.
    const KEY: &'static str;
    /// The statement that adds rows.
    const INSERT: &'static str;
    /// The compare-and-set over as many rows as its last parameter says. It fails if it finds fewer.
    const UPDATE: &'static str;
    /// Whether its rows have a column for the actor that moved them last.
    const TELLS_ACTOR: bool = false;

    fn keys(key: Self::Key) -> Vec<Cell<'static>>;
    fn changing(&self) -> Vec<Cell<'_>>;
    fn fixed(&self) -> Vec<Cell<'_>>;
    fn read(columns: &Columns) -> Result<Self>;

    /// Returns whether the row never changes any more, so that no transaction needs to hold it.
    fn is_over(&self) -> bool {
        false
    }
}

/// Reads a status. A word that this version does not know is an error that names the row.
pub(super) fn status<R: Row>(r: &mut Reader<'_>, keys: &[i64]) -> Result<Status<R>> {
    let text = r.str()?;
    Status::<R>::parse(text).ok_or_else(|| Error::UnknownWord {
        entity: <R::Life as Lifecycle>::NAME,
        id: keys.iter().map(i64::to_string).collect::<Vec<_>>().join("/"),
        field: "status",
        text: text.to_owned(),
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
    const SELECT: &'static str =
        "SELECT id, status, version, epoch, open, unsettled, broken, reworking, pin, reason, steps, \
         last_seq, started_ms, ended_ms, plan, pipeline, priority, grp, idempotency_key, inputs, \
         context, parent_run, parent_step, root, first_seq, created_ms FROM runs";
    const KEY: &'static str = "id = $1";
    const INSERT: &'static str =
        "INSERT INTO runs (id, status, version, epoch, open, unsettled, broken, reworking, pin, \
         reason, steps, last_seq, started_ms, ended_ms, plan, pipeline, priority, grp, \
         idempotency_key, inputs, context, parent_run, parent_step, root, first_seq, created_ms) \
         SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::boolean[], \
         $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::bigint[], \
         $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[], $17::bigint[], \
         $18::text[], $19::text[], $20::text[], $21::text[], $22::bigint[], $23::bigint[], \
         $24::bigint[], $25::bigint[], $26::bigint[])";
    const UPDATE: &'static str =
        "WITH done AS (UPDATE runs AS t SET status = n.status, version = n.version, epoch = n.epoch, \
         open = n.open, unsettled = n.unsettled, broken = n.broken, reworking = n.reworking, pin = \
         n.pin, reason = n.reason, steps = n.steps, last_seq = n.last_seq, started_ms = n.started_ms, \
         ended_ms = n.ended_ms FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], \
         $5::boolean[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], \
         $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::text[], $16::bigint[]) AS n \
         (id, status, version, epoch, open, unsettled, broken, reworking, pin, reason, steps, \
         last_seq, started_ms, ended_ms, was, was_version) WHERE t.id = n.id AND t.status = n.was AND \
         t.version = n.was_version RETURNING 1) SELECT sprag_expect(count(*), $17::bigint, 'runs') \
         FROM done";

    fn keys(key: RunId) -> Vec<Cell<'static>> {
        vec![key.to_i64().into()]
    }

    fn changing(&self) -> Vec<Cell<'_>> {
        vec![
            self.status().as_str().into(), self.version().into(), self.epoch.into(), self.open.into(),
            self.tally.unsettled.into(), self.tally.broken.into(), self.reworking.into(),
            self.pin.unwrap_or(0).into(), self.reason.as_deref().into(), self.steps.into(),
            self.last_seq.into(), self.started_ms.into(), self.ended_ms.into(),
        ]
    }

    fn fixed(&self) -> Vec<Cell<'_>> {
        vec![
            self.plan.into(), (&*self.pipeline).into(), self.priority.into(), self.group.as_deref().into(),
            self.idempotency_key.as_deref().into(), (&*self.inputs).into(), (&*self.context).into(),
            self.parent.map(|(run, _)| run.to_i64()).into(), self.parent.map(|(_, step)| step).into(),
            self.root.to_i64().into(), self.first_seq.into(), self.created_ms.into(),
        ]
    }

    fn read(columns: &Columns) -> Result<Self> {
        let r = &mut Reader::new(columns);
        let id = RunId::from_i64(r.int()?);
        Ok(RunRow {
            id,
            status: status::<Self>(r, &[id.to_i64()])?,
            version: r.int()?,
            epoch: r.int()?,
            open: r.bool()?,
            tally: Tally { unsettled: r.int()?, broken: r.int()? },
            reworking: r.opt_int()?,
            pin: some_unless_zero(r.int()?),
            reason: r.opt_text()?,
            steps: r.int()?,
            last_seq: r.int()?,
            started_ms: r.opt_int()?,
            ended_ms: r.opt_int()?,
            plan: r.int()?,
            pipeline: r.text()?,
            priority: r.int()?,
            group: r.opt_text()?,
            idempotency_key: r.opt_text()?,
            inputs: r.text()?,
            context: r.text()?,
            parent: match (r.opt_int::<i64>()?, r.opt_int()?) {
                (Some(run), Some(step)) => Some((RunId::from_i64(run), step)),
                _ => None,
            },
            root: RunId::from_i64(r.int()?),
            first_seq: r.int()?,
            created_ms: r.int()?,
        })
    }
}

#[rustfmt::skip]
impl Stored for StepRow {
    const SELECT: &'static str =
        "SELECT run, no, status, version, attempt, round, tries, losses, reworks, open_needs, \
         broken_needs, skipped_by_when, rework_pending, feedback, work, items, started_ms, ended_ms, \
         item_of, item FROM steps";
    const KEY: &'static str = "run = $1 AND no = $2";
    const INSERT: &'static str =
        "INSERT INTO steps (run, no, status, version, attempt, round, tries, losses, reworks, \
         open_needs, broken_needs, skipped_by_when, rework_pending, feedback, work, items, started_ms, \
         ended_ms, item_of, item) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], \
         $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], \
         $10::bigint[], $11::bigint[], $12::boolean[], $13::boolean[], $14::text[], $15::bigint[], \
         $16::text[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[])";
    const UPDATE: &'static str =
        "WITH done AS (UPDATE steps AS t SET status = n.status, version = n.version, attempt = \
         n.attempt, round = n.round, tries = n.tries, losses = n.losses, reworks = n.reworks, \
         open_needs = n.open_needs, broken_needs = n.broken_needs, skipped_by_when = \
         n.skipped_by_when, rework_pending = n.rework_pending, feedback = n.feedback, work = n.work, \
         items = n.items, started_ms = n.started_ms, ended_ms = n.ended_ms FROM unnest($1::bigint[], \
         $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], \
         $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::boolean[], $13::boolean[], \
         $14::text[], $15::bigint[], $16::text[], $17::bigint[], $18::bigint[], $19::text[], \
         $20::bigint[]) AS n (run, no, status, version, attempt, round, tries, losses, reworks, \
         open_needs, broken_needs, skipped_by_when, rework_pending, feedback, work, items, started_ms, \
         ended_ms, was, was_version) WHERE t.run = n.run AND t.no = n.no AND t.status = n.was AND \
         t.version = n.was_version RETURNING 1) SELECT sprag_expect(count(*), $21::bigint, 'steps') \
         FROM done";

    fn keys(key: StepKey) -> Vec<Cell<'static>> {
        vec![key.0.to_i64().into(), key.1.into()]
    }

    fn changing(&self) -> Vec<Cell<'_>> {
        vec![
            self.status().as_str().into(), self.version().into(), self.attempt.into(), self.round.into(),
            self.tries.into(), self.losses.into(), self.reworks.into(), self.needs.open.into(),
            self.needs.broken.into(), self.skipped_by_when.into(), self.rework_pending.into(),
            self.feedback.as_deref().into(), self.work.into(), self.items.map(items_text).into(),
            self.started_ms.into(), self.ended_ms.into(),
        ]
    }

    fn fixed(&self) -> Vec<Cell<'_>> {
        vec![self.item_of.into(), self.item.into()]
    }

    fn read(columns: &Columns) -> Result<Self> {
        let r = &mut Reader::new(columns);
        let (run, no) = (RunId::from_i64(r.int()?), r.int()?);
        Ok(StepRow {
            run,
            no,
            status: status::<Self>(r, &[run.to_i64(), i64::from(no)])?,
            version: r.int()?,
            attempt: r.int()?,
            round: r.int()?,
            tries: r.int()?,
            losses: r.int()?,
            reworks: r.int()?,
            needs: Needs { open: r.int()?, broken: r.int()? },
            skipped_by_when: r.bool()?,
            rework_pending: r.bool()?,
            feedback: r.opt_text()?,
            work: r.opt_int()?,
            items: r.opt_text()?.as_deref().and_then(read_items),
            started_ms: r.opt_int()?,
            ended_ms: r.opt_int()?,
            item_of: r.opt_int()?,
            item: r.opt_int()?,
        })
    }
}

#[rustfmt::skip]
impl Stored for ExecutionRow {
    const SELECT: &'static str =
        "SELECT run, step, attempt, status, version, fence, pin, cancel_requested, published_ms, \
         owner, lease_until_ms, nonce, retriable, blocked, result, started_ms, ended_ms, epoch, queue, \
         priority, not_before_ms, created_ms FROM executions";
    const KEY: &'static str = "run = $1 AND step = $2 AND attempt = $3";
    const INSERT: &'static str =
        "INSERT INTO executions (run, step, attempt, status, version, fence, pin, cancel_requested, \
         published_ms, owner, lease_until_ms, nonce, retriable, blocked, result, started_ms, ended_ms, \
         epoch, queue, priority, not_before_ms, created_ms, actor) SELECT * FROM unnest($1::bigint[], \
         $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], \
         $8::boolean[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::boolean[], \
         $14::boolean[], $15::text[], $16::bigint[], $17::bigint[], $18::bigint[], $19::text[], \
         $20::bigint[], $21::bigint[], $22::bigint[], $23::text[])";
    const UPDATE: &'static str =
        "WITH done AS (UPDATE executions AS t SET status = n.status, version = n.version, fence = \
         n.fence, pin = n.pin, cancel_requested = n.cancel_requested, published_ms = n.published_ms, \
         owner = n.owner, lease_until_ms = n.lease_until_ms, nonce = n.nonce, retriable = n.retriable, \
         blocked = n.blocked, result = n.result, started_ms = n.started_ms, ended_ms = n.ended_ms, actor = \
         coalesce(n.actor, t.actor) FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], \
         $5::bigint[], $6::bigint[], $7::bigint[], $8::boolean[], $9::bigint[], $10::bigint[], \
         $11::bigint[], $12::bigint[], $13::boolean[], $14::boolean[], $15::text[], $16::bigint[], \
         $17::bigint[], $18::text[], $19::bigint[], $20::text[]) AS n (run, step, attempt, status, \
         version, fence, pin, cancel_requested, published_ms, owner, lease_until_ms, nonce, retriable, \
         blocked, result, started_ms, ended_ms, was, was_version, actor) WHERE t.run = n.run AND t.step = \
         n.step AND t.attempt = n.attempt AND t.status = n.was AND t.version = n.was_version RETURNING 1) \
         SELECT sprag_expect(count(*), $21::bigint, 'executions') FROM done";
    const TELLS_ACTOR: bool = true;

    fn keys(key: ExecutionId) -> Vec<Cell<'static>> {
        vec![key.run.to_i64().into(), key.step.into(), key.attempt.into()]
    }

    fn changing(&self) -> Vec<Cell<'_>> {
        vec![
            self.status().as_str().into(), self.version().into(), self.fence.into(),
            self.pin.unwrap_or(0).into(), self.cancel_requested.into(), self.published_ms.into(),
            self.owner.into(), self.lease_until_ms.into(), self.nonce.into(), self.retriable.into(),
            self.blocked.into(), self.result.as_deref().into(), self.started_ms.into(), self.ended_ms.into(),
        ]
    }

    fn fixed(&self) -> Vec<Cell<'_>> {
        vec![
            self.epoch.into(), (&*self.queue).into(), self.priority.into(), self.not_before_ms.into(),
            self.created_ms.into(),
        ]
    }

    fn read(columns: &Columns) -> Result<Self> {
        let r = &mut Reader::new(columns);
        let id = ExecutionId { run: RunId::from_i64(r.int()?), step: r.int()?, attempt: r.int()? };
        let keys = [id.run.to_i64(), i64::from(id.step), i64::from(id.attempt)];
        Ok(ExecutionRow {
            id,
            status: status::<Self>(r, &keys)?,
            version: r.int()?,
            fence: r.int()?,
            pin: some_unless_zero(r.int()?),
            cancel_requested: r.bool()?,
            published_ms: r.int()?,
            owner: r.opt_int()?,
            lease_until_ms: r.int()?,
            nonce: r.int()?,
            retriable: r.bool()?,
            blocked: r.bool()?,
            result: r.opt_text()?,
            started_ms: r.opt_int()?,
            ended_ms: r.opt_int()?,
            epoch: r.int()?,
            queue: r.text()?,
            priority: r.int()?,
            not_before_ms: r.int()?,
            created_ms: r.int()?,
        })
    }

    fn is_over(&self) -> bool {
        self.status().is_terminal()
    }
}
