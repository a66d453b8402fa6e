//! The store in memory: for models and simulations, and as a reference for SQLite.
//!
//! It keeps the journal's entries one by one, so that readers of packs are compared with readers of entries.

mod boards;
mod queries;
mod retention;
mod service;
mod triggers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, Plan, RunId};

use crate::backend::{Backend, QueueRow, Table};
use crate::clock::Now;
use crate::error::{Error, Result};
use crate::evaluator::{NoEvaluator, SpecEvaluator};
use crate::rows::{
    AccountRow, DeliveryRow, EnforcementRow, EnvironmentRow, ExecutionRow, GateRow, Id, JournalEntry,
    OutboxRow, Refusal, Row, RuleRow, RunRow, Status, StepKey, StepRow, ThreadRow, TimerRow, WorkerRow,
};
use crate::session::Session;
use crate::wake::Topic;

/// The number of refused events that the store keeps for each run.
pub const REFUSALS_KEPT: usize = 16;

/// All rows of a store.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    pub(crate) runs: BTreeMap<RunId, RunRow>,
    pub(crate) steps: BTreeMap<StepKey, StepRow>,
    pub(crate) executions: BTreeMap<ExecutionId, ExecutionRow>,
    environments: BTreeMap<Id, EnvironmentRow>,
    threads: BTreeMap<Id, ThreadRow>,
    gates: BTreeMap<Id, GateRow>,
    workers: BTreeMap<Id, WorkerRow>,
    rules: BTreeMap<Id, RuleRow>,
    deliveries: BTreeMap<Id, DeliveryRow>,
    enforcements: BTreeMap<Id, EnforcementRow>,
    accounts: BTreeMap<Id, AccountRow>,
    plans: BTreeMap<i64, Arc<Plan>>,
    journal: Vec<JournalEntry>,
    outbox: BTreeMap<i64, OutboxRow>,
    outbox_last: i64,
    timers: BTreeSet<TimerRow>,
    refusals: BTreeMap<Option<RunId>, VecDeque<(i64, Refusal)>>,
    refusal_last: i64,
    queues: BTreeMap<Arc<str>, QueueRow>,
    places: BTreeSet<(Arc<str>, RunId)>,
    items: BTreeMap<ExecutionId, Vec<Arc<str>>>,
    signals: Vec<(RunId, Arc<str>, Arc<str>)>,
    boards: boards::BoardTables,
    service: service::ServiceRows,
    leftovers: retention::Leftovers,
    pub(crate) evaluator: EvaluatorCell,
}

/// The evaluator of step specs.
#[derive(Debug, Clone)]
pub(crate) struct EvaluatorCell(pub(crate) Arc<dyn SpecEvaluator>);

impl Default for EvaluatorCell {
    fn default() -> Self {
        EvaluatorCell(Arc::new(NoEvaluator))
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
    /// Runs one operation, and keeps all of its changes or none.
    pub fn transact<T>(
        &mut self,
        now: Now,
        random: &mut dyn FnMut() -> u64,
        operation: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> Result<T> {
        self.transact_telling(now, random, &mut BTreeSet::new(), operation)
    }

    /// Runs one operation, and adds the topics to notify to `topics`.
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

    /// Sets the evaluator of step specs.
    pub fn with_evaluator(mut self, evaluator: Arc<dyn SpecEvaluator>) -> Tables {
        self.evaluator = EvaluatorCell(evaluator);
        self
    }

    /// Reads without changing anything.
    pub fn read<T>(&mut self, now: Now, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        look(&mut MemoryTx { tables: self, now, random: &mut || 0, undo: Vec::new() })
    }

    /// Returns the runs, for checkers.
    pub fn all_runs(&self) -> impl Iterator<Item = &RunRow> {
        self.runs.values()
    }

    /// Returns the steps, for checkers.
    pub fn all_steps(&self) -> impl Iterator<Item = &StepRow> {
        self.steps.values()
    }

    /// Returns the executions, for checkers.
    pub fn all_executions(&self) -> impl Iterator<Item = &ExecutionRow> {
        self.executions.values()
    }

    /// Returns the gates, for checkers.
    pub fn all_gates(&self) -> impl Iterator<Item = &GateRow> {
        self.gates.values()
    }

    /// Returns the outbox rows, the work to do after commits, for checkers.
    pub fn all_outbox(&self) -> impl Iterator<Item = &OutboxRow> {
        self.outbox.values()
    }

    /// Returns the environments, for checkers.
    pub fn all_environments(&self) -> impl Iterator<Item = &EnvironmentRow> {
        self.environments.values()
    }

    /// Returns the threads, for checkers.
    pub fn all_threads(&self) -> impl Iterator<Item = &ThreadRow> {
        self.threads.values()
    }

    /// Returns the accounts, for checkers.
    pub fn all_accounts(&self) -> impl Iterator<Item = &AccountRow> {
        self.accounts.values()
    }

    /// Returns the rules, for checkers.
    pub fn all_rules(&self) -> impl Iterator<Item = &RuleRow> {
        self.rules.values()
    }

    /// Returns the events that reached rules, for checkers.
    pub fn all_deliveries(&self) -> impl Iterator<Item = &DeliveryRow> {
        self.deliveries.values()
    }

    /// Returns the enforcements, for checkers.
    pub fn all_enforcements(&self) -> impl Iterator<Item = &EnforcementRow> {
        self.enforcements.values()
    }

    /// Returns the plan that a run was created with, for checkers.
    pub fn plan_of(&self, run: &RunRow) -> Option<Arc<Plan>> {
        self.plans.get(&run.plan).cloned()
    }

    /// Returns the timers, for checkers.
    pub fn all_timers(&self) -> impl Iterator<Item = &TimerRow> {
        self.timers.iter()
    }

    /// Returns the journal, for checkers.
    pub fn all_entries(&self) -> &[JournalEntry] {
        &self.journal
    }

    /// Returns a copy of the rows without their history, for checkers that compare two moments.
    pub fn rows(&self) -> Tables {
        // The remaining rows of runs that are being forgotten belong to no run any more.
        let there = |run: RunId| self.runs.contains_key(&run);
        let steps = self.steps.iter().filter(|((run, _), _)| there(*run));
        let executions = self.executions.iter().filter(|(id, _)| there(id.run));
        let gates = self.gates.iter().filter(|(_, gate)| there(gate.run));
        Tables {
            runs: self.runs.clone(),
            steps: steps.map(|(key, row)| (*key, row.clone())).collect(),
            executions: executions.map(|(id, row)| (*id, row.clone())).collect(),
            environments: self.environments.clone(),
            enforcements: self.enforcements.clone(),
            gates: gates.map(|(id, gate)| (*id, gate.clone())).collect(),
            accounts: self.accounts.clone(),
            plans: self.plans.clone(),
            timers: self.timers.clone(),
            ..Tables::default()
        }
    }

    /// Removes the history and keeps the state, so that two states that differ only in their past are equal.
    pub fn forget_history(&mut self) {
        self.journal.clear();
        self.refusals.clear();
        self.refusal_last = 0;
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
    RuleRow => rules,
    EnforcementRow => enforcements,
    AccountRow => accounts,
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
