//! The rows that a transaction knows, and the changes that it has yet to send.
//!
//! ```text
//!   a job's writes ──▶ staged ──(the job went well)──▶ pending ──▶ one statement per table
//!                        └──(it did not)──▶ dropped
//! ```
//!
//! So a job that fails costs the others nothing, and a batch of any size is a handful of statements.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sprag_lifecycle::{Actor, ExecutionId, Plan, RunId, StepNo, Word};

use super::cells::{Cell, Table, cells_of};
use super::sentences::Sentences;
use super::wire::Ask;
use crate::backend::QueueRow;
use crate::columns::{Column, Declared, Section, Statements, Type, Value};
use crate::rows::{
    AccountRow, EnforcementRow, EnvironmentRow, ExecutionRow, GateRow, Id, JournalEntry, Row, RuleRow,
    RunRow, Status, StepRow, ThreadRow, WorkerRow,
};
use crate::words::Sentence;

/// A lock that another transaction may hold. The order of the locks is the order in which transactions wait for them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lock {
    /// A name: of a group, a limited queue, or a key.
    Name(i64),
    Run(i64),
    Execution(i64, u32, u32),
    /// A row of another table, found by its number.
    Row(&'static str, i64),
}

/// A row as this transaction knows it.
pub(super) struct Known<R> {
    /// The row; none if it does not exist.
    pub(super) row: Option<R>,
    /// Whether this transaction holds the row, so that no other one changes it until this transaction ends.
    pub(super) held: bool,
}

/// A row to write, with its status and version in the database unless it is new.
struct Write<R: Row> {
    row: R,
    was: Option<(Status<R>, u32)>,
}

/// The rows of one kind.
pub(super) struct Rows<R: Row> {
    pub(super) known: BTreeMap<R::Key, Known<R>>,
    pending: BTreeMap<R::Key, Write<R>>,
    staged: BTreeMap<R::Key, Write<R>>,
}

impl<R: Row> Default for Rows<R> {
    fn default() -> Self {
        Rows { known: BTreeMap::new(), pending: BTreeMap::new(), staged: BTreeMap::new() }
    }
}

impl<R: Row + Declared> Rows<R> {
    /// Returns the row as this job sees it, if it is known, and whether it is held.
    pub(super) fn get(&self, key: R::Key) -> Option<(Option<R>, bool)> {
        match self.staged.get(&key) {
            Some(write) => Some((Some(write.row.clone()), true)),
            None => self.known.get(&key).map(|known| (known.row.clone(), known.held)),
        }
    }

    pub(super) fn learn(&mut self, key: R::Key, row: Option<R>, held: bool) {
        self.known.insert(key, Known { row, held });
    }

    pub(super) fn stage(&mut self, row: &R, was: Option<(Status<R>, u32)>) {
        stage(&mut self.staged, row.key(), Write { row: row.clone(), was });
    }

    fn merge(&mut self) {
        for (key, write) in std::mem::take(&mut self.staged) {
            self.known.insert(key, Known { row: Some(write.row.clone()), held: true });
            stage(&mut self.pending, key, write);
        }
    }

    /// Appends the statements that write the pending rows. Changed rows come before new ones, because a step's next
    /// attempt may be live only when the last one is not.
    fn asks<'a>(&'a self, actors: &BTreeMap<R::Key, Actor>, asks: &mut Vec<Ask<'a>>) {
        let (new, changed): (Vec<_>, Vec<_>) =
            self.pending.iter().partition(|(_, write)| write.was.is_none());
        let Statements { columns, postgres_insert, postgres_update, .. } = R::statements();
        let is_known = |column: &&Column| column.section != Section::Fixed;
        if !changed.is_empty() {
            let wanted = changed.len();
            let known = columns.iter().take_while(is_known).count();
            let further = [Type::Text, Type::Int, Type::Text];
            let further = &further[..if R::ACTOR.is_some() { 3 } else { 2 }];
            let mut table = Table::new(&columns[..known], further);
            for (key, write) in changed {
                table.sections(&write.row, &[Section::Key, Section::Changes]);
                if let Some((status, version)) = write.was {
                    table.push(status.as_str().into());
                    table.push(version.into());
                }
                if R::ACTOR.is_some() {
                    table.push(actors.get(key).map(|actor| actor.as_str()).into());
                }
            }
            let mut ask = Ask::over(postgres_update, table);
            ask.params.push(Box::new(Cell::from(wanted)));
            asks.push(ask);
        }
        if !new.is_empty() {
            let further: &[Type] = if R::ACTOR.is_some() { &[Type::Text] } else { &[] };
            let mut table = Table::new(columns, further);
            for (key, write) in new {
                write.row.write_all(&mut |value| table.push(value));
                if R::ACTOR.is_some() {
                    table.push(actors.get(key).map_or(Actor::Executor, |actor| *actor).as_str().into());
                }
            }
            asks.push(Ask::over(postgres_insert, table));
        }
    }
}

fn stage<R: Row>(writes: &mut BTreeMap<R::Key, Write<R>>, key: R::Key, write: Write<R>) {
    match writes.get_mut(&key) {
        // The database's version is the one that the first write found.
        Some(before) => before.row = write.row,
        None => drop(writes.insert(key, write)),
    }
}

/// A statement of a table without statuses.
pub(super) struct Extra {
    sql: &'static str,
    parameters: Parameters,
}

/// The parameters of an extra.
enum Parameters {
    Cells(Vec<Cell<'static>>),
    /// One row of a statement over `unnest`. Consecutive extras with the same SQL become one statement.
    Row(Vec<Value<'static>>),
}

/// Returns one statement for extras that each have one row.
fn over_rows<'a>(sql: &'a str, extras: &'a [Extra]) -> Ask<'a> {
    let rows = extras.iter().filter_map(|extra| match &extra.parameters {
        Parameters::Row(row) => Some(row),
        Parameters::Cells(_) => None,
    });
    let types = |row: &Vec<Value<'_>>| row.iter().map(Value::of).collect::<Vec<Type>>();
    let mut table = Table::new(&[], &rows.clone().next().map(types).unwrap_or_default());
    rows.flatten().for_each(|value| table.push(value.clone()));
    Ask::over(sql, table)
}

/// The executions that waited in a queue and that no other transaction was taking.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) free: Vec<ExecutionId>,
    /// Whether nothing else waited, free or not.
    pub(super) all: bool,
}

/// The state of a transaction.
#[derive(Default)]
pub(super) struct State {
    pub(super) runs: Rows<RunRow>,
    pub(super) steps: Rows<StepRow>,
    pub(super) executions: Rows<ExecutionRow>,
    pub(super) environments: Rows<EnvironmentRow>,
    pub(super) threads: Rows<ThreadRow>,
    pub(super) gates: Rows<GateRow>,
    pub(super) workers: Rows<WorkerRow>,
    pub(super) rules: Rows<RuleRow>,
    pub(super) enforcements: Rows<EnforcementRow>,
    pub(super) accounts: Rows<AccountRow>,
    /// Runs whose steps are all known, with the executions that existed.
    pub(super) whole: BTreeMap<RunId, BTreeSet<(StepNo, u32)>>,
    /// The executions that waited in queues for these workers (0: any worker) when the transaction began, in the order
    /// in which workers receive them.
    pub(super) waiting: BTreeMap<(Arc<str>, Id), Waiting>,
    /// Their runs that another transaction holds. Jobs may report these rows, but must not decide by them.
    pub(super) glimpses: BTreeMap<RunId, RunRow>,
    /// Runs that exist and that another transaction holds.
    pub(super) contended: BTreeSet<RunId>,
    /// The number of the last journal entry, once the journal's head is held.
    pub(super) head: Option<u64>,
    staged_head: Option<u64>,
    /// The id of this transaction, with which the writer can ask for its outcome.
    pub(super) xid: Option<i64>,
    /// The entries of the transaction, which are packed and sent together with its commit.
    journal: Vec<JournalEntry>,
    /// The number of those entries whose rows were sent before.
    rows_sent: usize,
    staged_journal: Vec<JournalEntry>,
    extras: Vec<Extra>,
    staged_extras: Vec<Extra>,
    /// Whether statements of the present job have been sent. Then only undoing the whole transaction undoes the job.
    pub(super) job_was_sent: bool,
    pub(super) wrote: bool,
    /// Whether the transaction must be undone, whatever it has written.
    pub(super) undo_all: bool,
    pub(super) queues: Option<BTreeMap<Arc<str>, QueueRow>>,
    pub(super) plans: BTreeMap<i64, Arc<Plan>>,
    pub(super) items: BTreeMap<(ExecutionId, u32), Arc<str>>,
    pub(super) signals_taken: BTreeSet<i64>,
    pub(super) names: BTreeSet<i64>,
    /// Runs that the present job knows though another transaction holds them. The job may report them, but must not
    /// decide by them.
    pub(super) glimpsed: Vec<RunId>,
    /// The lock that the present job met and that another transaction holds.
    pub(super) busy: Option<Lock>,
    /// Steps that were received while another transaction held their run.
    pub(super) later: BTreeSet<(RunId, StepNo)>,
    pub(super) staged_later: Vec<(RunId, StepNo)>,
    /// The store's count of removed plans when the transaction began.
    pub(super) plans_removed: i64,
    /// The milliseconds by which the steady clock was ahead of the server's, and by which it has to be ahead; none
    /// unless the server's clock was put back.
    pub(super) clock_put_back: Option<(i64, i64)>,
    /// Sentences that no transaction of this process has stored before.
    pub(super) new_sentences: BTreeMap<i64, Sentence>,
}

macro_rules! each_kind {
    ($state:ident, $do:ident $(, $arg:expr)*) => {
        $state.runs.$do($($arg),*);
        $state.steps.$do($($arg),*);
        $state.environments.$do($($arg),*);
        $state.threads.$do($($arg),*);
        $state.gates.$do($($arg),*);
        $state.workers.$do($($arg),*);
        $state.rules.$do($($arg),*);
        $state.enforcements.$do($($arg),*);
        $state.accounts.$do($($arg),*);
    };
}

impl State {
    /// Returns the state of a transaction that has just begun.
    pub(super) fn begin(plans_removed: i64, clock_put_back: Option<(i64, i64)>) -> State {
        State { plans_removed, clock_put_back, ..State::default() }
    }

    /// Returns the number of the last entry as the present job sees it.
    pub(super) fn last_seq(&self) -> Option<u64> {
        self.staged_head.or(self.head)
    }

    pub(super) fn append(&mut self, entries: &[JournalEntry]) {
        self.staged_journal.extend_from_slice(entries);
        self.staged_head = entries.last().map(|entry| entry.seq).or(self.staged_head);
    }

    pub(super) fn extra(&mut self, sql: &'static str, cells: Vec<Cell<'_>>) {
        let parameters = Parameters::Cells(cells.into_iter().map(Cell::into_owned).collect());
        self.staged_extras.push(Extra { sql, parameters });
    }

    /// Adds a row, with others of its kind in one statement.
    pub(super) fn put<R: Declared>(&mut self, row: &R) {
        let parameters = Parameters::Row(cells_of(row, &Section::ALL));
        self.staged_extras.push(Extra { sql: &R::statements().postgres_insert, parameters });
    }

    /// Adds a row that gets its key from the database, with others of its kind in one statement.
    pub(super) fn add<R: Declared>(&mut self, row: &R) {
        let parameters = Parameters::Row(cells_of(row, &[Section::Changes, Section::Fixed]));
        self.staged_extras.push(Extra { sql: &R::statements().postgres_add, parameters });
    }

    /// Adds a statement whose parameters are these sections of a row.
    pub(super) fn extra_of<R: Declared>(&mut self, sql: &'static str, row: &R, sections: &[Section]) {
        let cells = cells_of(row, sections).into_iter().map(Cell::One).collect();
        self.staged_extras.push(Extra { sql, parameters: Parameters::Cells(cells) });
    }

    /// Forgets the glimpsed rows, by which the next job must not decide.
    fn forget_glimpses(&mut self) {
        for run in std::mem::take(&mut self.glimpsed) {
            if self.runs.known.get(&run).is_some_and(|known| !known.held) {
                self.runs.known.remove(&run);
                self.steps.known.retain(|(of, _), _| *of != run);
            }
        }
    }

    /// Keeps the job's writes, after the job has succeeded.
    pub(super) fn keep(&mut self) {
        self.forget_glimpses();
        each_kind!(self, merge);
        self.executions.merge();
        self.journal.append(&mut self.staged_journal);
        self.extras.append(&mut self.staged_extras);
        self.later.extend(self.staged_later.drain(..));
        self.head = self.staged_head.take().or(self.head);
        self.job_was_sent = false;
    }

    /// Drops the job's writes, after the job has failed.
    pub(super) fn drop_job(&mut self) {
        self.forget_glimpses();
        macro_rules! clear {
            ($($kind:ident),+) => { $(self.$kind.staged.clear();)+ };
        }
        clear!(runs, steps, executions, environments, threads, gates, workers, rules, enforcements, accounts);
        self.staged_journal.clear();
        self.staged_extras.clear();
        self.staged_head = None;
        self.items.clear();
        self.signals_taken.clear();
        self.plans.clear();
        self.staged_later.clear();
    }

    /// Returns whether no statement waits to be sent.
    pub(super) fn is_clean(&self) -> bool {
        fn clean<R: Row>(rows: &Rows<R>) -> bool {
            rows.pending.is_empty()
        }
        clean(&self.runs)
            && clean(&self.steps)
            && clean(&self.executions)
            && clean(&self.environments)
            && clean(&self.threads)
            && clean(&self.gates)
            && clean(&self.workers)
            && clean(&self.rules)
            && clean(&self.enforcements)
            && clean(&self.accounts)
            && self.rows_sent == self.journal.len()
            && self.extras.is_empty()
            && self.staged_extras.is_empty()
    }

    /// Returns the statements for rows that wait to be sent, in an order that the tables' constraints allow.
    pub(super) fn asks(&self) -> Vec<Ask<'_>> {
        let mut asks = Vec::new();
        let nobody = BTreeMap::new();
        self.runs.asks(&nobody, &mut asks);
        self.steps.asks(&BTreeMap::new(), &mut asks);
        self.executions.asks(&self.movers(), &mut asks);
        self.environments.asks(&BTreeMap::new(), &mut asks);
        self.threads.asks(&BTreeMap::new(), &mut asks);
        self.gates.asks(&BTreeMap::new(), &mut asks);
        self.workers.asks(&BTreeMap::new(), &mut asks);
        self.rules.asks(&BTreeMap::new(), &mut asks);
        self.enforcements.asks(&BTreeMap::new(), &mut asks);
        self.accounts.asks(&BTreeMap::new(), &mut asks);
        for extras in [&self.extras, &self.staged_extras] {
            let is_row = |extra: &Extra| matches!(extra.parameters, Parameters::Row(_));
            for alike in extras.chunk_by(|one, next| is_row(one) && one.sql == next.sql) {
                match &alike[0] {
                    Extra { sql, parameters: Parameters::Cells(cells) } => {
                        asks.push(Ask::new(sql, cells.iter().cloned()));
                    }
                    Extra { sql, parameters: Parameters::Row(_) } => asks.push(over_rows(sql, alike)),
                }
            }
        }
        asks
    }

    /// Returns the statements that add the transaction's entries to the journal.
    pub(super) fn journal_asks(&self, sentences: &Sentences, steady_ms: i64) -> Vec<Ask<'_>> {
        let mut asks = Vec::new();
        sentences.asks(&self.journal, &mut asks);
        if let (Some(_), Some(head)) = (self.journal.last(), self.head) {
            let sql = "UPDATE journal_head SET seq = $1, steady_ms = greatest(steady_ms, $2)";
            asks.push(Ask::new(sql, [Cell::from(head), Cell::from(steady_ms)]));
        }
        asks
    }

    /// Returns the first actor that moved each execution.
    fn movers(&self) -> BTreeMap<ExecutionId, Actor> {
        let mut movers = BTreeMap::new();
        let unsent = &self.journal[self.rows_sent..];
        for entry in unsent.iter().filter(|entry| entry.entity == "execution") {
            if let (Some(run), Some(step), Some(attempt)) =
                (entry.place.run, entry.place.step, entry.place.attempt)
            {
                movers.entry(ExecutionId { run, step, attempt }).or_insert(entry.actor);
            }
        }
        movers
    }

    /// Clears the pending writes of rows after they were sent.
    pub(super) fn sent(&mut self) {
        macro_rules! clear {
            ($($kind:ident),+) => { $(self.$kind.pending.clear();)+ };
        }
        self.wrote |= !self.is_clean();
        clear!(runs, steps, executions, environments, threads, gates, workers, rules, enforcements, accounts);
        self.rows_sent = self.journal.len();
        self.extras.clear();
        self.job_was_sent |= !self.staged_extras.is_empty();
        self.staged_extras.clear();
    }

    /// Returns whether entries wait to be sent.
    pub(super) fn has_entries(&self) -> bool {
        !self.journal.is_empty()
    }

    /// Clears the entries after they were sent.
    pub(super) fn journal_sent(&mut self, sentences: &Sentences) {
        self.new_sentences.extend(sentences.new_in(&self.journal));
        self.journal.clear();
        self.rows_sent = 0;
    }

    pub(super) fn wants_commit(&self) -> bool {
        self.wrote || !self.is_clean()
    }
}
