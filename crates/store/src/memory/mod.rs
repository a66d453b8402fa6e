//! The store in memory: for models, simulations, and to compare SQLite against.

mod boards;
mod queries;
mod retention;
mod service;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, Plan, RunId};

use crate::backend::{Backend, QueueRow, Table};
use crate::error::{Error, Result};
use crate::language::{Language, Wordless};
use crate::rows::{
    EnforcementRow, EnvironmentRow, ExecutionRow, GateRow, Id, JournalEntry, OutboxRow, Refusal, Row, RunRow,
    Status, StepKey, StepRow, ThreadRow, TimerRow, WorkerRow,
};
use crate::seams::Now;
use crate::session::Session;
use crate::wake::Topic;

/// How many refused events are kept of each run.
pub const REFUSALS_KEPT: usize = 16;

/// Everything a store keeps.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    pub(crate) runs: BTreeMap<RunId, RunRow>,
    pub(crate) steps: BTreeMap<StepKey, StepRow>,
    pub(crate) executions: BTreeMap<ExecutionId, ExecutionRow>,
    environments: BTreeMap<Id, EnvironmentRow>,
    threads: BTreeMap<Id, ThreadRow>,
    gates: BTreeMap<Id, GateRow>,
    workers: BTreeMap<Id, WorkerRow>,
    enforcements: BTreeMap<Id, EnforcementRow>,
    plans: BTreeMap<i64, Arc<Plan>>,
    journal: Vec<JournalEntry>,
    outbox: BTreeMap<i64, OutboxRow>,
    outbox_last: i64,
    timers: BTreeSet<TimerRow>,
    refusals: BTreeMap<Option<RunId>, VecDeque<Refusal>>,
    queues: BTreeMap<Arc<str>, QueueRow>,
    places: BTreeSet<(Arc<str>, RunId)>,
    items: BTreeMap<ExecutionId, Vec<Arc<str>>>,
    signals: Vec<(RunId, Arc<str>, Arc<str>)>,
    boards: boards::BoardTables,
    service: service::ServiceRows,
    pub(crate) language: Tongue,
}

/// Who reads the specs of steps.
#[derive(Debug, Clone)]
pub(crate) struct Tongue(pub(crate) Arc<dyn Language>);

impl Default for Tongue {
    fn default() -> Self {
        Tongue(Arc::new(Wordless))
    }
}

type Undo = Box<dyn FnOnce(&mut Tables)>;

/// The tables inside a transaction.
pub struct MemoryTx<'a> {
    tables: &'a mut Tables,
    now: Now,
    random: &'a mut dyn FnMut() -> u64,
    undo: Vec<Undo>,
}

impl Tables {
    /// Runs one operation: all of it is kept, or nothing.
    pub fn transact<T>(
        &mut self,
        now: Now,
        random: &mut dyn FnMut() -> u64,
        operation: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> Result<T> {
        self.transact_telling(now, random, &mut BTreeSet::new(), operation)
    }

    /// Runs one operation, and says who may want to know of it.
    pub(crate) fn transact_telling<T>(
        &mut self,
        now: Now,
        random: &mut dyn FnMut() -> u64,
        topics: &mut BTreeSet<Topic>,
        operation: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut tx = MemoryTx { tables: self, now, random, undo: Vec::new() };
        let done = Session::new(&mut tx).and_then(|mut session| {
            let answer = operation(&mut session)?;
            topics.extend(session.flush()?.topics);
            Ok(answer)
        });
        if done.is_err() {
            let undo = std::mem::take(&mut tx.undo);
            for step in undo.into_iter().rev() {
                step(tx.tables);
            }
        }
        done
    }

    /// Has the specs of steps read by `language`.
    pub fn speaking(mut self, language: Arc<dyn Language>) -> Tables {
        self.language = Tongue(language);
        self
    }

    /// Looks without changing anything.
    pub fn read<T>(&mut self, now: Now, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        look(&mut MemoryTx { tables: self, now, random: &mut || 0, undo: Vec::new() })
    }

    /// The runs, for checkers.
    pub fn all_runs(&self) -> impl Iterator<Item = &RunRow> {
        self.runs.values()
    }

    /// The steps, for checkers.
    pub fn all_steps(&self) -> impl Iterator<Item = &StepRow> {
        self.steps.values()
    }

    /// The executions, for checkers.
    pub fn all_executions(&self) -> impl Iterator<Item = &ExecutionRow> {
        self.executions.values()
    }

    /// The gates, for checkers.
    pub fn all_gates(&self) -> impl Iterator<Item = &GateRow> {
        self.gates.values()
    }

    /// What is to be done after commits, for checkers.
    pub fn all_outbox(&self) -> impl Iterator<Item = &OutboxRow> {
        self.outbox.values()
    }

    /// The environments, for checkers.
    pub fn all_environments(&self) -> impl Iterator<Item = &EnvironmentRow> {
        self.environments.values()
    }

    /// The threads, for checkers.
    pub fn all_threads(&self) -> impl Iterator<Item = &ThreadRow> {
        self.threads.values()
    }

    /// The plan that a run was made with, for checkers.
    pub fn plan_of(&self, run: &RunRow) -> Option<Arc<Plan>> {
        self.plans.get(&run.plan).cloned()
    }

    /// The timers, for checkers.
    pub fn all_timers(&self) -> impl Iterator<Item = &TimerRow> {
        self.timers.iter()
    }

    /// The journal, for checkers.
    pub fn all_entries(&self) -> &[JournalEntry] {
        &self.journal
    }

    /// A copy of the rows without their history, for checkers that compare two moments.
    pub fn rows(&self) -> Tables {
        Tables {
            runs: self.runs.clone(),
            steps: self.steps.clone(),
            executions: self.executions.clone(),
            environments: self.environments.clone(),
            gates: self.gates.clone(),
            plans: self.plans.clone(),
            timers: self.timers.clone(),
            ..Tables::default()
        }
    }

    /// Forgets the history and keeps the state: two states that differ in their past alone are then equal.
    pub fn forget_history(&mut self) {
        self.journal.clear();
        self.refusals.clear();
        self.outbox.clear();
        self.outbox_last = 0;
    }
}

trait Kept: Row {
    fn map(tables: &mut Tables) -> &mut BTreeMap<Self::Key, Self>;
}

macro_rules! kept {
    ($($row:ty => $field:ident),+ $(,)?) => {$(
        impl Kept for $row {
            fn map(tables: &mut Tables) -> &mut BTreeMap<Self::Key, Self> {
                &mut tables.$field
            }
        }
    )+};
}

kept! {
    RunRow => runs,
    StepRow => steps,
    ExecutionRow => executions,
    EnvironmentRow => environments,
    ThreadRow => threads,
    GateRow => gates,
    WorkerRow => workers,
    EnforcementRow => enforcements,
}

impl<R: Kept> Table<R> for MemoryTx<'_> {
    fn load(&mut self, key: R::Key) -> Result<Option<R>> {
        Ok(R::map(self.tables).get(&key).cloned())
    }

    fn insert(&mut self, row: &R) -> Result<()> {
        let key = row.key();
        if R::map(self.tables).contains_key(&key) {
            return Err(conflict::<R>(key));
        }
        R::map(self.tables).insert(key, row.clone());
        self.undo.push(Box::new(move |tables| {
            R::map(tables).remove(&key);
        }));
        Ok(())
    }

    fn update(&mut self, row: &R, was: (Status<R>, u32)) -> Result<bool> {
        let key = row.key();
        match R::map(self.tables).get_mut(&key) {
            Some(kept) if (kept.status(), kept.version()) == was => {
                let before = std::mem::replace(kept, row.clone());
                self.undo.push(Box::new(move |tables| {
                    R::map(tables).insert(key, before);
                }));
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

fn conflict<R: Row>(key: R::Key) -> Error {
    Error::Conflict { entity: <R::Life as sprag_lifecycle::Lifecycle>::NAME, id: format!("{key:?}") }
}
