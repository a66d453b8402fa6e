//! Sprag over HTTP: the API, live events, webhooks, metrics.
//!
//! ```text
//!   client ─▶ connections ─▶ guard (host, token, rate, time) ─▶ routes ─▶ store
//!                                                                 ▲
//!   journal ─▶ feed (one follower) ─▶ streams, metrics ───────────┘
//! ```
//!
//! The server decides nothing about runs: an endpoint reports an event, and the store's tables decide its effect. If
//! they refuse it, the endpoint answers 409 with the outcome.

mod access;
mod agents;
mod bodies;
mod connections;
mod endpoints;
mod extract;
mod feed;
mod files;
mod guard;
mod hooks;
mod local_token;
mod metrics;
mod pages;
mod permits;
mod pipelines;
mod problem;
mod rate;
mod routes;
mod server;
mod session;
mod state;
mod stream;

pub use access::{Caller, MayAdmin, MayRead, MayRun, MayWork};
pub use hooks::{HookMeans, test_hook};
pub use local_token::{local_token_file, read_local_token};
pub use pipelines::files as pipeline_files;
pub use problem::{Answer, Problem, Refused};
pub use routes::openapi;
#[doc(hidden)]
pub use server::unconnected;
pub use server::{Server, StartError};
pub use state::{Auth, Options, ServerState};
