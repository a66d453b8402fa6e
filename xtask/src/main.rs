//! `cargo xtask test|sim|chaos|bench|fuzz|mutants|proof|gen|ui|tidy`: the project's own commands.

mod chaos;
mod fuzz;
mod layers;
mod locks;
mod machine;
mod mutants;
mod nats;
mod proof;
mod schemathesis;
mod test_run;
mod tidy;
mod ui;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
cargo xtask test [--nightly]    all checks: formatting, lints, docs, tests
cargo xtask sim [--seeds N] [--first S] [--store memory|sqlite]
                                runs seeds of the simulation; --seed S runs one again and prints its log
cargo xtask chaos [--minutes N] [--seed S] [--store sqlite|postgres] [--figures]
                                kills and stops processes while people and git work beside them, and
                                checks the result from outside; --figures writes it to docs/proof.md
cargo xtask bench [WORKLOAD]    benchmarks against floors and peers; see docs/performance.md
cargo xtask fuzz [pipeline|template|api|agent|work] [--executions N | --nightly | --keep]
                                runs parsers of external input under libFuzzer; --keep adds new inputs
                                to the corpus
cargo xtask mutants [M07 …] [--search]
                                switches on known faults, one at a time: a layer of the proof must detect each
cargo xtask proof [--nightly | --figures]
                                runs all layers of the proof, and writes the figures of docs/proof.md
cargo xtask gen                 writes the files that are generated from the code
cargo xtask ui [--check]        builds the dashboard with Node; --check compares the result with what is committed
cargo xtask tidy                checks that no compiler does";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    let done = match args.first().map(String::as_str) {
        Some("test") => test(&rest),
        Some("sim") => sim(&rest),
        Some("chaos") => chaos::chaos(&root(), &rest),
        Some("bench") => bench(&rest),
        Some("fuzz") => fuzz::fuzz(&root(), &rest),
        Some("mutants") => mutants::check(&root(), &rest).map(drop),
        Some("proof") => proof::write(&root(), &rest),
        Some("gen") => generate(),
        Some("ui") => ui::build(&root(), &rest),
        Some("tidy") => tidy::check(&root()),
        _ => Err(format!("expected a command\n\n{USAGE}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Runs cargo in the workspace and shows its output.
fn cargo<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I, env: &[(&str, &str)]) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root()).envs(env.iter().copied());
    eprintln!("── {command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn test(args: &[&str]) -> Result<(), String> {
    // Nothing here is rebuilt after a change, so incremental data would only cost time and space.
    let mut env = vec![("RUST_BACKTRACE", "0"), ("CARGO_INCREMENTAL", "0")];
    match args {
        [] => {}
        ["--nightly"] => env.push(("SPRAG_NIGHTLY", "1")),
        other => {
            return Err(format!(
                "test does not take {other:?}

        {USAGE}"
            ));
        }
    }
    machine::prepare(&root())?;
    tidy::check(&root())?;
    cargo(["fmt", "--all", "--check"], &env)?;
    cargo(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"], &env)?;
    env.push(("RUSTDOCFLAGS", "-D warnings"));
    // The program and the library have the same name, and would write to the same folder at the same time.
    let doc = ["doc", "--quiet", "--no-deps", "--document-private-items"];
    cargo(doc.into_iter().chain(["--workspace", "--exclude", "sprag-cli"]), &env)?;
    // Not `-p sprag-cli`: dependencies would be checked again with fewer features.
    cargo(doc.into_iter().chain(["--workspace", "--exclude", "sprag"]), &env)?;
    // The end-to-end tests start the program itself. One command builds everything with the same features.
    cargo(["build", "--quiet", "--workspace", "--bins", "--tests", "--examples"], &env)?;
    test_run::run(&root(), &env)?;
    mutants::check(&root(), &[])?;
    if args != ["--nightly"] {
        // As for the tests: what is found once is to be looked into, and what is found twice stops everything else.
        chaos::play(&root(), &["--minutes", "2"]).or_else(|found| {
            println!("\nFLAKY, chaos once more with another seed: {found}");
            chaos::play(&root(), &["--minutes", "2"])
        })?;
    } else {
        chaos::play(&root(), &["--minutes", "60"])?;
        chaos::play(&root(), &["--minutes", "20", "--store", "postgres"])?;
        schemathesis::check(&root())?;
        // A server without the dashboard and the broker still compiles.
        cargo(["check", "--quiet", "-p", "sprag-server", "--no-default-features"], &env)?;
        fuzz::fuzz(&root(), args)?;
    }
    Ok(())
}

/// Runs seeds of the simulation. A failure names the commit.
fn sim(args: &[&str]) -> Result<(), String> {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output();
    let commit = head.map(|head| String::from_utf8_lossy(&head.stdout).trim().to_owned()).unwrap_or_default();
    let run = ["run", "--quiet", "-p", "sprag-sim", "--"];
    cargo(run.into_iter().chain(args.iter().copied()), &[("SPRAG_COMMIT", &commit)])
}

fn bench(args: &[&str]) -> Result<(), String> {
    // W3 starts the program itself.
    cargo(["build", "--quiet", "--release", "-p", "sprag-cli"], &[])?;
    if let ["ui", rest @ ..] = args {
        return ui::bench(&root(), rest);
    }
    let run = ["run", "--quiet", "--release", "-p", "sprag-benches", "--"];
    if !args.is_empty() {
        return cargo(run.into_iter().chain(args.iter().copied()), &[]);
    }
    for workload in [
        "store",
        "pipelines",
        "postgres",
        "growth",
        "worktrees",
        "fanout",
        "serve",
        "handoff",
        "retention",
        "triggers",
    ] {
        cargo(run.into_iter().chain([workload]), &[])?;
    }
    Ok(())
}

/// Writes the files that are generated from the code.
fn generate() -> Result<(), String> {
    let page = root().join("docs/lifecycles.md");
    std::fs::write(&page, sprag_lifecycle::reference())
        .map_err(|error| format!("{}: {error}", page.display()))?;
    // The server's own test writes it, so that this program need not depend on the server.
    cargo(["test", "--quiet", "-p", "sprag-server", "--test", "it", "openapi::"], &[("SPRAG_GEN", "1")])
}
