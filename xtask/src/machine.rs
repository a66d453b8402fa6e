//! Requirements of the tests in addition to Rust: Python for programs of other projects, PostgreSQL, a broker,
//! bubblewrap for the sandboxes of steps, and a browser with Node, which drives it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::nats;

/// Checks that all requirements are installed. Installs missing ones on Debian and its derivatives.
pub(crate) fn prepare(root: &Path) -> Result<(), String> {
    let wanted = [
        (has_python as fn() -> bool, &["python3", "python3-venv"][..], "Python 3 with venv"),
        (has_postgres, &["postgresql", "postgresql-client"][..], "PostgreSQL 13 or newer"),
        (nats::is_installed, nats::PACKAGES, "nats-server 2.9 or newer"),
        (has_bubblewrap, &["bubblewrap"][..], "bubblewrap"),
        (has_chromium, &["chromium"][..], "Chromium"),
        (has_node, &["nodejs", "npm"][..], "Node 18 or newer with npm"),
    ];
    for (is_there, packages, name) in wanted {
        if is_there() {
            continue;
        }
        install(packages);
        if !is_there() {
            return Err(format!("the tests need {name}: install {}", packages.join(" and ")));
        }
    }
    crate::ui::install(&root.join("tests/browser"))
}

fn has_bubblewrap() -> bool {
    Path::new("/usr/bin/bwrap").exists()
}

fn has_chromium() -> bool {
    Path::new("/usr/bin/chromium").exists()
}

fn has_node() -> bool {
    let runs = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    runs("node") && runs("npm")
}

fn install(packages: &[&str]) {
    let mut install = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
    install.extend(packages);
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|told| told.stdout.trim_ascii() == b"0");
    let sudo: &[&str] = if is_root { &[] } else { &["sudo", "--non-interactive"] };
    for words in [&["apt-get", "update"][..], &install[..]] {
        let words: Vec<&str> = sudo.iter().chain(words).copied().collect();
        eprintln!("── {}", words.join(" "));
        // The caller checks afterwards whether it worked.
        let _ = Command::new(words[0]).args(&words[1..]).env("DEBIAN_FRONTEND", "noninteractive").status();
    }
}

/// Returns whether PostgreSQL's server programs are installed, which Debian keeps out of the PATH.
fn has_postgres() -> bool {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    debian.into_iter().any(|version| version.path().join("bin/initdb").exists())
        || Command::new("initdb")
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
}

fn has_python() -> bool {
    let mut asked = Command::new("python3");
    asked.args(["-c", "import venv, ensurepip"]).stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}
