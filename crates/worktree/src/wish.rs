//! What several want at once, and one of them makes: the others take what it made.
//!
//! ```text
//!   wish ─▶ begin ─┬─ somebody has made it ──────▶ take it
//!                  └─ nobody has: make one's own ─▶ offer it to those who have not begun
//! ```
//!
//! What was made is held as long as anybody wishes for it. The primitives come from `super::sync`, as those of the line.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How long is waited for what somebody is about to offer, before one makes one's own: this often, this long at most.
const LOOKS: usize = 100;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often one thing is taken before it is made anew: what it was made of may have changed, however busy it is here.
const MOST_TAKEN: usize = 200;

/// Who wishes for what.
pub(crate) struct Wishes<K, T> {
    wanted: Mutex<BTreeMap<K, Wanted<T>>>,
    offered: Condvar,
}

/// All wishes for one thing.
struct Wanted<T> {
    wishes: usize,
    /// Those of them who have not begun.
    waiting: usize,
    taken: usize,
    found: Found<T>,
}

enum Found<T> {
    NotYet,
    /// Somebody has made one, and is about to offer it.
    Soon,
    Here(Arc<T>),
    /// Nobody can make it for others.
    Never,
}

/// That somebody wishes for a thing.
pub(crate) struct Wish<'a, K: Ord, T> {
    wishes: &'a Wishes<K, T>,
    key: K,
    has_begun: bool,
}

impl<K, T> Default for Wishes<K, T> {
    fn default() -> Self {
        Wishes { wanted: Mutex::new(BTreeMap::new()), offered: Condvar::new() }
    }
}

impl<K: Ord + Clone, T> Wishes<K, T> {
    pub(crate) fn wish(&self, key: K) -> Wish<'_, K, T> {
        let nobody = || Wanted { wishes: 0, waiting: 0, taken: 0, found: Found::NotYet };
        let mut wanted = self.wanted();
        let entry = wanted.entry(key.clone()).or_insert_with(nobody);
        entry.wishes += 1;
        entry.waiting += 1;
        Wish { wishes: self, key, has_begun: false }
    }

    /// For how many things there are wishes.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.wanted().len()
    }
}

impl<K: Ord, T> Wishes<K, T> {
    fn wanted(&self) -> MutexGuard<'_, BTreeMap<K, Wanted<T>>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord, T> Wish<'_, K, T> {
    /// Begins, with what another one made if there is something. `go_on` may end a wait.
    pub(crate) fn begin<E>(&mut self, go_on: impl Fn() -> Result<(), E>) -> Result<Option<Arc<T>>, E> {
        let mut wanted = self.wishes.wanted();
        if !std::mem::replace(&mut self.has_begun, true)
            && let Some(entry) = wanted.get_mut(&self.key)
        {
            entry.waiting -= 1;
        }
        for _ in 0..LOOKS {
            let Some(entry) = wanted.get_mut(&self.key) else { break };
            match &entry.found {
                Found::Here(made) => {
                    let made = Arc::clone(made);
                    entry.taken += 1;
                    if entry.taken % MOST_TAKEN == 0 {
                        entry.found = Found::NotYet;
                    }
                    return Ok(Some(made));
                }
                Found::Soon => {}
                Found::NotYet | Found::Never => break,
            }
            go_on()?;
            let waited = self.wishes.offered.wait_timeout(wanted, LOOK_EVERY);
            wanted = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(None)
    }

    /// One's own is made: others may have it too, if somebody waits for it and it is fit for that.
    pub(crate) fn offer(&self, made: impl FnOnce() -> Option<T>) {
        match self.wishes.wanted().get_mut(&self.key) {
            Some(entry) if entry.waiting > 0 && matches!(entry.found, Found::NotYet) => {
                entry.found = Found::Soon;
            }
            _ => return,
        }
        let mut offer = Offer { wish: self, found: Found::Never };
        if let Some(made) = made() {
            offer.found = Found::Here(Arc::new(made));
        }
    }
}

/// What others are told, also if the making of it panics.
struct Offer<'a, K: Ord, T> {
    wish: &'a Wish<'a, K, T>,
    found: Found<T>,
}

impl<K: Ord, T> Drop for Offer<'_, K, T> {
    fn drop(&mut self) {
        if let Some(entry) = self.wish.wishes.wanted().get_mut(&self.wish.key) {
            entry.found = std::mem::replace(&mut self.found, Found::Never);
        }
        self.wish.wishes.offered.notify_all();
    }
}

impl<K: Ord, T> Drop for Wish<'_, K, T> {
    fn drop(&mut self) {
        let mut wanted = self.wishes.wanted();
        if let Some(entry) = wanted.get_mut(&self.key) {
            entry.wishes -= 1;
            entry.waiting -= usize::from(!self.has_begun);
            if entry.wishes == 0 {
                wanted.remove(&self.key);
            }
        }
    }
}
