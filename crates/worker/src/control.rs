//! The signals that a worker sends to an execution while it runs.

use std::time::Duration;

use sprag_store::Runtime;
use tokio::sync::watch;

/// The worker's latest instruction to an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The lease is held until this moment of the machine's boot clock, so the execution continues. The worker sends
    /// this again at each renewal.
    Renewed {
        /// The moment by which the execution must have stopped unless another signal arrives first, in ms.
        until_ms: u64,
    },
    /// A request to cancel: stop, then report it.
    Cancel,
    /// The loss of the execution to another worker: stop at once. The result is discarded.
    Lost,
}

/// Returns the time until a moment of the boot clock; zero if it has passed.
pub(crate) fn left(until_ms: u64) -> Duration {
    Duration::from_millis(until_ms.saturating_sub(sprag_process::boot_ms()))
}

/// The receiving end of the signals for one execution.
#[derive(Debug, Clone)]
pub struct Control {
    signal: watch::Receiver<Signal>,
    draining: watch::Receiver<bool>,
    runtime: Runtime,
}

impl Control {
    pub(crate) fn new(
        signal: watch::Receiver<Signal>,
        draining: watch::Receiver<bool>,
        runtime: Runtime,
    ) -> Self {
        Control { signal, draining, runtime }
    }

    /// Returns the latest signal.
    pub fn now(&self) -> Signal {
        *self.signal.borrow()
    }

    /// Whether the worker is draining: an execution that only waits should end with
    /// [`Ended::Returned`](crate::Ended::Returned), so that another worker takes it.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Waits until the worker is draining or gone.
    pub async fn draining(&mut self) {
        let _ = self.draining.wait_for(|draining| *draining).await;
    }

    /// Waits for the next signal. If the worker is gone, that is `Signal::Lost`.
    pub async fn next(&mut self) -> Signal {
        match self.signal.changed().await {
            Ok(()) => *self.signal.borrow_and_update(),
            Err(_) => Signal::Lost,
        }
    }

    /// Waits until the execution is asked to stop.
    pub async fn cancelled(&mut self) {
        while self.now() != Signal::Cancel {
            if self.next().await == Signal::Lost {
                // Another wait tells that it is lost.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until the execution is lost: by a signal, or because the lease was not renewed in time by this machine's
    /// clock.
    pub async fn lost(&mut self) {
        loop {
            match self.now() {
                Signal::Renewed { until_ms } => {
                    let runtime = self.runtime.clone();
                    let left = Duration::from_millis(until_ms.saturating_sub(runtime.boot_ms()));
                    let lapsed = runtime.within(left, self.next()).await.is_none();
                    if lapsed && self.now() == (Signal::Renewed { until_ms }) {
                        return;
                    }
                }
                // A cancelled execution is no longer renewed; it may take the time that it needs to stop.
                Signal::Cancel => match self.next().await {
                    Signal::Lost => return,
                    Signal::Renewed { .. } | Signal::Cancel => {}
                },
                Signal::Lost => return,
            }
        }
    }
}

/// Waits for this time, where nothing would tell that it is worth trying again.
#[expect(clippy::disallowed_methods, reason = "there is no signal to wait for")]
pub async fn pause(for_a_while: Duration) {
    tokio::time::sleep(for_a_while).await;
}
