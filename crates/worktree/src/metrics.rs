//! Counters and durations of this process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of buckets: powers of two of microseconds. The last one contains half a minute and more.
pub const BUCKETS: usize = 26;

/// Count, sum, maximum and histogram of durations.
#[derive(Debug)]
pub(crate) struct Durations {
    count: AtomicU64,
    total_us: AtomicU64,
    longest_us: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Durations {
    const fn new() -> Self {
        Durations {
            count: AtomicU64::new(0),
            total_us: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }

    pub(crate) fn record(&self, us: u64) {
        self.count.fetch_add(1, Relaxed);
        self.total_us.fetch_add(us, Relaxed);
        self.longest_us.fetch_max(us, Relaxed);
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    fn read(&self) -> DurationStats {
        let buckets: [u64; BUCKETS] = std::array::from_fn(|at| self.buckets[at].load(Relaxed));
        let all: u64 = buckets.iter().sum();
        let mut seen = 0;
        let median = buckets.iter().position(|&count| {
            seen += count;
            all > 0 && seen * 2 >= all
        });
        DurationStats {
            count: self.count.load(Relaxed),
            total_us: self.total_us.load(Relaxed),
            longest_us: self.longest_us.load(Relaxed),
            median_at_most_us: median.map_or(0, |bucket| 1 << bucket),
            buckets,
        }
    }
}

/// Durations of one kind since the start of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationStats {
    /// The number of durations.
    pub count: u64,
    /// The sum, in microseconds.
    pub total_us: u64,
    /// The maximum, in microseconds.
    pub longest_us: u64,
    /// A power of two that half of the durations do not exceed, in microseconds.
    pub median_at_most_us: u64,
    /// The histogram: bucket `n` counts durations below 2^n microseconds and not below the previous bound; the
    /// last has no bound.
    pub buckets: [u64; BUCKETS],
}

/// The counters of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metrics {
    /// The waits for repository locks.
    pub lock_wait: DurationStats,
    /// The hold times of repository locks.
    pub lock_hold: DurationStats,
    /// The number of waits that ended at their deadline.
    pub lock_timeouts: u64,
    /// The number of worktrees created or taken from the pool.
    pub creates: u64,
    /// The number of creations that failed and were rolled back.
    pub create_failures: u64,
    /// The number of worktrees taken from the pool.
    pub pool_hits: u64,
    /// The number of worktrees copied from a concurrent checkout of the same commit.
    pub copies: u64,
    /// The number of removed worktrees.
    pub removes: u64,
    /// The number of reclaimed worktrees of dead runs.
    pub recovered: u64,
    /// The number of failed attempts to delete files.
    pub cleanup_failures: u64,
}

pub(crate) struct Counters {
    pub(crate) lock_wait: Durations,
    pub(crate) lock_hold: Durations,
    pub(crate) lock_timeouts: AtomicU64,
    pub(crate) creates: AtomicU64,
    pub(crate) create_failures: AtomicU64,
    pub(crate) pool_hits: AtomicU64,
    pub(crate) copies: AtomicU64,
    pub(crate) removes: AtomicU64,
    pub(crate) recovered: AtomicU64,
    pub(crate) cleanup_failures: AtomicU64,
}

pub(crate) static COUNTERS: Counters = Counters {
    lock_wait: Durations::new(),
    lock_hold: Durations::new(),
    lock_timeouts: AtomicU64::new(0),
    creates: AtomicU64::new(0),
    create_failures: AtomicU64::new(0),
    pool_hits: AtomicU64::new(0),
    copies: AtomicU64::new(0),
    removes: AtomicU64::new(0),
    recovered: AtomicU64::new(0),
    cleanup_failures: AtomicU64::new(0),
};

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Returns all counters of this process, for a server's metrics and for a worker's summary when it stops.
pub fn snapshot() -> Metrics {
    Metrics {
        lock_wait: COUNTERS.lock_wait.read(),
        lock_hold: COUNTERS.lock_hold.read(),
        lock_timeouts: COUNTERS.lock_timeouts.load(Relaxed),
        creates: COUNTERS.creates.load(Relaxed),
        create_failures: COUNTERS.create_failures.load(Relaxed),
        pool_hits: COUNTERS.pool_hits.load(Relaxed),
        copies: COUNTERS.copies.load(Relaxed),
        removes: COUNTERS.removes.load(Relaxed),
        recovered: COUNTERS.recovered.load(Relaxed),
        cleanup_failures: COUNTERS.cleanup_failures.load(Relaxed),
    }
}

impl std::fmt::Display for Metrics {
    /// Formats one line for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |us: u64| us as f64 / 1000.0;
        write!(
            f,
            "{} made ({} from the pool, {} copied, {} failed), {} removed, {} recovered from dead runs, {} clean-ups failed; \
             repository lock: {} times, waited {:.1} ms in all (longest {:.1} ms), held {:.1} ms (longest {:.1} ms), \
             {} timed out",
            self.creates,
            self.pool_hits,
            self.copies,
            self.create_failures,
            self.removes,
            self.recovered,
            self.cleanup_failures,
            self.lock_hold.count,
            ms(self.lock_wait.total_us),
            ms(self.lock_wait.longest_us),
            ms(self.lock_hold.total_us),
            ms(self.lock_hold.longest_us),
            self.lock_timeouts,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_powers_of_two() {
        let durations = Durations::new();
        [0, 1, 3, 4, 1_000_000_000].into_iter().for_each(|us| durations.record(us));
        let spread = durations.read();
        assert_eq!((spread.count, spread.longest_us, spread.median_at_most_us), (5, 1_000_000_000, 4));
        assert_eq!(spread.buckets[..4], [1, 1, 1, 1]);
        assert_eq!((spread.buckets[BUCKETS - 1], spread.buckets.iter().sum::<u64>()), (1, 5));
    }
}
