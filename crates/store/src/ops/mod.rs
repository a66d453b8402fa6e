//! The operations: everything that anybody can do to a store, each one transaction.
//!
//! They are plain functions over a [`Session`](crate::Session), so that the model checker, the simulation, memory and
//! SQLite all run exactly this code. Who may call which is a matter of the handles in `handle.rs`.

mod boards;
mod entities;
mod environments;
mod executor;
mod gates;
mod inherit;
mod reaper;
mod reclaim;
mod remote;
mod retention;
mod runs;
mod told;
mod worker;

pub use boards::*;
pub use entities::*;
pub use environments::*;
use environments::{is_gone, works_elsewhere};
pub use executor::*;
pub use gates::*;
use inherit::inherit_step;
pub use reaper::*;
pub use reclaim::*;
pub use remote::*;
pub use retention::*;
pub use runs::*;
pub use told::*;
pub use worker::*;
