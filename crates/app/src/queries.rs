//! Queries: what people and programs read of runs, steps, workers and queues.

use sprag_lifecycle::{ExecutionId, RunId, StepNo};
use sprag_store::{
    EnvironmentRow, ExecutionRow, GateRow, Id, JournalPage, OpenTask, Row, RunInFull, RunRow, StepRow,
    WorkerRow,
};

use crate::App;
use crate::error::Error;
use crate::view::{self, ProgressView, QueueView, WorkerView};

impl App {
    /// Returns the steps of a run, with the items of its fan-outs.
    pub fn steps(&self, run: RunId) -> Result<Vec<StepRow>, Error> {
        Ok(self.store.queries().steps(run)?)
    }

    /// Counts the steps of a run, and those that have ended. Items of fan-outs do not count.
    pub(crate) fn progress(&self, run: &RunRow) -> Result<ProgressView, Error> {
        let steps = self.steps(run.id)?;
        let planned = steps.iter().filter(|step| step.item_of.is_none());
        let settled = planned.clone().filter(|step| step.status().is_settled()).count() as u32;
        Ok(ProgressView { settled, total: planned.count() as u32, broken: run.tally.broken })
    }

    /// Returns one step of a run.
    pub fn step(&self, run: RunId, no: StepNo) -> Result<Option<StepRow>, Error> {
        Ok(self.store.queries().step(run, no)?)
    }

    /// Returns all attempts at steps of a run.
    pub fn executions(&self, run: RunId) -> Result<Vec<ExecutionRow>, Error> {
        Ok(self.store.queries().executions(run)?)
    }

    /// Returns one attempt at a step.
    pub fn execution(&self, id: ExecutionId) -> Result<Option<ExecutionRow>, Error> {
        Ok(self.store.queries().execution(id)?)
    }

    /// Returns a run, its plan, its steps and all attempts at them, as they were at one moment.
    pub fn run_in_full(&self, run: RunId) -> Result<Option<RunInFull>, Error> {
        Ok(self.store.queries().run_in_full(run)?)
    }

    /// Returns the names of the steps of a run that have finished, the last one first.
    pub fn last_finished(&self, run: RunId) -> Result<Vec<String>, Error> {
        let run = self.store.queries().run_in_full(run)?;
        Ok(run.map(|run| sprag_worker::last_finished(&run)).unwrap_or_default())
    }

    /// Returns the environments of all runs; those that are destroyed only with `destroyed_too`.
    pub fn environments(&self, destroyed_too: bool) -> Result<Vec<EnvironmentRow>, Error> {
        Ok(self.store.queries().environments(destroyed_too)?)
    }

    /// Asks the workers of an environment's host to remove it. Returns whether there is such an environment.
    pub async fn request_cleanup(&self, environment: Id) -> Result<bool, Error> {
        Ok(self.store.person().request_cleanup(environment).await?)
    }

    /// Returns the environments of a run.
    pub fn environments_of(&self, run: RunId) -> Result<Vec<EnvironmentRow>, Error> {
        Ok(self.store.queries().environments_of(run)?)
    }

    /// Returns an environment.
    pub fn environment(&self, id: Id) -> Result<Option<EnvironmentRow>, Error> {
        Ok(self.store.queries().environment(id)?)
    }

    /// Returns a gate.
    pub fn gate(&self, id: Id) -> Result<Option<GateRow>, Error> {
        Ok(self.store.queries().gate(id)?)
    }

    /// Returns the open gates of a run.
    pub fn open_gates(&self, run: RunId) -> Result<Vec<GateRow>, Error> {
        Ok(self.store.queries().open_gates(run)?)
    }

    /// Returns open gates of all runs after `after`, in the order of their numbers.
    pub fn gates_open(&self, after: Id, limit: usize) -> Result<Vec<GateRow>, Error> {
        Ok(self.store.queries().gates_open(after, limit)?)
    }

    /// Returns the number of the journal's last entry.
    pub fn last_seq(&self) -> Result<u64, Error> {
        Ok(self.store.queries().last_seq()?)
    }

    /// Returns journal entries after `after`, of one run or of all, and the number of the journal's last entry.
    pub fn journal(&self, after: u64, run: Option<RunId>, limit: usize) -> Result<JournalPage, Error> {
        Ok(self.store.queries().journal(after, run, limit)?)
    }

    /// Returns the ids of the runs that have not ended, at most `limit` of them.
    pub fn live_runs(&self, limit: usize) -> Result<Vec<RunId>, Error> {
        Ok(self.store.queries().live_runs(None, limit)?)
    }

    /// Returns the run of the board with this name, if there is one.
    pub fn board_run(&self, name: &str) -> Result<Option<RunId>, Error> {
        Ok(self.store.queries().board_called(name)?.map(|board| board.run))
    }

    /// Returns the workers that people are shown.
    pub fn workers(&self) -> Result<Vec<WorkerRow>, Error> {
        Ok(self.store.queries().shown_workers()?)
    }

    /// Returns whether a worker that executes commands is there.
    pub fn has_workers(&self) -> Result<bool, Error> {
        Ok(self.store.queries().workers()?.iter().any(crate::resume::is_live_worker))
    }

    /// Returns how many executions a worker holds.
    pub fn held_by(&self, worker: Id) -> Result<usize, Error> {
        Ok(self.store.queries().held_by(worker)?.len())
    }

    /// Returns the workers that `is_shown` picks, by name.
    pub fn worker_views(&self, is_shown: impl Fn(&WorkerRow) -> bool) -> Result<Vec<WorkerView>, Error> {
        let (mut workers, now) = (self.workers()?, self.now());
        workers.retain(is_shown);
        workers.sort_by(|a, b| a.name.cmp(&b.name));
        workers.iter().map(|worker| Ok(WorkerView::of(worker, self.held_by(worker.id)?, now))).collect()
    }

    /// Returns the queues with their settings, what waits in them, and how many workers serve them.
    pub fn queues(&self) -> Result<Vec<QueueView>, Error> {
        let found = self.store.queries().queue_overview()?;
        Ok(view::queues(&found.settings, &found.counts, &found.workers, self.now()))
    }

    /// Returns the tasks of runs that wait for an agent or a person, or that one has claimed: those of one queue, or
    /// of all.
    pub fn open_tasks(&self, queue: Option<&str>, most_runs: usize) -> Result<Vec<OpenTask>, Error> {
        let mut found = Vec::new();
        for run in self.live_runs(most_runs)? {
            found.extend(self.store.queries().open_tasks(run, queue)?);
        }
        Ok(found)
    }
}
