//! The time from a step's end to the next one's start in another process: two workers with one queue each, and a run
//! that alternates between them. Measured on a file and on PostgreSQL, each with wake-ups by the store itself and
//! through JetStream.
//!
//! In between are two commits on disk, the notification about the first, and any polling on the way.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use serde_json::json;
use sprag_app::{App, Engine, Pipeline, RunStatus};
use sprag_testkit::Postgres;
use sprag_tests::Nats;

use crate::board::{Board, key};
use crate::{Effort, Result, files, postgres};

/// The variable that makes this program one of the two workers: its queue.
const QUEUE: &str = "SPRAG_BENCH_QUEUE";
const FOLDER: &str = "SPRAG_BENCH_FOLDER";
const STORE: &str = "SPRAG_BENCH_STORE";
const BUS: &str = "SPRAG_BENCH_BUS";
const UNIT: &str = "us";

/// Measures all variants alternately.
pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    if let Ok(queue) = std::env::var(QUEUE) {
        return run_worker(&queue).await;
    }
    let mut board = Board::default();
    let (server, nats) = (Postgres::start(postgres::SETTINGS), Nats::start());
    let steps = effort.pick(200, 50);
    let pipeline = pipeline(steps)?;
    for _ in 0..effort.rounds {
        let url = server.database().url;
        for (system, store, bus) in [
            ("file", None, None),
            ("file, JetStream", None, Some(nats.url())),
            ("postgres, NOTIFY", Some(url.as_str()), None),
            ("postgres, JetStream", Some(url.as_str()), Some(nats.url())),
        ] {
            let gaps_us = gaps(&pipeline, steps, store, bus.as_deref()).await?;
            for (percent, workload) in [(50, "hand-off p50"), (99, "hand-off p99")] {
                let at = gaps_us[(gaps_us.len() - 1) * percent / 100];
                board.add(key(workload, system, 1, UNIT), at as f64);
            }
        }
    }
    board.note("the goal: p50 under 5,000 us");
    Ok(board)
}

fn pipeline(steps: usize) -> Result<Pipeline> {
    let steps: String = (0..steps)
        .map(|n| {
            let queue = ["a", "b"][n % 2];
            format!("  - id: s{n}\n    queue: {queue}\n    call: {{ handler: mark, with: {{ n: {n} }} }}\n")
        })
        .collect();
    Ok(sprag_app::parse("handoff.yaml", &format!("steps:\n{steps}"))?)
}

/// Runs as one of the two workers until its input ends.
#[expect(clippy::disallowed_methods, reason = "it has no figures of its own to show")]
async fn run_worker(queue: &str) -> Result<Board> {
    let folder = std::env::var(FOLDER)?;
    let file =
        std::fs::OpenOptions::new().create(true).append(true).open(Path::new(&folder).join("times"))?;
    let file = std::sync::Arc::new(Mutex::new(file));
    let mark = move |_, with: serde_json::Value| {
        let (begun_us, file) = (now_us(), std::sync::Arc::clone(&file));
        async move {
            let line = format!("{} {begun_us} {}\n", with["n"], now_us());
            let written = file.lock().map(|mut file| file.write_all(line.as_bytes()));
            written.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            Ok(json!(null))
        }
    };
    let data = Path::new(&folder).join("data");
    let mut builder = Engine::builder(&data).queues([queue]).handler("mark", mark);
    if let Ok(bus) = std::env::var(BUS) {
        builder = builder.bus(bus.parse()?);
    }
    if let Ok(url) = std::env::var(STORE) {
        builder = builder.app(App::open_postgres(&url, &data)?);
    }
    let engine = builder.start().await?;
    println!("ready");
    let told = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    told.await??;
    engine.shutdown().await?;
    std::process::exit(0);
}

/// Returns microseconds of a clock that all processes share.
fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

fn worker(folder: &Path, queue: &str, store: Option<&str>, bus: Option<&str>) -> Result<Child> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["handoff", "--rounds", "1"])
        .env(QUEUE, queue)
        .env(FOLDER, folder)
        .envs(store.map(|url| (STORE, url)))
        .envs(bus.map(|url| (BUS, url)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut said)?;
    if said.trim() == "ready" { Ok(child) } else { Err(format!("a worker said {said:?}").into()) }
}

/// Returns the sorted times between a step's end and the next one's start.
async fn gaps(pipeline: &Pipeline, steps: usize, store: Option<&str>, bus: Option<&str>) -> Result<Vec<u64>> {
    let folder = files::scratch()?;
    let workers = [worker(folder.path(), "a", store, bus)?, worker(folder.path(), "b", store, bus)?];
    let data = folder.path().join("data");
    let mut builder = Engine::builder(&data).without_worker();
    if let Some(url) = store {
        builder = builder.app(App::open_postgres(url, &data)?);
    }
    let engine = builder.start().await?;
    // The first pass warms up; the second one is measured.
    for _ in 0..2 {
        let run = engine.submit(pipeline, &BTreeMap::new()).await?;
        match engine.wait(run).await? {
            RunStatus::Completed => {}
            other => return Err(format!("run {run} is {other}").into()),
        }
    }
    engine.shutdown().await?;
    for mut worker in workers {
        drop(worker.stdin.take());
        worker.wait()?;
    }
    let told = std::fs::read_to_string(folder.path().join("times"))?;
    let times: Vec<Vec<u64>> = told
        .lines()
        .skip(steps)
        .map(|line| line.split(' ').map(str::parse).collect::<std::result::Result<_, _>>())
        .collect::<std::result::Result<_, _>>()?;
    let in_order = times.iter().enumerate().all(|(nth, step)| step.first() == Some(&(nth as u64)));
    if times.len() != steps || !in_order {
        return Err(format!("of {steps} steps, {} were reported, or not in order", times.len()).into());
    }
    let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1][1].saturating_sub(pair[0][2])).collect();
    gaps.sort_unstable();
    Ok(gaps)
}
