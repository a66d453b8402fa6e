//! `cargo xtask proof`: runs every layer, and writes the explored amounts into docs/proof.md.
//!
//! A layer prints lines that start with `figure: `, then a name, a colon and an amount; no figure is typed by hand.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mutants::{self, Caught, Programs};

/// The exploring tests of a crate: test programs, and filters of their tests (empty for all).
struct Layer {
    package: &'static str,
    tests: &'static [(&'static str, &'static str)],
}

const LAYERS: &[Layer] = &[
    Layer { package: "sim", tests: &[("models", "")] },
    Layer { package: "sim", tests: &[("graphs", "")] },
    Layer { package: "sim", tests: &[("simulation", "")] },
    Layer { package: "sim", tests: &[("linearizable", ""), ("schedules", "")] },
    Layer { package: "store", tests: &[("store", "equality:: power_loss:: kills::")] },
    Layer { package: "pipeline", tests: &[("it", "corpus::")] },
    Layer { package: "server", tests: &[("it", "corpus::")] },
    Layer { package: "agent", tests: &[("it", "corpus::")] },
];

/// Runs all layers and rewrites the figures of the page. `--figures` leaves out the table of faults, which needs a
/// separate build.
pub fn write(root: &Path, args: &[&str]) -> Result<(), String> {
    let (nightly, faults) = match args {
        [] => (false, true),
        ["--nightly"] => (true, true),
        ["--figures"] => (false, false),
        other => return Err(format!("proof does not know {other:?}")),
    };
    // One command builds everything with the features of the tests; selected crates alone would be rebuilt with other
    // features.
    let programs = mutants::programs(root, ["--workspace"])?;
    let mut figures = String::from("| explored | how much | command |\n|---|---|---|\n");
    for layer in LAYERS {
        let command = command_line(layer);
        let found = run(root, &programs, layer, nightly)?;
        if found.is_empty() {
            return Err(format!("`{command}` printed no figures"));
        }
        for (what, how_much) in found {
            println!("{what}: {how_much}");
            let _ = writeln!(figures, "| {what} | {how_much} | `{command}` |");
        }
    }
    let page = root.join("docs/proof.md");
    let text = std::fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    let mut text = replace(&text, "figures", &figures)?;
    if faults {
        text = replace(&text, "mutants", &table(&mutants::check(root, &[])?))?;
    }
    std::fs::write(&page, text).map_err(|error| format!("{}: {error}", page.display()))
}

/// Writes the figure of a chaos run to the page.
pub fn write_chaos(root: &Path, figure: &str) -> Result<(), String> {
    let page = root.join("docs/proof.md");
    let text = std::fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    let text = replace(&text, "chaos", &format!("{figure}\n"))?;
    std::fs::write(&page, text).map_err(|error| format!("{}: {error}", page.display()))
}

fn command_line(layer: &Layer) -> String {
    let programs: String = layer.tests.iter().map(|(program, _)| format!(" --test {program}")).collect();
    let chosen: String = layer.tests.iter().map(|(_, tests)| *tests).collect();
    let chosen = if chosen.is_empty() { chosen } else { format!(" -- {chosen}") };
    format!("cargo test -p sprag-{}{programs}{chosen}", layer.package)
}

/// Runs a layer and returns its figures: name and amount.
fn run(
    root: &Path,
    programs: &Programs,
    layer: &Layer,
    nightly: bool,
) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for (name, tests) in layer.tests {
        let program = programs
            .get(&(layer.package.to_owned(), (*name).to_owned()))
            .ok_or_else(|| format!("{} has no test {name}", layer.package))?;
        let mut command = Command::new(program);
        command
            .args(tests.split(' ').filter(|chosen| !chosen.is_empty()))
            .args(["--nocapture", "--test-threads=1"])
            .stderr(Stdio::inherit());
        command.current_dir(root.join("crates").join(layer.package));
        if nightly {
            command.env("SPRAG_NIGHTLY", "1");
        }
        eprintln!("── {command:?}");
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{command:?} ended with {}", output.status));
        }
        let said = String::from_utf8_lossy(&output.stdout);
        // The name of the test may precede it on the line.
        let figures = said.lines().filter_map(|line| line.split_once("figure: ")).map(|(_, figure)| figure);
        found.extend(figures.filter_map(|figure| {
            figure.split_once(": ").map(|(what, how_much)| (what.to_owned(), how_much.to_owned()))
        }));
    }
    Ok(found)
}

fn table(caught: &[Caught]) -> String {
    let mut table = String::from("| | fault | caught by | after |\n|---|---|---|---|\n");
    for Caught { number, fault, layer, took } in caught {
        let _ = writeln!(table, "| {number} | {fault} | {layer} | {:.1} s |", took.as_secs_f64());
    }
    table
}

/// Replaces the text between the markers of this name.
fn replace(page: &str, name: &str, new: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let missing = || format!("docs/proof.md has no markers for {name}");
    let (before, rest) = page.split_once(&begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
    Ok(format!("{before}{begin}{new}{end}{after}"))
}
