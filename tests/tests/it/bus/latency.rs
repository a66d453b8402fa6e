//! The time from a step's end to the next one's start in another process, through the broker and without it, on a file
//! and on PostgreSQL.
//!
//! It prints its figures (`--nocapture`), and only checks that no polling interval is in the path.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use sprag::{Engine, RunStatus};
use sprag_testkit::Postgres;
use sprag_tests::{Nats, SOON, Sandbox, now_ms, until, until_some};

/// Which of the two processes this is; none in the test itself.
const QUEUE: &str = "SPRAG_LATENCY_QUEUE";
const FOLDER: &str = "SPRAG_LATENCY_FOLDER";
const BUS: &str = "SPRAG_LATENCY_BUS";
const STORE: &str = "SPRAG_LATENCY_STORE";

const STEPS: usize = 60;
/// On a quiet machine it is a tenth of it; a worker that is told of nothing looks every five seconds.
const SLOWEST_MEDIAN_US: u64 = 50_000;

/// Returns microseconds on a clock that all processes share.
fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// A process that serves one queue until it is told to stop.
#[test]
fn child_role() {
    let Ok(queue) = std::env::var(QUEUE) else { return };
    let folder = std::path::PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("times"));
        let file = std::sync::Arc::new(file.expect("a file"));
        let data = folder.join("data");
        let builder = match std::env::var(STORE) {
            Ok(url) => Engine::postgres(url, data),
            Err(_) => Engine::sqlite(data),
        };
        let mut builder = builder.queues([queue.as_str()]).handler(
            "mark",
            move |_: sprag::Context, with: serde_json::Value| {
                let (begun_us, file) = (now_us(), std::sync::Arc::clone(&file));
                async move {
                    let line = format!("{} {begun_us} {}\n", with["n"], now_us());
                    (&*file).write_all(line.as_bytes()).map_err(|error| error.to_string())?;
                    Ok(json!(null))
                }
            },
        );
        if let Ok(bus) = std::env::var(BUS) {
            builder = builder.nats(bus);
        }
        let engine = builder.start().await.expect("an engine");
        std::fs::write(folder.join(format!("ready-{queue}")), "").expect("a file");
        let over = folder.join("over");
        let deadline_ms = now_ms() + 3 * SOON.as_millis() as u64;
        while !over.exists() && now_ms() < deadline_ms {
            let _ = tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>()).await;
        }
        engine.shutdown().await.expect("a shutdown");
    });
}

/// Starts this test program again as another process.
fn child(sandbox: &Sandbox, queue: &str, store: Option<&str>, bus: Option<&str>) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["bus::latency::child_role", "--exact", "--test-threads=1"]);
    command.env(QUEUE, queue).env(FOLDER, sandbox.path(".")).env("SPRAG_DATA", sandbox.data());
    command.envs(bus.map(|url| (BUS, url))).envs(store.map(|url| (STORE, url)));
    command.stdout(std::process::Stdio::null()).spawn().expect("a process")
}

/// Returns the gaps between a step's end and the next one's start, in order of size.
fn gaps(store: Option<&str>, bus: Option<&str>) -> Vec<u64> {
    let sandbox = Sandbox::new();
    let mut children = ["a", "b"].map(|queue| child(&sandbox, queue, store, bus));
    for queue in ["a", "b"] {
        until("both are ready", || sandbox.path(&format!("ready-{queue}")).exists());
    }
    let steps: String = (0..STEPS)
        .map(|n| {
            let queue = ["a", "b"][n % 2];
            format!("  - id: s{n}\n    queue: {queue}\n    call: {{ handler: mark, with: {{ n: {n} }} }}\n")
        })
        .collect();
    let pipeline = sprag::Pipeline::parse(&format!("steps:\n{steps}")).expect("a pipeline");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let builder = match store {
            Some(url) => Engine::postgres(url, sandbox.data()),
            None => Engine::sqlite(sandbox.data()),
        };
        let engine = builder.without_worker().start().await.expect("an engine");
        // Once for everything that happens once, then for the figures.
        for _ in 0..2 {
            let run = engine.new_run(&pipeline).start().await.expect("a run");
            let ended = tokio::time::timeout(SOON * 2, run.wait()).await.expect("in time");
            assert_eq!(ended.expect("a status"), RunStatus::Completed);
        }
        engine.shutdown().await.expect("a shutdown");
    });
    let lines = until_some("both runs are written down", || {
        let lines = sandbox.lines("times");
        (lines.len() == 2 * STEPS).then_some(lines)
    });
    sandbox.write("over", "");
    for child in &mut children {
        let _ = child.wait();
    }
    let times: Vec<[u64; 3]> = lines[STEPS..]
        .iter()
        .map(|line| {
            let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
            numbers.try_into().expect("three numbers")
        })
        .collect();
    assert!(times.iter().enumerate().all(|(nth, [n, ..])| *n == nth as u64), "in order");
    let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1][1].saturating_sub(pair[0][2])).collect();
    gaps.sort_unstable();
    gaps
}

#[test]
fn o06_the_next_step_starts_in_another_process_without_polling() {
    let nats = Nats::start();
    let database = Postgres::shared().database().url;
    let (bus, store) = (nats.url(), database.as_str());
    for (name, store, bus) in [
        ("a file, through its bells", None, None),
        ("a file, through JetStream", None, Some(bus.as_str())),
        ("PostgreSQL, through NOTIFY", Some(store), None),
        ("PostgreSQL, through JetStream", Some(store), Some(bus.as_str())),
    ] {
        let gaps = gaps(store, bus);
        let at = |percent: usize| gaps[(gaps.len() - 1) * percent / 100] as f64 / 1_000.0;
        println!(
            "from a step's end to the next one's begin in another process, {name}: p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms \
             ({} hand-offs)",
            at(50),
            at(90),
            at(99),
            gaps.len()
        );
        assert!(gaps[gaps.len() / 2] < SLOWEST_MEDIAN_US, "{name}: {gaps:?}");
    }
}
