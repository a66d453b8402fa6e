//! `store`, `growth`, `pipelines`, `postgres`, `worktrees`, `fanout`, `serve`, `handoff`, `retention` and `triggers`: the
//! speed of Sprag, as ratios within one round.
//!
//! ```text
//!   floors ─┐
//!   load  ──┼─▶ one round after another ──▶ Board: medians, ratios ──▶ table, NDJSON, plot
//!   peers ──┘
//! ```
//!
//! The speed of a disk changes from minute to minute, so only figures of the same round are compared.

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
mod peers;
mod pipelines;
mod plot;
mod postgres;
mod retention;
mod serve;
mod store;
mod triggers;
mod webhooks;
mod worktrees;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The error of any part of a benchmark. The message says what to do.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Failure>;

#[derive(Parser)]
#[command(about = "Measures the store against the machine's floors and its peers")]
struct Arguments {
    #[command(subcommand)]
    what: Benchmark,
    /// Rounds; every figure is their median
    #[arg(long, global = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure less, for a first impression rather than for figures
    #[arg(long, global = true)]
    quick: bool,
    /// Folder for the NDJSON lines and the plot
    #[arg(long, global = true, default_value = "bench-results")]
    out: PathBuf,
}

#[derive(Subcommand, Clone, Copy)]
enum Benchmark {
    /// Transitions per second of the store alone, at 1, 8 and 64 callers
    Store,
    /// Cost of a transition with a million finished runs in the file
    Growth,
    /// W1 to W3: pipelines, claims, latency; with apalis, DBOS, graphile-worker and Restate as peers
    Pipelines,
    /// W1 to W3 on PostgreSQL with its peers, and W6: the same with several processes
    Postgres,
    /// W4: worktrees created at once, against `git worktree add`
    Worktrees,
    /// Cost of a step in fan-outs of 100 to 10,000 items, and in graphs of 100 and 1,000 steps
    Fanout,
    /// W2 through HTTP, and the server's memory
    Serve,
    /// Time from a step's end to the next one's start in another process
    Handoff,
    /// Latency of live steps while another process deletes a million runs
    Retention,
    /// Time from a tick to its run, idle rules, a burst of rules with four servers, `explain` with a million events
    Triggers,
}

/// The amount of work of a benchmark.
#[derive(Debug, Clone, Copy)]
struct Effort {
    rounds: u32,
    quick: bool,
}

impl Effort {
    /// Returns the full amount, or the quick one.
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
        Benchmark::Store => ("store", runtime.block_on(store::measure(effort))),
        Benchmark::Growth => ("growth", runtime.block_on(growth::measure(effort))),
        Benchmark::Pipelines => ("pipelines", runtime.block_on(pipelines::measure(effort))),
        Benchmark::Postgres => ("postgres", runtime.block_on(postgres::measure(effort))),
        Benchmark::Worktrees => ("worktrees", worktrees::measure(effort)),
        Benchmark::Fanout => ("fanout", runtime.block_on(fanout::measure(effort))),
        Benchmark::Serve => ("serve", runtime.block_on(serve::measure(effort))),
        Benchmark::Handoff => ("handoff", runtime.block_on(handoff::measure(effort))),
        Benchmark::Retention => ("retention", runtime.block_on(retention::measure(effort))),
        Benchmark::Triggers => ("triggers", runtime.block_on(triggers::measure(effort))),
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
