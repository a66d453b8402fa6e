//! The same workloads through the library's engine and handlers, and cold through the program.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sprag_app::{App, Engine, Plan, RunStatus};

use crate::Result;
use crate::board::{Board, key, percentile};
use crate::clock::Stopwatch;
use crate::load::{STEPS, Written};

/// Returns a plan of five steps that call an empty handler.
fn plan() -> Result<Arc<Plan>> {
    let steps: String = (0..STEPS).map(|no| format!("  - {{ id: s{no}, call: noop }}\n")).collect();
    let pipeline = sprag_app::parse("bench.yaml", &format!("steps:\n{steps}"))?;
    Ok(Arc::new(pipeline.plan(&Default::default())?))
}

/// Starts an engine on the store, or on a file in the folder.
async fn engine(folder: &Path, app: Option<App>, slots: usize) -> Result<Engine> {
    let mut engine = Engine::builder(folder).handler("noop", |_, _| async { Ok(serde_json::Value::Null) });
    if let Some(app) = app {
        engine = engine.app(app);
    }
    Ok(engine.slots(slots).start().await?)
}

async fn whole_run(engine: &Engine, plan: &Arc<Plan>) -> Result<Duration> {
    let watch = Stopwatch::start();
    let run = engine.submit_plan(Arc::clone(plan)).await?;
    match engine.wait(run).await? {
        RunStatus::Completed => Ok(watch.elapsed()),
        other => Err(format!("run {run} is {other}").into()),
    }
}

/// Executes whole runs, `in_flight` at a time. Returns their number and the total duration.
pub(crate) async fn drive(
    folder: &Path,
    app: Option<App>,
    in_flight: usize,
    runs: usize,
) -> Result<(usize, Duration)> {
    let engine = Arc::new(engine(folder, app, in_flight).await?);
    let plan = plan()?;
    let watch = Stopwatch::start();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..in_flight {
        let (engine, plan) = (Arc::clone(&engine), Arc::clone(&plan));
        callers.spawn(async move {
            let runs = runs / in_flight;
            for _ in 0..runs {
                whole_run(&engine, &plan).await.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(runs)
        });
    }
    let mut runs = 0;
    while let Some(done) = callers.join_next().await {
        runs += done??;
    }
    let elapsed = watch.elapsed();
    if let Some(engine) = Arc::into_inner(engine) {
        engine.shutdown().await?;
    }
    Ok((runs, elapsed))
}

/// Measures W1 with `in_flight` runs at a time.
pub(crate) async fn w1(board: &mut Board, folder: &Path, in_flight: usize, runs: usize) -> Result<()> {
    let data = tempfile::tempdir_in(folder)?;
    let (runs, elapsed) = drive(data.path(), None, in_flight, runs).await?;
    let written = Written::read(data.path())?.check(runs, STEPS)?;
    board.add(
        key("W1", "sprag library", in_flight, "steps/s"),
        written.completed as f64 / elapsed.as_secs_f64(),
    );
    Ok(())
}

/// Measures W3: one run at a time, hot through the library, cold through the program.
pub(crate) async fn w3(board: &mut Board, folder: &Path, runs: usize) -> Result<()> {
    let data = tempfile::tempdir_in(folder)?;
    let engine = engine(data.path(), None, 1).await?;
    let plan = plan()?;
    let mut took = Vec::new();
    for _ in 0..=runs {
        took.push(whole_run(&engine, &plan).await?);
    }
    engine.shutdown().await?;
    board.add(key("W3", "sprag library", 1, "ms"), percentile(&mut took, 50).as_secs_f64() * 1e3);
    cold(board, folder, runs.min(20))
}

/// Measures the program from start to exit with one and with five empty steps, minus the commands' own time.
fn cold(board: &mut Board, folder: &Path, runs: usize) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("sprag");
    if !program.exists() {
        board.note("W3 cold is not measured: build the program first (cargo build --release -p sprag-cli)");
        return Ok(());
    }
    for (system, steps) in [("sprag run 1, cold", 1), ("sprag run, cold", STEPS)] {
        let data = tempfile::tempdir_in(folder)?;
        let file = data.path().join("noop.yaml");
        let lines: String = (0..steps).map(|no| format!("  - {{ id: s{no}, run: [\"true\"] }}\n")).collect();
        std::fs::write(&file, format!("steps:\n{lines}"))?;
        let (mut took, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            let watch = Stopwatch::start();
            for _ in 0..steps {
                Command::new("true").status()?;
            }
            bare.push(watch.elapsed());
            let watch = Stopwatch::start();
            let answer =
                Command::new(&program).args(["run", "--data"]).arg(data.path()).arg(&file).output()?;
            if !answer.status.success() {
                return Err(String::from_utf8_lossy(&answer.stderr).into_owned().into());
            }
            took.push(watch.elapsed());
        }
        let beyond = percentile(&mut took, 50).saturating_sub(percentile(&mut bare, 50));
        board.add(key("W3", system, 1, "ms"), beyond.as_secs_f64() * 1e3);
    }
    Ok(())
}
