//! What the tests need of the machine beside Rust: Python, for the programs of others that they drive.

use std::process::{Command, Stdio};

/// Sees to it that Python can make environments of its own; installs it on Debian and the like if it cannot.
pub(crate) fn prepare() -> Result<(), String> {
    if has_python() {
        return Ok(());
    }
    let install = ["apt-get", "install", "--yes", "--no-install-recommends", "python3", "python3-venv"];
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|told| told.stdout.trim_ascii() == b"0");
    let sudo: &[&str] = if is_root { &[] } else { &["sudo", "--non-interactive"] };
    for words in [&["apt-get", "update"][..], &install[..]] {
        let words: Vec<&str> = sudo.iter().chain(words).copied().collect();
        eprintln!("── {}", words.join(" "));
        // Whether it helped is seen below.
        let _ = Command::new(words[0]).args(&words[1..]).env("DEBIAN_FRONTEND", "noninteractive").status();
    }
    match has_python() {
        true => Ok(()),
        false => Err("the tests need Python 3 with venv: install python3 and python3-venv".to_owned()),
    }
}

fn has_python() -> bool {
    let mut asked = Command::new("python3");
    asked.args(["-c", "import venv, ensurepip"]).stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}
