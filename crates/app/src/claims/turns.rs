//! The workers that wait for work. A worker waits once: if it asks again, the connection of its first request was
//! lost, and an answer to that request would not reach the worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sprag_store::Id;
use tokio::sync::Notify;

/// The waits of workers, at most one for each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<BTreeMap<Id, Arc<Notify>>>>);

impl Turns {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Id, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a wait of a worker, and ends its former one.
    pub(crate) fn start(&self, worker: Id) -> Turn {
        let ended = Arc::new(Notify::new());
        if let Some(former) = self.all().insert(worker, Arc::clone(&ended)) {
            former.notify_one();
        }
        Turn { turns: self.clone(), worker, ended }
    }
}

/// One wait of a worker. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
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
        self.turns.all().get(&self.worker).is_some_and(|last| Arc::ptr_eq(last, &self.ended))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.turns.all();
        if all.get(&self.worker).is_some_and(|last| Arc::ptr_eq(last, &self.ended)) {
            all.remove(&self.worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_asks_again_ends_its_former_wait_only() {
        let turns = Turns::default();
        let (first, other) = (turns.start(1), turns.start(2));
        let second = turns.start(1);
        assert!(!first.is_last());
        drop(first);
        assert!(second.is_last() && other.is_last());
        drop(second);
        assert_eq!(turns.all().len(), 1);
    }
}
