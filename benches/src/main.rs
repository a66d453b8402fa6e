//! `store`, `growth`, `pipelines`, `postgres`, `worktrees`, `fanout`, `serve` and `handoff`: how fast Sprag is, in ratios
//! taken within one round.
//!
//! ```text
//!   floors ─┐
//!   load  ──┼─▶ one round after another ──▶ Board: medians, ratios ──▶ table, NDJSON, plot
//!   peers ──┘
//! ```
//!
//! Disks change their minds from one minute to the next, so only figures of the same round are compared.

mod board;
mod claims;
mod clock;
mod disk;
mod engine;
mod fanout;
mod files;
mod floors;
mod growth;
mod growth_postgres;
mod handoff;
mod load;
mod peer;
mod pipelines;
mod plot;
mod postgres;
mod rivals;
mod serve;
mod store;
mod worktrees;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What any part of a benchmark may fail with; the message at the edge says what to do.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Failure>;

#[derive(Parser)]
#[command(about = "Measures the store against the machine's floors and its peers")]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// Rounds; every figure is the median over them.
    #[arg(long, global = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Less of everything: for a first look, not for figures.
    #[arg(long, global = true)]
    quick: bool,
    /// Where the NDJSON lines and the plot go.
    #[arg(long, global = true, default_value = "bench-results")]
    out: PathBuf,
}

#[derive(Subcommand, Clone, Copy)]
enum What {
    /// Transitions per second of the store alone, at 1, 8 and 64 callers.
    Store,
    /// What a transition costs with a million finished runs in the file.
    Growth,
    /// W1 to W3: pipelines, claims, latency; with apalis, DBOS, graphile-worker and Restate as peers.
    Pipelines,
    /// W1 to W3 on PostgreSQL with its peers, and W6: the same with several processes.
    Postgres,
    /// W4: worktrees made at once, against `git worktree add`.
    Worktrees,
    /// What a step costs in fan-outs of 100 to 10,000 items, and in graphs of 100 and 1,000 steps.
    Fanout,
    /// W2 through HTTP, and the server's memory.
    Serve,
    /// From a step's end to the next one's begin in another process.
    Handoff,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Effort {
    rounds: u32,
    quick: bool,
}

impl Effort {
    /// The full amount, or the quick one.
    fn pick<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let effort = Effort { rounds: arguments.rounds, quick: arguments.quick };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let (name, measured) = match arguments.what {
        What::Store => ("store", runtime.block_on(store::measure(effort))),
        What::Growth => ("growth", runtime.block_on(growth::measure(effort))),
        What::Pipelines => ("pipelines", runtime.block_on(pipelines::measure(effort))),
        What::Postgres => ("postgres", runtime.block_on(postgres::measure(effort))),
        What::Worktrees => ("worktrees", worktrees::measure(effort)),
        What::Fanout => ("fanout", runtime.block_on(fanout::measure(effort))),
        What::Serve => ("serve", runtime.block_on(serve::measure(effort))),
        What::Handoff => ("handoff", runtime.block_on(handoff::measure(effort))),
    };
    match measured.and_then(|board| board.publish(name, &arguments.out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Failure) -> ExitCode {
    eprintln!("sprag-benches: {error}");
    ExitCode::FAILURE
}
