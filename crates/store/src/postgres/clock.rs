//! The database's clock: leases and timers of many machines are measured by it alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::seams::{Clock, Now, System};

/// What the database's clock said last, and how far that is from this machine's.
pub(super) struct DatabaseClock {
    stand_in: Option<Arc<dyn Clock>>,
    /// Added to the time since this machine's start.
    offset_ms: AtomicI64,
    last_ms: AtomicI64,
}

impl DatabaseClock {
    pub(super) fn new(stand_in: Option<Arc<dyn Clock>>) -> Self {
        DatabaseClock { stand_in, offset_ms: AtomicI64::new(0), last_ms: AtomicI64::new(0) }
    }

    /// The moment that the database has just told. It does not go back for this process, should the server's clock be
    /// set back.
    pub(super) fn told(&self, ms: i64) -> Now {
        if let Some(clock) = &self.stand_in {
            return Now { wall_ms: clock.wall_ms(), steady_ms: clock.boot_ms() };
        }
        self.offset_ms.store(ms - System.boot_ms(), Ordering::Relaxed);
        let steady_ms = ms.max(self.last_ms.fetch_max(ms, Ordering::Relaxed));
        Now { wall_ms: ms, steady_ms }
    }

    /// The moment that it would tell now, without asking it.
    pub(super) fn now(&self) -> Now {
        match &self.stand_in {
            Some(clock) => Now { wall_ms: clock.wall_ms(), steady_ms: clock.boot_ms() },
            None => {
                let ms = System.boot_ms() + self.offset_ms.load(Ordering::Relaxed);
                Now { wall_ms: ms, steady_ms: ms }
            }
        }
    }
}
