//! W1 to W3 on PostgreSQL, sync on, with its own floor (single-row updates by as many clients) and the peers in the
//! same rounds; and W6: the same with several worker processes.

use std::sync::Arc;
use std::time::Duration;

use sprag_store::Store;
use sprag_testkit::{Database, Postgres};

use crate::board::Target::{AtLeast, AtMost};
use crate::board::{Board, key, percentile};
use crate::claims::{BATCH, WORKERS, drain};
use crate::clock::Stopwatch;
use crate::load::{STEPS, Until, sequence, whole_run, whole_runs};
use crate::peers::{DBOS, GRAPHILE, Peers, RESTATE};
use crate::{Effort, Result, engine, files};

/// Settings of the server in addition to `fsync` and `synchronous_commit`. They avoid a checkpoint during a single
/// figure, which would distort it.
pub(crate) const SETTINGS: &[&str] = &["max_wal_size = 4GB"];
/// The variable that makes this program one of W6's workers: the URL of the database.
const WORKER: &str = "SPRAG_BENCH_WORKER";
/// The number of callers in each of W6's processes.
const CALLERS: usize = 16;

/// Measures floor, store and peers alternately.
pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    if let Ok(url) = std::env::var(WORKER) {
        return run_worker(&url).await;
    }
    let (time, runs, tasks, single) = effort.pick((1, [1000, 4000], 10_000, 100), (1, [200, 800], 1_000, 30));
    let mut board = Board::default();
    let server = Postgres::start(SETTINGS);
    let mut peers = Peers::start(&mut board, &server, &[&DBOS, &GRAPHILE, &RESTATE]);
    for _ in 0..effort.rounds {
        for (in_flight, runs) in [(8, runs[0]), (64, runs[1])] {
            board
                .add(key("W1", "update", in_flight, "updates/s"), server.updates_per_second(in_flight, time));
            w1(&mut board, &server, in_flight, runs).await?;
            w1_library(&mut board, &server, in_flight, runs as usize).await?;
            peers.w1(&mut board, in_flight, runs as usize);
        }
        w2(&mut board, &server, tasks).await?;
        peers.w2(&mut board, tasks);
        w3(&mut board, &server, single).await?;
        peers.w3(&mut board, single);
        for workers in [1, 2, 4] {
            w6(&mut board, &server, workers, effort.pick(Duration::from_secs(4), Duration::from_secs(2)))?;
        }
    }
    compare(&mut board);
    Ok(board)
}

/// Adds the comparisons and their required ratios.
fn compare(board: &mut Board) {
    for (in_flight, times_dbos) in [(8, 1.5), (64, 4.0)] {
        let steps = |system| key("W1", system, in_flight, "steps/s");
        board.compare(&steps("sprag"), key("W1", "update", in_flight, "updates/s"));
        board.compare(&steps("sprag library"), key("W1", "update", in_flight, "updates/s"));
        board.ratio("sprag/DBOS", &steps("sprag"), &steps("DBOS"), Some(AtLeast(times_dbos)));
        board.ratio("library/DBOS", &steps("sprag library"), &steps("DBOS"), Some(AtLeast(times_dbos)));
        board.ratio("sprag/graphile", &steps("sprag"), &steps("graphile"), None);
        board.ratio("sprag/Restate", &steps("sprag"), &steps("Restate"), None);
    }
    let tasks = |system| key("W2", system, WORKERS, "tasks/s");
    board.ratio("sprag/graphile", &tasks("sprag"), &tasks("graphile"), Some(AtLeast(2.0)));
    board.ratio("batched/graphile", &tasks("sprag batched"), &tasks("graphile batched"), Some(AtLeast(1.5)));
    board.ratio("sprag/DBOS", &tasks("sprag"), &tasks("DBOS"), None);
    let ms = |system| key("W3", system, 1, "ms");
    board.ratio("sprag/DBOS", &ms("sprag"), &ms("DBOS"), Some(AtMost(0.7)));
}

/// Refuses a database that does not contain exactly `runs` finished runs of `steps` steps.
fn check(server: &Postgres, database: &Database, runs: usize, steps: usize) -> Result<()> {
    let schema = &database.schema;
    let found = server.sql(&format!(
        "SELECT (SELECT count(*) FROM {schema}.runs WHERE status = 'completed') || ' ' || \
         (SELECT count(*) FROM {schema}.runs) || ' ' || \
         (SELECT count(*) FROM {schema}.executions WHERE status = 'completed')"
    ));
    server.sql(&format!("DROP SCHEMA {schema} CASCADE"));
    if found == format!("{runs} {runs} {}", runs * steps) {
        Ok(())
    } else {
        Err(format!("{runs} runs of {steps} steps were driven, but the database holds {found}").into())
    }
}

async fn w1(board: &mut Board, server: &Postgres, in_flight: usize, runs: i64) -> Result<()> {
    let database = server.database();
    let store = Store::open_postgres(&database.tcp_url)?;
    let mut done = whole_runs(&store, in_flight, Until::Runs(runs)).await?;
    drop(store);
    check(server, &database, runs as usize, STEPS)?;
    let steps = done.runs.len() * STEPS;
    let system = "sprag";
    board.add(key("W1", system, in_flight, "steps/s"), steps as f64 / done.elapsed.as_secs_f64());
    let mut ms = |percent| percentile(&mut done.runs, percent).as_secs_f64() * 1e3;
    board.add(key("W1", system, in_flight, "ms run p50"), ms(50));
    board.add(key("W1", system, in_flight, "ms run p99"), ms(99));
    Ok(())
}

/// Measures W1 through the library's engine and handlers.
async fn w1_library(board: &mut Board, server: &Postgres, in_flight: usize, runs: usize) -> Result<()> {
    let (database, folder) = (server.database(), files::scratch()?);
    let app = sprag_app::App::open_postgres(&database.tcp_url, folder.path())?;
    let (runs, elapsed) = engine::drive(folder.path(), Some(app), in_flight, runs).await?;
    check(server, &database, runs, STEPS)?;
    let steps_per_second = (runs * STEPS) as f64 / elapsed.as_secs_f64();
    board.add(key("W1", "sprag library", in_flight, "steps/s"), steps_per_second);
    Ok(())
}

async fn w2(board: &mut Board, server: &Postgres, tasks: usize) -> Result<()> {
    for (system, batch) in [("sprag", 1), ("sprag batched", BATCH)] {
        let database = server.database();
        let store = Store::open_postgres(&database.tcp_url)?;
        let elapsed = drain(&store, tasks, batch).await?;
        drop(store);
        check(server, &database, tasks, 1)?;
        board.add(key("W2", system, WORKERS, "tasks/s"), tasks as f64 / elapsed.as_secs_f64());
    }
    Ok(())
}

async fn w3(board: &mut Board, server: &Postgres, runs: usize) -> Result<()> {
    let database = server.database();
    let store = Store::open_postgres(&database.tcp_url)?;
    let plan = sequence(STEPS)?;
    let mut took = Vec::new();
    for _ in 0..=runs {
        took.push(whole_run(&store, &plan, 1).await?);
    }
    // The first one prepares the statements.
    took.remove(0);
    drop(store);
    check(server, &database, runs + 1, STEPS)?;
    board.add(key("W3", "sprag", 1, "ms"), percentile(&mut took, 50).as_secs_f64() * 1e3);
    Ok(())
}

/// Runs as one of W6's workers until it is asked to stop, and prints the number of its runs.
#[expect(clippy::disallowed_methods, reason = "a program of its own, which has no table to write")]
async fn run_worker(url: &str) -> Result<Board> {
    let store = Store::open_postgres(url)?;
    let plan = sequence(STEPS)?;
    whole_run(&store, &plan, i64::from(std::process::id())).await?;
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let time = Duration::from_millis(line.trim().parse()?);
    let watch = Stopwatch::start();
    let tasks: Vec<_> = (0..CALLERS as i64)
        .map(|caller| {
            let (store, plan) = (store.clone(), Arc::clone(&plan));
            let worker = i64::from(std::process::id()) * 1_000 + caller;
            tokio::spawn(async move {
                let mut runs = 0;
                while watch.elapsed() < time {
                    whole_run(&store, &plan, worker).await?;
                    runs += 1;
                }
                Result::Ok(runs)
            })
        })
        .collect();
    let mut runs = 0;
    for task in tasks {
        runs += task.await??;
    }
    println!("{runs} {}", watch.elapsed().as_millis());
    std::process::exit(0);
}

fn w6(board: &mut Board, server: &Postgres, workers: usize, time: Duration) -> Result<()> {
    use std::io::{BufRead, Write};
    let database = server.database();
    drop(Store::open_postgres(&database.tcp_url)?);
    let mut children = Vec::new();
    for _ in 0..workers {
        let mut child = std::process::Command::new(std::env::current_exe()?)
            .args(["postgres", "--rounds", "1"])
            .env(WORKER, &database.tcp_url)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        let mut stdout = std::io::BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        children.push((child, stdout));
    }
    for (child, _) in &mut children {
        writeln!(child.stdin.as_mut().ok_or("no pipe")?, "{}", time.as_millis())?;
    }
    let (mut runs, mut rate) = (workers, 0.0);
    for (mut child, mut stdout) in children {
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let (done, ms) = line.trim().split_once(' ').ok_or("a worker printed nothing")?;
        let (done, ms): (usize, f64) = (done.parse()?, ms.parse()?);
        runs += done;
        rate += (done * STEPS) as f64 / ms * 1e3;
        child.wait()?;
    }
    check(server, &database, runs, STEPS)?;
    board.add(key("W6", "sprag", workers, "steps/s"), rate);
    Ok(())
}
