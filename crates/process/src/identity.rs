//! A permanent identifier of a process. A pid alone is reused, and has no meaning on another host.

use std::{fmt, fs, io, str::FromStr};

use serde::{Deserialize, Serialize, de};

use crate::table::Stat;

/// One process among all that ever ran on all hosts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProcessId {
    /// The host's name, followed by the start of its machine id if it has one, because names are not unique. It
    /// contains no [`VOUCHED_MARK`]; a server adds that to the hosts of remote workers.
    pub host: String,
    /// The pid, as seen in `pid_ns`.
    pub pid: i32,
    /// The start time of the process, in clock ticks since the host started.
    pub start_time_ticks: u64,
    /// The id of the host's boot.
    pub boot_id: String,
    /// The pid namespace (the container) in which `pid` is valid.
    pub pid_ns: u64,
}

/// The state of a process, as far as this host can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// The process runs.
    Alive,
    /// The process has ended.
    Dead,
    /// The process is on another host or in another namespace, so only its lease can tell.
    Unknown,
}

/// A text that does not identify a process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not name a process: expected host/pid/start/boot/namespace")]
pub struct ProcessIdError(String);

/// Returns the id of this process.
pub fn current() -> io::Result<ProcessId> {
    let pid = std::process::id() as i32;
    let stat = Stat::of(pid)?.ok_or_else(|| io::Error::other("this process is not in /proc"))?;
    Ok(ProcessId {
        host: host(),
        pid,
        start_time_ticks: stat.start_time,
        boot_id: boot_id()?,
        pid_ns: pid_namespace()?,
    })
}

/// Returns whether a process is alive. Never returns `Dead` for a process that may be alive.
pub fn is_alive(id: &ProcessId) -> Liveness {
    let (Ok(boot_id), Ok(pid_ns)) = (boot_id(), pid_namespace()) else { return Liveness::Unknown };
    if id.host != host() {
        return Liveness::Unknown;
    }
    if id.boot_id != boot_id {
        // Without a machine id, another machine may have the same name.
        return if id.host.contains(MACHINE_ID_MARK) { Liveness::Dead } else { Liveness::Unknown };
    }
    if id.pid_ns != pid_ns {
        return Liveness::Unknown;
    }
    match Stat::of(id.pid) {
        Ok(Some(stat)) if stat.start_time == id.start_time_ticks && !stat.is_gone() => Liveness::Alive,
        Ok(_) => Liveness::Dead,
        Err(_) => Liveness::Unknown,
    }
}

/// The separator between the host's name and its machine id. No host name contains it.
const MACHINE_ID_MARK: char = '#';

/// The separator between the host name that a remote worker reports and the name of its token. No host name of
/// a local process contains it, so a remote worker cannot claim to be on this machine.
pub const VOUCHED_MARK: char = '@';

/// Returns the host of a remote worker: the name it reports, bound to its token. Workers with different tokens
/// never share a host.
pub fn vouched_host(claimed: &str, token: &str) -> String {
    let token = token.replace('%', "%25").replace('/', "%2F");
    format!("{}{VOUCHED_MARK}{token}", plain_host(claimed))
}

/// Returns the name that a host reports, without the token.
pub fn reported_host_name(host: &str) -> &str {
    host.split(VOUCHED_MARK).next().unwrap_or_default()
}

fn plain_host(name: &str) -> String {
    name.chars().filter(|&c| c != '/' && c != VOUCHED_MARK && !c.is_control()).collect()
}

fn host() -> String {
    let name = plain_host(&rustix::system::uname().nodename().to_string_lossy());
    let name = name.replace(MACHINE_ID_MARK, "");
    let machine_id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    match machine_id.trim().get(..8) {
        Some(start) if start.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{name}{MACHINE_ID_MARK}{start}")
        }
        _ => name,
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().replace('-', ""))
}

/// Parses the link, which looks like `pid:[4026531836]`.
pub(crate) fn pid_namespace() -> io::Result<u64> {
    let link = fs::read_link("/proc/self/ns/pid")?;
    let link = link.to_string_lossy();
    let number = link.strip_prefix("pid:[").and_then(|rest| rest.strip_suffix(']'));
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| io::Error::other(format!("unexpected {link}")))
}

/// Formats as `host/pid/start/boot/namespace`.
impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessId { host, pid, start_time_ticks, boot_id, pid_ns } = self;
        write!(f, "{host}/{pid}/{start_time_ticks}/{boot_id}/{pid_ns}")
    }
}

impl FromStr for ProcessId {
    type Err = ProcessIdError;

    fn from_str(text: &str) -> Result<Self, ProcessIdError> {
        let parse = || {
            let [host, pid, start, boot_id, pid_ns] = text.split('/').collect::<Vec<_>>().try_into().ok()?;
            let pid: i32 = pid.parse().ok().filter(|&pid| pid > 0)?;
            Some(ProcessId {
                host: str::to_owned(host),
                pid,
                start_time_ticks: start.parse().ok()?,
                boot_id: str::to_owned(boot_id),
                pid_ns: pid_ns.parse().ok()?,
            })
        };
        parse().ok_or_else(|| ProcessIdError(text.to_owned()))
    }
}

impl Serialize for ProcessId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProcessId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_survives_a_database_column() {
        let me = current().expect("this process");
        assert_eq!(is_alive(&me), Liveness::Alive);
        assert_eq!(me.to_string().parse(), Ok(me.clone()));
        let json = serde_json::to_string(&me).expect("json");
        assert_eq!(serde_json::from_str::<ProcessId>(&json).expect("a process"), me);
        for text in ["", "a/b", "h/0/1/b/1", "h/-1/1/b/1", "h/1/1/b/1/x"] {
            assert!(text.parse::<ProcessId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("a process");
        let pid = child.id() as i32;
        let stat = Stat::of(pid).expect("/proc").expect("a process");
        let id = ProcessId { pid, start_time_ticks: stat.start_time, ..current().expect("this process") };
        assert_eq!(is_alive(&id), Liveness::Alive);
        child.kill().expect("ours");
        let looks = (0..2_000).find(|_| {
            crate::sys::pause(5);
            is_alive(&id) == Liveness::Dead
        });
        assert!(looks.is_some(), "it is a zombie, and that is dead");
        child.wait().expect("ours");
        assert_eq!(is_alive(&id), Liveness::Dead);
    }

    #[test]
    fn no_vouched_host_is_this_host_or_another_tokens() {
        assert!(!host().contains(VOUCHED_MARK));
        assert_eq!(vouched_host("vm#1", "gpu"), "vm#1@gpu");
        assert_eq!(reported_host_name("vm#1@gpu"), "vm#1");
        assert_eq!(reported_host_name("vm#1"), "vm#1");
        let all =
            [("a", "b@c"), ("a@b", "c"), ("a", "b/c"), ("a", "b%2Fc"), ("a", ""), ("", "a"), ("a/x", "c")];
        let hosts: std::collections::BTreeSet<String> =
            all.iter().map(|(claimed, token)| vouched_host(claimed, token)).collect();
        assert_eq!(hosts.len(), all.len());
        assert!(hosts.iter().all(|host| host.contains(VOUCHED_MARK) && !host.contains('/')), "{hosts:?}");
        let forged = ProcessId { host: vouched_host(&host(), "x"), ..current().expect("this process") };
        assert_eq!(is_alive(&forged), Liveness::Unknown, "only its lease can tell");
    }

    #[test]
    fn a_reused_pid_is_not_the_same_process() {
        let me = current().expect("this process");
        let with_machine = format!("{}{MACHINE_ID_MARK}01234567", me.host);
        for (other, expected) in [
            (ProcessId { start_time_ticks: me.start_time_ticks + 1, ..me.clone() }, Liveness::Dead),
            (ProcessId { pid: i32::MAX, ..me.clone() }, Liveness::Dead),
            (ProcessId { host: "elsewhere".into(), ..me.clone() }, Liveness::Unknown),
            (ProcessId { host: with_machine, boot_id: "0".into(), ..me.clone() }, Liveness::Unknown),
            (ProcessId { pid_ns: 1, ..me.clone() }, Liveness::Unknown),
        ] {
            assert_eq!(is_alive(&other), expected, "{other}");
        }
        let before = ProcessId { boot_id: "0".into(), ..me.clone() };
        let expected = if me.host.contains(MACHINE_ID_MARK) { Liveness::Dead } else { Liveness::Unknown };
        assert_eq!(is_alive(&before), expected);
    }
}
