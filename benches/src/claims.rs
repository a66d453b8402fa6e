//! W2: tasks that wait in a queue, and workers that drain it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::ExecutionId;
use sprag_store::testing::{RawStore, ops};
use sprag_store::{Lease, Store};

use crate::Result;
use crate::clock::Stopwatch;
use crate::load::{claimer, sequence, success};

/// The number of workers that drain the queue.
pub(crate) const WORKERS: usize = 8;
/// The number of tasks in a batched claim.
pub(crate) const BATCH: usize = 100;
/// The number of tasks that are enqueued at once before a drain is timed.
const ENQUEUERS: usize = 64;

/// Enqueues tasks, then drains them with `batch` tasks per claim, and returns the duration of the drain. Fails if a
/// task was received twice or never.
pub(crate) async fn drain(store: &Store, tasks: usize, batch: usize) -> Result<Duration> {
    enqueue(store, tasks).await?;
    let watch = Stopwatch::start();
    let workers: Vec<_> = (1..=WORKERS as i64)
        .map(|worker| {
            let store = store.clone();
            tokio::spawn(async move {
                match batch {
                    1 => drain_one_by_one(&store, worker).await,
                    _ => drain_in_batches(&store, worker, batch).await,
                }
            })
        })
        .collect();
    let mut received = Vec::new();
    for worker in workers {
        received.extend(worker.await??);
    }
    let elapsed = watch.elapsed();
    let distinct: BTreeSet<ExecutionId> = received.iter().copied().collect();
    if received.len() != tasks || distinct.len() != tasks {
        let (got, apart) = (received.len(), distinct.len());
        return Err(format!("{tasks} tasks were received {got} times, {apart} of them distinct").into());
    }
    Ok(elapsed)
}

/// Creates runs of one step that any worker can claim.
async fn enqueue(store: &Store, tasks: usize) -> Result<()> {
    let plan = sequence(1)?;
    let makers: Vec<_> = (0..ENQUEUERS)
        .map(|maker| {
            let (store, plan) = (store.clone(), Arc::clone(&plan));
            tokio::spawn(async move {
                for _ in (maker..tasks).step_by(ENQUEUERS) {
                    store.person().create_run(store.person().new_run(Arc::clone(&plan))).await?;
                }
                Result::Ok(())
            })
        })
        .collect();
    for maker in makers {
        maker.await??;
    }
    Ok(())
}

/// Drains the queue. Each claim and each report is on disk before the next one is sent.
async fn drain_one_by_one(store: &Store, worker: i64) -> Result<Vec<ExecutionId>> {
    let mut received = Vec::new();
    while let Some(task) = store.claims().claim(claimer(worker), 1).await?.pop() {
        received.push(task.lease.execution);
        store.worker(task.lease).finish(success(), None).await?.outcome.require_applied()?;
    }
    Ok(received)
}

/// Drains the queue in batches: one claim, then one report for the whole batch.
pub(crate) async fn drain_in_batches(store: &Store, worker: i64, batch: usize) -> Result<Vec<ExecutionId>> {
    let mut received = Vec::new();
    loop {
        let tasks = store.claims().claim(claimer(worker), batch).await?;
        if tasks.is_empty() {
            return Ok(received);
        }
        received.extend(tasks.iter().map(|task| task.lease.execution));
        let leases: Vec<Lease> = tasks.iter().map(|task| task.lease).collect();
        let runs = leases.iter().map(|lease| lease.execution.run).collect();
        let ends = store
            .write_on(runs, move |session| {
                leases
                    .iter()
                    .map(|lease| ops::finish(session, *lease, &success(), None))
                    .collect::<sprag_store::Result<Vec<_>>>()
            })
            .await?;
        for end in ends {
            end.outcome.require_applied()?;
        }
    }
}
