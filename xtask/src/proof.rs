//! `cargo xtask proof`: runs every layer, and writes what it explored into docs/proof.md.
//!
//! A layer prints lines that begin with `figure: `, what it is, a colon, and how much; nothing is typed by hand.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mutants::{self, Caught};

/// A command that explores something.
struct Layer {
    package: &'static str,
    tests: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer { package: "sprag-sim", tests: &["models"] },
    Layer { package: "sprag-sim", tests: &["graphs"] },
    Layer { package: "sprag-sim", tests: &["simulation"] },
    Layer { package: "sprag-sim", tests: &["linearizable", "schedules"] },
    Layer { package: "sprag-store", tests: &["equality", "power_loss", "kills"] },
    Layer { package: "sprag-pipeline", tests: &["corpus"] },
    Layer { package: "sprag-server", tests: &["corpus"] },
];

/// Runs all layers and writes the page's figures anew.
pub fn write(root: &Path, args: &[&str]) -> Result<(), String> {
    let nightly = match args {
        [] => false,
        ["--nightly"] => true,
        other => return Err(format!("proof does not know {other:?}")),
    };
    let mut figures = String::from("| explored | how much | command |\n|---|---|---|\n");
    for layer in LAYERS {
        let command = command_line(layer);
        let found = run(root, layer, nightly)?;
        if found.is_empty() {
            return Err(format!("`{command}` tells nothing of what it explored"));
        }
        for (what, how_much) in found {
            let _ = writeln!(figures, "| {what} | {how_much} | `{command}` |");
        }
    }
    let caught = mutants::check(root, &[])?;
    let page = root.join("docs/proof.md");
    let text = std::fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    let text = replace(&text, "figures", &figures)?;
    let text = replace(&text, "mutants", &table(&caught))?;
    std::fs::write(&page, text).map_err(|error| format!("{}: {error}", page.display()))
}

fn command_line(layer: &Layer) -> String {
    let tests: String = layer.tests.iter().map(|test| format!(" --test {test}")).collect();
    format!("cargo test -p {}{tests}", layer.package)
}

/// What a layer says of itself: what it is, and how much.
fn run(root: &Path, layer: &Layer, nightly: bool) -> Result<Vec<(String, String)>, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--quiet", "-p", layer.package]);
    for test in layer.tests {
        command.args(["--test", test]);
    }
    command.args(["--", "--nocapture", "--test-threads=1"]).current_dir(root).stderr(Stdio::inherit());
    if nightly {
        command.env("SPRAG_NIGHTLY", "1");
    }
    eprintln!("── {command:?}");
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    // A test's own dot may stand before it on the line.
    let figures = said.lines().filter_map(|line| line.split_once("figure: ")).map(|(_, figure)| figure);
    Ok(figures.filter_map(|figure| figure.split_once(": ")).map(|(a, b)| (a.into(), b.into())).collect())
}

fn table(caught: &[Caught]) -> String {
    let mut table = String::from("| | fault | caught by | after |\n|---|---|---|---|\n");
    for Caught { number, fault, layer, took } in caught {
        let _ = writeln!(table, "| {number} | {fault} | {layer} | {:.1} s |", took.as_secs_f64());
    }
    table
}

/// Puts `new` between the marks of this name.
fn replace(page: &str, name: &str, new: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let missing = || format!("docs/proof.md has no place for {name}");
    let (before, rest) = page.split_once(&begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
    Ok(format!("{before}{begin}{new}{end}{after}"))
}
