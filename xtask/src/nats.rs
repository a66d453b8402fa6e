//! The broker that tests start, each on its own port: nats-server, from the distribution.

use std::process::{Command, Stdio};

/// The packages that contain it on Debian and its derivatives.
pub(crate) const PACKAGES: &[&str] = &["nats-server"];

/// Returns whether it is installed.
pub(crate) fn is_installed() -> bool {
    let mut asked = Command::new("nats-server");
    asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}
