//! `cargo xtask fuzz`: what reads text from outside under libFuzzer, on stable Rust: the loader of pipeline files, and
//! the server's endpoints.
//!
//! Stable has no `-Zsanitizer`, but LLVM's coverage pass can be asked for by its own flags, and that is all
//! that libFuzzer needs. `libfuzzer-sys` brings the fuzzer itself, built with the C++ compiler that is there.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the nightly run does.
const NIGHTLY_EXECUTIONS: u64 = 5_000_000;
/// What a run without a number does: a minute or two.
const DEFAULT_EXECUTIONS: u64 = 100_000;

const INSTRUMENTS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// What is fuzzed: each has a program and a corpus of its name.
const TARGETS: [&str; 2] = ["pipeline", "api"];

/// The bounds to be kept: no input takes longer, or more memory.
const TIMEOUT_S: u32 = 10;
const MEMORY_MIB: u32 = 1024;
/// Longer texts find nothing that these do not, and take longer; the largest files have a test of their own.
const MAX_BYTES: u32 = 2048;
/// A committed input is small, or the corpus would grow past what a repository should hold.
const MAX_SEED_BYTES: u32 = 1024;

/// What to do with the fuzzer.
enum Job {
    /// Make up so many inputs.
    Run(u64),
    /// Take into the corpus what reaches code that it does not reach yet.
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
        other => return Err(format!("fuzz does not know {other:?}")),
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
            "the fuzzer ended with {status}; what it found lies in {}; add it to {}, and repair what it broke",
            crashes.display(),
            corpus.display()
        )),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Beside the workspace's own, because everything in it is built with other flags.
fn target_folder(root: &Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root.join(folder).join("fuzz"),
        None => root.join("fuzz/target"),
    }
}

fn build(root: &Path, target: &Path, name: &str) -> Result<PathBuf, String> {
    let host = host()?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With a target named, the flags are for the program alone, not for build scripts and macros.
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
    host.map(str::to_owned).ok_or_else(|| "rustc does not say for which host it is".to_owned())
}
