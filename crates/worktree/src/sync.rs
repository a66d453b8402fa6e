//! The synchronisation primitives of this crate. The schedule tests replace them.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::thread::ThreadId;

/// Returns the current thread.
pub(crate) fn this_thread() -> ThreadId {
    std::thread::current().id()
}
