//! Who waits for work. A worker waits once: if it asks again, its first question was lost on the way, and whatever
//! that one would get is for nobody.

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

    /// A worker begins to wait: its former wait is over.
    pub(crate) fn begin(&self, worker: Id) -> Turn {
        let ended = Arc::new(Notify::new());
        if let Some(former) = self.all().insert(worker, Arc::clone(&ended)) {
            former.notify_one();
        }
        Turn { waiting: self.clone(), worker, ended }
    }
}

/// A wait. Dropping it ends it.
pub(crate) struct Turn {
    waiting: Waiting,
    worker: Id,
    ended: Arc<Notify>,
}

impl Turn {
    /// Waits until the worker asks anew.
    pub(crate) async fn over(&self) {
        self.ended.notified().await;
    }

    /// Whether it is still the worker's last question.
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
