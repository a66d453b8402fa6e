//! Claims: they take executions that no other transaction is taking at this moment, and wait for no run.
//!
//! Receiving an execution needs its own row alone. If its run is free, the claim holds the run as well, and the run
//! continues at once. Otherwise the claim does not wait for the run's holder, and the writer looks at the run after
//! the commit.

use std::collections::BTreeSet;

use sprag_lifecycle::{ExecutionId, ExecutionStatus, RunId};
use tokio_postgres::Row as Columns;

use super::cells::Cell;
use super::state::{Lock, State};
use super::tx::{Tx, held};
use super::wire::Ask;
use crate::backend::Candidate;
use crate::columns::{Declared, Field, Reader};
use crate::error::Result;
use crate::rows::{ExecutionRow, Id, Row, RunRow, StepRow};

const WAITING: &str = "SELECT priority, published_ms, run, step, attempt FROM executions \
     WHERE status = 'scheduled' AND queue = $1 AND pin = $2 \
     ORDER BY priority DESC, published_ms, run, step, attempt LIMIT $3";

fn candidate(row: &Columns) -> Result<Candidate> {
    <(i32, i64, ExecutionId)>::read(&mut Reader::few(WAITING, row)).map(Candidate::from)
}

impl Tx<'_> {
    /// Returns the waiting executions, for a caller that only reads.
    pub(super) fn look_at_claimable(&mut self, queue: &str, pin: Id, limit: usize) -> Result<Vec<Candidate>> {
        let answers =
            self.ask(vec![Ask::new(WAITING, [queue.into(), pin.into(), limit.into()])], "reading")?;
        answers[0].iter().map(candidate).collect()
    }

    /// Returns the waiting executions that no other transaction is taking. This transaction holds them.
    pub(super) fn hold_claimable(&mut self, queue: &str, pin: Id, limit: usize) -> Result<Vec<Candidate>> {
        if let Some(waiting) = self.still_waiting(queue, pin, limit) {
            return Ok(waiting);
        }
        let held_sql = held::<ExecutionRow>(
            "status = 'scheduled' AND queue = $1 AND pin = $2 \
             ORDER BY priority DESC, published_ms, run, step, attempt LIMIT $3",
        );
        let cells = || -> [Cell<'_>; 3] { [queue.into(), pin.into(), limit.into()] };
        let answers = self.ask(vec![Ask::new(&held_sql, cells()), Ask::new(WAITING, cells())], "reading")?;
        let mut waiting: Vec<Candidate> = answers[1].iter().map(candidate).collect::<Result<_>>()?;
        // The key comes first.
        let key = |row: &Columns| ExecutionId::read(&mut Reader::of::<ExecutionRow>(row));
        let free: BTreeSet<ExecutionId> = answers[0].iter().map(key).collect::<Result<_>>()?;
        self.learn_all::<ExecutionRow>(&answers[0], true);
        if let (true, Some(first)) = (free.is_empty(), waiting.first()) {
            // Other transactions are taking all of them, and may leave some. Only after those have ended is the queue
            // known to be empty.
            let ExecutionId { run, step, attempt } = first.execution;
            return Err(self.busy(Lock::Execution(run.to_i64(), step, attempt)));
        }
        self.learn_surroundings(&free)?;
        // An execution that was free but is not among the first in this list has moved up meanwhile.
        let missing = free.iter().filter(|id| !waiting.iter().any(|one| one.execution == **id));
        let moved_up: Vec<Candidate> = missing
            .filter_map(|id| self.state.executions.get(*id)?.0)
            .map(|row| Candidate::from((row.priority, row.published_ms, row.id)))
            .collect();
        waiting.retain(|one| free.contains(&one.execution));
        waiting.extend(moved_up);
        waiting.sort_unstable();
        Ok(waiting)
    }

    /// Reads the runs and steps of executions that may be received, and holds those of the runs that are free.
    fn learn_surroundings(&mut self, executions: &BTreeSet<ExecutionId>) -> Result<()> {
        let around = Around::of(&self.state, executions);
        let asks = around.asks();
        if asks.is_empty() {
            return Ok(());
        }
        let answers = self.ask(asks, "reading")?;
        self.state.glimpsed.extend(executions.iter().map(|id| id.run));
        // Held runs are in both answers. The held rows overwrite the others.
        self.learn_all::<RunRow>(&answers[1], false);
        self.learn_all::<RunRow>(&answers[0], true);
        self.learn_all::<StepRow>(&answers[2], true);
        Ok(())
    }

    /// Returns the executions that waited when the transaction began and are not taken yet; none if they do not answer
    /// the question.
    pub(super) fn still_waiting(&mut self, queue: &str, pin: Id, limit: usize) -> Option<Vec<Candidate>> {
        let waiting = self.state.waiting.get(&(queue.into(), pin))?;
        let mut free: Vec<Candidate> = Vec::new();
        for id in &waiting.free {
            let (row, _) = self.state.executions.get(*id)?;
            let row =
                row.filter(|row| row.status() == ExecutionStatus::Scheduled && row.pin.unwrap_or(0) == pin);
            free.extend(row.map(|row| Candidate::from((row.priority, row.published_ms, row.id))));
        }
        if free.len() < limit && !waiting.all {
            return None;
        }
        free.sort_unstable();
        free.truncate(limit);
        free.iter().all(|candidate| self.glimpse(candidate.execution.run)).then_some(free)
    }

    /// Makes a run that another transaction holds known to the present job, if it was seen when the transaction began.
    /// Returns whether the run is known.
    pub(super) fn glimpse(&mut self, run: RunId) -> bool {
        if self.state.runs.get(run).is_some() {
            return true;
        }
        let Some(row) = self.state.glimpses.get(&run).cloned() else { return false };
        self.state.runs.learn(run, Some(row), false);
        self.state.glimpsed.push(run);
        true
    }
}

/// The statements that read the runs and steps of executions, as far as they are not known yet.
pub(super) struct Around {
    held_sql: String,
    plain_sql: String,
    steps_sql: String,
    runs: Vec<i64>,
    of_runs: Vec<i64>,
    numbers: Vec<i64>,
}

impl Around {
    pub(super) fn of(state: &State, executions: &BTreeSet<ExecutionId>) -> Around {
        let runs: BTreeSet<i64> = executions
            .iter()
            .map(|id| id.run)
            .filter(|run| state.runs.get(*run).is_none())
            .map(RunId::to_i64)
            .collect();
        let steps: Vec<&ExecutionId> =
            executions.iter().filter(|id| state.steps.get((id.run, id.step)).is_none()).collect();
        Around {
            held_sql: held::<RunRow>("id = ANY($1) ORDER BY id"),
            plain_sql: format!("{} WHERE id = ANY($1)", RunRow::statements().select),
            steps_sql: format!(
                "{} WHERE (run, no) IN (SELECT * FROM unnest($1::bigint[], $2::bigint[]))",
                StepRow::statements().select
            ),
            runs: runs.into_iter().collect(),
            of_runs: steps.iter().map(|id| id.run.to_i64()).collect(),
            numbers: steps.iter().map(|id| i64::from(id.step)).collect(),
        }
    }

    /// Returns no statements, or three: for the free runs, for all runs, and for the steps.
    pub(super) fn asks(&self) -> Vec<Ask<'_>> {
        if self.runs.is_empty() && self.numbers.is_empty() {
            return Vec::new();
        }
        vec![
            Ask::new(&self.held_sql, [Cell::from(self.runs.clone())]),
            Ask::new(&self.plain_sql, [Cell::from(self.runs.clone())]),
            Ask::new(&self.steps_sql, [Cell::from(self.of_runs.clone()), Cell::from(self.numbers.clone())]),
        ]
    }
}

impl Tx<'_> {
    /// Returns the known steps of a run, in order.
    pub(super) fn known_steps(&self, run: RunId) -> impl Iterator<Item = &StepRow> {
        self.state.steps.known.range((run, 0)..=(run, u32::MAX)).filter_map(|(_, known)| known.row.as_ref())
    }
}
