//! Proof: the invariants in one place, and the layers that explore the code which ships against them.
//!
//! - [`check`]: what must hold in every state, and of every change.
//! - [`model`]: every interleaving of workers, callers, crashes and messages on small runs.

pub mod check;
pub mod model;
