//! The role of a reader: every read that other crates make of a store, each with a name.
//!
//! Each method reads one consistent state, and blocks for as long as the disk needs. Rows that must be as recent as each
//! other come from one method, as a read model.
//!
//! ```text
//!   mod.rs          rows by their keys, lists of rows
//!   runs.rs         a run with its plan, its steps, its attempts
//!   waits.rs        unsettled steps, and the rows that explain why a run waits
//!   work_left.rs    whether workers have anything left to do
//!   outputs.rs      the outputs of steps
//!   due.rs          work that is due for executors and reapers
//!   boards.rs       boards, tasks, notes
//!   service.rs      journal, tokens, hooks, queues, forgotten runs
//! ```

mod boards;
mod due;
mod outputs;
mod runs;
mod service;
mod waits;
mod work_left;

use sprag_lifecycle::{ExecutionId, RunId, RunStatus, StepNo};

pub use boards::{BoardState, TaskState};
pub use due::{Overdue, ReservedRun, RunningExecution};
pub use outputs::StepOutput;
pub(crate) use runs::run_in_full;
pub use runs::{OpenTask, PlannedRun, RunEnvironments, RunInFull, RunWithSteps};
pub use service::{AccountState, EntryWithExecutions, JournalPage, QueueOverview};
pub use waits::{OpenStep, OpenWork, UnsettledRun, WaitFacts};
pub use work_left::{WorkLeft, WorkLeftKind};

use crate::backend::{Backend, Table};
use crate::error::Result;
use crate::handle::Store;
use crate::rows::{EnvironmentRow, ExecutionRow, GateRow, Id, RunRow, StepRow, ThreadRow, WorkerRow};

/// A run in a list.
#[derive(Debug)]
pub struct ListedRun {
    /// The run's id.
    pub id: RunId,
    /// Its row; the error that names row and column if the row is damaged.
    pub row: Result<RunRow>,
}

/// The role of a reader.
#[derive(Clone, Copy)]
pub struct Queries<'s>(pub(crate) &'s Store);

impl Queries<'_> {
    /// Reads one consistent state.
    pub(crate) fn look<T>(self, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        self.0.read(look)
    }

    /// Returns a run.
    pub fn run(self, id: RunId) -> Result<Option<RunRow>> {
        self.look(|db| Table::<RunRow>::load(db, id))
    }

    /// Returns a step of a run.
    pub fn step(self, run: RunId, no: StepNo) -> Result<Option<StepRow>> {
        self.look(|db| Table::<StepRow>::load(db, (run, no)))
    }

    /// Returns an attempt at a step.
    pub fn execution(self, id: ExecutionId) -> Result<Option<ExecutionRow>> {
        self.look(|db| Table::<ExecutionRow>::load(db, id))
    }

    /// Returns an environment.
    pub fn environment(self, id: Id) -> Result<Option<EnvironmentRow>> {
        self.look(|db| Table::<EnvironmentRow>::load(db, id))
    }

    /// Returns a gate.
    pub fn gate(self, id: Id) -> Result<Option<GateRow>> {
        self.look(|db| Table::<GateRow>::load(db, id))
    }

    /// Returns a thread.
    pub fn thread(self, id: Id) -> Result<Option<ThreadRow>> {
        self.look(|db| Table::<ThreadRow>::load(db, id))
    }

    /// Returns a worker, also one that is offline.
    pub fn worker(self, id: Id) -> Result<Option<WorkerRow>> {
        self.look(|db| Table::<WorkerRow>::load(db, id))
    }

    /// Returns runs from the newest on, at most `limit`, older than `before`, in one of `statuses` (empty: any). Leaves
    /// out child runs. A row that cannot be read is listed with its error, and the others as they are.
    pub fn runs(self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<ListedRun>> {
        self.look(|db| match db.runs(before, statuses, limit) {
            Ok(rows) => Ok(rows.into_iter().map(|row| ListedRun { id: row.id, row: Ok(row) }).collect()),
            Err(error) if error.is_damage() => {
                let ids = db.run_ids(before, statuses, limit)?;
                let mut listed = Vec::with_capacity(ids.len());
                for id in ids {
                    match Table::<RunRow>::load(db, id) {
                        Ok(row) => listed.extend(row.map(|row| ListedRun { id, row: Ok(row) })),
                        Err(error) if error.is_damage() => listed.push(ListedRun { id, row: Err(error) }),
                        Err(error) => return Err(error),
                    }
                }
                Ok(listed)
            }
            Err(error) => Err(error),
        })
    }

    /// Returns runs that have not ended, from the oldest on, younger than `after`.
    pub fn live_runs(self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        self.look(|db| db.live_runs(after, limit))
    }

    /// Returns a run's steps, in order; the items of its fan-outs follow its planned steps.
    pub fn steps(self, run: RunId) -> Result<Vec<StepRow>> {
        self.look(|db| db.steps(run))
    }

    /// Returns a run's attempts, by step and attempt.
    pub fn executions(self, run: RunId) -> Result<Vec<ExecutionRow>> {
        self.look(|db| db.executions(run))
    }

    /// Returns the environments of a run, in order.
    pub fn environments_of(self, run: RunId) -> Result<Vec<EnvironmentRow>> {
        self.look(|db| db.environments_of(run))
    }

    /// Returns the environments that are not destroyed, or with `all` every environment, in order.
    pub fn environments(self, all: bool) -> Result<Vec<EnvironmentRow>> {
        self.look(|db| db.environments(all))
    }

    /// Returns a run's open gates, oldest first.
    pub fn open_gates(self, run: RunId) -> Result<Vec<GateRow>> {
        self.look(|db| db.open_gates(run))
    }

    /// Returns the open gates of all runs, after this number, in order.
    pub fn gates_open(self, after: Id, limit: usize) -> Result<Vec<GateRow>> {
        self.look(|db| db.gates_open(after, limit))
    }

    /// Returns the workers that are not offline, in order.
    pub fn workers(self) -> Result<Vec<WorkerRow>> {
        self.look(|db| db.workers())
    }

    /// Returns the workers that people are shown: those that serve queues or a run, and claimers while they hold
    /// something.
    pub fn shown_workers(self) -> Result<Vec<WorkerRow>> {
        self.look(shown_workers)
    }

    /// Returns a worker's executions, in order.
    pub fn held_by(self, worker: Id) -> Result<Vec<ExecutionRow>> {
        self.look(|db| db.held_by(worker))
    }
}

fn shown_workers(db: &mut dyn Backend) -> Result<Vec<WorkerRow>> {
    let mut shown = Vec::new();
    for worker in db.workers()? {
        if worker.slots > 0 || !db.held_by(worker.id)?.is_empty() {
            shown.push(worker);
        }
    }
    Ok(shown)
}

/// Returns a run and its live child runs, at any depth.
fn with_children(db: &mut dyn Backend, run: RunId) -> Result<Vec<RunId>> {
    let (mut all, mut next) = (vec![run], 0);
    while let Some(run) = all.get(next).copied() {
        all.extend(db.children(run)?);
        next += 1;
    }
    Ok(all)
}
