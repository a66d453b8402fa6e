//! The proof of the proof: known faults are switched on, one at a time, and a layer must see each.
//!
//! The tests are built once, with the faults compiled in; a run with `SPRAG_MUTANT=M07` has the seventh of them. A
//! test that then still passes does not look at what it claims to look at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sprag_lifecycle::mutants::LIST;

use crate::layers::{CAUGHT_BY, Layer, SEARCHED};

/// How many faults are looked for at once.
const AT_ONCE: usize = 2;
/// A test that has not seen a fault by then does not see it.
const PATIENCE: Duration = Duration::from_secs(240);
/// What `timeout` ends with if it had to end the program.
const TIMED_OUT: i32 = 124;

/// One fault, and one who saw it.
pub struct Caught {
    /// Its number.
    pub number: &'static str,
    /// What is wrong.
    pub fault: &'static str,
    /// Who saw it.
    pub layer: Layer,
    /// How long that took.
    pub took: Duration,
}

/// Runs every fault, or those named, against the layer that is known to see it; with `--search`, against all
/// layers in turn, to find out which one does.
pub fn check(root: &Path, args: &[&str]) -> Result<Vec<Caught>, String> {
    let search = args.contains(&"--search");
    let wanted: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--search").collect();
    if let Some(unknown) = wanted.iter().find(|name| !LIST.iter().any(|(number, ..)| number == *name)) {
        return Err(format!("there is no fault {unknown:?}: they are M01 to M{}", LIST.len()));
    }
    let binaries = build(root)?;
    let faults: Vec<(&'static str, &'static str)> = LIST
        .iter()
        .filter(|(number, ..)| wanted.is_empty() || wanted.contains(number))
        .map(|(number, _, fault)| (*number, *fault))
        .collect();
    // Half of the layers wait for a disk or for each other's processes: two at once.
    let (next, seen) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || -> Result<(), String> {
        while let Some((number, fault)) = faults.get(next.fetch_add(1, Ordering::SeqCst)).copied() {
            let caught = look_for(&binaries, number, fault, search)?;
            seen.lock().unwrap_or_else(PoisonError::into_inner).insert(number, caught);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let hands: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let done =
            hands.into_iter().map(|hand| hand.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        done.collect::<Result<Vec<()>, String>>()
    })?;
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let survived: Vec<&str> =
        seen.iter().filter(|(_, caught)| caught.is_none()).map(|(number, _)| *number).collect();
    match survived.is_empty() {
        true => Ok(seen.into_values().flatten().flatten().collect()),
        false => Err(format!("nobody saw {}: the proof is blind to it", survived.join(", "))),
    }
}

/// Who sees this fault; none if somebody overlooks it who should not.
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

/// The test programs with the faults in them. Of all crates, as the tests are built: what does not depend on the faults is
/// there already then.
fn build(root: &Path) -> Result<Programs, String> {
    let layers = SEARCHED.iter().chain(CAUGHT_BY.iter().map(|(_, layer)| layer));
    let tests: BTreeSet<&str> = layers.map(|layer| layer.binary).collect();
    let tests = tests.into_iter().flat_map(|test| ["--test", test]);
    programs(root, ["--workspace", "--features", "sprag-lifecycle/mutants"].into_iter().chain(tests))
}

/// Test programs, by their crate's short name and their own.
pub type Programs = BTreeMap<(String, String), PathBuf>;

/// Builds the test programs that these arguments of cargo's choose.
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
        // "path+file:///…/crates/store#sprag-store@0.1.0", or without the name where the folder has it.
        let (_, package) = package.split_once("/crates/").unwrap_or(("", package));
        let package = package.split(['#', '/']).next().unwrap_or(package);
        if let Some(target) = message["target"]["name"].as_str() {
            programs.insert((package.to_owned(), target.to_owned()), PathBuf::from(program));
        }
    }
    Ok(programs)
}

/// How long it took a layer to fail with this fault on; none if it passes.
#[expect(clippy::disallowed_methods, reason = "it measures another program")]
fn sees(binaries: &Programs, layer: &Layer, number: &str) -> Result<Option<Duration>, String> {
    let program = binaries
        .get(&(layer.package.to_owned(), layer.binary.to_owned()))
        .ok_or_else(|| format!("there is no test {layer}"))?;
    let since = Instant::now();
    let status = Command::new("timeout")
        .arg(PATIENCE.as_secs().to_string())
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
            println!("{number}  {layer} does not end");
            Ok(None)
        }
        _ => Ok(Some(since.elapsed())),
    }
}
