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
use sprag_store::Id;
use sprag_store::ops::{Assignment, Claimer, Ending, EnvironmentRequest, Lease, Sighting};

use crate::{LeaseState, Made, OnRecord, Provided, Taken};

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
    /// Something to claim.
    #[serde(deny_unknown_fields)]
    struct Claim {
        /// Who claims, and on what terms.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub claimer: Claimer,
        /// How much at most.
        pub limit: usize,
        /// How long to wait for it.
        pub wait_ms: u64,
    }

    /// Work that was received.
    struct Claimed {
        /// The work.
        pub given: Vec<GivenWork>,
    }

    /// A piece of work.
    struct GivenWork {
        /// What to do, and the right to do it.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub assignment: Assignment,
        /// How long it is held, from when the server got the request.
        pub lease_ms: i64,
    }

    /// A worker shows that it is there, and what it holds.
    #[serde(deny_unknown_fields)]
    struct Heartbeat {
        /// What it holds.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
        pub leases: Vec<Lease>,
        /// How long it wants to hold it.
        pub lease_ms: i64,
    }

    /// What came of a heartbeat.
    struct Beaten {
        /// The store still counts on the worker.
        pub known: bool,
        /// How long everything is held that is, from when the server got the request.
        pub lease_ms: i64,
        /// What became of each lease, in the order in which they were told.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
        pub kept: Vec<LeaseState>,
    }

    /// Waits until something that is held has to end.
    #[serde(deny_unknown_fields)]
    struct Watch {
        /// What is held, and was not told to end.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
        pub going: Vec<Lease>,
        /// What is held, and was told to end.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
        pub ending: Vec<Lease>,
        /// How long to wait.
        pub wait_ms: u64,
    }

    /// Whether there is something to be heard.
    struct Watched {
        /// A heartbeat will tell of a change.
        pub changed: bool,
    }

    /// How something ended.
    #[serde(deny_unknown_fields)]
    struct Finish {
        /// What.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub lease: Lease,
        /// How.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub ending: Ending,
        /// Who wants what follows in the same run.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        pub next: Option<Claimer>,
    }

    /// A report that stands.
    struct Finished {
        /// It stood already.
        pub before: bool,
        /// What follows in the same run.
        pub next: Option<GivenWork>,
    }

    /// A worker that is known now.
    struct Registered {
        /// Whether it changed anything.
        pub applied: bool,
        /// Which store the server has: files of runs of another one are none of its business.
        pub store: String,
    }

    /// Something that is held.
    #[serde(deny_unknown_fields)]
    struct Held {
        /// What.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub lease: Lease,
    }

    /// That it was done.
    struct Done {
        /// Whether it changed anything.
        pub applied: bool,
    }

    /// A question about the environment of a run, by somebody who holds a step of it.
    #[serde(deny_unknown_fields)]
    struct AskEnvironment {
        /// The step.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub lease: Lease,
        /// The question.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        pub ask: Ask,
    }

    /// How much of a log has arrived.
    struct LogSize {
        /// All bytes before this one have.
        pub size: u64,
    }

    /// What a host asks that cleans up.
    #[serde(deny_unknown_fields)]
    struct Tidy {
        /// Runs of which there are files.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
        pub runs: Vec<RunId>,
    }

    /// What can go on a host.
    struct Due {
        /// Those of the runs that have ended.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
        pub ended: Vec<RunId>,
        /// Those of them that the store does not know, or has forgotten.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
        pub forgotten: Vec<RunId>,
        /// Environments of the worker's host that nobody needs any more.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
        pub environments: Vec<OnRecord>,
    }

    /// Somebody begins to remove an environment.
    #[serde(deny_unknown_fields)]
    struct Destroy {
        /// The environment.
        pub environment: Id,
        /// Its files are there.
        pub present: bool,
    }

    /// Whether it may be removed.
    struct MayDestroy {
        /// The attempt's number, if it may.
        pub attempt: Option<u32>,
    }

    /// How removing an environment went.
    #[serde(deny_unknown_fields)]
    struct Destroyed {
        /// The environment.
        pub environment: Id,
        /// The attempt's number.
        pub attempt: u32,
        /// What went wrong.
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
}

/// Which log of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// What the step printed.
    Step,
    /// What the setup of its environment printed.
    Setup,
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
    /// Where the piece begins.
    pub offset: u64,
    /// How long the whole log is, once it does not grow any more.
    pub whole: Option<u64>,
    /// The file that holds it on the worker's host, until all of it was received.
    pub path: Option<String>,
}
