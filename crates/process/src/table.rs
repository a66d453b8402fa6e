//! The process table: the contents of `/proc`, and the relation of parents and children.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read},
};

use rustix::{
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, getpid, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
    },
};

/// The part of `/proc/PID/stat` that this crate needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    pub(crate) ppid: i32,
    pub(crate) pgrp: i32,
    pub(crate) session: i32,
    state: u8,
    threads: u32,
    /// The processor time that it used, in clock ticks.
    pub(crate) cpu_ticks: u64,
    pub(crate) start_time: u64,
}

impl Stat {
    /// Reads the entry of one process; `None` if there is no such process.
    pub(crate) fn of(pid: i32) -> io::Result<Option<Stat>> {
        // The line has about 300 bytes; up to 64 of them are the name.
        let mut line = [0; 1024];
        let read = File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut line));
        match read {
            Ok(length) => Ok(Stat::parse(&line[..length])),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the entry of this process.
    ///
    /// The session and the group are 0 if their leader is outside of this PID namespace, as in a container that
    /// was entered. `getsid` and `getpgrp` of rustix take such a 0 for a PID, which is undefined behaviour.
    pub(crate) fn own() -> io::Result<Stat> {
        Stat::of(getpid().as_raw_pid())?.ok_or_else(|| io::Error::other("this process is not in /proc"))
    }

    /// Parses the line. A name may contain blanks and parentheses, so fields count from the last parenthesis.
    fn parse(line: &[u8]) -> Option<Stat> {
        let line = String::from_utf8_lossy(line);
        let (pid, _) = line.split_once(' ')?;
        let (_, rest) = line.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
        Some(Stat {
            pid: pid.parse().ok()?,
            state: *fields.first()?.as_bytes().first()?,
            ppid: fields.get(1)?.parse().ok()?,
            pgrp: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            cpu_ticks: fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    /// Returns whether the process has ended and only waits to be reaped. A process whose first thread has
    /// ended while others run also shows as a zombie, but is not gone.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }

    /// Returns whether a signal or a tracer stopped the process. It receives TERM only after it is continued.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// Sends a signal to exactly this process, even if its pid was reused. Returns whether it was there.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else { return false };
        let handle = pidfd_open(pid, PidfdFlags::empty());
        match Stat::of(self.pid) {
            Ok(Some(now)) if now.start_time == self.start_time => match handle {
                Ok(handle) => pidfd_send_signal(handle, signal).is_ok(),
                Err(Errno::SRCH) => false,
                // An old kernel, or a sandbox without pidfds: the pid was right a moment ago.
                Err(_) => kill_process(pid, signal).is_ok(),
            },
            _ => false,
        }
    }
}

/// Sends a signal to all members of a group at once, so that none of them can fork in between.
pub(crate) fn signal_group(group: i32, signal: Signal) {
    // 0 and 1 would mean our own group, or all processes.
    if group > 1
        && let Some(group) = Pid::from_raw(group)
    {
        // An empty group is fine.
        let _ = kill_process_group(group, signal);
    }
}

/// Returns all visible processes, in the order of `/proc`.
pub(crate) fn all() -> io::Result<Vec<Stat>> {
    let mut table = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end, or be hidden, while the table is read.
        if let Ok(Some(stat)) = Stat::of(pid) {
            table.push(stat);
        }
    }
    Ok(table)
}

/// Returns the processes of `table` that descend from one of `roots`, without the roots.
pub(crate) fn descendants(table: &[Stat], roots: &HashSet<i32>) -> Vec<Stat> {
    let mut family = roots.clone();
    let mut found = Vec::new();
    // Children mostly have higher pids than their parents, so one pass finds nearly all. Each further pass
    // finds at least one, which limits the number of passes.
    loop {
        let before = found.len();
        for stat in table {
            if family.contains(&stat.ppid) && family.insert(stat.pid) {
                found.push(*stat);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Returns `pid` and its chain of parents.
pub(crate) fn ancestors(table: &[Stat], pid: i32) -> HashSet<i32> {
    let mut chain = HashSet::new();
    let mut next = pid;
    while chain.insert(next) {
        match table.iter().find(|stat| stat.pid == next) {
            Some(stat) => next = stat.ppid,
            None => break,
        }
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: i32, ppid: i32) -> Stat {
        Stat { pid, ppid, pgrp: pid, session: pid, state: b'S', threads: 1, cpu_ticks: 0, start_time: 0 }
    }

    #[test]
    fn a_name_with_parentheses_and_blanks_is_parsed() {
        let line = b"42 (a) R (b c) S 7 8 9 0 -1 4 1 2 3 4 5 6 7 8 20 0 3 0 12345 99 99\n";
        let parsed = Stat::parse(line).expect("a stat line");
        assert_eq!(
            parsed,
            Stat {
                pid: 42,
                ppid: 7,
                pgrp: 8,
                session: 9,
                state: b'S',
                threads: 3,
                cpu_ticks: 11,
                start_time: 12345
            }
        );
        assert_eq!(Stat::parse(b"42 (cut"), None);
    }

    #[test]
    fn descendants_are_found_whatever_their_order() {
        let table = [stat(5, 90), stat(10, 1), stat(90, 10), stat(91, 5), stat(200, 1)];
        let mut found: Vec<i32> = descendants(&table, &HashSet::from([10])).iter().map(|s| s.pid).collect();
        found.sort();
        assert_eq!(found, [5, 90, 91]);
        assert_eq!(ancestors(&table, 91), HashSet::from([91, 5, 90, 10, 1]));
    }

    #[test]
    fn this_process_is_in_the_table() {
        let me = std::process::id() as i32;
        let stat = Stat::of(me).expect("/proc").expect("this process");
        assert!(!stat.is_gone());
        assert!(all().expect("/proc").iter().any(|s| s.pid == me && s.start_time == stat.start_time));
    }
}
