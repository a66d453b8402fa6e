//! Python programs from their package registry, in a private folder.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::program;

/// Returns a Python with the official MCP client, set up once for all tests of this build.
///
/// It lies beside the program under test, so that a fresh build sets it up anew.
pub fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| set_up("mcp==2.3.0")).clone()
}

fn set_up(package: &str) -> PathBuf {
    let folder = program().parent().expect("programs lie in a folder").join("python");
    let lock = std::fs::File::create(folder.with_extension("lock")).expect("a file");
    // Several tests, in several processes, may want it at once.
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    let python = folder.join("bin/python");
    let ready = folder.join("ready");
    if std::fs::read_to_string(&ready).is_ok_and(|text| text == package) {
        return python;
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder));
    run(Command::new(&python).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        package,
    ]));
    std::fs::write(&ready, package).expect("the folder takes files");
    python
}

fn run(command: &mut Command) {
    let done = command.status().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; install Python 3 with venv (Debian: apt-get install python3-venv)")
    });
    assert!(done.success(), "{command:?} ended with {done}");
}
