//! Ends what is left of a tree whose supervisor was killed: found by environment and owner lock.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags},
    process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, waitpid},
};

use crate::{
    Error, clock, lock, sys,
    table::{self, Stat, signal_group},
};

/// Between two looks at the process table, unless a process is seen to end earlier.
const LOOK_AGAIN_MS: u64 = 50;

/// How many processes are watched for their end at a time; the others are found by looking again.
const WATCHED: usize = 64;

/// What [`end_orphans`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphansEnded {
    /// How many processes were ended, and seen to be gone.
    pub processes: usize,
}

/// Ends all processes that were started with all of these environment variables, or that inherited the
/// owner lock, with all their descendants: TERM, after `grace` KILL, and back when they are seen to be gone.
///
/// With neither markers nor a lock nothing is touched, and never this process or one it descends from.
/// This call blocks; processes that are left at `deadline` are an error.
pub fn end_orphans(
    markers: &[(&str, &str)],
    owner_lock: Option<&Path>,
    grace: Duration,
    deadline: Duration,
) -> Result<OrphansEnded, Error> {
    let began_ms = clock::now_ms();
    let kill_at_ms = began_ms.saturating_add(millis(grace));
    let give_up_at_ms = began_ms.saturating_add(millis(deadline));
    let markers: Vec<Vec<u8>> =
        markers.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect();
    let mut search = Search { markers, owner_lock, known: HashMap::new(), whole_groups: HashSet::new() };
    let (mut told, mut killed) = (HashSet::new(), HashSet::new());
    loop {
        // The table is not read in one instant: after one that shows none, another must show none too.
        let mut living = search.living()?;
        if living.is_empty() {
            living = search.living()?;
        }
        if living.is_empty() {
            return Ok(OrphansEnded { processes: search.known.len() });
        }
        let now_ms = clock::now_ms();
        if now_ms >= give_up_at_ms {
            return Err(Error::OrphansRemain { pids: living.iter().map(|stat| stat.pid).collect() });
        }
        let mut found_new = false;
        if now_ms >= kill_at_ms {
            search.whole_groups.iter().for_each(|&group| signal_group(group, Signal::KILL));
        }
        for stat in &living {
            if now_ms >= kill_at_ms {
                found_new |= killed.insert((stat.pid, stat.start_time));
                stat.signal(Signal::KILL);
            } else if told.insert((stat.pid, stat.start_time)) {
                stat.signal(Signal::TERM);
                if stat.is_stopped() {
                    stat.signal(Signal::CONT);
                }
            }
        }
        // Whoever forks faster than the table is read must not win by our waiting.
        if !found_new {
            let next_ms = if now_ms < kill_at_ms { kill_at_ms } else { give_up_at_ms };
            wait_for_an_end(&living, next_ms.saturating_sub(now_ms).min(LOOK_AGAIN_MS));
        }
    }
}

/// Waits for zombies of the tree of session `session` that were left to this process as their subreaper.
pub(crate) fn reap_session(session: i32) {
    let me = getpid().as_raw_pid();
    let table = table::all().unwrap_or_default();
    table.iter().filter(|stat| stat.session == session && stat.ppid == me && stat.is_gone()).for_each(reap);
}

struct Search<'a> {
    markers: Vec<Vec<u8>>,
    owner_lock: Option<&'a Path>,
    /// All that were found, by number and start: a child stays ours when the parent it was found by is gone.
    known: HashMap<(i32, u64), Stat>,
    /// Process groups of which all living members were found: these can be ended in one step.
    whole_groups: HashSet<i32>,
}

impl Search<'_> {
    fn living(&mut self) -> Result<Vec<Stat>, Error> {
        let table = table::all().map_err(Error::ProcessTable)?;
        let me = getpid().as_raw_pid();
        let spared = table::ancestors(&table, me);
        let lock_file = self.held_lock_file();
        let roots = table
            .iter()
            .filter(|stat| !stat.is_gone() && !spared.contains(&stat.pid))
            .filter(|stat| {
                self.known.contains_key(&(stat.pid, stat.start_time))
                    || self.is_marked(stat.pid)
                    || lock_file.is_some_and(|file| lock::holds(stat.pid, file))
            })
            .copied()
            .collect::<Vec<_>>();
        let family = table::descendants(&table, &roots.iter().map(|stat| stat.pid).collect());
        for stat in roots.into_iter().chain(family).filter(|stat| !spared.contains(&stat.pid)) {
            self.known.insert((stat.pid, stat.start_time), stat);
        }
        let (ours, others): (Vec<Stat>, Vec<Stat>) =
            table.iter().partition(|stat| self.known.contains_key(&(stat.pid, stat.start_time)));
        self.whole_groups = ours.iter().map(|stat| stat.pgrp).collect();
        for stat in others {
            self.whole_groups.remove(&stat.pgrp);
        }
        let (gone, living): (Vec<Stat>, Vec<Stat>) = ours.into_iter().partition(Stat::is_gone);
        gone.iter().filter(|stat| stat.ppid == me).for_each(reap);
        Ok(living)
    }

    fn is_marked(&self, pid: i32) -> bool {
        if self.markers.is_empty() {
            return false;
        }
        // Not readable: it belongs to somebody else, or is ending.
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        self.markers.iter().all(|marker| environment.split(|&byte| byte == 0).any(|entry| entry == marker))
    }

    /// Device and inode of the lock, if it is held at all: looking at all open files takes long.
    fn held_lock_file(&self) -> Option<(u64, u64)> {
        let path = self.owner_lock?;
        let file = fs::metadata(path).ok()?;
        lock::is_held(path).unwrap_or(true).then(|| (file.dev(), file.ino()))
    }
}

/// A subreaper inherits its descendants' zombies; only those that were found are waited for, by number:
/// the embedding program waits for its own children itself.
fn reap(stat: &Stat) {
    if let Some(pid) = Pid::from_raw(stat.pid) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

fn wait_for_an_end(living: &[Stat], timeout_ms: u64) {
    let handles: Vec<OwnedFd> = living
        .iter()
        .take(WATCHED)
        .filter_map(|stat| pidfd_open(Pid::from_raw(stat.pid)?, PidfdFlags::empty()).ok())
        .collect();
    let mut fds: Vec<PollFd<'_>> = handles.iter().map(|handle| PollFd::new(handle, PollFlags::IN)).collect();
    // An error only means to look again at once, and the deadline bounds that.
    let _ = sys::wait_ready(&mut fds, timeout_ms);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
