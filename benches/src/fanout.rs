//! The cost of a settled step in a fan-out of 100, 1,000 and 10,000 items, and in layered graphs of 100 and 1,000
//! steps.
//!
//! One worker claims and reports in batches, each in one commit, so that the figure is the store's work and not the
//! disk's. Small fan-outs are repeated until they have as many items as a large one.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use sprag_app::{Engine, RunStatus};
use sprag_lifecycle::{Plan, PlanStep, Spread, StepNo};
use sprag_store::{Prepared, SpecError, SpecEvaluator, Store};

use crate::board::{Board, key};
use crate::claims::drain_in_batches;
use crate::clock::Stopwatch;
use crate::load::Written;
use crate::{Effort, Result, files};

const WORKLOAD: &str = "fanout";
/// The number of steps that one commit claims or reports.
const BATCH: usize = 64;
/// The number of concurrent handlers, through the library.
const SLOTS: usize = 64;
const SIZES: [(usize, &str, &str); 3] = [
    (100, "100 items", "library, 100"),
    (1_000, "1,000 items", "library, 1,000"),
    (10_000, "10,000 items", "library, 10,000"),
];
const GRAPHS: [(usize, &str); 2] = [(100, "100 steps"), (1_000, "1,000 steps")];
/// The steps of a graph's layer, and the number of needs of each in the layer before.
const LAYERS: usize = 10;
const NEEDS: usize = 3;

/// An evaluator whose specs are the length of the list.
#[derive(Debug)]
struct Lengths;

impl SpecEvaluator for Lengths {
    fn wanted(&self, _: &PlanStep, _: &Value) -> std::result::Result<bool, SpecError> {
        Ok(true)
    }

    fn items(&self, step: &PlanStep, _: &Value) -> std::result::Result<Vec<Value>, SpecError> {
        let count: u64 = step.spec.parse().map_err(|_| SpecError::new("no length"))?;
        Ok((0..count).map(|item| json!(item)).collect())
    }

    fn prepare(&self, step: &PlanStep, _: &Value) -> std::result::Result<Prepared, SpecError> {
        Err(SpecError::new(format_args!("step {} is a worker's", step.id)))
    }
}

/// Measures all sizes alternately.
pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    let scratch = files::scratch()?;
    let steps = effort.pick(10_000, 2_000);
    let mut board = Board::default();
    for _ in 0..effort.rounds {
        for (items, system, library) in SIZES.into_iter().filter(|(items, ..)| *items <= steps) {
            let cost_us = drain(scratch.path(), &spread(items)?, items, steps / items).await?;
            board.add(key(WORKLOAD, system, 1, "us/step"), cost_us);
            let cost_us = through_library(scratch.path(), items, steps / items).await?;
            board.add(key(WORKLOAD, library, SLOTS, "us/step"), cost_us);
        }
        for (count, system) in GRAPHS.into_iter().filter(|(count, _)| *count <= steps) {
            let cost_us = drain(scratch.path(), &layered(count)?, count, steps / count).await?;
            board.add(key(WORKLOAD, system, 1, "us/step"), cost_us);
        }
    }
    for (_, system, library) in &SIZES[1..] {
        board.compare(&key(WORKLOAD, system, 1, "us/step"), key(WORKLOAD, SIZES[0].1, 1, "us/step"));
        board.compare(&key(WORKLOAD, library, SLOTS, "us/step"), key(WORKLOAD, SIZES[0].2, SLOTS, "us/step"));
    }
    let (small, large) = (key(WORKLOAD, GRAPHS[0].1, 1, "us/step"), key(WORKLOAD, GRAPHS[1].1, 1, "us/step"));
    board.compare(&large, small);
    Ok(board)
}

/// Returns a plan with one fan-out over this many items.
fn spread(items: usize) -> Result<Arc<Plan>> {
    let step = PlanStep {
        spec: items.to_string(),
        spread: Some(Spread::default()),
        ..PlanStep::new("each", Vec::new())
    };
    Ok(Arc::new(Plan::new("fanout", vec![step])?))
}

/// Returns a plan of this many steps in ten layers.
fn layered(count: usize) -> Result<Arc<Plan>> {
    let width = count / LAYERS;
    let step = |no: usize| {
        let (layer, place) = (no / width, no % width);
        let before = |step: usize| ((layer - 1) * width + (place + step) % width) as StepNo;
        let needs = if layer == 0 { Vec::new() } else { (0..NEEDS).map(before).collect() };
        PlanStep::new(format!("s{no}"), needs)
    };
    Ok(Arc::new(Plan::new("layered", (0..count).map(step).collect())?))
}

/// Executes `runs` runs of a plan with `steps` executions. Returns microseconds per settled step.
async fn drain(folder: &Path, plan: &Arc<Plan>, steps: usize, runs: usize) -> Result<f64> {
    let data = tempfile::tempdir_in(folder)?;
    let store = Store::open(data.path())?.with_evaluator(Arc::new(Lengths));
    let watch = Stopwatch::start();
    for _ in 0..runs {
        let run = store.person().new_run(Arc::clone(plan));
        store.person().create_run(run).await?;
        drain_in_batches(&store, 1, BATCH).await?;
    }
    let elapsed = watch.elapsed();
    drop(store);
    Written::read(data.path())?.check(runs, steps)?;
    Ok(elapsed.as_secs_f64() * 1e6 / (runs * steps) as f64)
}

/// Measures the same through the library: a pipeline file, and an empty handler.
async fn through_library(folder: &Path, items: usize, runs: usize) -> Result<f64> {
    let data = tempfile::tempdir_in(folder)?;
    let list = json!((0..items).collect::<Vec<_>>());
    let text = format!("steps:\n  - {{ id: each, foreach: {list}, call: noop }}\n");
    let plan = Arc::new(sprag_app::parse("fanout.yaml", &text)?.plan(&Default::default())?);
    let engine = Engine::builder(data.path()).handler("noop", |_, _| async { Ok(Value::Null) });
    let engine = engine.slots(SLOTS).start().await?;
    let watch = Stopwatch::start();
    for _ in 0..runs {
        let run = engine.submit_plan(Arc::clone(&plan)).await?;
        match engine.wait(run).await? {
            RunStatus::Completed => {}
            other => return Err(format!("run {run} is {other}").into()),
        }
    }
    let elapsed = watch.elapsed();
    engine.shutdown().await?;
    Written::read(data.path())?.check(runs, items)?;
    Ok(elapsed.as_secs_f64() * 1e6 / (runs * items) as f64)
}
