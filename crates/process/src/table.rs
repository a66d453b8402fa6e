//! The process table: what `/proc` says about processes, and who descends from whom.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read},
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal},
};

/// The part of `/proc/PID/stat` that matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    pub(crate) ppid: i32,
    pub(crate) pgrp: i32,
    pub(crate) session: i32,
    state: u8,
    threads: u32,
    pub(crate) start_time: u64,
}

impl Stat {
    /// One process, or None if there is no such process.
    pub(crate) fn of(pid: i32) -> io::Result<Option<Stat>> {
        // The line is about 300 bytes; 64 bytes of it are the name.
        let mut line = [0; 1024];
        let read = File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut line));
        match read {
            Ok(length) => Ok(Stat::parse(&line[..length])),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A name may hold blanks and parentheses, so fields count from the last parenthesis.
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
            threads: fields.get(17)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    /// Ended, and only not yet waited for. A process whose first thread ended while others go on
    /// also shows as a zombie, and still runs.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }

    /// Stopped by a signal or a tracer: it sees no TERM before it is continued.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// Sends to this very process: not to one that got its number since. Says whether it was there.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else { return false };
        let handle = pidfd_open(pid, PidfdFlags::empty());
        match Stat::of(self.pid) {
            Ok(Some(now)) if now.start_time == self.start_time => match handle {
                Ok(handle) => pidfd_send_signal(handle, signal).is_ok(),
                Err(Errno::SRCH) => false,
                // An old kernel, or a sandbox without pidfds: the number was right a moment ago.
                Err(_) => kill_process(pid, signal).is_ok(),
            },
            _ => false,
        }
    }
}

/// Sends to all members of a group in one step, in which none of them can fork.
pub(crate) fn signal_group(group: i32, signal: Signal) {
    // 0 and 1 would mean our own group, or everybody.
    if group > 1
        && let Some(group) = Pid::from_raw(group)
    {
        // An empty group is what we want.
        let _ = kill_process_group(group, signal);
    }
}

/// All processes that can be seen, in the order of their numbers.
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

/// The processes of `table` that descend from one of `roots`, without the roots.
pub(crate) fn descendants(table: &[Stat], roots: &HashSet<i32>) -> Vec<Stat> {
    let mut family = roots.clone();
    let mut found = Vec::new();
    // Children mostly have higher numbers than their parents: one pass finds nearly all, and each
    // further pass finds at least one, so that there are at most as many passes as processes.
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

/// The chain of parents of `pid`, itself included.
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
        Stat { pid, ppid, pgrp: pid, session: pid, state: b'S', threads: 1, start_time: 0 }
    }

    #[test]
    fn a_name_with_parentheses_and_blanks_is_no_trouble() {
        let line = b"42 (a) R (b c) S 7 8 9 0 -1 4 1 2 3 4 5 6 7 8 20 0 3 0 12345 99 99\n";
        let parsed = Stat::parse(line).expect("a stat line");
        assert_eq!(
            parsed,
            Stat { pid: 42, ppid: 7, pgrp: 8, session: 9, state: b'S', threads: 3, start_time: 12345 }
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
