//! Stalls: times in which no process could write, because one of them held the lock or the disk was full.
//!
//! ```text
//!   commits  ──┬──┬───┬────── no process can write ──────┬──────┬──
//!              noted twice a second        first commit ─┘      │
//!              leases lapse meanwhile      those that are about to lapse last GRACE_MS from here
//! ```
//!
//! A worker that cannot renew because of a stall is not gone. The first transaction after a stall, from whichever
//! process, therefore prolongs leases before it does anything else, so that their holders have time to renew. It
//! prolongs the leases that have less time left than one and a half times the duration of the stall. A lease that is
//! renewed every third of its time is never among them while commits continue.
//!
//! An idle store looks the same, so a worker that is silent for another reason may keep its lease for `GRACE_MS`
//! longer. This happens at most once, because a pause within the grace of a stall does not count as a stall.

use rusqlite::{Connection, params};
use sprag_lifecycle::mutant;

use super::SqliteClock;

/// The time without a commit after which the store may have stalled, in milliseconds.
const STALL_MS: i64 = 1_000;
/// The remaining time, after a stall, of leases that were about to lapse, in milliseconds.
const GRACE_MS: i64 = 10_000;
/// The time after the grace in which a pause is not a new stall. In this time a reaper finds the leases that were not
/// renewed.
const REAPED_WITHIN_MS: i64 = 5_000;
/// The time between two records of a commit, in milliseconds.
const NOTED_EVERY_MS: i64 = 500;

/// The record of the last commits, in milliseconds since the machine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LastCommit {
    /// The time of the last commit, to half a second.
    pub(super) at_ms: i64,
    /// The time until which a pause counts as part of the last stall.
    pub(super) grace_until_ms: i64,
}

impl LastCommit {
    /// Returns the time since the last commit, if it is long enough for a stall.
    fn silent_ms(self, now_ms: i64) -> Option<i64> {
        let silent_ms = now_ms - self.at_ms;
        (self.at_ms > 0 && silent_ms > STALL_MS).then_some(silent_ms)
    }

    /// Returns whether leases were prolonged a short while ago. A time beyond the grace is from an earlier start of
    /// the machine.
    fn in_grace(self, now_ms: i64) -> bool {
        (now_ms..=now_ms + GRACE_MS + REAPED_WITHIN_MS).contains(&self.grace_until_ms)
    }

    /// Returns the least remaining time with which a lease is not prolonged by a transaction that begins now; none if
    /// that transaction prolongs no lease.
    fn horizon_ms(self, now_ms: i64) -> Option<i64> {
        let silent_ms = self.silent_ms(now_ms).filter(|_| !self.in_grace(now_ms))?;
        Some((silent_ms + silent_ms / 2).min(GRACE_MS))
    }

    /// Returns whether the present transaction has to record its commit.
    pub(super) fn is_old(self, now_ms: i64) -> bool {
        !(0..NOTED_EVERY_MS).contains(&(now_ms - self.at_ms))
    }

    /// Returns the time for which no process takes a lease with `left_ms` remaining from its holder; none if commits
    /// continue.
    ///
    /// The next transaction, now or later, sees at least this horizon, because nothing was committed since.
    pub(super) fn certain_ms(self, now_ms: i64, left_ms: i64) -> Option<i64> {
        self.silent_ms(now_ms)?;
        let prolonged = self.horizon_ms(now_ms).is_some_and(|horizon_ms| left_ms < horizon_ms);
        Some(if prolonged { GRACE_MS } else { left_ms.max(0) })
    }
}

/// Prolongs leases if this is the first transaction after a stall.
pub(super) fn prolong_leases(
    conn: &Connection,
    clock: &SqliteClock,
    last: LastCommit,
) -> rusqlite::Result<()> {
    if !clock.prolong_leases || mutant!(StallsCount) {
        return Ok(());
    }
    let now_ms = clock.machine_ms();
    let Some(horizon_ms) = last.horizon_ms(now_ms) else { return Ok(()) };
    let steady_ms = clock.now().steady_ms;
    let mut prolonged = 0;
    for sql in [
        "UPDATE executions SET lease_until_ms = ?1 WHERE status = 'running' AND lease_until_ms < ?2",
        "UPDATE workers SET heartbeat_until_ms = ?1 WHERE status <> 'offline' AND heartbeat_until_ms < ?2",
    ] {
        prolonged += conn.prepare_cached(sql)?.execute([steady_ms + GRACE_MS, steady_ms + horizon_ms])?;
    }
    if prolonged > 0 {
        let silent_ms = now_ms - last.at_ms;
        tracing::info!(silent_ms, prolonged, "no process could write for a while: extending leases");
        conn.prepare_cached("UPDATE store_state SET grace_until_ms = ?1")?
            .execute(params![now_ms + GRACE_MS + REAPED_WITHIN_MS])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(at_ms: i64, grace_until_ms: i64) -> LastCommit {
        LastCommit { at_ms, grace_until_ms }
    }

    #[test]
    fn a_lease_that_is_renewed_in_time_is_left_alone() {
        for lease_ms in [5_000, 30_000, 600_000] {
            let silent_ms = lease_ms / 3;
            let horizon_ms = noted(100_000, 0).horizon_ms(100_000 + silent_ms).expect("longer than a second");
            assert!(horizon_ms < lease_ms - silent_ms, "{lease_ms}");
        }
    }

    #[test]
    fn a_lease_that_cannot_be_renewed_is_certain_before_its_guard_ends_the_work() {
        for lease_ms in [5_000, 10_000, 30_000, 600_000_i64] {
            let margin_ms = (lease_ms / 10).min(3_000) + 2_000;
            let guarded_until_ms = 100_000 + lease_ms - margin_ms;
            let looked_ms = guarded_until_ms - 300;
            let left_ms = 100_000 + lease_ms - looked_ms;
            assert_eq!(noted(100_000, 0).certain_ms(looked_ms, left_ms), Some(GRACE_MS), "{lease_ms}");
        }
    }

    #[test]
    fn a_stall_counts_once_until_its_grace_is_over() {
        assert_eq!(noted(0, 0).horizon_ms(100_000), None, "nothing was ever noted");
        assert_eq!(noted(100_000, 0).horizon_ms(101_000), None);
        assert_eq!(noted(100_000, 0).horizon_ms(102_000), Some(3_000));
        assert_eq!(noted(100_000, 0).horizon_ms(500_000), Some(GRACE_MS));
        assert_eq!(noted(100_000, 0).horizon_ms(5_000), None, "noted before the machine started again");
        assert_eq!(noted(100_000, 0).certain_ms(100_500, -1), None, "commits go on");
        let again = noted(100_000, 115_000);
        assert_eq!(again.horizon_ms(115_000), None);
        assert_eq!(again.certain_ms(112_000, -1), Some(0));
        assert_eq!(again.certain_ms(105_000, 5_000), Some(5_000));
        assert!(again.horizon_ms(115_001).is_some());
        assert!(!noted(100_000, 900_000).in_grace(5_000), "a former start of the machine");
    }
}
