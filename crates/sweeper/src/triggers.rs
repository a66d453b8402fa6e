//! Rules: the executor looks at them in each sweep, and rests no longer than until the next tick.

use std::pin::Pin;

use sprag_store::Result;

/// Rules that start runs. The store decides each event once, however many executors look.
pub trait Triggers: Send + Sync + 'static {
    /// Fires all due ticks and decides all waiting events. Returns the number of runs that started.
    fn fire(&self) -> Pin<Box<dyn Future<Output = Result<usize>> + Send + '_>>;
    /// Returns the time at which something is due next (steady).
    fn next_due(&self) -> Result<Option<i64>>;
}
