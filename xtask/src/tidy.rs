//! What no compiler checks: every file says what it is for, none has grown too long, nothing is left undone.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file past this wants to be two.
const LONGEST_FILE: usize = 800;

/// Looks at every file that git knows.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut problems = Vec::new();
    // What a fuzzer made up keeps no rules.
    for path in tracked(root)?.into_iter().filter(|path| !path.starts_with("fuzz/corpus")) {
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        let name = path.to_string_lossy();
        if path.extension().is_some_and(|ending| ending == "rs") {
            rust_file(&name, &text, &mut problems);
        }
        if text.lines().any(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ")) {
            problems.push(format!("{name}: a conflict was left in it"));
        }
        if !text.is_empty() && !text.ends_with('\n') {
            problems.push(format!("{name}: its last line has no end"));
        }
    }
    match problems.as_slice() {
        [] => Ok(()),
        _ => Err(format!("not tidy:\n  {}", problems.join("\n  "))),
    }
}

fn rust_file(name: &str, text: &str, problems: &mut Vec<String>) {
    if !text.starts_with("//!") {
        problems.push(format!("{name}: its first line does not say what it is for (`//! …`)"));
    }
    let lines = text.lines().count();
    if lines > LONGEST_FILE {
        problems.push(format!("{name}: {lines} lines; more than {LONGEST_FILE} want to be two files"));
    }
    // Written apart, so that this file does not find itself.
    for word in
        [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("FIX", "ME"), concat!("XX", "X")]
    {
        if text.contains(word) {
            problems.push(format!("{name}: holds {word:?}"));
        }
    }
    if text.contains(concat!("#[", "ignore")) {
        problems.push(format!("{name}: holds a test that does not run"));
    }
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
    let listed = listed.map_err(|error| format!("git ls-files: {error}"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
}
