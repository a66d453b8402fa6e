//! The kinds of rows, each with samples of its columns and with the store's own way to read and write it.

use std::any::Any;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use sprag_lifecycle::{Actor, ExecutionId, Lifecycle, RunId, Word};
use sprag_store::testing::{Backend, Column, RawStore, Section, Table, Type, tables};
use sprag_store::{
    AccountRow, ActRow, BoardRow, DeliveryRow, EnforcementRow, EnvironmentRow, ExecutionRow, GateRow,
    HookRow, NoteRow, OutboxRow, QueueRow, Refusal, Result, Row, RuleRow, RunRow, StepRow, Store, ThreadRow,
    TimerRow, TokenRow, WorkerRow,
};

/// The number of each key in all samples.
const RUN: i64 = 7;
const STEP: u32 = 8;
const ATTEMPT: u32 = 9;

/// A value as a test writes it into SQL.
#[derive(Debug, Clone)]
pub enum Literal {
    Null,
    Int(i64),
    Bool(bool),
    Text(String),
}

/// The columns of one row.
pub type Sample = Vec<(&'static str, Literal)>;

/// A row whose type the test does not name.
#[derive(Clone)]
pub struct AnyRow {
    row: Arc<dyn Any + Send + Sync>,
    text: String,
}

impl AnyRow {
    fn new<R: Debug + Send + Sync + 'static>(row: R) -> Self {
        AnyRow { text: format!("{row:?}"), row: Arc::new(row) }
    }

    fn get<R: Clone + 'static>(&self) -> R {
        self.row.downcast_ref::<R>().expect("a row of this kind").clone()
    }
}

impl PartialEq for AnyRow {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Debug for AnyRow {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The columns with JSON texts, which are checked whenever they are read.
pub const JSON: [&str; 11] = [
    "details",
    "context",
    "payload",
    "filter",
    "definition",
    "body",
    "chain",
    "watched",
    "inputs",
    "result",
    "answer",
];

/// A kind of row.
pub struct Kind {
    pub table: &'static str,
    pub entity: &'static str,
    /// The columns that hold a word of a closed set, with two of its words.
    words: Vec<(&'static str, [&'static str; 2])>,
    read: fn(&mut dyn Backend) -> Result<Option<AnyRow>>,
    write: fn(&mut dyn Backend, &AnyRow) -> Result<()>,
    /// Replaces the second row with the first, if status and version are still the second's. None for rows without a
    /// status.
    pub update: Option<fn(&Store, AnyRow, AnyRow) -> bool>,
}

/// Runs a write and waits for it.
fn write<T: Send + 'static>(
    store: &Store,
    mut work: impl FnMut(&mut dyn Backend) -> Result<T> + Send + 'static,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(store.write(move |session| work(session.db()))).unwrap()
}

impl Kind {
    pub fn columns(&self) -> Vec<Column> {
        let table = tables().into_iter().find(|table| table.name == self.table).expect("it is declared");
        table.statements.columns.clone()
    }

    /// Returns the word of a column, in the sample of this number.
    pub fn word(&self, column: &str, number: usize) -> Option<&'static str> {
        self.words.iter().find(|(name, _)| *name == column).map(|(_, words)| words[number - 1])
    }

    /// Returns whether the database numbers the row or what the column names anew when the row is written again.
    pub fn is_numbered_by_the_database(&self, column: &str) -> bool {
        [("outbox", "id"), ("notes", "id")].contains(&(self.table, column))
    }

    /// Returns a row with a different value in each column. `number` is 1 or 2.
    pub fn sample(&self, number: usize) -> Sample {
        let value = |(at, column): (usize, &Column)| {
            let value = match (column.kind.of, self.word(column.name, number)) {
                (_, Some(word)) => Literal::Text(word.into()),
                (Type::Int, _) => Literal::Int(match column.name {
                    "id" if column.section == Section::Key => RUN,
                    "run" if column.section == Section::Key || self.table == "notes" => RUN,
                    "no" | "step" if column.section == Section::Key => i64::from(STEP),
                    "attempt" if column.section == Section::Key => i64::from(ATTEMPT),
                    _ => (1_000 * number + at) as i64,
                }),
                (Type::Bool, _) => Literal::Bool(number == 1),
                (Type::Text, _) if column.name == "items" => {
                    Literal::Text(format!("{number} 2 3 4 5 6 7 8 1 10"))
                }
                (Type::Text, _) if JSON.contains(&column.name) => {
                    Literal::Text(format!("{{\"of\": {number}}}"))
                }
                (Type::Text, _) => Literal::Text(format!("{} {number}", column.name)),
                (Type::Bytes, _) => unreachable!("packs have tests of their own"),
            };
            (column.name, value)
        };
        self.columns().iter().enumerate().map(value).collect()
    }

    /// Returns a row without the values that may be absent.
    pub fn empty_sample(&self) -> Sample {
        let mut sample = self.sample(1);
        for ((_, value), column) in sample.iter_mut().zip(self.columns()) {
            match value {
                _ if column.kind.optional => *value = Literal::Null,
                Literal::Bool(value) => *value = false,
                _ => {}
            }
        }
        sample
    }

    /// Returns the key of a sample as errors tell it.
    pub fn id(&self, sample: &Sample) -> String {
        let columns = self.columns();
        let keys = sample.iter().zip(&columns).filter(|(_, column)| column.section == Section::Key);
        let text = |((_, value), _): (&(&str, Literal), &Column)| match value {
            Literal::Int(number) => number.to_string(),
            Literal::Text(text) => text.clone(),
            other => panic!("{other:?} is no key"),
        };
        keys.map(text).collect::<Vec<_>>().join("/")
    }

    /// Returns the statements that add what a sample refers to.
    pub fn before(&self, sample: &Sample) -> String {
        let number = |of: &str| match sample.iter().find(|(name, _)| *name == of) {
            Some((_, Literal::Int(number))) => *number,
            other => panic!("{other:?}"),
        };
        match self.table {
            "runs" => {
                let plan = number("plan");
                format!("INSERT INTO plans (hash, body) VALUES ({plan}, '{{}}') ON CONFLICT DO NOTHING;")
            }
            _ => String::new(),
        }
    }

    pub fn try_read(&self, store: &Store) -> Result<Option<AnyRow>> {
        store.read(|db| (self.read)(db))
    }

    pub fn read(&self, store: &Store) -> Option<AnyRow> {
        self.try_read(store).unwrap_or_else(|error| panic!("{}: {error}", self.table))
    }

    pub fn write(&self, store: &Store, row: AnyRow) {
        let add = self.write;
        write(store, move |db| add(db, &row));
    }
}

macro_rules! with_status {
    ($row:ty, $table:literal, $key:expr $(, $column:literal $words:expr)?) => {{
        let all = <<<$row as Row>::Life as Lifecycle>::Status as Word>::ALL;
        let update = |store: &Store, to: AnyRow, was: AnyRow| {
            write(store, move |db| {
                let (to, was) = (to.get::<$row>(), was.get::<$row>());
                Table::<$row>::update(db, &to, (was.status(), was.version()))
            })
        };
        Kind {
            table: $table,
            entity: <<$row as Row>::Life as Lifecycle>::NAME,
            words: vec![("status", [all[0].as_str(), all[1].as_str()]) $(, ($column, $words))?],
            read: |db| Ok(Table::<$row>::load(db, $key)?.map(AnyRow::new)),
            write: |db, row| Table::<$row>::insert(db, &row.get::<$row>()),
            update: Some(update),
        }
    }};
}

macro_rules! without_status {
    ($row:ty, $entity:literal, $table:literal $(, $column:literal $words:expr)?;
     |$from:ident| $read:expr, |$db:ident, $one:ident| $write:expr) => {
        Kind {
            table: $table,
            entity: $entity,
            words: vec![$(($column, $words))?],
            read: |$from| {
                let found: Option<$row> = $read;
                Ok(found.map(AnyRow::new))
            },
            write: |$db, row| {
                let $one = &row.get::<$row>();
                $write
            },
            update: None,
        }
    };
}

/// Runs a test with every kind of row.
pub fn each_kind(mut test: impl FnMut(&Kind)) {
    let kinds = [
        with_status!(RunRow, "runs", RunId::from_i64(RUN)),
        with_status!(StepRow, "steps", (RunId::from_i64(RUN), STEP)),
        with_status!(
            ExecutionRow,
            "executions",
            ExecutionId { run: RunId::from_i64(RUN), step: STEP, attempt: ATTEMPT }
        ),
        with_status!(EnvironmentRow, "environments", RUN),
        with_status!(ThreadRow, "threads", RUN),
        with_status!(GateRow, "gates", RUN, "kind" ["question", "signal"]),
        with_status!(WorkerRow, "workers", RUN),
        with_status!(AccountRow, "accounts", RUN),
        with_status!(RuleRow, "rules", RUN),
        with_status!(EnforcementRow, "enforcements", RUN),
        without_status!(DeliveryRow, "event", "deliveries"; |db| db.delivery(RUN)?, |db, row| db.put_delivery(row)),
        without_status!(OutboxRow, "effect", "outbox";
            |db| db.outbox_due(i64::MAX, 10)?.pop().map(|row| OutboxRow { id: 0, ..row }),
            |db, row| db.put_outbox(row)),
        without_status!(TimerRow, "timer", "timers";
            |db| db.timers_due(i64::MAX, 10)?.pop(), |db, row| db.put_timer(row)),
        without_status!(Refusal, "refusal", "refusals", "actor" [Actor::Worker.as_str(), Actor::Person.as_str()];
            |db| db.refusals(RunId::from_i64(RUN))?.pop(), |db, row| db.keep_refusal(row)),
        without_status!(QueueRow, "queue", "queues"; |db| db.queue("name 1")?, |db, row| db.put_queue(row)),
        without_status!(BoardRow, "board", "boards";
            |db| db.board(RunId::from_i64(RUN))?, |db, row| db.put_board(row)),
        without_status!(NoteRow, "note", "notes";
            |db| db.notes(RunId::from_i64(RUN), None, 0, 10)?.pop().map(|row| NoteRow { id: 0, ..row }),
            |db, row| db.put_note(row).map(drop)),
        without_status!(TokenRow, "token", "tokens"; |db| db.tokens()?.pop(), |db, row| db.put_token(row)),
        without_status!(ActRow, "act", "acts"; |db| db.acts(10)?.pop(), |db, row| db.put_act(row)),
        without_status!(HookRow, "hook", "hooks"; |db| db.hooks()?.pop(), |db, row| db.put_hook(row)),
    ];
    kinds.iter().for_each(&mut test);
}
