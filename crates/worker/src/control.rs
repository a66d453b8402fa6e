//! What a worker tells a piece of work while it goes on.

use std::time::Duration;

use sprag_store::Surroundings;
use tokio::sync::watch;

/// What work must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Go on until this moment of the machine's boot clock. Told again at each renewal.
    Renewed {
        /// When the work must have come to its end, unless it is told otherwise before.
        until_ms: u64,
    },
    /// Somebody wants it to end: end it, then say so.
    Cancel,
    /// It belongs to somebody else now: end it at once, its result counts for nothing.
    Lost,
}

/// How long it is until a moment of the boot clock.
pub(crate) fn left(until_ms: u64) -> Duration {
    Duration::from_millis(until_ms.saturating_sub(sprag_process::boot_ms()))
}

/// A piece of work's ear.
#[derive(Debug, Clone)]
pub struct Control {
    signal: watch::Receiver<Signal>,
    surroundings: Surroundings,
}

impl Control {
    pub(crate) fn new(signal: watch::Receiver<Signal>, surroundings: Surroundings) -> Self {
        Control { signal, surroundings }
    }

    /// What was said last.
    pub fn now(&self) -> Signal {
        *self.signal.borrow()
    }

    /// Waits until something else is said. If the worker is gone, the work is lost.
    pub async fn next(&mut self) -> Signal {
        match self.signal.changed().await {
            Ok(()) => *self.signal.borrow_and_update(),
            Err(_) => Signal::Lost,
        }
    }

    /// Waits until the work is not ours any more: we are told so, or it was not renewed in time by our own clock.
    pub async fn lost(&mut self) {
        loop {
            match self.now() {
                Signal::Renewed { until_ms } => {
                    let surroundings = self.surroundings.clone();
                    let left = Duration::from_millis(until_ms.saturating_sub(surroundings.boot_ms()));
                    let lapsed = surroundings.within(left, self.next()).await.is_none();
                    if lapsed && self.now() == (Signal::Renewed { until_ms }) {
                        return;
                    }
                }
                // Nothing is renewed by then: whoever ends it has the time that it takes.
                Signal::Cancel => match self.next().await {
                    Signal::Lost => return,
                    Signal::Renewed { .. } | Signal::Cancel => {}
                },
                Signal::Lost => return,
            }
        }
    }
}

/// Lets a while pass before something is tried again.
pub(crate) async fn pause(for_a_while: Duration) {
    let _ = tokio::time::timeout(for_a_while, std::future::pending::<()>()).await;
}
