//! What threads of this process meet at. The schedules' test puts others in its place.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::thread::ThreadId;

/// The thread that asks.
pub(crate) fn this_thread() -> ThreadId {
    std::thread::current().id()
}
