//! Proof: the invariants in one place, and the layers that explore the code which ships against them.
//!
//! - [`check`]: what must hold in every state, and of every change.
//! - [`model`]: every interleaving of workers, callers, crashes and messages on small runs.
//! - [`linear`]: whether answers to callers at once are such as one after the other could have had.
//! - [`graphs`]: random pipelines with everything in them, against a reference that knows only the rules.
//! - [`simulation`]: the whole engine in a world whose clock, bus, disks and processes are drawn from a seed.

pub mod check;
pub mod graphs;
pub mod linear;
pub mod model;
pub mod simulation;

/// A model's states are made by one thread and freed by another, millions of them: the C library's allocator has its
/// threads wait for each other there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
