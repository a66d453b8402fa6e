//! Webhooks: a signed POST, or a command, notifies other programs of events.
//!
//! ```text
//!   journal ──▶ one task per hook: from its own cursor, in order, at least once
//!                 │ lease on the hook's row: of several servers one delivers it
//!                 └─▶ POST or command ─▶ 2xx, exit code 0: the cursor moves on; else later, longer each time, and parked in the end
//! ```
//!
//! A hook that does not answer delays no other hook: each has a task, a cursor and a backoff of its own.

mod deliver;
mod post;
mod send;

pub(crate) use deliver::deliver;
pub use send::{Means as HookMeans, test_hook};
