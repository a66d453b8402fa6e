//! A private network for a process: a namespace that one cable connects to the machine, and the cable can be pulled.
//!
//! ```text
//!   this machine ── veth ══════ veth ── namespace: only `Cable::here` can be reached from it
//! ```

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::host::through;

/// A cable to a network of its own.
pub struct Cable {
    name: String,
    /// This machine's end.
    pub here: Ipv4Addr,
}

impl Cable {
    /// Lays one; says why not where the machine does not allow it.
    pub fn lay() -> Result<Cable, String> {
        static LAID: AtomicU8 = AtomicU8::new(0);
        let (pid, nth) = (std::process::id(), LAID.fetch_add(1, Ordering::SeqCst));
        // Addresses that no router passes on; four of them for each cable.
        let block = (pid as u16).wrapping_mul(8).wrapping_add(u16::from(nth % 8)) % 8_000;
        let [high, low] = (block * 4).to_be_bytes();
        let here = Ipv4Addr::new(169, 254, high, low + 1);
        let there = Ipv4Addr::new(169, 254, high, low + 2);
        let whole = Ipv4Addr::new(169, 254, high, low);
        // An interface's name has at most 15 characters.
        let cable = Cable { name: format!("sprag{pid}-{nth}"), here };
        let name = &cable.name;
        let (mine, its) = (cable.mine(), format!("{name}n"));
        for command in [
            format!("netns add {name}"),
            format!("link add {mine} type veth peer name {its} netns {name}"),
            format!("addr add {here}/30 dev {mine}"),
            format!("link set {mine} up"),
            // While it is pulled, nothing for the other end takes another way.
            format!("route add blackhole {whole}/30 metric 4000"),
            format!("-n {name} addr add {there}/30 dev {its}"),
            format!("-n {name} link set lo up"),
            format!("-n {name} link set {its} up"),
        ] {
            // What was laid until then goes with it.
            ip(&command)?;
        }
        Ok(cable)
    }

    fn mine(&self) -> String {
        format!("{}h", self.name)
    }

    /// Returns the same command, in the network at the other end.
    pub fn beyond(&self, command: &Command) -> Command {
        through(&["ip", "netns", "exec", &self.name], command)
    }

    /// Pulls the cable, so that nothing passes and no side is notified; or plugs it in again.
    pub fn pull(&self, out: bool) {
        let how = if out { "down" } else { "up" };
        ip(&format!("link set {} {how}", self.mine())).expect("it was set before");
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let [_, _, high, low] = self.here.octets();
        let _ = ip(&format!("route del blackhole 169.254.{high}.{}/30 metric 4000", low - 1));
        let _ = ip(&format!("link del {}", self.mine()));
        let _ = ip(&format!("netns del {}", self.name));
    }
}

fn ip(words: &str) -> Result<(), String> {
    let told = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    match told.status.success() {
        true => Ok(()),
        false => Err(format!("ip {words}: {}", String::from_utf8_lossy(&told.stderr).trim())),
    }
}
