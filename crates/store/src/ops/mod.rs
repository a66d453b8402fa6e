//! The operations: everything that anybody can do to a store, each one transaction.
//!
//! They are plain functions over a [`Session`](crate::Session), so that the model checker, the simulation, memory and
//! SQLite all run exactly this code. Who may call which is a matter of the roles in `roles.rs`.

mod boards;
mod entities;
mod environments;
mod executor;
mod fit;
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
use environments::is_gone;
pub use environments::*;
pub use executor::*;
pub use fit::{could_take, hosts_of_files};
use fit::{has_labels, is_for, works_elsewhere};
pub use gates::*;
use inherit::inherit_step;
pub use reaper::*;
pub use reclaim::*;
pub use remote::*;
pub use retention::*;
pub use runs::*;
pub use told::*;
pub use worker::*;
