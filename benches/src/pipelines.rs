//! W1 pipelines, W2 claims and W3 latency, with the floors and the peers in the same rounds.

use std::path::Path;
use std::time::Duration;

use sprag_store::Store;
use sprag_testkit::Postgres;

use crate::board::Target::{AtLeast, AtMost};
use crate::board::{Board, key, median, percentile};
use crate::claims::{BATCH, WORKERS, drain};
use crate::load::{STEPS, Until, Written, sequence, whole_run, whole_runs};
use crate::peers::{APALIS, DBOS, GRAPHILE, Peers, RESTATE};
use crate::{Effort, Result, engine, files, floors, postgres};

/// The number of alternations of floor and store in a round, because the speed of a disk can change within a second.
const SLICES: u32 = 4;
/// The limit of W3: six and a half commits, plus the program's own time.
const W3_SYNCS: f64 = 6.5;
const W3_OWN_MS: f64 = 2.0;

/// The amount of each workload in a round.
#[derive(Clone, Copy)]
struct Amounts {
    floor: Duration,
    /// Pairs of concurrency and number of runs.
    runs: [(usize, i64); 2],
    tasks: usize,
    single_runs: usize,
}

/// Measures floors, store and peers alternately.
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
    let server = Postgres::start(postgres::SETTINGS);
    let mut peers = Peers::start(&mut board, &server, &[&APALIS, &DBOS, &GRAPHILE, &RESTATE]);
    for _ in 0..effort.rounds {
        let folder = files::scratch()?;
        for (in_flight, runs) in amounts.runs {
            w1(&mut board, folder.path(), in_flight, runs, amounts.floor).await?;
            engine::w1(&mut board, folder.path(), in_flight, runs as usize).await?;
            peers.w1(&mut board, in_flight, runs as usize);
        }
        w2(&mut board, folder.path(), amounts.tasks).await?;
        peers.w2(&mut board, amounts.tasks);
        w3(&mut board, folder.path(), amounts.single_runs, amounts.floor).await?;
        engine::w3(&mut board, folder.path(), amounts.single_runs).await?;
        peers.w3(&mut board, amounts.single_runs);
    }
    compare(&mut board, amounts);
    Ok(board)
}

/// Adds the comparisons and their required ratios.
fn compare(board: &mut Board, amounts: Amounts) {
    let steps = |system, in_flight| key("W1", system, in_flight, "steps/s");
    for (in_flight, _) in amounts.runs {
        board.compare(&steps("sprag", in_flight), key("W1", "group commit", in_flight, "updates/s"));
        board.compare(&steps("sprag library", in_flight), key("W1", "group commit", in_flight, "updates/s"));
    }
    let ms = |system| key("W3", system, 1, "ms");
    board.compare(&ms("sprag"), ms("6.5 syncs + 2 ms"));
    board.compare(&ms("sprag library"), ms("6.5 syncs + 2 ms"));
    let [(few, _), (many, _)] = amounts.runs;
    board.ratio("sprag/sprag at 8", &steps("sprag", many), &steps("sprag", few), Some(AtLeast(2.0)));
    for (in_flight, _) in amounts.runs {
        // The targets apply to eight concurrent runs.
        let target = |least| (in_flight == few).then_some(AtLeast(least));
        for (system, ratios) in [
            ("sprag", ["sprag/apalis", "sprag/DBOS", "sprag/graphile", "sprag/Restate"]),
            ("sprag library", ["library/apalis", "library/DBOS", "library/graphile", "library/Restate"]),
        ] {
            let [apalis, dbos, graphile, restate] = ratios;
            let ours = steps(system, in_flight);
            board.ratio(apalis, &ours, &steps("apalis FULL", in_flight), None);
            board.ratio(dbos, &ours, &steps("DBOS", in_flight), target(5.0));
            board.ratio(graphile, &ours, &steps("graphile", in_flight), None);
            board.ratio(restate, &ours, &steps("Restate", in_flight), target(10.0));
        }
    }
    let tasks = |system| key("W2", system, WORKERS, "tasks/s");
    board.ratio("sprag/apalis", &tasks("sprag"), &tasks("apalis FULL"), None);
    board.ratio("batched/apalis", &tasks("sprag batched"), &tasks("apalis FULL"), None);
    board.ratio("sprag/DBOS", &tasks("sprag"), &tasks("DBOS"), None);
    board.ratio("sprag/Restate", &tasks("sprag"), &tasks("Restate"), None);
    board.ratio("sprag/graphile", &tasks("sprag"), &tasks("graphile"), Some(AtLeast(5.0)));
    board.ratio("batched/graphile", &tasks("sprag batched"), &tasks("graphile batched"), Some(AtLeast(1.5)));
    board.ratio("library/DBOS", &ms("sprag library"), &ms("DBOS"), None);
    board.ratio("library/Restate", &ms("sprag library"), &ms("Restate"), None);
    board.ratio("cold/DBOS cold", &ms("sprag run, cold"), &ms("DBOS cold"), Some(AtMost(0.5)));
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

async fn w2(board: &mut Board, folder: &Path, tasks: usize) -> Result<()> {
    for (system, batch) in [("sprag", 1), ("sprag batched", BATCH)] {
        let data = tempfile::tempdir_in(folder)?;
        let store = Store::open(data.path())?;
        let elapsed = drain(&store, tasks, batch).await?;
        drop(store);
        Written::read(data.path())?.check(tasks, 1)?;
        board.add(key("W2", system, WORKERS, "tasks/s"), tasks as f64 / elapsed.as_secs_f64());
    }
    Ok(())
}

async fn w3(board: &mut Board, folder: &Path, runs: usize, time: Duration) -> Result<()> {
    let data = tempfile::tempdir_in(folder)?;
    let store = Store::open(data.path())?;
    let plan = sequence(STEPS)?;
    // The file, the plan and the statements have been used before.
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
