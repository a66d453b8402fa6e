//! A transaction: it begins by holding the runs that its jobs are about, and never waits for anything after that.
//!
//! A transaction writes rows only after it has taken the journal's head, which one transaction holds at a time. So no
//! statement that writes ever waits for another transaction's rows, unique indexes included. (Forgetting is the
//! exception: it takes rows of runs that have ended, and not the head.)
//!
//! The isolation level is READ COMMITTED, so that a read after a row was held is at least as new as the hold. A
//! decision that depends on rows which are read and not written is covered by a lock that both sides hold:
//!
//! | read | covered by |
//! |---|---|
//! | a run's status, epoch, tally; its steps; its gates, items, signals, boards, needs | the run's row |
//! | an execution | its own row, which each reader holds while the execution is live |
//! | a step, by a claim while another transaction holds the run | nothing: only reported, never decided by |
//! | a child's run, by its parent | the child's row |
//! | places and queued runs of a group | a lock on the group's name |
//! | a limited queue's settings and its executions that are out | a lock on the queue's name |
//! | an account, and its executions that are out | the account's row |
//! | whether a key, plan, board's name or run's environment exists | a unique index: the second is undone and retried |
//! | a worker, an environment, a hook, a rule, an enforcement | its own row |
//! | whether a rule took an event | a unique index: the second is undone and retried |
//! | the remaining rows of a forgotten run | the run's row, until it is gone; then no other transaction finds it |
//! | a whole queue, group or table, by a reader that looks for something to do | its next operation decides again |
//! | the list of workers | nothing: one that registers at the same moment is seen a moment later |

use std::sync::LazyLock;

use sprag_lifecycle::{ExecutionId, RunId, mutant};
use tokio_postgres::Row as Columns;

use super::Shared;
use super::cells::{Cell, owned};
use super::clock::Reading;
use super::fault::Fault;
use super::open::SCHEMA_VERSION;
use super::state::{Lock, Rows, State};
use super::wire::{Ask, Wire};
use crate::backend::{QueueRow, Table};
use crate::clock::{Clock, Now, System, fnv};
use crate::columns::{Declared, Field, Reader};
use crate::error::{Error, Result};
use crate::rows::{
    AccountRow, EnforcementRow, EnvironmentRow, ExecutionRow, GateRow, Id, Row, RuleRow, RunRow, Status,
    StepKey, StepRow, ThreadRow, WorkerRow,
};

/// The statement that every transaction asks first: the time, the count of removed plans, and the schema's version.
pub(super) const STATE: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS clock_ms, \
     s.ahead_ms, h.steady_ms, s.plans_removed, h.schema, set_config('sprag.actor', 'rows', true) \
     FROM store_state AS s, journal_head AS h";
pub(super) const HEAD: &str =
    "SELECT seq, (pg_current_xact_id()::text)::bigint AS xid, schema FROM journal_head FOR UPDATE";
pub(super) static QUEUES: LazyLock<String> =
    LazyLock::new(|| format!("{} ORDER BY name", QueueRow::statements().select));

/// A database inside a transaction.
pub(super) struct Tx<'w> {
    pub(super) wire: &'w Wire,
    pub(super) shared: &'w Shared,
    pub(super) now: Now,
    /// Whether it may write. Then it holds the rows that it reads.
    pub(super) writes: bool,
    pub(super) state: State,
    /// The fault of the transaction as a whole.
    pub(super) fault: Option<Fault>,
}

/// Returns the time and the initial state of a transaction from the answer to [`STATE`].
pub(super) fn begin_with(
    shared: &Shared,
    asked_ms: i64,
    rows: &[Columns],
) -> std::result::Result<(Now, State), Fault> {
    let Some(row) = rows.first() else { return Err(Fault::Incomplete) };
    let reading = |column| row.get::<_, i64>(column);
    refuse_newer(reading("schema"))?;
    let (clock_ms, ahead_ms, committed_ms) = (reading("clock_ms"), reading("ahead_ms"), reading("steady_ms"));
    let (now, raised) = shared.clock.told(Reading { asked_ms, clock_ms, ahead_ms, committed_ms });
    let plans_removed = reading("plans_removed");
    shared.plans_were_removed(plans_removed);
    let clock_put_back = raised.map(|raised_ms| (ahead_ms, raised_ms));
    Ok((now, State::begin(plans_removed, clock_put_back)))
}

fn refuse_newer(found: i64) -> std::result::Result<(), Fault> {
    if found > SCHEMA_VERSION && !mutant!(SchemaNotLookedAt) { Err(Fault::Newer(found)) } else { Ok(()) }
}

/// A kind of row that a transaction caches.
pub(super) trait Kept: Row<Key: Field> + Declared {
    fn rows(state: &mut State) -> &mut Rows<Self>;
    fn lock(key: Self::Key) -> Lock;
    /// Returns the run whose row covers this one, which is then not held by itself.
    fn covered_by(_: Self::Key) -> Option<RunId> {
        None
    }
    /// Forgets the rows that this row covers, if they were read before it was held.
    fn forget_what_it_covers(_: &mut State, _: Self::Key) {}
    /// Returns whether the row is known not to exist.
    fn is_absent(_: &State, _: Self::Key) -> bool {
        false
    }
    /// Returns whether the row never changes any more, so that no transaction needs to hold it.
    fn is_over(&self) -> bool {
        false
    }
}

impl Kept for RunRow {
    fn rows(state: &mut State) -> &mut Rows<Self> {
        &mut state.runs
    }

    fn lock(key: RunId) -> Lock {
        Lock::Run(key.to_i64())
    }

    fn forget_what_it_covers(state: &mut State, key: RunId) {
        state.steps.known.retain(|(run, _), _| *run != key);
    }
}

impl Kept for StepRow {
    fn rows(state: &mut State) -> &mut Rows<Self> {
        &mut state.steps
    }

    fn lock(key: StepKey) -> Lock {
        Lock::Run(key.0.to_i64())
    }

    fn covered_by(key: StepKey) -> Option<RunId> {
        Some(key.0)
    }

    fn is_absent(state: &State, key: StepKey) -> bool {
        state.whole.contains_key(&key.0)
    }
}

impl Kept for ExecutionRow {
    fn rows(state: &mut State) -> &mut Rows<Self> {
        &mut state.executions
    }

    fn lock(key: ExecutionId) -> Lock {
        Lock::Execution(key.run.to_i64(), key.step, key.attempt)
    }

    fn is_absent(state: &State, key: ExecutionId) -> bool {
        state.whole.get(&key.run).is_some_and(|there| !there.contains(&(key.step, key.attempt)))
    }

    fn is_over(&self) -> bool {
        self.status().is_terminal()
    }
}

macro_rules! kept_by_number {
    ($($row:ty => $field:ident),+ $(,)?) => {$(
        impl Kept for $row {
            fn rows(state: &mut State) -> &mut Rows<Self> {
                &mut state.$field
            }

            fn lock(key: Id) -> Lock {
                Lock::Row(stringify!($field), key)
            }
        }
    )+};
}
kept_by_number! {
    EnvironmentRow => environments,
    ThreadRow => threads,
    GateRow => gates,
    WorkerRow => workers,
    RuleRow => rules,
    EnforcementRow => enforcements,
    AccountRow => accounts,
}

impl<'w> Tx<'w> {
    /// Begins to read one consistent state.
    pub(super) fn read(wire: &'w Wire, shared: &'w Shared) -> std::result::Result<Tx<'w>, Fault> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let asked_ms = System.boot_ms();
        let answers = wire.ask(&[Ask::plain(begin), Ask::plain(STATE)])?;
        let (now, state) = begin_with(shared, asked_ms, &answers[1])?;
        Ok(Tx { wire, shared, now, writes: false, state, fault: None })
    }

    /// Reads the journal's head, which this transaction now holds. A migrating process holds it too, so the schema's
    /// version stays the same.
    pub(super) fn learn_head(&mut self, rows: &[Columns]) -> std::result::Result<(), Fault> {
        if let Some(row) = rows.first() {
            refuse_newer(row.get("schema"))?;
            self.state.head = Some(row.get::<_, i64>("seq") as u64);
            self.state.xid = Some(row.get("xid"));
        }
        Ok(())
    }

    pub(super) fn learn_queues(&mut self, rows: &[Columns]) {
        // If a row cannot be read, the job asks for the queue by its name and reports the error.
        let all: Result<_> =
            rows.iter().map(|row| QueueRow::read(row).map(|row| (row.name.clone(), row))).collect();
        self.state.queues = all.ok();
    }

    /// Caches rows; returns whether all of them could be read.
    pub(super) fn learn_all<'r, R: Kept>(
        &mut self,
        rows: impl IntoIterator<Item = &'r Columns>,
        held: bool,
    ) -> bool {
        let mut all = true;
        for row in rows {
            match R::read(row) {
                Ok(row) => R::rows(&mut self.state).learn(row.key(), Some(row), held),
                Err(_) => all = false,
            }
        }
        all
    }

    /// Takes the journal's head, which this transaction holds until it ends.
    pub(super) fn take_head(&mut self) -> Result<u64> {
        if let Some(seq) = self.state.last_seq() {
            return Ok(seq);
        }
        let mut answers = self.ask(vec![Ask::plain(HEAD)], "writing")?;
        if let Err(fault) = self.learn_head(&answers.remove(0)) {
            let told = fault.told(&self.shared.address, "writing");
            self.fault = Some(fault);
            return Err(told);
        }
        self.state.head.ok_or_else(|| Error::Corrupt {
            path: self.shared.address.path(),
            reason: "the journal has no head".into(),
        })
    }

    /// Sends the pending writes, then these statements, and returns the answers to these. A failure fails the whole
    /// transaction.
    pub(super) fn ask(&mut self, asks: Vec<Ask<'_>>, action: &'static str) -> Result<Vec<Vec<Columns>>> {
        let waits = !self.state.is_clean();
        self.send(waits, asks, action)
    }

    /// Sends these statements without the pending writes, which are about other rows. So the jobs before this one
    /// share their statements with the jobs after it.
    fn ask_beside(&mut self, asks: Vec<Ask<'_>>, action: &'static str) -> Result<Vec<Vec<Columns>>> {
        self.send(false, asks, action)
    }

    fn send(
        &mut self,
        waiting_too: bool,
        asks: Vec<Ask<'_>>,
        action: &'static str,
    ) -> Result<Vec<Vec<Columns>>> {
        if let Some(fault) = &self.fault {
            return Err(fault.told(&self.shared.address, action));
        }
        let mut all = if waiting_too { self.state.asks() } else { Vec::new() };
        let waiting = all.len();
        all.extend(asks);
        let answers = self.wire.ask(&all);
        drop(all);
        match answers {
            Ok(mut answers) => {
                if waiting_too {
                    self.state.sent();
                }
                Ok(answers.split_off(waiting))
            }
            Err(fault) => {
                let told = fault.told(&self.shared.address, action);
                self.fault = Some(fault);
                Err(told)
            }
        }
    }

    /// Runs a query for whole rows: `condition` follows the statement that selects them.
    pub(super) fn rows<R: Declared>(&mut self, condition: &str, cells: Vec<Cell<'_>>) -> Result<Vec<R>> {
        let sql = format!("{} {condition}", R::statements().select);
        let answers = self.ask(vec![Ask::new(&sql, cells)], "reading")?;
        answers[0].iter().map(|row| R::read(row)).collect()
    }

    /// Runs a query for a few columns.
    pub(super) fn list<T: Field>(&mut self, sql: &str, cells: Vec<Cell<'_>>) -> Result<Vec<T>> {
        let answers = self.ask(vec![Ask::new(sql, cells)], "reading")?;
        answers[0].iter().map(|row| T::read(&mut Reader::few(sql, row))).collect()
    }

    /// Runs a query for a few columns of at most one row.
    pub(super) fn one<T: Field>(&mut self, sql: &str, cells: Vec<Cell<'_>>) -> Result<Option<T>> {
        Ok(self.list(sql, cells)?.into_iter().next())
    }

    /// Notes that another transaction holds what the present job needs. The writer runs the job again once that is
    /// free.
    pub(super) fn busy(&mut self, lock: Lock) -> Error {
        let id = format!("{lock:?}");
        self.state.busy.get_or_insert(lock);
        Error::Conflict { entity: "lock", id }
    }

    /// Holds a name until the transaction ends, so that other transactions that ask about the same thing decide after
    /// this one.
    pub(super) fn hold_name(&mut self, kind: &str, name: &str) -> Result<()> {
        if !self.writes {
            return Ok(());
        }
        let key = fnv(&format!("{kind} {name}")) as i64;
        if self.state.names.contains(&key) {
            return Ok(());
        }
        let sql = "SELECT pg_try_advisory_xact_lock($1)";
        match self.one(sql, vec![key.into()])? {
            Some(true) => {
                self.state.names.insert(key);
                Ok(())
            }
            _ => Err(self.busy(Lock::Name(key))),
        }
    }

    /// Fetches a row that is not known yet, so that no pending write is about it.
    fn fetch<R: Kept>(&mut self, key: R::Key) -> Result<Option<R>> {
        let plain_sql = R::statements().postgres.load.as_str();
        let keys = || {
            let mut cells = Vec::new();
            key.write(&mut |value| cells.push(Cell::One(owned(value))));
            cells
        };
        if !self.writes || R::covered_by(key).is_some() {
            let answers = self.ask_beside(vec![Ask::new(plain_sql, keys())], "reading")?;
            return answers[0].first().map(|row| R::read(row)).transpose();
        }
        let held_sql = format!("{plain_sql} FOR UPDATE SKIP LOCKED");
        let asks = vec![Ask::new(&held_sql, keys()), Ask::new(plain_sql, keys())];
        let answers = self.ask_beside(asks, "reading")?;
        match (answers[0].first(), answers[1].first()) {
            (Some(row), _) => R::read(row).map(Some),
            (None, None) => Ok(None),
            (None, Some(row)) => match R::read(row)? {
                row if row.is_over() => Ok(Some(row)),
                _ => Err(self.busy(R::lock(key))),
            },
        }
    }
}

/// Returns the statement that holds and reads the rows which no other transaction holds.
pub(super) fn held<R: Declared>(condition: &str) -> String {
    format!("{} WHERE {condition} FOR UPDATE SKIP LOCKED", R::statements().select)
}

/// Returns the statement that waits until a lock is free, and holds it.
pub(super) fn wait_for<'a>(lock: &Lock) -> Ask<'a> {
    match lock {
        Lock::Name(key) => Ask::new("SELECT pg_advisory_xact_lock($1)", [Cell::from(*key)]),
        Lock::Run(id) => Ask::new("SELECT 1 FROM runs WHERE id = $1 FOR UPDATE", [Cell::from(*id)]),
        Lock::Execution(run, step, attempt) => Ask::new(
            "SELECT 1 FROM executions WHERE run = $1 AND step = $2 AND attempt = $3 FOR UPDATE",
            [Cell::from(*run), Cell::from(*step), Cell::from(*attempt)],
        ),
        Lock::Row(table, id) => {
            let sql = match *table {
                "environments" => "SELECT 1 FROM environments WHERE id = $1 FOR UPDATE",
                "threads" => "SELECT 1 FROM threads WHERE id = $1 FOR UPDATE",
                "gates" => "SELECT 1 FROM gates WHERE id = $1 FOR UPDATE",
                "workers" => "SELECT 1 FROM workers WHERE id = $1 FOR UPDATE",
                "accounts" => "SELECT 1 FROM accounts WHERE id = $1 FOR UPDATE",
                "hooks" => "SELECT 1 FROM hooks WHERE id = $1 FOR UPDATE",
                "rules" => "SELECT 1 FROM rules WHERE id = $1 FOR UPDATE",
                _ => "SELECT 1 FROM enforcements WHERE id = $1 FOR UPDATE",
            };
            Ask::new(sql, [Cell::from(*id)])
        }
    }
}

impl<R: Kept> Table<R> for Tx<'_> {
    fn load(&mut self, key: R::Key) -> Result<Option<R>> {
        if !self.writes {
            return self.fetch(key);
        }
        if let Some((row, _)) = R::rows(&mut self.state).get(key) {
            return Ok(row);
        }
        if R::is_absent(&self.state, key) {
            return Ok(None);
        }
        if let Some(run) = R::covered_by(key)
            && self.state.runs.get(run).is_none()
        {
            Table::<RunRow>::load(self, run)?;
        }
        let row = self.fetch::<R>(key)?;
        R::forget_what_it_covers(&mut self.state, key);
        R::rows(&mut self.state).learn(key, row.clone(), true);
        Ok(row)
    }

    fn insert(&mut self, row: &R) -> Result<()> {
        R::rows(&mut self.state).stage(row, None);
        Ok(())
    }

    /// Decides here, because the row is held. The statement that writes the row compares once more.
    fn update(&mut self, row: &R, was: (Status<R>, u32)) -> Result<bool> {
        let found = Table::<R>::load(self, row.key())?;
        if found.is_none_or(|found| (found.status(), found.version()) != was) {
            return Ok(false);
        }
        let held = match R::covered_by(row.key()) {
            Some(run) => self.state.runs.get(run).is_some_and(|(_, held)| held),
            None => R::rows(&mut self.state).get(row.key()).is_some_and(|(_, held)| held),
        };
        if !held {
            return Err(self.busy(R::lock(row.key())));
        }
        R::rows(&mut self.state).stage(row, Some(was));
        Ok(true)
    }
}
