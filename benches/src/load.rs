//! The callers' load on the store: whole runs from creation to the end, waiting for each answer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use sprag_lifecycle::{Plan, PlanStep, StepNo};
use sprag_store::{Claimer, DEFAULT_QUEUE, Ending, FILE_NAME, Store};

use crate::Result;
use crate::clock::Stopwatch;

/// The number of steps of a run, one after the other.
pub(crate) const STEPS: usize = 5;
/// A lease in milliseconds that is longer than any benchmark, so that no worker counts as dead.
const LEASE_MS: i64 = 600_000;

/// Returns a pipeline of `steps` steps, each of which needs the one before it.
pub(crate) fn sequence(steps: usize) -> Result<Arc<Plan>> {
    let step = |no: usize| PlanStep {
        spec: "{}".to_owned(),
        ..PlanStep::new(
            format!("s{no}"),
            no.checked_sub(1).map(|before| before as StepNo).into_iter().collect(),
        )
    };
    Ok(Arc::new(Plan::new("bench", (0..steps).map(step).collect())?))
}

/// Returns a worker that serves the default queue.
pub(crate) fn claimer(worker: i64) -> Claimer {
    Claimer {
        worker,
        queues: vec![DEFAULT_QUEUE.into()],
        reserved_only: false,
        services_only: false,
        lease_ms: LEASE_MS,
        nonce: 0,
    }
}

/// Returns a successful ending.
pub(crate) fn success() -> Ending {
    Ending::Completed { result: None }
}

/// Executes one run from its creation to its end as `worker`, and returns the duration.
pub(crate) async fn whole_run(store: &Store, plan: &Arc<Plan>, worker: i64) -> Result<Duration> {
    let watch = Stopwatch::start();
    let mut new = store.person().new_run(Arc::clone(plan));
    new.pin = Some(worker);
    store.person().create_run(new).await?;
    let mut next = store.claims().claim(claimer(worker), 1).await?.pop();
    let mut finished = 0;
    while let Some(assignment) = next {
        let answer = store.worker(assignment.lease).finish(success(), Some(claimer(worker))).await?;
        answer.outcome.require_applied()?;
        finished += 1;
        next = answer.next;
    }
    if finished != plan.steps.len() {
        return Err(format!("a run of {} steps ended after {finished}", plan.steps.len()).into());
    }
    Ok(watch.elapsed())
}

/// The amount of work of the callers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// Callers start runs for this long.
    Time(Duration),
    /// This many runs in total.
    Runs(i64),
}

/// The measured durations.
pub(crate) struct LoadTimes {
    /// The time from the first creation to the last end.
    pub(crate) elapsed: Duration,
    /// The duration of each run.
    pub(crate) runs: Vec<Duration>,
}

/// Executes runs of five steps with `callers` tasks, each one run at a time.
pub(crate) async fn whole_runs(store: &Store, callers: usize, until: Until) -> Result<LoadTimes> {
    let plan = sequence(STEPS)?;
    let begun = Arc::new(AtomicI64::new(0));
    let watch = Stopwatch::start();
    let tasks: Vec<_> = (1..=callers as i64)
        .map(|worker| {
            let (store, plan, begun) = (store.clone(), Arc::clone(&plan), Arc::clone(&begun));
            let goes_on = move || match until {
                Until::Time(time) => watch.elapsed() < time,
                Until::Runs(runs) => begun.fetch_add(1, Ordering::Relaxed) < runs,
            };
            tokio::spawn(async move {
                let mut runs = Vec::new();
                while goes_on() {
                    runs.push(whole_run(&store, &plan, worker).await?);
                }
                Result::Ok(runs)
            })
        })
        .collect();
    let mut runs = Vec::new();
    for task in tasks {
        runs.extend(task.await??);
    }
    Ok(LoadTimes { elapsed: watch.elapsed(), runs })
}

/// The contents of the file, which verify the benchmark's own counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    /// Runs that succeeded.
    pub(crate) succeeded: i64,
    /// All runs.
    pub(crate) runs: i64,
    /// Executions that completed.
    pub(crate) completed: i64,
    /// Journal entries: transitions.
    pub(crate) journal: i64,
    /// Inserts and updates of runs, steps and executions: each write of a row raises its version by one.
    pub(crate) row_writes: i64,
    /// Rows in the outbox, for work after the commit.
    pub(crate) outbox: i64,
    /// Rows of the journal: each has the entries of one run that one commit added.
    pub(crate) packs: i64,
}

impl Written {
    /// Counts the rows of the file in `folder`.
    pub(crate) fn read(folder: &Path) -> Result<Written> {
        let conn = Connection::open(folder.join(FILE_NAME))?;
        let written = conn.query_row(
            "SELECT (SELECT count(*) FROM runs WHERE status = 'completed'), (SELECT count(*) FROM runs), \
                    (SELECT count(*) FROM executions WHERE status = 'completed'), \
                    (SELECT coalesce(sum(last_seq - first_seq + 1), 0) FROM journal_packs), \
                    (SELECT coalesce(sum(version), 0) FROM runs) \
                    + (SELECT coalesce(sum(version), 0) FROM steps) \
                    + (SELECT coalesce(sum(version), 0) FROM executions), \
                    (SELECT count(*) FROM outbox), (SELECT count(*) FROM journal_packs)",
            [],
            |columns| {
                Ok(Written {
                    succeeded: columns.get(0)?,
                    runs: columns.get(1)?,
                    completed: columns.get(2)?,
                    journal: columns.get(3)?,
                    row_writes: columns.get(4)?,
                    outbox: columns.get(5)?,
                    packs: columns.get(6)?,
                })
            },
        )?;
        Ok(written)
    }

    /// Refuses a file that does not contain exactly `runs` finished runs of `steps` steps.
    pub(crate) fn check(self, runs: usize, steps: usize) -> Result<Self> {
        let (runs, steps) = (runs as i64, steps as i64);
        if self.succeeded != runs || self.runs != runs || self.completed != runs * steps {
            return Err(
                format!("{runs} runs of {steps} steps were driven, but the file holds {self:?}").into()
            );
        }
        Ok(self)
    }
}
