//! W1 pipelines, W2 claims and W3 latency, with the floors and the peer in the same rounds.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::ExecutionId;
use sprag_store::Store;
use sprag_store::ops::{self, Lease};

use crate::board::{Board, Key, key, median, percentile};
use crate::clock::Stopwatch;
use crate::load::{STEPS, Until, Written, claimer, sequence, well, whole_run, whole_runs};
use crate::peer::{Apalis, Request};
use crate::{Effort, Result, engine, files, floors};

/// Whoever drains the queue in W2.
pub(crate) const WORKERS: usize = 8;
/// How many tasks a batched claim asks for.
pub(crate) const BATCH: usize = 100;
/// How many enqueue at once before a drain is timed.
const ENQUEUERS: usize = 64;
/// Floor and store take turns so often in a round: a disk's mood may change within a second.
const SLICES: u32 = 4;
/// W3's bound: six commits and a half, and what the program itself may take.
const W3_SYNCS: f64 = 6.5;
const W3_OWN_MS: f64 = 2.0;

/// How much of each workload a round holds.
#[derive(Clone, Copy)]
struct Amounts {
    floor: Duration,
    /// In flight, and how many runs.
    runs: [(usize, i64); 2],
    tasks: usize,
    single_runs: usize,
}

/// Measures floors, store and peer by turns.
pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    let amounts = effort.pick(
        Amounts {
            floor: Duration::from_secs(1),
            runs: [(8, 1000), (64, 4000)],
            tasks: 10_000,
            single_runs: 100,
        },
        Amounts {
            floor: Duration::from_millis(300),
            runs: [(8, 200), (64, 800)],
            tasks: 1_000,
            single_runs: 30,
        },
    );
    let mut board = Board::default();
    let mut apalis = match Apalis::start() {
        Ok(peer) => Some(peer),
        Err(error) => {
            board.note(format!("apalis-sqlite is not measured: {error}"));
            None
        }
    };
    for _ in 0..effort.rounds {
        let folder = files::scratch()?;
        for (in_flight, runs) in amounts.runs {
            w1(&mut board, folder.path(), in_flight, runs, amounts.floor).await?;
            engine::w1(&mut board, folder.path(), in_flight, runs as usize).await?;
            if let Some(peer) = &mut apalis {
                w1_peer(&mut board, peer, folder.path(), in_flight, runs / 4)?;
            }
        }
        w2(&mut board, folder.path(), amounts.tasks).await?;
        if let Some(peer) = &mut apalis {
            w2_peer(&mut board, peer, folder.path(), amounts.tasks / 4)?;
        }
        w3(&mut board, folder.path(), amounts.single_runs, amounts.floor).await?;
        engine::w3(&mut board, folder.path(), amounts.single_runs).await?;
    }
    compare(&mut board, amounts);
    Ok(board)
}

/// What is set against what.
fn compare(board: &mut Board, amounts: Amounts) {
    let steps = |system, in_flight| key("W1", system, in_flight, "steps/s");
    for (in_flight, _) in amounts.runs {
        board.compare(&steps("sprag", in_flight), key("W1", "group commit", in_flight, "updates/s"));
        board.compare(&steps("sprag library", in_flight), key("W1", "group commit", in_flight, "updates/s"));
    }
    let ms = |system| key("W3", system, 1, "ms");
    board.compare(&ms("sprag"), ms("6.5 syncs + 2 ms"));
    board.compare(&ms("sprag library"), ms("6.5 syncs + 2 ms"));
    let ratio = |board: &mut Board, name: &'static str, ours: Key, theirs: Key| {
        board.ratio(key(ours.workload, name, ours.in_flight, "times"), &ours, &theirs);
    };
    let [(few, _), (many, _)] = amounts.runs;
    ratio(board, "sprag/sprag at 8", steps("sprag", many), steps("sprag", few));
    for (in_flight, _) in amounts.runs {
        ratio(board, "sprag/apalis", steps("sprag", in_flight), steps("apalis FULL", in_flight));
        ratio(board, "library/apalis", steps("sprag library", in_flight), steps("apalis FULL", in_flight));
    }
    let tasks = |system| key("W2", system, WORKERS, "tasks/s");
    ratio(board, "sprag/apalis", tasks("sprag"), tasks("apalis FULL"));
    ratio(board, "batched/apalis", tasks("sprag batched"), tasks("apalis FULL"));
}

async fn w1(board: &mut Board, folder: &Path, in_flight: usize, runs: i64, time: Duration) -> Result<()> {
    let data = tempfile::tempdir_in(folder)?;
    let store = Store::open(data.path())?;
    let (mut floored, mut took, mut elapsed) = (0.0, Vec::new(), Duration::ZERO);
    for _ in 0..SLICES {
        floored += floors::group_commit(folder, in_flight, time / SLICES).await?;
        let done = whole_runs(&store, in_flight, Until::Runs(runs / i64::from(SLICES))).await?;
        took.extend(done.runs);
        elapsed += done.elapsed;
    }
    drop(store);
    let written = Written::read(data.path())?.check(took.len(), STEPS)?;
    board.add(key("W1", "group commit", in_flight, "updates/s"), floored / f64::from(SLICES));
    board.add(key("W1", "sprag", in_flight, "steps/s"), written.completed as f64 / elapsed.as_secs_f64());
    let mut ms = |percent| percentile(&mut took, percent).as_secs_f64() * 1e3;
    board.add(key("W1", "sprag", in_flight, "ms run p50"), ms(50));
    board.add(key("W1", "sprag", in_flight, "ms run p99"), ms(99));
    Ok(())
}

fn w1_peer(board: &mut Board, peer: &mut Apalis, folder: &Path, in_flight: usize, runs: i64) -> Result<()> {
    let data = tempfile::tempdir_in(folder)?;
    let answer = peer.ask(&Request {
        workload: "chained",
        folder: data.path(),
        tasks: runs as usize,
        steps: STEPS,
        in_flight,
    })?;
    board.add(key("W1", "apalis FULL", in_flight, "steps/s"), answer.per_second(runs as usize * STEPS)?);
    Ok(())
}

async fn w2(board: &mut Board, folder: &Path, tasks: usize) -> Result<()> {
    for (system, batch) in [("sprag", 1), ("sprag batched", BATCH)] {
        let data = tempfile::tempdir_in(folder)?;
        let store = Store::open(data.path())?;
        enqueue(&store, tasks).await?;
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
        drop(store);
        let distinct: BTreeSet<ExecutionId> = received.iter().copied().collect();
        if received.len() != tasks || distinct.len() != tasks {
            let (got, apart) = (received.len(), distinct.len());
            return Err(format!("{tasks} tasks were received {got} times, {apart} of them distinct").into());
        }
        Written::read(data.path())?.check(tasks, 1)?;
        board.add(key("W2", system, WORKERS, "tasks/s"), tasks as f64 / elapsed.as_secs_f64());
        board.add(key("W2", system, WORKERS, "duplicates"), (received.len() - distinct.len()) as f64);
    }
    Ok(())
}

/// Makes runs of one step, for anybody to take.
pub(crate) async fn enqueue(store: &Store, tasks: usize) -> Result<()> {
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

/// Each claim and each end is on disk before the next is asked for.
pub(crate) async fn drain_one_by_one(store: &Store, worker: i64) -> Result<Vec<ExecutionId>> {
    let mut received = Vec::new();
    while let Some(task) = store.claims().claim(claimer(worker), 1).await?.pop() {
        received.push(task.lease.execution);
        store.worker(task.lease).finish(well(), None).await?.outcome.require_applied()?;
    }
    Ok(received)
}

/// A batch is claimed at once, and its ends are reported at once.
pub(crate) async fn drain_in_batches(store: &Store, worker: i64, batch: usize) -> Result<Vec<ExecutionId>> {
    let mut received = Vec::new();
    loop {
        let tasks = store.claims().claim(claimer(worker), batch).await?;
        if tasks.is_empty() {
            return Ok(received);
        }
        received.extend(tasks.iter().map(|task| task.lease.execution));
        let leases: Vec<Lease> = tasks.iter().map(|task| task.lease).collect();
        let ends = store
            .write(move |session| {
                leases
                    .iter()
                    .map(|lease| ops::finish(session, *lease, &well(), None))
                    .collect::<sprag_store::Result<Vec<_>>>()
            })
            .await?;
        for end in ends {
            end.outcome.require_applied()?;
        }
    }
}

fn w2_peer(board: &mut Board, peer: &mut Apalis, folder: &Path, tasks: usize) -> Result<()> {
    let data = tempfile::tempdir_in(folder)?;
    let request = Request { workload: "drain", folder: data.path(), tasks, steps: 1, in_flight: WORKERS };
    let answer = peer.ask(&request)?;
    board.add(key("W2", "apalis FULL", WORKERS, "tasks/s"), answer.per_second(tasks)?);
    board.add(key("W2", "apalis FULL", WORKERS, "duplicates"), answer.duplicates as f64);
    Ok(())
}

async fn w3(board: &mut Board, folder: &Path, runs: usize, time: Duration) -> Result<()> {
    let data = tempfile::tempdir_in(folder)?;
    let store = Store::open(data.path())?;
    let plan = sequence(STEPS)?;
    // Hot: the file, the plan and the statements have been used before.
    whole_run(&store, &plan, 1).await?;
    let (mut syncs, mut took) = (Vec::new(), Vec::new());
    for _ in 0..SLICES {
        syncs.push(floors::fdatasync(folder, time / SLICES)?.p50.as_secs_f64() * 1e3);
        for _ in 0..runs / SLICES as usize {
            took.push(whole_run(&store, &plan, 1).await?);
        }
    }
    let sync_ms = median(&syncs);
    drop(store);
    Written::read(data.path())?.check(took.len() + 1, STEPS)?;
    board.add(key("W3", "fdatasync p50", 1, "ms"), sync_ms);
    board.add(key("W3", "6.5 syncs + 2 ms", 1, "ms"), W3_SYNCS * sync_ms + W3_OWN_MS);
    board.add(key("W3", "sprag", 1, "ms"), percentile(&mut took, 50).as_secs_f64() * 1e3);
    Ok(())
}
