//! What all live runs do at this moment: which steps are executed, and what the others wait for.

use std::collections::BTreeMap;

use serde::Serialize;
use sprag_lifecycle::{RunStatus, Word};
use sprag_store::{ExecutionRow, Id, Now, OpenWork, Row, RunRow, step_name};

use crate::App;
use crate::boards::OWN_QUEUE;
use crate::error::Error;
use crate::failures::last_lines;
use crate::graph::kind_of;
use crate::labels::RunLabels;
use crate::reach::Reach;
use crate::runs::RunFilter;
use crate::text::rfc3339;
use crate::view::{QueueView, wall_ms};
use crate::waiting_for::{WaitingFor, waits_of};

/// The most live runs that are looked at. A server has rarely more than a few hundred.
const MOST_RUNS: usize = 2_000;
/// The most executions in the answer.
const MOST_EXECUTING: usize = 1_000;
/// The most executions whose last lines are read.
const MOST_LAST_LINES: usize = 100;
/// The most characters of a last line.
const LONGEST_LAST_LINE: usize = 300;
/// The most runs that one cause names.
const MOST_NAMED: usize = 50;

/// What all live runs do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveView {
    /// The number of live runs, without child runs.
    pub live: usize,
    /// Whether there are more live runs than were looked at.
    pub more: bool,
    /// The executions that workers have, oldest first; at most 1000.
    pub executing: Vec<ExecutingView>,
    /// The causes for which runs wait, the one that needs a person first.
    pub causes: Vec<WaitingCause>,
    /// The queues in which executions wait although no worker serves them.
    pub unserved: Vec<QueueView>,
}

/// An execution that a worker has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecutingView {
    /// The run.
    pub run: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// The run's own name, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The step.
    pub step: String,
    /// The kind of its work, in one word, such as `run` or `agent`.
    pub kind: &'static str,
    /// The attempt, from 1.
    pub attempt: u32,
    /// Its status.
    pub status: &'static str,
    /// The queue that it came from.
    pub queue: String,
    /// The name of the worker that has it.
    pub worker: Option<String>,
    /// The time when the worker received it.
    pub started_at: Option<String>,
    /// The end of the worker's lease without a heartbeat.
    pub lease_until: String,
    /// The last line that it printed, at the moment of this answer; absent if it printed nothing, if its log is not here,
    /// and beyond the first 100 executions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_line: Option<String>,
}

/// Runs that wait for the same kind of thing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaitingCause {
    /// The kind of thing.
    pub waiting_for: WaitingFor,
    /// The number of runs.
    pub count: usize,
    /// The ids of the newest of these runs; at most 50.
    pub runs: Vec<String>,
}

impl App {
    /// Returns what all live runs that the caller reaches do, and what they wait for.
    pub fn live(&self, reach: &Reach) -> Result<LiveView, Error> {
        let statuses = RunStatus::ALL.iter().copied().filter(|status| !status.is_terminal()).collect();
        let filter = RunFilter { statuses, reach: reach.clone(), ..RunFilter::default() };
        let rows = self.all_runs(&filter, MOST_RUNS)?;
        let more = rows.len() == MOST_RUNS;
        let now = self.now();
        let mut found = Found { app: self, now, workers: BTreeMap::new(), executing: Vec::new() };
        let mut causes: BTreeMap<WaitingFor, Vec<String>> = BTreeMap::new();
        // Child runs are parts of the runs that started them.
        let roots = rows.iter().filter(|row| row.parent.is_none());
        let mut live = 0;
        for row in roots {
            live += 1;
            let open = self.store.queries().open_work(row)?;
            if let Some(wait) = waits_of(&open, now).run {
                causes.entry(wait).or_default().push(row.id.to_string());
            }
            found.look_at(&open)?;
        }
        let mut executing = found.executing;
        executing.sort_by(|a, b| a.0.started_ms.cmp(&b.0.started_ms).then_with(|| a.1.run.cmp(&b.1.run)));
        executing.truncate(MOST_EXECUTING);
        for (row, view) in executing.iter_mut().take(MOST_LAST_LINES) {
            let line = last_lines(self, row, &view.step).pop();
            view.last_line = line.map(|line| line.chars().take(LONGEST_LAST_LINE).collect());
        }
        let cause = |(waiting_for, mut runs): (WaitingFor, Vec<String>)| {
            let count = runs.len();
            runs.truncate(MOST_NAMED);
            WaitingCause { waiting_for, count, runs }
        };
        Ok(LiveView {
            live,
            more,
            executing: executing.into_iter().map(|(_, view)| view).collect(),
            causes: causes.into_iter().map(cause).collect(),
            unserved: self
                .queues()?
                .into_iter()
                .filter(|queue| is_unserved(queue) && reach.shows_queue(&queue.name))
                .collect(),
        })
    }
}

/// Returns whether executions wait in a queue that no worker serves. The tasks of a board's own queue wait for agents and
/// people, who claim them.
fn is_unserved(queue: &QueueView) -> bool {
    queue.scheduled > 0 && queue.workers == 0 && !queue.held && !queue.name.starts_with(OWN_QUEUE)
}

/// The executions found so far.
struct Found<'a> {
    app: &'a App,
    now: Now,
    workers: BTreeMap<Id, Option<String>>,
    executing: Vec<(ExecutionRow, ExecutingView)>,
}

impl Found<'_> {
    fn look_at(&mut self, open: &OpenWork) -> Result<(), Error> {
        let Some(plan) = &open.plan else { return Ok(()) };
        for step in &open.steps {
            if let Some(child) = &step.child {
                self.look_at(child)?;
            }
            let Some(row) = step.execution.as_ref().filter(|row| row.owner.is_some()) else { continue };
            if row.status().is_terminal() || self.executing.len() >= 2 * MOST_EXECUTING {
                continue;
            }
            let worker = row.owner.map(|owner| self.worker(owner)).transpose()?.flatten();
            let run: &RunRow = &open.run;
            let view = ExecutingView {
                run: run.id.to_string(),
                pipeline: run.pipeline.to_string(),
                name: RunLabels::of(run).name,
                step: step_name(plan, &step.row),
                kind: kind_of(&plan.step(step.row.node()).spec),
                attempt: row.id.attempt,
                status: row.status().as_str(),
                queue: row.queue.to_string(),
                worker,
                started_at: row.started_ms.map(rfc3339),
                lease_until: rfc3339(wall_ms(self.now, row.lease_until_ms)),
                last_line: None,
            };
            self.executing.push((row.clone(), view));
        }
        Ok(())
    }

    /// Returns the name of a worker.
    fn worker(&mut self, id: Id) -> Result<Option<String>, Error> {
        if let Some(known) = self.workers.get(&id) {
            return Ok(known.clone());
        }
        let name = self.app.store.queries().worker(id)?.map(|row| row.name.to_string());
        self.workers.insert(id, name.clone());
        Ok(name)
    }
}
