//! What a worker tells a piece of work while it goes on.

use std::time::Duration;

use tokio::sync::watch;

/// What work must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Go on: the lease lasts at least this much longer. Told again at each renewal, with a new count.
    Renewed {
        /// How often it was renewed.
        count: u64,
        /// How long it lasts from now on.
        lease: Duration,
    },
    /// Somebody wants it to end: end it, then say so.
    Cancel,
    /// It belongs to somebody else now: end it at once, its result counts for nothing.
    Lost,
}

/// A piece of work's ear.
#[derive(Debug, Clone)]
pub struct Control(pub(crate) watch::Receiver<Signal>);

impl Control {
    /// What was said last.
    pub fn now(&self) -> Signal {
        *self.0.borrow()
    }

    /// Waits until something else is said. If the worker is gone, the work is lost.
    pub async fn next(&mut self) -> Signal {
        match self.0.changed().await {
            Ok(()) => *self.0.borrow_and_update(),
            Err(_) => Signal::Lost,
        }
    }
}

/// Lets a while pass before something is tried again.
pub(crate) async fn pause(for_a_while: Duration) {
    let _ = tokio::time::timeout(for_a_while, std::future::pending::<()>()).await;
}
