//! The first pipeline of a folder: its languages and tools become steps with comments.
//!
//! ```text
//!   folder ── find ──▶ Found ── tasks ──▶ Task … ── pipeline ──▶ text
//! ```

mod find;
mod tasks;

use std::fmt::Write;

pub(crate) use find::{Found, find};
use tasks::Task;

/// Returns a commented pipeline of this name for a folder with these finds.
pub(crate) fn pipeline(name: &str, found: &[Found]) -> String {
    let tasks = all_tasks(found);
    let mut text = head(name, found);
    for (at, task) in tasks.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { "\n" });
        let before = at.checked_sub(1).map(|at| tasks[at].id.as_str());
        write_task(&mut text, task, before);
    }
    text
}

/// Returns the command that tests a folder with these finds, with the installation that it needs.
pub(crate) fn test_command(found: &[Found]) -> Option<String> {
    let commands: Vec<String> = found
        .iter()
        .flat_map(|one| {
            let tasks = tasks::tasks(one);
            let is_wanted = |id: &str| ["install", "test", "check"].contains(&id);
            let has_test = tasks.iter().any(|task| ["test", "check"].contains(&task.id.as_str()));
            let wanted = tasks.into_iter().filter(move |task| has_test && is_wanted(&task.id));
            wanted.map(|task| task.run)
        })
        .collect();
    (!commands.is_empty()).then(|| commands.join(" && "))
}

/// Returns a pipeline of agents of this name, whose check is the test of the folder.
pub(crate) fn agents_pipeline(name: &str, found: &[Found]) -> String {
    const FEATURE: &str = include_str!("../../../../examples/feature.yaml");
    let test = test_command(found).unwrap_or_else(|| "true".to_owned());
    FEATURE
        .replace("name: feature\n", &format!("name: {name}\n"))
        .replace("feature.yaml", &format!(".sprag/pipelines/{name}.yaml"))
        .replace("default: \"true\"", &format!("default: {test:?}"))
}

/// Returns the tasks of all finds, and one that joins their ends.
fn all_tasks(found: &[Found]) -> Vec<Task> {
    let mut all: Vec<Task> = Vec::new();
    for one in found {
        // With several kinds of code in a folder, a step's name says which one it is for.
        let prefix = if found.len() > 1 { format!("{}-", one.word()) } else { String::new() };
        all.extend(tasks::tasks(one).into_iter().map(|task| task.prefixed(&prefix)));
    }
    if found.is_empty() {
        return tasks::bare();
    }
    let ends: Vec<String> = all
        .iter()
        .filter(|task| !all.iter().any(|other| other.needs.contains(&task.id)))
        .map(|task| task.id.clone())
        .collect();
    all.push(tasks::join(ends));
    all
}

fn head(name: &str, found: &[Found]) -> String {
    let words: Vec<&str> = found.iter().map(Found::told).collect();
    let what = if words.is_empty() { "an empty beginning".to_owned() } else { words.join(", ") };
    format!(
        "\
# A first pipeline for this folder ({what}). Change it as you like.
#
#   sprag validate .sprag/pipelines/{name}.yaml    checks it
#   sprag graph .sprag/pipelines/{name}.yaml       draws it
#   sprag run {name}                               runs it, in the folder of the project
#
# `sprag schema` prints a JSON Schema, with which editors complete and explain the keys.
name: {name}

defaults:
  timeout: 30m # the longest that one attempt at a step may take

# A step needs the one written before it, unless `needs` says otherwise; `needs: []` begins at once.
steps:
"
    )
}

fn write_task(text: &mut String, task: &Task, before: Option<&str>) {
    for line in &task.about {
        let _ = writeln!(text, "  # {line}");
    }
    let _ = writeln!(text, "  - id: {}", task.id);
    // Needs that are implied by the order are left out.
    let implied = task.needs.iter().map(String::as_str).eq(before);
    if !implied {
        let _ = writeln!(text, "    needs: [{}]", task.needs.join(", "));
    }
    let _ = writeln!(text, "    run: {}", task.run);
    for line in &task.more {
        let _ = writeln!(text, "    {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::find::{Manager, Python, Tests};
    use super::*;

    /// Everything that can be found, in every form.
    fn everything() -> Vec<Found> {
        let scripts = ["lint", "typecheck", "test", "build"];
        let mut all = vec![
            Found::Rust { workspace: false },
            Found::Rust { workspace: true },
            Found::Go,
            Found::Make { targets: vec!["build", "lint", "check", "test"] },
            Found::Make { targets: vec!["all"] },
        ];
        for manager in [Manager::Npm, Manager::Pnpm, Manager::Yarn, Manager::Bun] {
            for locked in [false, true] {
                for scripts in [&[][..], &["test"], &scripts] {
                    all.push(Found::Node { manager, locked, scripts: scripts.to_vec() });
                }
            }
        }
        for python in [Python::Uv, Python::Poetry, Python::Project, Python::Requirements, Python::Bare] {
            for tests in [Tests::None, Tests::Unittest, Tests::Pytest] {
                all.push(Found::Python { python, tests });
            }
        }
        all
    }

    #[track_caller]
    fn loads(found: &[Found]) -> String {
        let text = pipeline("ci", found);
        let loaded =
            sprag_pipeline::parse("ci.yaml", &text).unwrap_or_else(|wrong| panic!("{text}\n{wrong}"));
        assert!(loaded.warnings.is_empty(), "{text}\n{}", loaded.warnings);
        assert!(loaded.pipeline.plan(&Default::default()).is_ok(), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
        text
    }

    #[test]
    fn every_starter_loads_without_a_warning() {
        loads(&[]);
        let all = everything();
        for one in &all {
            loads(std::slice::from_ref(one));
            for other in all.iter().filter(|other| other.word() != one.word()) {
                loads(&[one.clone(), other.clone()]);
            }
        }
    }

    #[test]
    fn the_pipeline_of_agents_tests_the_folder() {
        let all = everything();
        for found in std::iter::once(&[][..]).chain(all.chunks(1)) {
            let text = agents_pipeline("build-it", found);
            let loaded =
                sprag_pipeline::parse("x.yaml", &text).unwrap_or_else(|wrong| panic!("{text}\n{wrong}"));
            assert!(loaded.warnings.is_empty() && loaded.pipeline.name == "build-it", "{text}");
        }
        assert_eq!(test_command(&[Found::Rust { workspace: false }]).as_deref(), Some("cargo test"));
        assert_eq!(test_command(&[Found::Make { targets: vec!["all"] }]), None);
        assert!(agents_pipeline("x", &[Found::Go]).contains("default: \"go test ./...\""));
    }

    #[test]
    fn a_starter_reads_well() {
        let text = loads(&[Found::Rust { workspace: false }]);
        let steps = text.split_once("\nsteps:").expect("steps").1;
        let expected = r#"
  # The code is formatted as rustfmt would.
  - id: format
    run: cargo fmt --check

  - id: build
    needs: []
    run: cargo build --all-targets

  - id: lint
    run: cargo clippy --all-targets -- -D warnings

  # Beside the lints: both need the build alone.
  - id: test
    needs: [build]
    run: cargo test

  # Everything comes together here; a good place for what follows, such as a release.
  - id: done
    needs: [format, lint, test]
    run: echo "all is well"
"#;
        assert_eq!(steps, expected, "\n{text}");
    }
}
