//! `sprag-sim`: plays seeds of the simulation. `cargo xtask sim` is how it is called.

use std::process::ExitCode;

use sprag_sim::simulation::{Kind, Options, run_caught, run_many, shrink};

const USAGE: &str = "\
sim [--seeds N] [--first S] [--store memory|sqlite] [--threads T]   plays N seeds from S on
sim --seed S [--store …] [--whole]                                  plays one seed, tells its story, and makes a failure small";

struct Asked {
    seed: Option<u64>,
    first: u64,
    seeds: u64,
    threads: usize,
    whole: bool,
    options: Options,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut asked =
        Asked { seed: None, first: 0, seeds: 1_000, threads, whole: false, options: Options::default() };
    while let Some(arg) = args.next() {
        let mut number = || {
            let text = args.next().ok_or_else(|| format!("{arg} wants a number"))?;
            text.parse::<u64>().map_err(|error| format!("{arg} {text}: {error}"))
        };
        match arg.as_str() {
            "--seed" => asked.seed = Some(number()?),
            "--first" => asked.first = number()?,
            "--seeds" => asked.seeds = number()?,
            "--threads" => asked.threads = number()? as usize,
            "--whole" => asked.whole = true,
            "--store" => {
                asked.options.store = match args.next().as_deref() {
                    Some("memory") => Kind::Memory,
                    Some("sqlite") => Kind::Sqlite,
                    other => return Err(format!("--store {other:?}: memory or sqlite")),
                }
            }
            other => return Err(format!("{other:?} is not known\n\n{USAGE}")),
        }
    }
    Ok(asked)
}

fn main() -> ExitCode {
    let asked = match parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let played = match asked.seed {
        None => run_many(asked.first, asked.seeds, asked.threads, &asked.options),
        Some(seed) => run_caught(seed, &Options { tell: true, ..asked.options.clone() }),
    };
    match played {
        Ok(summary) => {
            for line in &summary.story {
                println!("{line}");
            }
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let shown = if asked.whole { failure } else { shrink(failure) };
            println!("{shown}");
            if let Ok(commit) = std::env::var("SPRAG_COMMIT") {
                println!("  commit {commit}");
            }
            println!("  again: cargo xtask sim --seed {}", shown.seed);
            ExitCode::FAILURE
        }
    }
}
