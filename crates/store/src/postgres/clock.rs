//! The store's steady clock on PostgreSQL: leases and timers of many machines are measured by it alone.
//!
//! ```text
//!   steady = the server's clock + ahead            `ahead` is a row that all processes share, 0 at first
//!
//!   a process that asked at boot time b1 and got s1 expects at least s1 + (b2 - b1) at b2
//!   the server returns clearly less: its clock was put back
//!       ──▶ this process continues with the expected time, and raises `ahead` for all processes
//! ```
//!
//! All machines share the server's clock, but an administrator may set it. A machine's boot clock cannot be set, but
//! each machine has its own. So the server's clock is the reference, and the boot clock shows when it was put back. A
//! process that was paused sees the server ahead of the expected time, never behind, so that it cannot raise `ahead`
//! by mistake. A process that starts later, and has no expected time, uses the time of the last commit.
//!
//! A server's clock that is put forward makes timers due early: a process cannot distinguish that from having slept.

use std::sync::{Arc, Mutex, PoisonError};

use sprag_lifecycle::mutant;

use crate::clock::{Clock, Now, System};

/// The least difference that counts as a clock put back. A smaller one is a clock adjustment or a slow network.
const PUT_BACK_MS: i64 = 2_000;

/// A reading of the server's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// This machine's boot clock just before the server was asked.
    pub(super) asked_ms: i64,
    /// The server's clock.
    pub(super) clock_ms: i64,
    /// The milliseconds by which the steady clock is ahead of the server's clock.
    pub(super) ahead_ms: i64,
    /// The steady time of the last commit that wrote to the journal.
    pub(super) committed_ms: i64,
}

/// The last time that the server returned.
#[derive(Debug, Clone, Copy)]
struct Told {
    steady_ms: i64,
    clock_ms: i64,
    /// This machine's boot clock just after the answer.
    boot_ms: i64,
}

/// The steady clock of a PostgreSQL store; see the module's documentation.
pub(super) struct DatabaseClock {
    stand_in: Option<Arc<dyn Clock>>,
    last: Mutex<Option<Told>>,
}

impl DatabaseClock {
    pub(super) fn new(stand_in: Option<Arc<dyn Clock>>) -> Self {
        DatabaseClock { stand_in, last: Mutex::default() }
    }

    /// Returns the steady time of a reading that has just arrived. If the server's clock was put back, also returns
    /// how far the steady clock must be ahead of it from now on.
    pub(super) fn told(&self, reading: Reading) -> (Now, Option<i64>) {
        if let Some(clock) = &self.stand_in {
            return (Now { wall_ms: clock.wall_ms(), steady_ms: clock.boot_ms() }, None);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (steady_ms, ahead_ms) = steady(reading, *last);
        *last = Some(Told { steady_ms, clock_ms: reading.clock_ms, boot_ms: System.boot_ms() });
        (Now { wall_ms: reading.clock_ms, steady_ms }, ahead_ms)
    }

    /// Returns the steady time now, without asking the server.
    pub(super) fn now(&self) -> Now {
        if let Some(clock) = &self.stand_in {
            return Now { wall_ms: clock.wall_ms(), steady_ms: clock.boot_ms() };
        }
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |told: Told| (told, System.boot_ms() - told.boot_ms);
        last.map(since).map_or_else(Now::default, |(told, passed_ms)| Now {
            wall_ms: told.clock_ms + passed_ms,
            steady_ms: told.steady_ms + passed_ms,
        })
    }
}

/// Returns the steady time of a reading, and how far ahead it is if the server's clock was put back.
fn steady(reading: Reading, last: Option<Told>) -> (i64, Option<i64>) {
    let plain_ms = reading.clock_ms + reading.ahead_ms;
    let by_boot = last.map(|last| last.steady_ms + (reading.asked_ms - last.boot_ms).max(0));
    let expected_ms = by_boot.unwrap_or(i64::MIN).max(reading.committed_ms);
    if mutant!(DatabaseClockTrusted) {
        return (plain_ms.max(last.map_or(i64::MIN, |last| last.steady_ms)), None);
    }
    if plain_ms < expected_ms - PUT_BACK_MS {
        return (expected_ms, Some(expected_ms - reading.clock_ms));
    }
    // The steady clock never goes back, not even by a little.
    (plain_ms.max(last.map_or(plain_ms, |last| last.steady_ms)), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    fn reading(asked_ms: i64, clock_ms: i64, ahead_ms: i64, committed_ms: i64) -> Reading {
        Reading { asked_ms, clock_ms, ahead_ms, committed_ms }
    }

    fn told(steady_ms: i64, boot_ms: i64) -> Option<Told> {
        Some(Told { steady_ms, clock_ms: steady_ms, boot_ms })
    }

    #[test]
    fn a_clock_that_is_set_back_is_compensated() {
        let (now, ahead) = steady(reading(6_000, DAY_MS - DAY_MS + 6_000, 0, 0), told(DAY_MS, 0));
        assert_eq!((now, ahead), (DAY_MS + 6_000, Some(DAY_MS)));
        // Once all processes have read the new `ahead`, the clock runs like any other.
        let (later, ahead) = steady(reading(7_000, 7_000, DAY_MS, now), told(now, 6_000));
        assert_eq!((later, ahead), (DAY_MS + 7_000, None));
    }

    #[test]
    fn a_process_that_starts_afterwards_goes_by_the_last_commit() {
        assert_eq!(steady(reading(0, 5_000, 0, DAY_MS), None), (DAY_MS, Some(DAY_MS - 5_000)));
    }

    #[test]
    fn a_process_that_was_paused_changes_nothing() {
        // An hour has passed for the server, and a second by this machine's clock.
        assert_eq!(steady(reading(1_000, 3_600_000, 0, 0), told(0, 0)), (3_600_000, None));
    }

    #[test]
    fn a_clock_that_is_adjusted_stands_still_for_a_moment() {
        assert_eq!(steady(reading(1_000, 500, 0, 1_000), told(1_000, 0)), (1_000, None));
    }
}
