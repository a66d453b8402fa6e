//! Stops all processes below the supervisor: TERM, grace, then KILL, repeated until none is left.
//!
//! As the subreaper, the supervisor is an ancestor of all of them, whatever sessions they created and however
//! often they forked. So a walk over the process table finds them.

use std::collections::HashSet;

use rustix::process::{Signal, getpid};

use crate::{
    Reason,
    table::{self, Stat, signal_group},
};

/// The most passes that send TERM. Processes may fork while the table is read; the next pass finds those.
/// Processes that all passes miss get the KILL.
const TERM_PASSES: u32 = 3;

/// The bounds of the pause between passes that found no new process. The kernel may need time to end a process.
const MIN_PAUSE_MS: u64 = 10;
const MAX_PAUSE_MS: u64 = 500;

/// A tree that is being stopped.
pub(super) struct TreeStop {
    pub(super) reason: Reason,
    kill_at_ms: u64,
    pause_ms: u64,
    killed: HashSet<(i32, u64)>,
    main_pid: i32,
}

impl TreeStop {
    /// Sends TERM to all processes. Returns the number of living ones.
    ///
    /// In a sandbox `main_pid` is bubblewrap, which has no handler for TERM and whose end kills the others at once. It
    /// ends when the command does. After its end (`has_exited`) no process is left to ask.
    pub(super) fn start(
        reason: Reason,
        main_pid: i32,
        now_ms: u64,
        grace_ms: u64,
        is_isolated: bool,
        has_exited: bool,
    ) -> (Self, u32) {
        let terminated = if is_isolated && has_exited { 0 } else { terminate_all(main_pid, is_isolated) };
        let stopping = TreeStop {
            reason,
            kill_at_ms: now_ms.saturating_add(grace_ms),
            pause_ms: MIN_PAUSE_MS,
            killed: HashSet::new(),
            main_pid,
        };
        (stopping, terminated)
    }

    /// Moves the KILL forward to this time, if it is later.
    pub(super) fn kill_by(&mut self, at_ms: u64) {
        self.kill_at_ms = self.kill_at_ms.min(at_ms);
    }

    /// Returns the time of the next call of [`TreeStop::act`].
    pub(super) fn due_ms(&self) -> u64 {
        self.kill_at_ms
    }

    /// Sends KILL to all current processes, if the grace is over.
    pub(super) fn act(&mut self, now_ms: u64) {
        if now_ms < self.kill_at_ms {
            return;
        }
        // No pause while new processes appear: they may fork faster than the table is read.
        let pause_ms = if self.kill_all() { 0 } else { self.pause_ms };
        self.pause_ms = (self.pause_ms * 2).min(MAX_PAUSE_MS);
        self.kill_at_ms = now_ms + pause_ms;
    }

    /// Returns whether there was a new process.
    fn kill_all(&mut self) -> bool {
        let (Ok(living), Ok(me)) = (living(), Stat::own()) else {
            signal_group(self.main_pid, Signal::KILL);
            return false;
        };
        // The command started in its own session, so all members of a group below us belong to the tree.
        let groups: HashSet<i32> =
            living.iter().map(|stat| stat.pgrp).filter(|&group| group != me.pgrp).collect();
        for group in groups {
            signal_group(group, Signal::KILL);
        }
        let mut known = HashSet::with_capacity(living.len());
        let mut found_new = false;
        for stat in living {
            stat.signal(Signal::KILL);
            found_new |= !self.killed.contains(&(stat.pid, stat.start_time));
            known.insert((stat.pid, stat.start_time));
        }
        self.killed = known;
        found_new
    }
}

fn terminate_all(main_pid: i32, is_isolated: bool) -> u32 {
    let mut terminated = HashSet::new();
    let mut spared = 0;
    let own = getpid().as_raw_pid();
    for _ in 0..TERM_PASSES {
        let Ok(living) = living() else {
            signal_group(main_pid, Signal::TERM);
            return 0;
        };
        let before = terminated.len();
        for stat in living {
            if terminated.insert((stat.pid, stat.start_time)) {
                // The processes of bubblewrap: the outer one, and process 1 of the namespace below it or below us.
                if is_isolated && (stat.ppid == own || stat.ppid == main_pid) {
                    spared += 1;
                    continue;
                }
                stat.signal(Signal::TERM);
                if stat.is_stopped() {
                    stat.signal(Signal::CONT);
                }
            }
        }
        if terminated.len() == before {
            break;
        }
    }
    terminated.len() as u32 - spared
}

fn living() -> std::io::Result<Vec<Stat>> {
    let root = HashSet::from([getpid().as_raw_pid()]);
    let mut family = table::descendants(&table::all()?, &root);
    family.retain(|stat| !stat.is_gone());
    Ok(family)
}
