//! Checks that the lock files outside the workspace contain the dependencies of the project's crates. Cargo would check
//! it too, but only with the registry at hand, and only in builds there: the fuzzers, at night.

use std::collections::BTreeMap;
use std::path::Path;

/// The lock files of programs outside the workspace that use crates of it.
const LOCKS: [&str; 1] = ["fuzz/Cargo.lock"];

/// Adds a problem for each dependency that is missing in a lock file.
pub(crate) fn check(root: &Path, problems: &mut Vec<String>) -> Result<(), String> {
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"));
    let crates = std::fs::read_dir(root.join("crates")).map_err(|error| format!("crates: {error}"))?;
    let mut manifests = BTreeMap::new();
    for folder in crates.flatten() {
        let manifest = read(&format!("crates/{}/Cargo.toml", folder.file_name().to_string_lossy()))?;
        if let Some(name) = manifest.lines().find_map(|line| line.strip_prefix("name = ")) {
            manifests.insert(name.trim_matches('"').to_owned(), dependencies(&manifest));
        }
    }
    for lock in LOCKS {
        for (package, locked) in packages(&read(lock)?) {
            for wanted in manifests.get(&package).into_iter().flatten() {
                if !locked.contains(wanted) {
                    problems.push(format!(
                        "{lock}: {package} depends on {wanted} by now; run `cargo metadata` in its folder"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Returns the names under `[dependencies]` in a manifest, without those that are optional.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && !line.contains("optional = true") {
            names.extend(line.split_once(" = ").map(|(name, _)| name.to_owned()));
        }
    }
    names
}

/// Each package of a lock file with the names of what it depends on.
fn packages(lock: &str) -> Vec<(String, Vec<String>)> {
    let mut packages: Vec<(String, Vec<String>)> = Vec::new();
    for line in lock.lines() {
        if let Some(name) = line.strip_prefix("name = ") {
            packages.push((name.trim_matches('"').to_owned(), Vec::new()));
        } else if let (Some(entry), Some((_, names))) = (line.strip_prefix(" \""), packages.last_mut()) {
            // Where there are several versions of it, one is told with the name.
            names.extend(entry.split(['"', ' ']).next().map(str::to_owned));
        }
    }
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_and_locks_are_read() {
        let manifest = "[package]\nname = \"a\"\n\n[dependencies]\nb = { workspace = true }\nc = { version = \"1\", optional = true }\n\n[dev-dependencies]\nd = \"1\"\n";
        assert_eq!(dependencies(manifest), ["b"]);
        let lock = "[[package]]\nname = \"a\"\nversion = \"1\"\ndependencies = [\n \"b\",\n \"c 2.0.0\",\n]\n\n[[package]]\nname = \"b\"\n";
        let found = packages(lock);
        assert_eq!(found[0], ("a".to_owned(), vec!["b".to_owned(), "c".to_owned()]));
        assert_eq!(found[1], ("b".to_owned(), Vec::new()));
    }
}
