//! The messages between a worker and a server. The header `x-sprag-worker` identifies the sender: a random key that
//! only the worker knows. The worker's id is derived from the key and from its token, so that the same key with
//! another token is another worker.
//!
//! A lease is sent as a length, counted from when the server received the request. The sender adds it to the moment
//! before it sent the request, by its own clock.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sprag_lifecycle::{Plan, RunId, StepNo};
use sprag_store::{
    Assignment, Claimer, Ending, EnvironmentRequest, Id, Lease, PermissionAsk, PermissionState, Sighting,
    ThreadEntry,
};

use crate::{LeaseState, Made, OnRecord, Provided, Taken, ThreadOf, ThreadSaid};

#[cfg(feature = "openapi")]
use utoipa::ToSchema;

/// The header that identifies the worker.
pub const WORKER: &str = "x-sprag-worker";
/// The longest time that a server lets a worker wait for work.
pub const LONGEST_WAIT_MS: u64 = 30_000;
/// The largest piece of a log in one request.
pub const MOST_CHUNK_BYTES: usize = 1 << 20;
/// The largest size of a log.
pub const MOST_LOG_BYTES: u64 = 128 << 20;

/// Returns the public name of a store, derived from its secret key.
pub fn store_name(key: &str) -> String {
    let hash = Sha256::digest(format!("sprag store {key}").as_bytes());
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the SHA-256 of a token, in hexadecimal digits.
pub fn token_hash(token: &str) -> String {
    Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the id of the worker with this key and the token with this hash; the hash is empty without a token.
pub fn worker_id(key: &str, token_hash: &str) -> Id {
    let hash = Sha256::digest(format!("{key} {token_hash}").as_bytes());
    let mut bits = [0u8; 8];
    bits.copy_from_slice(&hash[..8]);
    // Positive, and in another range than the ids of agents.
    (u64::from_be_bytes(bits) >> 3) as Id + 1
}

macro_rules! wire {
    ($($(#[$doc:meta])* $kind:ident $name:ident { $($body:tt)* })+) => {$(
        #[derive(Debug, Clone, Serialize, Deserialize)]
        // The names have a prefix, because messages of people and agents are also called claimed, held and done.
        #[cfg_attr(feature = "openapi", derive(ToSchema), schema(as = work::$name))]
        $(#[$doc])*
        pub $kind $name { $($body)* }
    )+};
}

wire! {
    /// A request to claim work.
    #[serde(deny_unknown_fields)]
    struct Claim {
        /// The claimer and its terms.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub claimer: Claimer,
        /// The largest number of executions to receive.
        pub limit: usize,
        /// The time to wait for work, in milliseconds.
        pub wait_ms: u64,
    }

    /// Received work.
    struct Claimed {
        /// The work.
        pub given: Vec<GivenWork>,
    }

    /// One unit of work with its lease.
    struct GivenWork {
        /// The execution and its lease.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub assignment: Assignment,
        /// The duration of the lease in milliseconds, from when the server received the request.
        pub lease_ms: i64,
    }

    /// A worker's heartbeat with its leases.
    #[serde(deny_unknown_fields)]
    struct Heartbeat {
        /// The leases that it holds.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
        pub leases: Vec<Lease>,
        /// The requested duration of the leases, in milliseconds.
        pub lease_ms: i64,
    }

    /// The answer to a heartbeat.
    struct Beaten {
        /// Whether the store still considers the worker live.
        pub known: bool,
        /// The duration of all held leases in milliseconds, from when the server received the request.
        pub lease_ms: i64,
        /// The state of each lease, in the order of the request.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
        pub kept: Vec<LeaseState>,
    }

    /// A request to wait until a held execution must stop.
    #[serde(deny_unknown_fields)]
    struct Watch {
        /// Held executions that were not told to stop.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
        pub going: Vec<Lease>,
        /// Held executions that were told to stop.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
        pub ending: Vec<Lease>,
        /// The time to wait, in milliseconds.
        pub wait_ms: u64,
    }

    /// The answer of a watch.
    struct Watched {
        /// Whether a heartbeat will report a change.
        pub changed: bool,
    }

    /// The report of an execution's end.
    #[serde(deny_unknown_fields)]
    struct Finish {
        /// The lease of the execution.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub lease: Lease,
        /// The end of the execution: its status and result.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub ending: Ending,
        /// The claimer that wants the next step of the same run.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        pub next: Option<Claimer>,
    }

    /// An accepted report.
    struct Finished {
        /// Whether the report had been accepted before.
        pub before: bool,
        /// The next step of the same run.
        pub next: Option<GivenWork>,
    }

    /// A registered worker.
    struct Registered {
        /// Whether it changed anything.
        pub applied: bool,
        /// The id of the server's store; files of runs of another store are not its concern.
        pub store: String,
    }

    /// A held execution.
    #[serde(deny_unknown_fields)]
    struct Held {
        /// The lease of the execution.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub lease: Lease,
    }

    /// The confirmation of a request.
    struct Done {
        /// Whether it changed anything.
        pub applied: bool,
    }

    /// A worker's question about the environment of a run of which it holds a step.
    #[serde(deny_unknown_fields)]
    struct AskEnvironment {
        /// The step.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub lease: Lease,
        /// The question.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub ask: Ask,
    }

    /// The received size of a log.
    struct LogSize {
        /// The number of bytes received without a gap.
        pub size: u64,
    }

    /// A host's request for files that it can remove.
    #[serde(deny_unknown_fields)]
    struct Tidy {
        /// Runs with files on the host.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
        pub runs: Vec<RunId>,
    }

    /// Files and environments that a host can remove.
    struct Due {
        /// The ended ones among the runs.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
        pub ended: Vec<RunId>,
        /// The runs that the store does not know, or has deleted.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
        pub forgotten: Vec<RunId>,
        /// Environments of the worker's host that no run needs any more.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
        pub environments: Vec<OnRecord>,
    }

    /// A request to start the removal of an environment.
    #[serde(deny_unknown_fields)]
    struct Destroy {
        /// The environment.
        pub environment: Id,
        /// Whether its files exist.
        pub present: bool,
    }

    /// Whether the environment may be removed.
    struct MayDestroy {
        /// The number of the attempt, if it may be removed.
        pub attempt: Option<u32>,
    }

    /// The result of removing an environment.
    #[serde(deny_unknown_fields)]
    struct Destroyed {
        /// The environment.
        pub environment: Id,
        /// The attempt's number.
        pub attempt: u32,
        /// The error, if the removal failed.
        pub wrong: Option<String>,
    }
}

/// A request about environments.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "about", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// A request for the plan of a run.
    Plan {
        /// The run.
        run: RunId,
    },
    /// A request for the record of the run's environment.
    Find {
        /// The run.
        run: RunId,
        /// The step that has it alone; none for the environment that the whole run shares.
        scope: Option<StepNo>,
    },
    /// A request to provide the run's environment.
    Provide {
        /// The environment that the worker needs.
        wanted: EnvironmentRequest,
        /// The worker's last check of its files; none if there was no environment.
        seen: Option<Sighting>,
    },
    /// An update of an environment's details.
    Describe {
        /// The environment.
        environment: Id,
        /// The details, as JSON.
        details: Arc<str>,
    },
    /// A report of the result of creating an environment.
    Made {
        /// The environment.
        environment: Id,
        /// The number of the attempt to create it.
        attempt: u32,
        /// The result.
        how: Made,
    },
    /// A request for the environment at this path of the worker's host, which is in the way and may be a dead run's.
    TakeFromDead {
        /// The path on the worker's host.
        path: String,
    },
    /// The step is about to start the agent of a thread.
    EnterThread {
        /// The thread.
        thread: ThreadOf,
    },
    /// A report about a thread that the step holds.
    ThreadEvent {
        /// The thread.
        thread: ThreadOf,
        /// The report.
        said: ThreadSaid,
    },
    /// A permission that the step's agent asks for.
    Permission {
        /// The request.
        asked: PermissionAsk,
    },
    /// The step's agent no longer asks for a permission.
    WithdrawPermission {},
    /// A request for the token of the step's own agent.
    StepToken {},
    /// A request for the names of the steps that have been executed.
    LastFinished {
        /// The run.
        run: RunId,
    },
}

/// An answer to a request about environments.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// A plan, if there is one.
    Plan(Option<Arc<Plan>>),
    /// An environment, if there is one.
    Found(Option<OnRecord>),
    /// The answer to a request for an environment.
    Provided(Provided),
    /// Whether the report still counts.
    Noted(bool),
    /// The names of steps, the last one to end first.
    Steps(Vec<String>),
    /// The environment that was taken from a dead run; none if none was.
    Taken(Option<Taken>),
    /// The result of entering a thread.
    Thread(ThreadEntry),
    /// The state of a permission.
    Permission(PermissionState),
    /// The token of the step's own agent.
    StepToken(String),
}

/// Which log of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The log of the step.
    Step,
    /// The log of its environment's setup.
    Setup,
}

/// The largest size of a file that a step passes on to steps on other hosts.
pub const MOST_FILE_BYTES: u64 = 4 << 30;

/// Which piece of which file that a step passes on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct FileChunk {
    /// The run.
    pub run: String,
    /// The step's number.
    pub step: StepNo,
    /// The attempt.
    pub attempt: u32,
    /// The fence.
    pub fence: u32,
    /// The name of the output.
    pub name: String,
    /// The file's own name.
    pub file: String,
    /// The offset at which the piece starts.
    pub offset: u64,
}

/// The part of a passed-on file that the server has.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct FileSize {
    /// The number of bytes.
    pub size: u64,
    /// The path of the server's copy: the value of the output.
    pub path: String,
}

/// A request for a piece of a file that the texts of a step name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WantedFile {
    /// The lease on the step.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub lease: Lease,
    /// The path of the server's copy.
    pub path: String,
    /// The offset at which the piece starts.
    pub offset: u64,
}

/// Which piece of which log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// The run.
    pub run: String,
    /// The step's number.
    pub step: StepNo,
    /// The attempt.
    pub attempt: u32,
    /// The fence.
    pub fence: u32,
    /// Which log.
    #[cfg_attr(feature = "openapi", param(inline))]
    pub part: Part,
    /// The offset at which the piece starts.
    pub offset: u64,
    /// The length of the whole log, once it no longer grows.
    pub whole: Option<u64>,
    /// The file that holds it on the worker's host, until all of it was received.
    pub path: Option<String>,
}
