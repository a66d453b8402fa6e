//! `cargo xtask test|gen`: the project's own commands.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let done = match args.next().as_deref() {
        Some("gen") => generate(),
        _ => Err("usage: cargo xtask test|bench|gen|tidy".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Writes what is generated from the code.
fn generate() -> Result<(), String> {
    let page = root().join("docs/lifecycles.md");
    std::fs::write(&page, sprag_lifecycle::reference()).map_err(|e| format!("{}: {e}", page.display()))
}
