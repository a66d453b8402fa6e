//! The worker: claims executions, runs them, and reports how they ended.
//!
//! ```text
//!   queue ──claim──▶ Worker ──one task per slot──▶ Runner (a command's tree, a handler)
//!                      │                              ▲ renewed, cancel, lost
//!                      └──heartbeat: worker and leases┘
//!   Runner's end ──▶ finish: reports, and receives the run's next step in the same commit
//! ```
//!
//! A worker knows nothing of executors. It claims from a queue and holds each execution by a fence. It stops an
//! execution when the fence is taken away, by the store's answer or by its own clock.

mod agent;
mod cache;
mod command;
mod context;
mod control;
mod entered;
mod environment;
mod evidence;
mod files;
mod handlers;
mod landing;
mod making;
mod reclaim;
mod records;
mod sandbox;
mod sealed;
mod secret_sources;
mod secrets;
mod services;
mod slots;
mod step_token;
pub mod wire;
mod work_source;
mod written;

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::{Id, NewWorker};

pub use agent::{
    FAKE_AGENTS, MissingAgent, RepositoryAgents, SPRAG_TOOLS, STEP_SOCKET, STEP_TOKEN, ServedTools,
    StepTools, TALKS_TO, agents, check_agents, judged_end, repository_agents, set_trust, transcript_text,
};
pub use command::{Commands, render};
pub use context::Context;
pub use control::{Control, Signal, pause};
pub use environment::{Environments, before, host};
pub use files::{Files, Owed};
pub use handlers::{HandlerError, HandlerFuture, Handlers};
pub use landing::fence_name;
pub use records::{
    Made, OnRecord, Provided, Records, RecordsFuture, Taken, ThreadOf, ThreadSaid, bury, last_finished,
    worked,
};
pub use sealed::{hide_sealed, open_inputs, seal_inputs};
pub use slots::{Ended, Runner, RunnerFuture, Worker};
pub use step_token::{STEP_TOKEN_PREFIX, read_step_token, sign_step_token};
pub use work_source::{HeartbeatReply, Holding, LeaseState, LeasedWork, WorkSource, WorkSourceError};

/// The configuration of a worker.
#[derive(Debug, Clone)]
pub struct Config {
    /// The worker's id in the store.
    pub id: Id,
    /// The name that users see.
    pub name: String,
    /// The queues it serves.
    pub queues: Vec<Arc<str>>,
    /// The capabilities that steps may require.
    pub labels: Vec<Arc<str>>,
    /// The only run that this worker executes, reserved for it. Set by the process that started the run.
    pub only: Option<RunId>,
    /// The number of executions that it runs at once.
    pub slots: usize,
    /// The time without a heartbeat after which its executions are given to other workers.
    pub lease: Duration,
}

impl Config {
    /// Returns the worker as it registers itself; `process` identifies its process in one text.
    pub fn new_worker(&self, process: &str) -> NewWorker {
        NewWorker {
            id: self.id,
            name: self.name.as_str().into(),
            process: process.into(),
            // A worker that takes only what is reserved for it serves no queue that others could rely on.
            queues: if self.only.is_some() { "".into() } else { self.queues.join(",").into() },
            labels: self.labels.join(",").into(),
            slots: self.slots as u32,
            lease_ms: self.lease.as_millis() as i64,
        }
    }
}
