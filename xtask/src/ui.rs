//! `cargo xtask ui`: builds the dashboard's files from their sources, with Node.

use std::path::Path;
use std::process::Command;

/// Builds `crates/dashboard/dist`; with `--check`, compares a new build with what is committed.
pub(crate) fn build(root: &Path, args: &[&str]) -> Result<(), String> {
    let check = match args {
        [] => false,
        ["--check"] => true,
        other => return Err(format!("ui does not take {other:?}")),
    };
    let dashboard = root.join("crates/dashboard");
    let web = dashboard.join("web");
    install(&web)?;
    for script in ["types", "check", "test", "build"] {
        npm(&web, &["run", script])?;
    }
    // The crate's own test writes the hash of the sources, so that this program need not know how.
    super::cargo(["test", "--quiet", "-p", "sprag-dashboard"], &[("SPRAG_GEN", "1")])?;
    if !check {
        return Ok(());
    }
    let mut git = Command::new("git");
    git.args(["status", "--porcelain", "--", "dist", "web"]).current_dir(&dashboard);
    let changed = git.output().map_err(|error| format!("{git:?}: {error}"))?.stdout;
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!("the committed files differ from a new build:\n{}", String::from_utf8_lossy(&changed)))
}

/// Measures the dashboard in a browser, with the release build of the program.
pub(crate) fn bench(root: &Path, args: &[&str]) -> Result<(), String> {
    let folder = root.join("tests/browser");
    install(&folder)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let mut node = Command::new("node");
    node.arg("bench.mjs").arg(target.join("release/sprag")).args(args).current_dir(&folder);
    match node.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{node:?} ended with {status}")),
        Err(error) => Err(format!("{node:?}: {error}")),
    }
}

/// Installs the packages of a folder's lock file, unless they are there.
pub(crate) fn install(folder: &Path) -> Result<(), String> {
    /// The number of tries: a registry may be busy.
    const TRIES: u32 = 3;
    // npm writes this file when it has installed a lock file.
    let installed = std::fs::metadata(folder.join("node_modules/.package-lock.json"));
    let installed = installed.and_then(|file| file.modified());
    let wanted = std::fs::metadata(folder.join("package-lock.json")).and_then(|file| file.modified());
    match (installed, wanted) {
        (Ok(installed), Ok(wanted)) if installed >= wanted => Ok(()),
        _ => {
            let install = || npm(folder, &["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
            let done = (1..TRIES).fold(install(), |done, _| done.or_else(|_| install()));
            // The lock file has no entries for systems whose packages a registry does not carry, and `ci` insists on them.
            done.or_else(|_| {
                npm(folder, &["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund"])
            })
        }
    }
}

fn npm(folder: &Path, args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("npm");
    command.args(args).current_dir(folder);
    eprintln!("── {command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}; the dashboard is built with Node 20 or newer")),
    }
}
