//! Kills the rest of a tree whose supervisor was killed. The environment and the owner lock identify its
//! processes.

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

/// The interval between two reads of the process table, unless a process is seen to end earlier.
const POLL_INTERVAL_MS: u64 = 50;

/// The most processes that are watched for their end; the next read of the table finds the others.
const MAX_WATCHED: usize = 64;

/// The result of [`kill_orphans`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KilledOrphans {
    /// The number of processes that were killed and are gone.
    pub processes: usize,
}

/// Kills all processes that were started with all of these environment variables, or that inherited the owner
/// lock, with all their descendants. Sends TERM, after `grace` KILL, and returns when they are gone.
///
/// Without markers and without a lock it does nothing. It never kills this process or its ancestors. This call
/// blocks. Processes that are left at `deadline` are an error.
pub fn kill_orphans(
    markers: &[(&str, &str)],
    owner_lock: Option<&Path>,
    grace: Duration,
    deadline: Duration,
) -> Result<KilledOrphans, Error> {
    let started_ms = clock::now_ms();
    let kill_at_ms = started_ms.saturating_add(millis(grace));
    let deadline_ms = started_ms.saturating_add(millis(deadline));
    let markers: Vec<Vec<u8>> =
        markers.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect();
    let mut search = Search { markers, owner_lock, known: HashMap::new(), whole_groups: HashSet::new() };
    let (mut terminated, mut killed) = (HashSet::new(), HashSet::new());
    loop {
        // Reading the table takes time, so it must be empty twice.
        let mut living = search.living()?;
        if living.is_empty() {
            living = search.living()?;
        }
        if living.is_empty() {
            // Processes that this search cannot identify are in the cgroup of the attempt, if it has one.
            owner_lock.map(lock::kill_recorded);
            return Ok(KilledOrphans { processes: search.known.len() });
        }
        let now_ms = clock::now_ms();
        if now_ms >= deadline_ms {
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
            } else if terminated.insert((stat.pid, stat.start_time)) {
                stat.signal(Signal::TERM);
                if stat.is_stopped() {
                    stat.signal(Signal::CONT);
                }
            }
        }
        // No pause while new processes appear: they may fork faster than the table is read.
        if !found_new {
            let next_ms = if now_ms < kill_at_ms { kill_at_ms } else { deadline_ms };
            wait_for_exit(&living, next_ms.saturating_sub(now_ms).min(POLL_INTERVAL_MS));
        }
    }
}

/// Reaps zombies of session `session` that this process inherited as a subreaper.
pub(crate) fn reap_session(session: i32) {
    let me = getpid().as_raw_pid();
    let table = table::all().unwrap_or_default();
    table.iter().filter(|stat| stat.session == session && stat.ppid == me && stat.is_gone()).for_each(reap);
}

struct Search<'a> {
    markers: Vec<Vec<u8>>,
    owner_lock: Option<&'a Path>,
    /// All processes found so far, by pid and start time. A child stays known when its parent is gone.
    known: HashMap<(i32, u64), Stat>,
    /// The process groups whose living members are all known: one signal can kill such a group.
    whole_groups: HashSet<i32>,
}

impl Search<'_> {
    fn living(&mut self) -> Result<Vec<Stat>, Error> {
        let table = table::all().map_err(Error::ProcessTable)?;
        let me = getpid().as_raw_pid();
        let excluded = table::ancestors(&table, me);
        let lock_file = self.held_lock_file();
        let roots = table
            .iter()
            .filter(|stat| !stat.is_gone() && !excluded.contains(&stat.pid))
            .filter(|stat| {
                self.known.contains_key(&(stat.pid, stat.start_time))
                    || self.is_marked(stat.pid)
                    || lock_file.is_some_and(|file| lock::holds(stat.pid, file))
            })
            .copied()
            .collect::<Vec<_>>();
        let family = table::descendants(&table, &roots.iter().map(|stat| stat.pid).collect());
        for stat in roots.into_iter().chain(family).filter(|stat| !excluded.contains(&stat.pid)) {
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
        // Not readable: the process belongs to another user, or is ending.
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        self.markers.iter().all(|marker| environment.split(|&byte| byte == 0).any(|entry| entry == marker))
    }

    /// Returns device and inode of the lock file if it is held. Searching all open files is slow.
    fn held_lock_file(&self) -> Option<(u64, u64)> {
        let path = self.owner_lock?;
        let file = fs::metadata(path).ok()?;
        lock::is_held(path).unwrap_or(true).then(|| (file.dev(), file.ino()))
    }
}

/// Reaps one zombie by its number. The embedding program reaps its own children itself.
fn reap(stat: &Stat) {
    if let Some(pid) = Pid::from_raw(stat.pid) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

fn wait_for_exit(living: &[Stat], timeout_ms: u64) {
    let handles: Vec<OwnedFd> = living
        .iter()
        .take(MAX_WATCHED)
        .filter_map(|stat| pidfd_open(Pid::from_raw(stat.pid)?, PidfdFlags::empty()).ok())
        .collect();
    let mut fds: Vec<PollFd<'_>> = handles.iter().map(|handle| PollFd::new(handle, PollFlags::IN)).collect();
    // After an error the next round follows at once, and the deadline limits the rounds.
    let _ = sys::wait_ready(&mut fds, timeout_ms);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
