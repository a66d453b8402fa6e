//! The operations: all changes to a store, each in one transaction.
//!
//! They are plain functions over a [`Session`](crate::session::Session), so that the model checker, the simulation, memory,
//! SQLite and PostgreSQL all run exactly this code. The roles in `roles.rs` define which caller may use which.

mod accounts;
mod boards;
mod entities;
mod environment_details;
mod environments;
mod executor;
mod fit;
mod gates;
mod inherit;
mod permissions;
mod reaper;
mod reclaim;
mod remote;
mod remote_environments;
mod retention;
mod rule_requests;
mod rules;
mod runs;
mod services;
mod steps;
mod threads;
mod told;
mod worker;

pub use accounts::*;
pub use boards::*;
pub use entities::*;
pub use environment_details::*;
use environments::is_gone;
pub use environments::*;
pub use executor::*;
pub use fit::{could_take, hosts_of_files};
use fit::{has_labels, is_for, works_elsewhere};
pub use gates::*;
use inherit::inherit_step;
pub use permissions::*;
pub use reaper::*;
pub use reclaim::*;
pub use remote::*;
pub use remote_environments::*;
pub use retention::*;
pub use rule_requests::*;
pub use rules::*;
pub use runs::*;
pub(crate) use services::SERVICES_OF;
pub use services::UsedServices;
use services::{has_services, used_services};
pub use steps::*;
use threads::leave_thread;
pub use threads::*;
pub use told::*;
use worker::release_until;
pub use worker::*;

/// Returns the refusal of a request that is not allowed in this status.
fn illegal(entity: &'static str, status: impl sprag_lifecycle::Word) -> crate::NotApplied {
    crate::NotApplied::Illegal { entity, status: status.as_str(), wrong_actor: false }
}
