//! A batch program: many runs, a bounded number of them at once, and a summary at the end.
//!
//!     cargo run -p sprag --example batch -- [RUNS] [FOLDER]
//!
//! The key of each run is its number in the batch. Stop the program at any moment and start it again with the same
//! folder: it continues where it stopped, and starts no run twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use sprag::{Context, Engine, HandlerError, Pipeline, Run, RunStatus};
use tokio::task::JoinSet;

/// The number of runs that are in progress at once. It bounds memory, whatever the size of the batch.
const IN_FLIGHT: usize = 32;
/// The number of steps that are executed at once.
const SLOTS: usize = 8;

const PIPELINE: &str = "
name: convert
inputs:
  number: { type: integer, required: true }
steps:
  - id: fetch
    call: { handler: fetch, with: { number: '{{ inputs.number }}' } }
    retry: { attempts: 3, delay: 10ms }
  - id: convert
    call: { handler: convert, with: { text: '{{ steps.fetch.outputs.text }}' } }
";

#[derive(Deserialize)]
struct Item {
    number: u64,
}

#[derive(Serialize, Deserialize)]
struct Fetched {
    text: String,
}

#[derive(Serialize, Deserialize)]
struct Converted {
    length: usize,
}

async fn fetch(ctx: Context, item: Item) -> Result<Fetched, HandlerError> {
    ctx.log(format!("fetching item {}, attempt {}", item.number, ctx.attempt()));
    // Every seventh item needs a second attempt, and every hundredth does not exist.
    if item.number.is_multiple_of(7) && ctx.attempt() == 1 {
        return Err("the connection was reset".into());
    }
    if item.number.is_multiple_of(100) {
        return Err(HandlerError::permanent(format!("there is no item {}", item.number)));
    }
    Ok(Fetched { text: "x".repeat(item.number as usize % 10) })
}

async fn convert(_: Context, fetched: Fetched) -> Result<Converted, HandlerError> {
    Ok(Converted { length: fetched.text.len() })
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let runs: u64 = args.next().map_or(Ok(200), |count| count.parse())?;
    let folder = args.next().map(PathBuf::from);
    let engine = match &folder {
        Some(folder) => Engine::sqlite(folder),
        None => Engine::in_memory(),
    };
    let engine = engine.slots(SLOTS).handler("fetch", fetch).handler("convert", convert).start().await?;
    let pipeline = Pipeline::parse(PIPELINE)?;

    let mut statuses: BTreeMap<String, u64> = BTreeMap::new();
    let (mut length, mut failures) = (0, Vec::new());
    let mut in_flight: JoinSet<Result<(Run, RunStatus), sprag::Error>> = JoinSet::new();
    let mut numbers = 1..=runs;
    loop {
        while in_flight.len() < IN_FLIGHT
            && let Some(number) = numbers.next()
        {
            let request =
                engine.new_run(&pipeline).input("number", number).idempotency_key(format!("item-{number}"));
            in_flight.spawn(async move {
                let run = request.start().await?;
                let status = run.wait().await?;
                Ok((run, status))
            });
        }
        let Some(ended) = in_flight.join_next().await else { break };
        let (run, status) = ended??;
        *statuses.entry(status.to_string()).or_default() += 1;
        match run.output::<Converted>("convert")? {
            Some(converted) => length += converted.length,
            None => {
                let steps = run.steps()?;
                let error = steps.iter().find_map(|step| step.error.as_deref()).unwrap_or("unknown");
                failures.push(format!("{}: {error}", run.id()));
            }
        }
    }
    engine.shutdown().await?;

    println!("{runs} runs: {statuses:?}, {length} characters in all");
    failures.iter().for_each(|failure| println!("failed: {failure}"));
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
