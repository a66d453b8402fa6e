//! Shares one result between concurrent requests with the same key.
//!
//! ```text
//!   request ─▶ start ─┬─ a result is published ────▶ use it
//!                     └─ none: produce one's own ──▶ publish it to requests that have not started
//! ```
//!
//! A result is held while any request for its key exists. The primitives come from `super::sync`, as those of the fair
//! queue do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The most waits for a result that is being published, and the length of each. After them a request produces its own.
const MAX_WAITS: usize = 100;
const WAIT: Duration = Duration::from_millis(50);

/// The most uses of one result. After them it is produced again, because its source may have changed.
const MAX_USES: usize = 200;

/// The concurrent requests, by key.
pub(crate) struct SingleFlight<K, T> {
    flights: Mutex<BTreeMap<K, Flight<T>>>,
    published: Condvar,
}

/// All requests with one key.
struct Flight<T> {
    requests: usize,
    /// The requests that have not started.
    waiting: usize,
    uses: usize,
    outcome: Outcome<T>,
}

enum Outcome<T> {
    None,
    /// A request has produced a result and is about to publish it.
    Publishing,
    Ready(Arc<T>),
    /// The result cannot be shared.
    Unshareable,
}

/// A request for the result of a key.
pub(crate) struct Request<'a, K: Ord, T> {
    group: &'a SingleFlight<K, T>,
    key: K,
    is_started: bool,
}

impl<K, T> Default for SingleFlight<K, T> {
    fn default() -> Self {
        SingleFlight { flights: Mutex::new(BTreeMap::new()), published: Condvar::new() }
    }
}

impl<K: Ord + Clone, T> SingleFlight<K, T> {
    pub(crate) fn request(&self, key: K) -> Request<'_, K, T> {
        let empty = || Flight { requests: 0, waiting: 0, uses: 0, outcome: Outcome::None };
        let mut flights = self.flights();
        let flight = flights.entry(key.clone()).or_insert_with(empty);
        flight.requests += 1;
        flight.waiting += 1;
        Request { group: self, key, is_started: false }
    }

    /// Returns the number of keys with requests.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.flights().len()
    }
}

impl<K: Ord, T> SingleFlight<K, T> {
    fn flights(&self) -> MutexGuard<'_, BTreeMap<K, Flight<T>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord, T> Request<'_, K, T> {
    /// Starts the request, and returns the result of another one if there is any. An error of `check` ends a wait.
    pub(crate) fn start<E>(&mut self, check: impl Fn() -> Result<(), E>) -> Result<Option<Arc<T>>, E> {
        let mut flights = self.group.flights();
        if !std::mem::replace(&mut self.is_started, true)
            && let Some(flight) = flights.get_mut(&self.key)
        {
            flight.waiting -= 1;
        }
        for _ in 0..MAX_WAITS {
            let Some(flight) = flights.get_mut(&self.key) else { break };
            match &flight.outcome {
                Outcome::Ready(result) => {
                    let result = Arc::clone(result);
                    flight.uses += 1;
                    if flight.uses % MAX_USES == 0 {
                        flight.outcome = Outcome::None;
                    }
                    return Ok(Some(result));
                }
                Outcome::Publishing => {}
                Outcome::None | Outcome::Unshareable => break,
            }
            check()?;
            let waited = self.group.published.wait_timeout(flights, WAIT);
            flights = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(None)
    }

    /// Publishes the result of `produce` to waiting requests, if there are any. `None` means that it cannot be shared.
    pub(crate) fn publish(&self, produce: impl FnOnce() -> Option<T>) {
        match self.group.flights().get_mut(&self.key) {
            Some(flight) if flight.waiting > 0 && matches!(flight.outcome, Outcome::None) => {
                flight.outcome = Outcome::Publishing;
            }
            _ => return,
        }
        let mut publication = Publication { request: self, outcome: Outcome::Unshareable };
        if let Some(result) = produce() {
            publication.outcome = Outcome::Ready(Arc::new(result));
        }
    }
}

/// Sets the outcome on drop, so that waiting requests continue even if producing the result panics.
struct Publication<'a, K: Ord, T> {
    request: &'a Request<'a, K, T>,
    outcome: Outcome<T>,
}

impl<K: Ord, T> Drop for Publication<'_, K, T> {
    fn drop(&mut self) {
        if let Some(flight) = self.request.group.flights().get_mut(&self.request.key) {
            flight.outcome = std::mem::replace(&mut self.outcome, Outcome::Unshareable);
        }
        self.request.group.published.notify_all();
    }
}

impl<K: Ord, T> Drop for Request<'_, K, T> {
    fn drop(&mut self) {
        let mut flights = self.group.flights();
        if let Some(flight) = flights.get_mut(&self.key) {
            flight.requests -= 1;
            flight.waiting -= usize::from(!self.is_started);
            if flight.requests == 0 {
                flights.remove(&self.key);
            }
        }
    }
}
