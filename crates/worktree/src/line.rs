//! A line of threads: who comes first is served first, and whoever gives up leaves from whatever place.
//!
//! The primitives come from `super::sync`, so that every order in which threads can run is tried on this very
//! file (`crates/sim/tests/schedules.rs`).

use std::collections::VecDeque;
use std::time::Duration;

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError, ThreadId, this_thread};

/// The line, and in front the one who is served.
#[derive(Debug, Default)]
pub(crate) struct Line {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next_ticket: u64,
    /// Those who wait, and in front the one who is served.
    tickets: VecDeque<u64>,
    served: Option<ThreadId>,
}

/// A place in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// Why somebody is not served.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotServed<E> {
    /// This thread is being served already: it would wait for itself.
    Already,
    /// It gave up.
    GaveUp(E),
}

impl Line {
    /// Waits to be served. Before every wait `go_on` says for how long at most, or why not to wait any longer.
    pub(crate) fn enter<E>(
        &self,
        mut go_on: impl FnMut() -> Result<Duration, E>,
    ) -> Result<Ticket, NotServed<E>> {
        let me = this_thread();
        let mut state = self.state();
        if state.served == Some(me) {
            return Err(NotServed::Already);
        }
        let ticket = Ticket(state.next_ticket);
        state.next_ticket += 1;
        state.tickets.push_back(ticket.0);
        while state.tickets.front() != Some(&ticket.0) {
            match go_on() {
                Ok(longest) => {
                    let waited = self.moved.wait_timeout(state, longest);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Err(why) => {
                    drop(state);
                    self.leave(ticket);
                    return Err(NotServed::GaveUp(why));
                }
            }
        }
        state.served = Some(me);
        Ok(ticket)
    }

    /// Goes out of the line, served or not: the next one moves up.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let mut state = self.state();
        if state.tickets.front() == Some(&ticket.0) {
            state.served = None;
        }
        state.tickets.retain(|waiting| *waiting != ticket.0);
        self.moved.notify_all();
    }

    /// How many are in it.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.state().tickets.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
