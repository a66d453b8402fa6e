//! Ends all processes below the supervisor: TERM, grace, KILL, again and again until none is left.
//!
//! As the subreaper, the supervisor is an ancestor of all of them, whatever sessions they made and
//! however often they forked away: so the walk over the process table finds them.

use std::collections::HashSet;

use rustix::process::{Signal, getpgrp, getpid};

use crate::{
    Reason,
    table::{self, Stat, signal_group},
};

/// The table is not read in one instant: processes may fork while it is read. Those who do are found
/// by the next pass; after the last, whoever is still missed gets the KILL.
const TERM_PASSES: u32 = 3;

/// Between passes that found nobody new. The kernel may take its time to end a process.
const FIRST_PAUSE_MS: u64 = 10;
const LONGEST_PAUSE_MS: u64 = 500;

/// A tree that is being ended.
pub(super) struct Ending {
    pub(super) reason: Reason,
    kill_at_ms: u64,
    pause_ms: u64,
    killed: HashSet<(i32, u64)>,
    main_pid: i32,
}

impl Ending {
    /// Sends TERM to all; says how many were alive.
    pub(super) fn begin(reason: Reason, main_pid: i32, now_ms: u64, grace_ms: u64) -> (Self, u32) {
        let terminated = terminate_all(main_pid);
        let ending = Ending {
            reason,
            kill_at_ms: now_ms.saturating_add(grace_ms),
            pause_ms: FIRST_PAUSE_MS,
            killed: HashSet::new(),
            main_pid,
        };
        (ending, terminated)
    }

    /// Shortens the grace: nobody is left to wait for, or somebody lost patience.
    pub(super) fn kill_by(&mut self, at_ms: u64) {
        self.kill_at_ms = self.kill_at_ms.min(at_ms);
    }

    /// When [`Ending::act`] is to be called next.
    pub(super) fn due_ms(&self) -> u64 {
        self.kill_at_ms
    }

    /// Sends KILL to all that are there now, if the grace is over.
    pub(super) fn act(&mut self, now_ms: u64) {
        if now_ms < self.kill_at_ms {
            return;
        }
        // Whoever forks faster than the table is read must not win by our waiting.
        let pause_ms = if self.kill_all() { 0 } else { self.pause_ms };
        self.pause_ms = (self.pause_ms * 2).min(LONGEST_PAUSE_MS);
        self.kill_at_ms = now_ms + pause_ms;
    }

    /// Says whether there was somebody new.
    fn kill_all(&mut self) -> bool {
        let Ok(living) = living() else {
            signal_group(self.main_pid, Signal::KILL);
            return false;
        };
        // All members of a group below us are below us: the command started in a session of its own.
        let own_group = getpgrp().as_raw_pid();
        let groups: HashSet<i32> =
            living.iter().map(|stat| stat.pgrp).filter(|&group| group != own_group).collect();
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

fn terminate_all(main_pid: i32) -> u32 {
    let mut told = HashSet::new();
    for _ in 0..TERM_PASSES {
        let Ok(living) = living() else {
            signal_group(main_pid, Signal::TERM);
            return 0;
        };
        let before = told.len();
        for stat in living {
            if told.insert((stat.pid, stat.start_time)) {
                stat.signal(Signal::TERM);
                if stat.is_stopped() {
                    stat.signal(Signal::CONT);
                }
            }
        }
        if told.len() == before {
            break;
        }
    }
    told.len() as u32
}

fn living() -> std::io::Result<Vec<Stat>> {
    let root = HashSet::from([getpid().as_raw_pid()]);
    let mut family = table::descendants(&table::all()?, &root);
    family.retain(|stat| !stat.is_gone());
    Ok(family)
}
