//! Rate limits: a bucket of tokens for each caller, refilled steadily.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;

use sprag_app::Id;

/// The most callers that are counted at once; beyond that, full buckets are forgotten first.
const CALLERS: usize = 10_000;

/// The caller whose requests are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    /// The holder of a token.
    Token(Id),
    /// The programs behind an address.
    Peer(IpAddr),
    /// The failed attempts of an address to show a token.
    Failed(IpAddr),
}

/// The rate limiter, with a bucket for each caller.
pub(crate) struct Rate {
    per_second: f64,
    burst: f64,
    buckets: Mutex<BTreeMap<Whose, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at_ms: i64,
}

impl Rate {
    /// Allows this many requests a second, and twice as many at once.
    pub(crate) fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second.max(1));
        Rate { per_second, burst: per_second * 2.0, buckets: Mutex::default() }
    }

    /// Takes one from the caller's bucket; else returns the number of seconds after which there is one.
    pub(crate) fn take(&self, whose: Whose, now_ms: i64) -> Result<(), u64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if buckets.len() >= CALLERS && !buckets.contains_key(&whose) {
            buckets.retain(|_, bucket| self.refilled(*bucket, now_ms) < self.burst);
            if buckets.len() >= CALLERS {
                return Err(1);
            }
        }
        let bucket = buckets.entry(whose).or_insert(Bucket { left: self.burst, at_ms: now_ms });
        bucket.left = self.refilled(*bucket, now_ms);
        bucket.at_ms = now_ms;
        if bucket.left < 1.0 {
            return Err(((1.0 - bucket.left) / self.per_second).ceil() as u64);
        }
        bucket.left -= 1.0;
        Ok(())
    }

    fn refilled(&self, bucket: Bucket, now_ms: i64) -> f64 {
        let passed_s = (now_ms - bucket.at_ms).max(0) as f64 / 1000.0;
        (bucket.left + passed_s * self.per_second).min(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_empties_and_refills_and_others_have_their_own() {
        let rate = Rate::new(2);
        for _ in 0..4 {
            assert_eq!(rate.take(Whose::Token(1), 0), Ok(()));
        }
        assert_eq!(rate.take(Whose::Token(1), 0), Err(1));
        assert_eq!(rate.take(Whose::Token(2), 0), Ok(()));
        assert_eq!(rate.take(Whose::Token(1), 500), Ok(()));
        assert_eq!(rate.take(Whose::Token(1), 500), Err(1));
    }

    #[test]
    fn the_number_of_callers_is_bounded() {
        let rate = Rate::new(1);
        for caller in 0..CALLERS as i64 {
            assert_eq!(rate.take(Whose::Token(caller), 0), Ok(()));
        }
        assert_eq!(rate.take(Whose::Token(-1), 0), Err(1));
        // The other callers' buckets are full again by now, so they are forgotten.
        assert_eq!(rate.take(Whose::Token(-1), 10_000), Ok(()));
    }
}
