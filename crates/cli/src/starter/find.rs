//! The contents of a folder: its languages, its tools, and the commands that its authors already have.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

/// The most bytes of a file that are read.
const MOST_BYTES: u64 = 1 << 20;

/// A kind of code in the folder, with the facts that its steps depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    Rust { workspace: bool },
    Node { manager: Manager, locked: bool, scripts: Vec<&'static str> },
    Python { python: Python, tests: Tests },
    Go,
    Make { targets: Vec<&'static str> },
}

/// The program that installs JavaScript packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manager {
    Npm,
    Pnpm,
    Yarn,
    Bun,
}

/// The kind of file or tool that describes Python's packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Python {
    Uv,
    Poetry,
    /// A `pyproject.toml` that pip can install.
    Project,
    Requirements,
    /// A `pyproject.toml` for tools alone: there is nothing to install.
    Bare,
}

/// The program that runs Python's tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tests {
    None,
    Unittest,
    Pytest,
}

/// The scripts and targets that become steps, in this order; all others are left to their authors.
const SCRIPTS: [&str; 4] = ["lint", "typecheck", "test", "build"];
const TARGETS: [&str; 4] = ["build", "lint", "check", "test"];

impl Found {
    /// Returns its name in one word, for the names of steps.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Found::Rust { .. } => "rust",
            Found::Node { .. } => "node",
            Found::Python { .. } => "python",
            Found::Go => "go",
            Found::Make { .. } => "make",
        }
    }

    /// Returns the file by which it was found.
    pub(crate) fn told(&self) -> &'static str {
        match self {
            Found::Rust { .. } => "Cargo.toml",
            Found::Node { .. } => "package.json",
            Found::Python { python: Python::Requirements, .. } => "requirements.txt",
            Found::Python { .. } => "pyproject.toml",
            Found::Go => "go.mod",
            Found::Make { .. } => "Makefile",
        }
    }
}

/// Returns all that is found in the folder. A Makefile counts only if nothing else was found, because it usually wraps
/// the rest.
pub(crate) fn find(folder: &Path) -> Vec<Found> {
    let has = |name: &str| folder.join(name).exists();
    let mut found = Vec::new();
    if let Some(text) = read(folder, "Cargo.toml") {
        found.push(Found::Rust { workspace: text.lines().any(|line| line.trim() == "[workspace]") });
    }
    if let Some(text) = read(folder, "package.json") {
        found.push(node(&text, &has));
    }
    found.extend(python(folder, &has));
    if has("go.mod") {
        found.push(Found::Go);
    }
    if found.is_empty() {
        let text = ["GNUmakefile", "makefile", "Makefile"].iter().find_map(|name| read(folder, name));
        found.extend(text.and_then(|text| make(&text)));
    }
    found
}

fn node(text: &str, has: &dyn Fn(&str) -> bool) -> Found {
    let package: Value = serde_json::from_str(text).unwrap_or_default();
    let (manager, locked) = if has("pnpm-lock.yaml") {
        (Manager::Pnpm, true)
    } else if has("yarn.lock") {
        (Manager::Yarn, true)
    } else if has("bun.lock") || has("bun.lockb") {
        (Manager::Bun, true)
    } else if has("package-lock.json") || has("npm-shrinkwrap.json") {
        (Manager::Npm, true)
    } else {
        let named = package["packageManager"].as_str().unwrap_or_default();
        let manager = [("pnpm@", Manager::Pnpm), ("yarn@", Manager::Yarn), ("bun@", Manager::Bun)]
            .into_iter()
            .find(|(prefix, _)| named.starts_with(prefix));
        (manager.map_or(Manager::Npm, |(_, manager)| manager), false)
    };
    let usable = |name: &&str| {
        let script = package["scripts"][name].as_str().unwrap_or_default();
        // `npm init` writes a test script that fails.
        !script.trim().is_empty() && !script.contains("no test specified")
    };
    Found::Node { manager, locked, scripts: SCRIPTS.into_iter().filter(usable).collect() }
}

fn python(folder: &Path, has: &dyn Fn(&str) -> bool) -> Option<Found> {
    let project = read(folder, "pyproject.toml");
    let requirements = read(folder, "requirements.txt");
    if project.is_none() && requirements.is_none() && !has("setup.py") {
        return None;
    }
    let described = project.as_deref().unwrap_or_default();
    let installable =
        has("setup.py") || ["[project]", "[build-system]"].iter().any(|part| described.contains(part));
    let python = if has("uv.lock") {
        Python::Uv
    } else if has("poetry.lock") || described.contains("[tool.poetry]") {
        Python::Poetry
    } else if requirements.is_some() {
        Python::Requirements
    } else if installable {
        Python::Project
    } else {
        Python::Bare
    };
    let names = format!("{described}\n{}", requirements.unwrap_or_default());
    let tests = if names.contains("pytest") || has("pytest.ini") || has("conftest.py") {
        Tests::Pytest
    } else if has("tests") || has("test") {
        Tests::Unittest
    } else {
        Tests::None
    };
    Some(Found::Python { python, tests })
}

fn make(text: &str) -> Option<Found> {
    let is_target = |name: &&str| {
        let rule = |line: &str| {
            let rest = line.strip_prefix(*name).map(str::trim_start);
            rest.is_some_and(|rest| rest.starts_with(':') && !rest.starts_with(":="))
        };
        text.lines().any(rule)
    };
    let targets: Vec<&str> = TARGETS.into_iter().filter(is_target).collect();
    let rest = || Some("all").filter(is_target).into_iter().collect();
    let targets = if targets.is_empty() { rest() } else { targets };
    (!targets.is_empty()).then_some(Found::Make { targets })
}

/// Returns the beginning of a file; none if it does not exist. A file that is not text reads as empty.
fn read(folder: &Path, name: &str) -> Option<String> {
    let path = folder.join(name);
    let file = path.is_file().then(|| File::open(path).ok())??;
    let mut text = String::new();
    let read = file.take(MOST_BYTES).read_to_string(&mut text);
    Some(if read.is_ok() { text } else { String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[Found]) {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            match name.strip_suffix('/') {
                Some(_) => std::fs::create_dir(path).expect("a folder"),
                None => std::fs::write(path, text).expect("a file"),
            }
        }
        assert_eq!(find(folder.path()), expected, "{files:?}");
    }

    #[test]
    fn what_a_folder_holds_is_found() {
        let node = |manager, locked, scripts: &[&'static str]| Found::Node {
            manager,
            locked,
            scripts: scripts.to_vec(),
        };
        let package = r#"{"scripts": {"test": "node --test", "build": "tsc", "start": "x", "lint": ""}}"#;
        let untested = r#"{"scripts": {"test": "echo \"Error: no test specified\" && exit 1"}}"#;
        let python = |python, tests| Found::Python { python, tests };
        check(&[], &[]);
        check(&[("README.md", "x")], &[]);
        check(&[("Cargo.toml", "[package]\n")], &[Found::Rust { workspace: false }]);
        check(&[("Cargo.toml", "[workspace]\n")], &[Found::Rust { workspace: true }]);
        check(&[("Cargo.toml/", "")], &[]);
        check(&[("go.mod", "module x")], &[Found::Go]);
        check(&[("package.json", package)], &[node(Manager::Npm, false, &["test", "build"])]);
        check(&[("package.json", untested), ("package-lock.json", "")], &[node(Manager::Npm, true, &[])]);
        check(
            &[("package.json", package), ("pnpm-lock.yaml", "")],
            &[node(Manager::Pnpm, true, &["test", "build"])],
        );
        check(&[("package.json", "{}"), ("yarn.lock", "")], &[node(Manager::Yarn, true, &[])]);
        check(&[("package.json", "{}"), ("bun.lockb", "")], &[node(Manager::Bun, true, &[])]);
        check(&[("package.json", r#"{"packageManager": "pnpm@9.1.0"}"#)], &[node(Manager::Pnpm, false, &[])]);
        check(&[("package.json", "not JSON")], &[node(Manager::Npm, false, &[])]);
        check(&[("requirements.txt", "flask\npytest\n")], &[python(Python::Requirements, Tests::Pytest)]);
        check(&[("requirements.txt", ""), ("tests/", "")], &[python(Python::Requirements, Tests::Unittest)]);
        check(&[("pyproject.toml", "[project]\n")], &[python(Python::Project, Tests::None)]);
        check(&[("pyproject.toml", "[tool.ruff]\n")], &[python(Python::Bare, Tests::None)]);
        check(&[("pyproject.toml", "[tool.pytest]"), ("uv.lock", "")], &[python(Python::Uv, Tests::Pytest)]);
        check(&[("pyproject.toml", "[tool.poetry]")], &[python(Python::Poetry, Tests::None)]);
        let makefile = ".PHONY: test\ntest : deps\n\techo\nbuild: x\nlint := no\nall: build\n";
        check(&[("Makefile", makefile)], &[Found::Make { targets: vec!["build", "test"] }]);
        check(&[("Makefile", "all:\n\techo")], &[Found::Make { targets: vec!["all"] }]);
        check(&[("Makefile", "x:\n\techo")], &[]);
        check(&[("Makefile", makefile), ("go.mod", "")], &[Found::Go]);
        check(&[("Cargo.toml", ""), ("go.mod", "")], &[Found::Rust { workspace: false }, Found::Go]);
    }
}
