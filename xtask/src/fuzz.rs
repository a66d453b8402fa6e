//! `cargo xtask fuzz`: runs the parsers of external input under libFuzzer on stable Rust: the loader of pipeline files,
//! templates, the server's endpoints, the streams of coding agents, and conversations of remote workers.
//!
//! Stable Rust has no `-Zsanitizer`, but LLVM's coverage pass can be enabled by its own flags, and libFuzzer needs no
//! more. `libfuzzer-sys` contains the fuzzer itself, built with the installed C++ compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The number of inputs of a nightly run.
const NIGHTLY_EXECUTIONS: u64 = 5_000_000;
/// The number of inputs of a run without `--executions`: a minute or two.
const DEFAULT_EXECUTIONS: u64 = 100_000;

const INSTRUMENTS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// The fuzz targets; each has a program and a corpus with its name.
const TARGETS: [&str; 5] = ["pipeline", "template", "api", "agent", "work"];

/// The limits that every input must keep: seconds and memory.
const TIMEOUT_S: u32 = 10;
const MEMORY_MIB: u32 = 1024;
/// The longest input. Longer ones find nothing more and take longer; a separate test covers the largest files.
const MAX_BYTES: u32 = 2048;
/// The longest committed input, so that the corpus stays small.
const MAX_SEED_BYTES: u32 = 1024;

/// The task of the fuzzer.
enum Job {
    /// Generates this many inputs.
    Run(u64),
    /// Adds inputs to the corpus that reach new code.
    Keep,
}

pub(crate) fn fuzz(root: &Path, args: &[&str]) -> Result<(), String> {
    let (targets, args) = match args {
        [name, rest @ ..] if TARGETS.contains(name) => (vec![*name], rest),
        all => (TARGETS.to_vec(), all),
    };
    let job = match args {
        [] => Job::Run(DEFAULT_EXECUTIONS),
        ["--nightly"] => Job::Run(NIGHTLY_EXECUTIONS),
        ["--keep"] => Job::Keep,
        ["--executions", number] => {
            Job::Run(number.parse().map_err(|_| format!("--executions {number}: not a number"))?)
        }
        other => return Err(format!("fuzz does not take {other:?}")),
    };
    for name in targets {
        fuzz_one(root, name, &job)?;
    }
    Ok(())
}

fn fuzz_one(root: &Path, name: &str, job: &Job) -> Result<(), String> {
    let target = target_folder(root);
    let program = build(root, &target, name)?;
    let (found, crashes) = (target.join("found").join(name), target.join("crashes").join(name));
    let corpus = root.join("fuzz/corpus").join(name);
    for folder in [&found, &crashes, &corpus] {
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let mut command = Command::new(program);
    command
        .arg(format!("-timeout={TIMEOUT_S}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-artifact_prefix={}/", crashes.display()));
    match job {
        Job::Run(executions) => command
            .arg(format!("-runs={executions}"))
            .arg(format!("-max_len={MAX_BYTES}"))
            .arg(format!("-dict={}", root.join("fuzz").join(format!("{name}.dict")).display()))
            .arg("-print_final_stats=1")
            .args([&found, &corpus]),
        Job::Keep => command
            .args(["-set_cover_merge=1", "-use_counters=0"])
            .arg(format!("-max_len={MAX_SEED_BYTES}"))
            .args([&corpus, &found]),
    };
    eprintln!("── {command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "the fuzzer ended with {status}; the input that it found is in {}; add it to {}, and fix the bug",
            crashes.display(),
            corpus.display()
        )),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Returns a target folder beside the workspace's own, because everything in it is built with other flags.
fn target_folder(root: &Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root.join(folder).join("fuzz"),
        None => root.join("fuzz/target"),
    }
}

fn build(root: &Path, target: &Path, name: &str) -> Result<PathBuf, String> {
    let host = host()?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With an explicit target, the flags apply only to the program, not to build scripts and macros.
    command.args(["build", "--quiet", "--release", "--locked", "--bin", name, "--target", &host]);
    command.current_dir(root.join("fuzz")).env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", INSTRUMENTS);
    eprintln!("── {command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(target.join(host).join("release").join(name)),
        Ok(status) => Err(format!(
            "the fuzzer could not be built ({status}); it needs a C++ compiler (Debian: apt-get install g++)"
        )),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn host() -> Result<String, String> {
    let told = Command::new("rustc").arg("-vV").output().map_err(|error| format!("rustc -vV: {error}"))?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not report its host".to_owned())
}
