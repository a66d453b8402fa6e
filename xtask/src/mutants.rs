//! Checks the tests themselves: switches on known faults, one at a time, and requires a layer to detect each.
//!
//! The tests are built once, with the faults compiled in. `SPRAG_MUTANT=M07` activates the seventh. A test that still
//! passes with it does not test what it claims.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sprag_lifecycle::mutants::LIST;

use crate::layers::{CAUGHT_BY, Layer, SEARCHED};

/// The number of faults that are tested in parallel.
const PARALLEL: usize = 2;
/// The time after which a test counts as not detecting a fault.
const TIMEOUT: Duration = Duration::from_secs(240);
/// The exit code of `timeout` if it had to kill the program.
const TIMED_OUT: i32 = 124;

/// A detected fault.
pub struct Caught {
    /// The fault's id, such as `M07`.
    pub number: &'static str,
    /// The description of the fault.
    pub fault: &'static str,
    /// The layer that detected it.
    pub layer: Layer,
    /// The duration until the layer failed.
    pub took: Duration,
}

/// Runs every fault, or the named ones, against the layer that must detect it. With `--search`, runs them against all
/// layers in turn to find the one that does.
pub fn check(root: &Path, args: &[&str]) -> Result<Vec<Caught>, String> {
    let search = args.contains(&"--search");
    let wanted: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--search").collect();
    if let Some(unknown) = wanted.iter().find(|name| !LIST.iter().any(|(number, ..)| number == *name)) {
        let last = LIST.last().map_or("M01", |(number, ..)| *number);
        return Err(format!("there is no fault {unknown:?}: they are M01 to {last}"));
    }
    let binaries = build(root)?;
    let faults: Vec<(&'static str, &'static str)> = LIST
        .iter()
        .filter(|(number, ..)| wanted.is_empty() || wanted.contains(number))
        .map(|(number, _, fault)| (*number, *fault))
        .collect();
    // Half of the layers wait for a disk or for other processes, so two run in parallel.
    let (next, seen) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || -> Result<(), String> {
        while let Some((number, fault)) = faults.get(next.fetch_add(1, Ordering::SeqCst)).copied() {
            let caught = look_for(&binaries, number, fault, search)?;
            seen.lock().unwrap_or_else(PoisonError::into_inner).insert(number, caught);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(work)).collect();
        let done = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        done.collect::<Result<Vec<()>, String>>()
    })?;
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let survived: Vec<&str> =
        seen.iter().filter(|(_, caught)| caught.is_none()).map(|(number, _)| *number).collect();
    if survived.is_empty() {
        Ok(seen.into_values().flatten().flatten().collect())
    } else {
        Err(format!("no layer detected {}: the tests do not cover it", survived.join(", ")))
    }
}

/// Returns the layer that detects this fault, or `None` if a layer that must detect it does not.
fn look_for(
    binaries: &Programs,
    number: &'static str,
    fault: &'static str,
    search: bool,
) -> Result<Option<Vec<Caught>>, String> {
    let known = CAUGHT_BY.iter().filter(|(of, _)| *of == number).map(|(_, layer)| layer);
    let layers: Vec<&Layer> = if search { SEARCHED.iter().collect() } else { known.collect() };
    let mut seen = Vec::new();
    let mut overlooked = layers.is_empty();
    for layer in layers {
        match sees(binaries, layer, number)? {
            Some(took) => {
                println!("{number}  {layer}, {:.1} s: {fault}", took.as_secs_f64());
                seen.push(Caught { number, fault, layer: *layer, took });
                if search {
                    break;
                }
            }
            None if search => {}
            None => {
                println!("{number}  {layer} DOES NOT SEE IT: {fault}");
                overlooked = true;
            }
        }
    }
    if overlooked || seen.is_empty() {
        println!("{number}  SURVIVES: {fault}");
        return Ok(None);
    }
    Ok(Some(seen))
}

/// Builds the test programs with the faults compiled in. Builds all crates in the way the tests do, so that code
/// without faults is already built.
fn build(root: &Path) -> Result<Programs, String> {
    let layers = SEARCHED.iter().chain(CAUGHT_BY.iter().map(|(_, layer)| layer));
    let tests: BTreeSet<&str> = layers.map(|layer| layer.binary).collect();
    let tests = tests.into_iter().flat_map(|test| ["--test", test]);
    programs(root, ["--workspace", "--features", "sprag-lifecycle/mutants"].into_iter().chain(tests))
}

/// Test programs by the short name of their crate and their own name.
pub type Programs = BTreeMap<(String, String), PathBuf>;

/// Builds the test programs that these cargo arguments select.
pub fn programs<'a>(root: &Path, chosen: impl IntoIterator<Item = &'a str>) -> Result<Programs, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--quiet", "--no-run", "--message-format=json"]).args(chosen);
    command.current_dir(root).env("CARGO_INCREMENTAL", "0").stderr(Stdio::inherit());
    eprintln!("── {command:?}");
    let built = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !built.status.success() {
        return Err(format!("{command:?} ended with {}", built.status));
    }
    let mut programs = BTreeMap::new();
    for line in String::from_utf8_lossy(&built.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let (Some(program), Some(package)) = (message["executable"].as_str(), message["package_id"].as_str())
        else {
            continue;
        };
        // The id is "path+file:///…/crates/store#sprag-store@0.1.0", without the name if the folder has it.
        let (_, package) = package.split_once("/crates/").unwrap_or(("", package));
        let package = package.split(['#', '/']).next().unwrap_or(package);
        if let Some(target) = message["target"]["name"].as_str() {
            programs.insert((package.to_owned(), target.to_owned()), PathBuf::from(program));
        }
    }
    Ok(programs)
}

/// Returns the time until a layer failed with this fault, or `None` if it passes.
#[expect(clippy::disallowed_methods, reason = "it measures another program")]
fn sees(binaries: &Programs, layer: &Layer, number: &str) -> Result<Option<Duration>, String> {
    let program = binaries
        .get(&(layer.package.to_owned(), layer.binary.to_owned()))
        .ok_or_else(|| format!("there is no test {layer}"))?;
    let since = Instant::now();
    let status = Command::new("timeout")
        .arg(TIMEOUT.as_secs().to_string())
        .arg(program)
        .args(layer.tests.split_whitespace())
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace"))
        .env("SPRAG_MUTANT", number)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    match status.code() {
        Some(0) => Ok(None),
        Some(TIMED_OUT) => {
            println!("{number}  {layer} does not finish");
            Ok(None)
        }
        _ => Ok(Some(since.elapsed())),
    }
}
