//! The surroundings of one call of a handler: which attempt it is, whether to stop, and the step's log.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sprag_lifecycle::RunId;
use sprag_process::{LineLog, Secrets, make_private_folder};
use tokio::sync::Notify;

/// The surroundings of one call of a handler: the attempt that it works on, the request to stop, and the step's log.
/// Cloning it is cheap.
///
/// The engine renews the step's lease while the handler runs, however long that takes: a handler sends no heartbeats.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    call: CallFacts,
    /// Whether the engine no longer wants the result.
    cancelled: AtomicBool,
    /// Whether the handler has asked about cancellation, and so stops by itself.
    listens: AtomicBool,
    notify: Notify,
    log: Mutex<StepLog>,
}

/// The facts about one call.
#[derive(Debug, Clone)]
pub(crate) struct CallFacts {
    pub(crate) run: RunId,
    pub(crate) step: String,
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) inputs: Value,
    pub(crate) feedback: Option<String>,
}

impl Context {
    pub(crate) fn new(call: CallFacts, log: StepLog) -> Self {
        Context(Arc::new(Inner {
            call,
            cancelled: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            notify: Notify::new(),
            log: Mutex::new(log),
        }))
    }

    /// Returns the run that the step belongs to.
    pub fn run(&self) -> RunId {
        self.0.call.run
    }

    /// Returns the step's id; an item of a fan-out is `step[2]`.
    pub fn step(&self) -> &str {
        &self.0.call.step
    }

    /// Returns the number of the attempt at the step, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.call.attempt
    }

    /// Returns the fence that proves the right to act. It grows with every attempt at the step. Pass it to any service
    /// that can refuse a smaller one, so that a handler that was paused for too long changes nothing there.
    pub fn fence(&self) -> u64 {
        self.0.call.fence
    }

    /// Returns a key that names the effect of this step: `RUN/STEP`. It is the same for all attempts, so that a service
    /// that knows such keys carries out the effect once.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.0.call.run, self.0.call.step)
    }

    /// Returns the run's inputs, as a JSON object.
    pub fn inputs(&self) -> &Value {
        &self.0.call.inputs
    }

    /// Returns the message of the step that sent this one back; none if it was not sent back.
    pub fn feedback(&self) -> Option<&str> {
        self.0.call.feedback.as_deref()
    }

    /// Returns whether the handler should stop: its run is cancelled, its time is over, or its lease is lost. The flag
    /// stays set after the handler's future was dropped, so that a thread that the handler started can see it.
    pub fn is_cancelled(&self) -> bool {
        self.0.listens.store(true, Ordering::Release);
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Waits until the handler should stop, as [`Context::is_cancelled`] tells.
    ///
    /// When its run is cancelled, a handler that has called one of the two gets the engine's grace period to stop by
    /// itself. Any other handler's future is dropped at once, as is every handler whose time is over or whose lease is
    /// lost. The step counts as cancelled whatever the handler returns then.
    pub async fn cancelled(&self) {
        loop {
            let notified = self.0.notify.notified();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }

    /// Writes a text to the step's log, line by line. `sprag logs` shows it, with the secrets of the pipeline masked.
    pub fn log(&self, text: impl fmt::Display) {
        let text = text.to_string();
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner).write(&text);
    }

    /// Tells the handler to stop. Returns whether it has asked about that, and so stops by itself.
    pub(crate) fn cancel(&self) -> bool {
        self.0.cancelled.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
        self.0.listens.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.0.call).finish()
    }
}

/// The log of an attempt. Its file is made with the first line.
pub(crate) struct StepLog {
    path: Option<PathBuf>,
    secrets: Secrets,
    open: Option<LineLog>,
}

impl StepLog {
    /// Returns the log in this file; without a path, lines are dropped.
    pub(crate) fn new(path: Option<PathBuf>, secrets: Secrets) -> Self {
        StepLog { path, secrets, open: None }
    }

    fn write(&mut self, text: &str) {
        let Some(path) = &self.path else { return };
        if self.open.is_none() {
            let folder = path.parent().map_or(Ok(()), make_private_folder);
            match folder.and_then(|()| LineLog::open(path)) {
                Ok(log) => self.open = Some(log),
                Err(error) => {
                    tracing::warn!(log = %path.display(), %error, "opening a step's log");
                    return;
                }
            }
        }
        if let Some(log) = &mut self.open {
            log.write(&self.secrets.mask(text));
        }
    }
}
