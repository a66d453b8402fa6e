//! The broker that tests start for themselves, each on a port of its own: nats-server, of the distribution.

use std::process::{Command, Stdio};

/// What installs it on Debian and the like.
pub(crate) const PACKAGES: &[&str] = &["nats-server"];

/// Whether there is one.
pub(crate) fn is_there() -> bool {
    let mut asked = Command::new("nats-server");
    asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}
