//! `cargo xtask chaos`: builds `sprag` and the chaos program, runs it, and writes its figures on request.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::proof;

/// Builds the programs and runs chaos with these arguments.
pub fn chaos(root: &Path, args: &[&str]) -> Result<(), String> {
    // The whole workspace, as the tests build it: a part of it would have other features.
    crate::cargo(["build", "--quiet", "--workspace", "--bins"], &[])?;
    play(root, args)
}

/// Runs chaos with the built programs. `--figures` also writes its results to docs/proof.md.
pub fn play(root: &Path, args: &[&str]) -> Result<(), String> {
    let to_page = args.contains(&"--figures");
    let args: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--figures").collect();
    let program = target(root).join("debug/chaos");
    let mut command = Command::new(&program);
    command.args(&args).current_dir(root).stderr(Stdio::inherit());
    eprintln!("── {command:?}");
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    if to_page {
        let figure = said.lines().find_map(|line| line.strip_prefix("figure: chaos: "));
        let figure = figure.ok_or_else(|| format!("{command:?} printed no figure"))?;
        proof::write_chaos(root, figure)?;
    }
    Ok(())
}

/// Returns cargo's target folder.
fn target(root: &Path) -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into)
}
