//! A fair queue of threads: first come, first served. A waiting thread can leave from any position.
//!
//! The primitives come from `super::sync`, so that `crates/sim/tests/schedules.rs` can test this file with all
//! thread schedules.

use std::collections::VecDeque;
use std::time::Duration;

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError, ThreadId, this_thread};

/// The queue. The thread in front is current.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next_ticket: u64,
    /// The waiting threads; the one in front is current.
    tickets: VecDeque<u64>,
    current: Option<ThreadId>,
}

/// A position in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// The reason why a thread did not become current.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WaitError<E> {
    /// This thread is current already, so it would wait for itself.
    Reentered,
    /// The thread gave up, with this error.
    GaveUp(E),
}

impl FairQueue {
    /// Waits until this thread is current. Before every wait, `check` returns the longest time to wait, or an
    /// error to give up.
    pub(crate) fn enter<E>(
        &self,
        mut check: impl FnMut() -> Result<Duration, E>,
    ) -> Result<Ticket, WaitError<E>> {
        let me = this_thread();
        let mut state = self.state();
        if state.current == Some(me) {
            return Err(WaitError::Reentered);
        }
        let ticket = Ticket(state.next_ticket);
        state.next_ticket += 1;
        state.tickets.push_back(ticket.0);
        while state.tickets.front() != Some(&ticket.0) {
            match check() {
                Ok(longest) => {
                    let waited = self.changed.wait_timeout(state, longest);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Err(why) => {
                    drop(state);
                    self.leave(ticket);
                    return Err(WaitError::GaveUp(why));
                }
            }
        }
        state.current = Some(me);
        Ok(ticket)
    }

    /// Leaves the queue, current or not. The next thread becomes current.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let mut state = self.state();
        if state.tickets.front() == Some(&ticket.0) {
            state.current = None;
        }
        state.tickets.retain(|waiting| *waiting != ticket.0);
        self.changed.notify_all();
    }

    /// Returns the number of threads in the queue.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.state().tickets.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
