//! Ports that are reserved for a run: free when leased, and leased to no other run while it lives.
//!
//! One file in the data directory contains all leases; a lock beside it serialises the processes.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, Ipv6Addr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sprag_process::{Liveness, ProcessId, is_alive, make_private_folder, private_options, write_private};

use crate::{
    clock,
    error::{Attempt, Error, Kind},
    lock::{DEFAULT_DEADLINE, SharedLock, current_process},
};

/// The range of ports: above those of common services, and below those that Linux uses for outgoing
/// connections.
const FIRST: u16 = 20_000;
const LAST: u16 = 31_999;

/// The most ports to try.
const MAX_TRIES: u32 = 2_000;

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
    /// Opens the leases in a data directory.
    pub fn open(data: &Path) -> Result<Ports, Error> {
        let open = || {
            make_private_folder(data).map_err(Kind::io("create the folder", data))?;
            let data = fs::canonicalize(data).map_err(Kind::io("find", data))?;
            let what = format!("the ports in {}", data.display());
            let lock = data.join("ports.lock");
            let made = private_options().create(true).truncate(false).write(true).open(&lock);
            made.map_err(Kind::io("open the lock", &lock))?;
            let lock = SharedLock::at(lock, what);
            Ok(Ports { file: data.join("ports.json"), lock, deadline: DEFAULT_DEADLINE })
        };
        open().attempt(|| format!("open the ports in {}", data.display()))
    }

    /// Leases one port for each name: the run's own if it already has one, otherwise a free one.
    pub fn lease(&self, run: &str, names: &[String]) -> Result<BTreeMap<String, u16>, Error> {
        let lease = || {
            let _held = self.lock.acquire(run, self.deadline)?;
            let mut leases = self.read()?;
            leases.retain(|_, lease| lease.run == run || !is_stale(lease));
            let mut given = BTreeMap::new();
            for name in names {
                let own = leases.iter().find(|(_, lease)| lease.run == run && lease.name == *name);
                let port = match own.map(|(&port, _)| port) {
                    Some(port) => port,
                    None => free_port(&leases, name)?,
                };
                leases.insert(
                    port,
                    Lease { run: run.to_owned(), name: name.clone(), owner: current_process() },
                );
                given.insert(name.clone(), port);
            }
            self.write(&leases)?;
            Ok(given)
        };
        lease().attempt(|| format!("lease ports for run {run}"))
    }

    /// Releases all ports of a run, and returns their number.
    pub fn release(&self, run: &str) -> Result<usize, Error> {
        let release = || {
            let _held = self.lock.acquire(run, self.deadline)?;
            let mut leases = self.read()?;
            let before = leases.len();
            leases.retain(|_, lease| lease.run != run);
            self.write(&leases)?;
            Ok(before - leases.len())
        };
        release().attempt(|| format!("give back the ports of run {run}"))
    }

    /// Releases the ports of a run that this process leased last, unless they are wanted again; the answer is asked for
    /// under the lock. Another process that took the run over keeps its own.
    pub fn release_own(&self, run: &str, is_wanted: impl FnOnce() -> bool) -> Result<usize, Error> {
        let release = || {
            let _held = self.lock.acquire(run, self.deadline)?;
            if is_wanted() {
                return Ok(0);
            }
            let (mut leases, own) = (self.read()?, current_process());
            let before = leases.len();
            leases.retain(|_, lease| lease.run != run || lease.owner != own);
            self.write(&leases)?;
            Ok(before - leases.len())
        };
        release().attempt(|| format!("give back the ports of run {run}"))
    }

    /// Returns all leases: port, run, name.
    pub fn list(&self) -> Result<Vec<(u16, String, String)>, Error> {
        let leases = self.read().attempt(|| "list the leased ports".to_owned())?;
        Ok(leases.into_iter().map(|(port, lease)| (port, lease.run, lease.name)).collect())
    }

    /// Reads the leases. A file that a full disk cut off counts as empty, because ports in use cannot be bound
    /// anyway.
    fn read(&self) -> Result<Leases, Kind> {
        match crate::read::bytes(&self.file) {
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
        let beside = self.file.with_extension(format!("new-{}", clock::random_hex()));
        write_private(&self.file, &beside, &text).map_err(Kind::io("write", &self.file))
    }
}

/// Returns whether the owner is dead. The state of a process on another host is unknown.
fn is_stale(lease: &Lease) -> bool {
    lease.owner.as_ref().is_some_and(|owner| is_alive(owner) == Liveness::Dead)
}

/// Finds a free port. Starts at a random one, so that a released port is not leased again at once.
fn free_port(leases: &Leases, name: &str) -> Result<u16, Kind> {
    let count = u32::from(LAST - FIRST) + 1;
    let random = u32::from_str_radix(&clock::random_hex()[..8], 16).unwrap_or_default();
    for offset in 0..MAX_TRIES {
        let port = FIRST + ((u64::from(random) + u64::from(offset)) % u64::from(count)) as u16;
        let is_free = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() && is_free_v6(port);
        if !leases.contains_key(&port) && is_free() {
            return Ok(port);
        }
    }
    Err(Kind::NoFreePort { name: name.to_owned(), tries: MAX_TRIES })
}

/// Returns whether the port is free on IPv6, or IPv6 is not available.
fn is_free_v6(port: u16) -> bool {
    match TcpListener::bind((Ipv6Addr::LOCALHOST, port)) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::AddrInUse,
    }
}
