//! The workers that wait for work. A worker waits once: if it asks again, the connection of its first request was
//! lost, and an answer to that request would not reach the worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sprag_store::Id;
use tokio::sync::Notify;

/// The workers that wait.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waiting(Arc<Mutex<BTreeMap<Id, Arc<Notify>>>>);

impl Waiting {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Id, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a wait of a worker, and ends its former one.
    pub(crate) fn begin(&self, worker: Id) -> Turn {
        let ended = Arc::new(Notify::new());
        if let Some(former) = self.all().insert(worker, Arc::clone(&ended)) {
            former.notify_one();
        }
        Turn { waiting: self.clone(), worker, ended }
    }
}

/// One wait of a worker. Dropping it ends it.
pub(crate) struct Turn {
    waiting: Waiting,
    worker: Id,
    ended: Arc<Notify>,
}

impl Turn {
    /// Waits until the worker asks again.
    pub(crate) async fn over(&self) {
        self.ended.notified().await;
    }

    /// Whether this is still the worker's last request.
    pub(crate) fn is_last(&self) -> bool {
        self.waiting.all().get(&self.worker).is_some_and(|last| Arc::ptr_eq(last, &self.ended))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.waiting.all();
        if all.get(&self.worker).is_some_and(|last| Arc::ptr_eq(last, &self.ended)) {
            all.remove(&self.worker);
        }
    }
}
