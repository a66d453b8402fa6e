//! The proof: the invariants in one place, and the layers that check the shipped code against them.
//!
//! - [`check`]: invariants of every state and of every change.
//! - [`model`]: every interleaving of workers, callers, crashes and messages on small runs.
//! - [`linear`]: linearizability of the answers to concurrent callers.
//! - [`graphs`]: random pipelines with all features, compared with a reference that is written from the rules.
//! - [`simulation`]: the whole engine in a world whose clock, bus, disks and processes are drawn from a seed.

pub mod check;
pub mod graphs;
pub mod linear;
pub mod model;
pub mod simulation;

/// One thread creates a model's states and another frees them, millions of them. The C library's allocator makes the
/// threads wait for each other there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
