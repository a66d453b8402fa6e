//! Kills processes that this program adopted: the rest of trees whose supervisor or guard was killed.
//!
//! A subreaper becomes the parent of every orphan below it. The trees of steps and of git run in their own
//! sessions, and no process can move from there to the session of this program. The program's own children
//! (supervisors, guards) stay in its session. So a child in another session was adopted, whatever it did to its
//! environment and its files.

use std::{
    collections::HashSet,
    fs,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitOptions, getpid, set_child_subreaper, waitpid};

use crate::{Error, cgroup::kill_abandoned_cgroups, clock, sys, table::Stat};

/// Whether this program is the subreaper of its descendants.
static IS_SUBREAPER: AtomicBool = AtomicBool::new(false);

/// The longest wait for the kernel to kill the processes of a cgroup.
const ABANDONED_DEADLINE: Duration = Duration::from_secs(10);

/// The interval between two checks of the children.
const POLL_INTERVAL_MS: u64 = 10;

/// Makes this process the parent of the processes that a killed supervisor or guard leaves behind, so that it
/// can kill them.
///
/// Only for programs all of whose children are started by Sprag: from then on Sprag kills every child of this
/// process that is in another session. Also kills the rest of trees whose supervisor was killed together with
/// its worker, if their cgroups are beside ours.
pub fn become_subreaper() -> std::io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    IS_SUBREAPER.store(true, Ordering::Relaxed);
    let ended = kill_abandoned_cgroups(ABANDONED_DEADLINE);
    if ended > 0 {
        tracing::warn!(trees = ended, "killed processes of steps whose supervisor and worker were killed");
    }
    Ok(())
}

/// Kills all adopted processes with their descendants. Returns their number when they are gone.
///
/// Does nothing in a program that did not call [`become_subreaper`]. This call blocks. Processes that are left
/// at the deadline are an error.
pub fn kill_adopted(deadline: Duration) -> Result<usize, Error> {
    if !IS_SUBREAPER.load(Ordering::Relaxed) {
        return Ok(0);
    }
    let deadline_ms = clock::now_ms().saturating_add(deadline.as_millis() as u64);
    let mut killed = HashSet::new();
    loop {
        let mut found_new = false;
        let mut living = Vec::new();
        for stat in adopted() {
            // Descendants of a killed process become children of this process and are found in the next round.
            found_new |= killed.insert((stat.pid, stat.start_time));
            stat.signal(Signal::KILL);
            if !reap(stat.pid) {
                living.push(stat.pid);
            }
        }
        if living.is_empty() && !found_new {
            if !killed.is_empty() {
                tracing::warn!(processes = killed.len(), "killed processes whose supervisor was killed");
            }
            return Ok(killed.len());
        }
        if clock::now_ms() >= deadline_ms {
            tracing::warn!(?living, "could not kill processes whose supervisor was killed");
            return Err(Error::OrphansRemain { pids: living });
        }
        if !found_new {
            sys::pause(POLL_INTERVAL_MS);
        }
    }
}

/// Returns the children of this process in other sessions, including zombies.
fn adopted() -> Vec<Stat> {
    let Ok(me) = Stat::own() else { return Vec::new() };
    children()
        .into_iter()
        .filter_map(|pid| Stat::of(pid).ok().flatten())
        .filter(|stat| stat.ppid == me.pid && stat.session != me.session)
        .collect()
}

/// Returns the children of all threads of this process.
fn children() -> Vec<i32> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let mut all: Vec<i32> = Vec::new();
    let mut is_listed = false;
    for list in lists {
        is_listed = true;
        all.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    if !is_listed {
        // This kernel does not list children: search the process table by parent.
        let me = getpid().as_raw_pid();
        all.extend(crate::table::all().unwrap_or_default().iter().filter(|s| s.ppid == me).map(|s| s.pid));
    }
    all
}

/// Reaps an adopted child if it has ended. Returns whether it is gone.
fn reap(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return true };
    !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
}
