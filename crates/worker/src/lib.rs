//! The worker: what happens after hand-off.
//!
//! ```text
//!   queue ──claim──▶ Worker ──one task per slot──▶ Runner (a command's tree, a handler)
//!                      │                              ▲ renewed, cancel, lost
//!                      └──heartbeat: worker and leases┘
//!   Runner's end ──▶ finish: reports, and receives the run's next step in the same commit
//! ```
//!
//! A worker knows nothing of executors: it claims from a queue, holds what it got by a fence, and ends
//! its work when the fence is taken away, by the store's word or by its own clock.

mod command;
mod control;
mod desk;
mod entered;
mod environment;
mod evidence;
mod files;
mod handlers;
mod landing;
mod making;
mod reclaim;
mod records;
mod slots;
pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::Id;

pub use command::{Commands, render};
pub use control::{Control, Signal};
pub use desk::{Beat, Desk, DeskError, Granted, Holding, Kept};
pub use environment::{Environments, before, host};
pub use files::Files;
pub use handlers::{Call, CallError, CallFuture, Handlers};
pub use landing::fence_name;
pub use records::{Made, OnRecord, Provided, Records, RecordsFuture, Taken, bury, last_finished};
pub use slots::{Ended, Runner, RunnerFuture, Worker};

/// How a worker behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its number in the store.
    pub id: Id,
    /// What it calls itself.
    pub name: String,
    /// The queues it serves.
    pub queues: Vec<Arc<str>>,
    /// What it has that steps may ask for.
    pub labels: Vec<Arc<str>>,
    /// Works off this run alone, which is reserved to it: the process that started a run.
    pub only: Option<RunId>,
    /// How much it takes at once.
    pub slots: usize,
    /// How long it may be silent before its work is given to others.
    pub lease: Duration,
}
