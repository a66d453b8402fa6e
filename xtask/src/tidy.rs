//! Checks that no compiler does: every file states its purpose, none is too long, nothing is unfinished.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::locks;

/// The most lines of a file; a longer one should be split.
const LONGEST_FILE: usize = 800;

/// Crates that reach the store through `app` alone.
const WITHOUT_STORE: [&str; 4] = ["cli", "mcp", "server", "sprag"];

/// Crates that read files in folders to which steps can write.
const READERS: [&str; 9] =
    ["app", "bus", "mcp", "process", "remote", "server", "store", "worker", "worktree"];
/// Their files that read what the kernel tells, and the supervisor of tests.
const KERNEL_READERS: [&str; 5] = [
    "crates/process/src/adopted.rs",
    "crates/process/src/bin/supervisor.rs",
    "crates/process/src/cgroup.rs",
    "crates/process/src/limits.rs",
    "crates/worktree/src/foreign_git.rs",
];

/// Crates of the program. They use the store through its roles alone.
const PROGRAM: [&str; 9] = ["app", "bus", "cli", "mcp", "remote", "server", "sprag", "sweeper", "worker"];

/// Checks every tracked file.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut problems = Vec::new();
    // Generated fuzz inputs follow no rules.
    for path in tracked(root)?.into_iter().filter(|path| !path.starts_with("fuzz/corpus")) {
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        let name = path.to_string_lossy();
        if path.extension().is_some_and(|ending| ending == "rs") {
            rust_file(&name, &text, &mut problems);
            careless_reads(&name, &text, &mut problems);
            raw_store(&name, &text, &mut problems);
            shared_backends(&name, &text, &mut problems);
        }
        if text.lines().any(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ")) {
            problems.push(format!("{name}: contains a merge conflict"));
        }
        // The page's bundler writes its files as it likes.
        let is_bundled = path.starts_with("crates/dashboard/dist");
        if !text.is_empty() && !text.ends_with('\n') && !is_bundled {
            problems.push(format!("{name}: the last line has no line end"));
        }
    }
    for name in WITHOUT_STORE {
        let manifest = root.join("crates").join(name).join("Cargo.toml");
        let text =
            std::fs::read_to_string(&manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
        // Tests may look into the store.
        let used = text.split("[dev-dependencies]").next().unwrap_or_default();
        if used.lines().any(|line| line.starts_with("sprag-store")) {
            problems.push(format!(
                "crates/{name}/Cargo.toml: depends on the store; call the crate `app` instead"
            ));
        }
    }
    locks::check(root, &mut problems)?;
    match problems.as_slice() {
        [] => Ok(()),
        _ => Err(format!("not tidy:\n  {}", problems.join("\n  "))),
    }
}

fn rust_file(name: &str, text: &str, problems: &mut Vec<String>) {
    if !text.starts_with("//!") {
        problems.push(format!("{name}: the first line does not state the purpose (`//! …`)"));
    }
    let lines = text.lines().count();
    if lines > LONGEST_FILE {
        problems.push(format!("{name}: {lines} lines; split files of more than {LONGEST_FILE}"));
    }
    // The words are split, so that this file does not match itself.
    for word in
        [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("FIX", "ME"), concat!("XX", "X")]
    {
        if text.contains(word) {
            problems.push(format!("{name}: holds {word:?}"));
        }
    }
    if text.contains(concat!("#[", "ignore")) {
        problems.push(format!("{name}: contains a test that does not run"));
    }
}

/// Opening a file that may be a pipe waits for ever, and one that is a link may lead anywhere. `open_regular` of `process`
/// and `read` of `worktree` do neither.
fn careless_reads(name: &str, text: &str, problems: &mut Vec<String>) {
    let is_reader = READERS.iter().any(|reader| name.starts_with(&format!("crates/{reader}/src/")));
    if !is_reader || KERNEL_READERS.contains(&name) {
        return;
    }
    for (number, line) in text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]") {
        let opens =
            ["fs::read(", "fs::read_to_string(", "File::open("].iter().any(|call| line.contains(call));
        if opens && !line.contains("\"/proc/") && !line.contains("\"/etc/") {
            problems.push(format!("{name}:{}: it would wait for a pipe; use `open_regular`", number + 1));
        }
    }
}

/// The store's door for tests leads around the roles, and so around the checks inside their transactions.
fn raw_store(name: &str, text: &str, problems: &mut Vec<String>) {
    let is_program = PROGRAM.iter().any(|program| name.starts_with(&format!("crates/{program}/src/")));
    if is_program && names_module(text, "sprag_store", "testing") {
        problems.push(format!("{name}: uses the store's access for tests; add a verb to a role, or a query"));
    }
}

/// What both databases need belongs beside them, so that each can be built and read without the other.
fn shared_backends(name: &str, text: &str, problems: &mut Vec<String>) {
    let is_postgres = name.starts_with("crates/store/src/postgres/");
    if is_postgres && names_module(text, "crate", "sqlite") {
        problems.push(format!("{name}: uses the SQLite store; move what both share out of it"));
    }
}

/// Whether a text names a module by its path, or imports it in a group.
fn names_module(text: &str, root: &str, module: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.split(&format!("{root}::")).skip(1).any(|rest| {
        let imported = match rest.strip_prefix('{') {
            Some(group) => group.split('}').next().unwrap_or_default(),
            None => rest.split(|c| !is_part(c)).next().unwrap_or_default(),
        };
        imported.split(|c| !is_part(c)).any(|word| word == module)
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(check: fn(&str, &str, &mut Vec<String>), name: &str, text: &str) -> usize {
        let mut problems = Vec::new();
        check(name, text, &mut problems);
        problems.len()
    }

    #[test]
    fn the_program_uses_the_store_through_its_roles() {
        let path = "use sprag_store::testing::RawStore;";
        let group = "use sprag_store::{\n    Store, testing,\n};";
        for text in [path, group] {
            assert_eq!(problems_of(raw_store, "crates/app/src/runs.rs", text), 1, "{text}");
            assert_eq!(problems_of(raw_store, "crates/server/tests/it/main.rs", text), 0, "{text}");
            assert_eq!(problems_of(raw_store, "crates/sim/src/check.rs", text), 0, "{text}");
        }
        let fine = "use sprag_store::{Store, Topic};\nlet testing = store.queries();";
        assert_eq!(problems_of(raw_store, "crates/app/src/runs.rs", fine), 0);
    }

    #[test]
    fn postgres_uses_nothing_of_sqlite() {
        let name = "crates/store/src/postgres/open.rs";
        assert_eq!(problems_of(shared_backends, name, "use crate::sqlite::FILE_NAME;"), 1);
        assert_eq!(problems_of(shared_backends, name, "use crate::columns::tables;"), 0);
        assert_eq!(
            problems_of(shared_backends, "crates/store/src/handle.rs", "use crate::sqlite::Sqlite;"),
            0
        );
    }
}
