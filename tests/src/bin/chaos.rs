//! `chaos [--minutes N] [--seed S] [--store sqlite|postgres]`: makes chaos with the built `sprag` beside it, and fails if a check finds anything.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use sprag_tests::chaos::{Kept, Options, run};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let options = match options(&args) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("chaos: {message}");
            return ExitCode::from(2);
        }
    };
    eprintln!("chaos: {} minutes with seed {}", options.lasts.as_secs() / 60, options.seed);
    let outcome = run(options);
    println!("figure: chaos: {}", outcome.figures);
    if outcome.findings.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("chaos: {} findings, printed above; seed {}", outcome.findings.len(), options.seed);
    if let Some(folder) = outcome.folder {
        eprintln!("chaos: everything is kept in {}", folder.display());
    }
    ExitCode::FAILURE
}

fn options(args: &[String]) -> Result<Options, String> {
    let mut options = Options { lasts: Duration::from_secs(120), seed: seed(), store: Kept::Sqlite };
    let mut args = args.iter();
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: not a number"));
        match (name.as_str(), value.as_str()) {
            ("--minutes", _) => options.lasts = Duration::from_secs(60 * number()?),
            ("--seed", _) => options.seed = number()?,
            ("--store", "sqlite") => options.store = Kept::Sqlite,
            ("--store", "postgres") => options.store = Kept::Postgres,
            _ => return Err(format!("{name} {value}: use --minutes N, --seed S or --store sqlite|postgres")),
        }
    }
    Ok(options)
}

/// Returns a seed that differs from run to run, and is printed.
fn seed() -> u64 {
    let started = std::fs::metadata("/proc/self").and_then(|own| own.modified()).ok();
    started
        .and_then(|at| at.duration_since(UNIX_EPOCH).ok())
        .map_or(1, |since| since.as_millis() as u64 % 1_000_000)
}
