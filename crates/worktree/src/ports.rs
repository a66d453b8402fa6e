//! Ports that a run has for itself: free when given, and given to nobody else while it lives.
//!
//! One file in the data directory holds all leases; a lock beside it keeps processes apart.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, Ipv6Addr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sprag_process::{Liveness, ProcessId, is_alive};

use crate::{
    clock,
    error::{Attempt, Error, Kind},
    lock::{DEFAULT_DEADLINE, SharedLock, make_folder, me},
    mark::write_whole,
};

/// Below the ports that Linux gives to outgoing connections (32768 and up), above those of common services.
const FIRST: u16 = 20_000;
const LAST: u16 = 31_999;

/// How many are looked at before giving up.
const MOST_TRIES: u32 = 2_000;

/// The leases of all runs that use one data directory.
#[derive(Debug, Clone)]
pub struct Ports {
    file: PathBuf,
    lock: SharedLock,
    deadline: Duration,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Lease {
    run: String,
    name: String,
    owner: Option<ProcessId>,
}

type Leases = BTreeMap<u16, Lease>;

impl Ports {
    /// The leases in a data directory.
    pub fn open(data: &Path) -> Result<Ports, Error> {
        let open = || {
            make_folder(data)?;
            let data = fs::canonicalize(data).map_err(Kind::io("find", data))?;
            let what = format!("the ports in {}", data.display());
            let lock = SharedLock::at(data.join("ports.lock"), what);
            Ok(Ports { file: data.join("ports.json"), lock, deadline: DEFAULT_DEADLINE })
        };
        open().attempt(|| format!("open the ports in {}", data.display()))
    }

    /// One port for each name: the run's own if it has one already, otherwise one that nobody uses or was given.
    pub fn lease(&self, run: &str, names: &[String]) -> Result<BTreeMap<String, u16>, Error> {
        let lease = || {
            let _held = self.lock.hold(run, self.deadline)?;
            let mut leases = self.read()?;
            leases.retain(|_, lease| lease.run == run || !is_stale(lease));
            let mut given = BTreeMap::new();
            for name in names {
                let own = leases.iter().find(|(_, lease)| lease.run == run && lease.name == *name);
                let port = match own.map(|(&port, _)| port) {
                    Some(port) => port,
                    None => free_port(&leases, name)?,
                };
                leases.insert(port, Lease { run: run.to_owned(), name: name.clone(), owner: me() });
                given.insert(name.clone(), port);
            }
            self.write(&leases)?;
            Ok(given)
        };
        lease().attempt(|| format!("lease ports for run {run}"))
    }

    /// Gives back all ports of a run; says how many.
    pub fn release(&self, run: &str) -> Result<usize, Error> {
        let release = || {
            let _held = self.lock.hold(run, self.deadline)?;
            let mut leases = self.read()?;
            let before = leases.len();
            leases.retain(|_, lease| lease.run != run);
            self.write(&leases)?;
            Ok(before - leases.len())
        };
        release().attempt(|| format!("give back the ports of run {run}"))
    }

    /// All leases: port, run, name.
    pub fn list(&self) -> Result<Vec<(u16, String, String)>, Error> {
        let leases = self.read().attempt(|| "list the leased ports".to_owned())?;
        Ok(leases.into_iter().map(|(port, lease)| (port, lease.run, lease.name)).collect())
    }

    /// A file that cannot be understood was cut by a full disk: what is in use cannot be bound anyway.
    fn read(&self) -> Result<Leases, Kind> {
        match fs::read(&self.file) {
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Leases::new()),
            Err(source) => Err(Kind::Io { doing: "read", path: self.file.clone(), source }),
        }
    }

    fn write(&self, leases: &Leases) -> Result<(), Kind> {
        let text = serde_json::to_vec(leases).map_err(|error| Kind::Io {
            doing: "write",
            path: self.file.clone(),
            source: error.into(),
        })?;
        write_whole(&self.file, &text)
    }
}

/// Whose process is gone needs no port. Whether one elsewhere lives is not for us to say.
fn is_stale(lease: &Lease) -> bool {
    lease.owner.as_ref().is_some_and(|owner| is_alive(owner) == Liveness::Dead)
}

/// Begins at a random place, so that a port just given back is not the next to be given.
fn free_port(leases: &Leases, name: &str) -> Result<u16, Kind> {
    let count = u32::from(LAST - FIRST) + 1;
    let random = u32::from_str_radix(&clock::random_hex()[..8], 16).unwrap_or_default();
    for offset in 0..MOST_TRIES {
        let port = FIRST + ((u64::from(random) + u64::from(offset)) % u64::from(count)) as u16;
        let is_free = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() && is_free_v6(port);
        if !leases.contains_key(&port) && is_free() {
            return Ok(port);
        }
    }
    Err(Kind::NoFreePort { name: name.to_owned(), tries: MOST_TRIES })
}

/// A machine without IPv6 has nobody there who listens.
fn is_free_v6(port: u16) -> bool {
    match TcpListener::bind((Ipv6Addr::LOCALHOST, port)) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::AddrInUse,
    }
}
