//! Counters of the messages that this process published and received.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter since the start of the process.
pub(crate) struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Count(AtomicU64::new(0))
    }

    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) static PUBLISHED: Count = Count::new();
pub(crate) static RECEIVED: Count = Count::new();
pub(crate) static STALE: Count = Count::new();
pub(crate) static PASSED_ON: Count = Count::new();
pub(crate) static STRANGE: Count = Count::new();

/// The counters of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Messages that the broker has confirmed.
    pub published: u64,
    /// Handoffs that led to a claim in the store.
    pub received: u64,
    /// Handoffs that were outdated on arrival: claimed, withdrawn or delivered before.
    pub stale: u64,
    /// Handoffs returned for another worker: no free slot, or files on another host.
    pub passed_on: u64,
    /// Messages that this version could not parse.
    pub strange: u64,
}

/// Returns the current counters.
pub fn snapshot() -> Counts {
    Counts {
        published: PUBLISHED.now(),
        received: RECEIVED.now(),
        stale: STALE.now(),
        passed_on: PASSED_ON.now(),
        strange: STRANGE.now(),
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { published, received, stale, passed_on, strange } = self;
        write!(
            f,
            "{published} published, {received} received, {stale} stale, {passed_on} passed on, {strange} strange"
        )
    }
}
