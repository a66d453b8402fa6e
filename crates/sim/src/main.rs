//! `sprag-sim`: runs seeds of the simulation. `cargo xtask sim` calls it.

use std::process::ExitCode;

use sprag_sim::simulation::{Options, StoreKind, run_caught, run_many, shrink};

const USAGE: &str = "\
sim [--seeds N] [--first S] [--store memory|sqlite] [--threads T]   runs N seeds from S on; with --senders N, with rules
sim --seed S [--store …] [--whole]                                  runs one seed, prints its event log, and shrinks a failure";

struct Arguments {
    seed: Option<u64>,
    first: u64,
    seeds: u64,
    threads: usize,
    whole: bool,
    options: Options,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut arguments =
        Arguments { seed: None, first: 0, seeds: 1_000, threads, whole: false, options: Options::default() };
    while let Some(arg) = args.next() {
        let mut number = || {
            let text = args.next().ok_or_else(|| format!("{arg} needs a number"))?;
            text.parse::<u64>().map_err(|error| format!("{arg} {text}: {error}"))
        };
        match arg.as_str() {
            "--seed" => arguments.seed = Some(number()?),
            "--first" => arguments.first = number()?,
            "--seeds" => arguments.seeds = number()?,
            "--threads" => arguments.threads = number()? as usize,
            "--senders" => arguments.options.senders = number()? as usize,
            "--whole" => arguments.whole = true,
            "--store" => {
                arguments.options.store = match args.next().as_deref() {
                    Some("memory") => StoreKind::Memory,
                    Some("sqlite") => StoreKind::Sqlite,
                    other => return Err(format!("--store {other:?}: expected memory or sqlite")),
                }
            }
            other => {
                return Err(format!(
                    "unknown argument {other:?}

            {USAGE}"
                ));
            }
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let result = match arguments.seed {
        None => run_many(arguments.first, arguments.seeds, arguments.threads, &arguments.options),
        Some(seed) => run_caught(seed, &Options { keep_log: true, ..arguments.options.clone() }),
    };
    match result {
        Ok(summary) => {
            for line in &summary.event_log {
                println!("{line}");
            }
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let shown = if arguments.whole { failure } else { shrink(failure) };
            println!("{shown}");
            if let Ok(commit) = std::env::var("SPRAG_COMMIT") {
                println!("  commit {commit}");
            }
            println!("  again: cargo xtask sim --seed {}", shown.seed);
            ExitCode::FAILURE
        }
    }
}
