//! Sprag over HTTP: the API, live events, webhooks, metrics.
//!
//! ```text
//!   client ─▶ connections ─▶ guard (host, token, rate, time) ─▶ routes ─▶ store
//!                                                                 ▲
//!   journal ─▶ feed (one follower) ─▶ streams, metrics ───────────┘
//! ```
//!
//! The server decides nothing about runs: an endpoint reports an event, and the store's tables say what it
//! means. What they refuse is answered with 409 and the outcome.

mod access;
mod agents;
mod app;
mod connections;
mod extract;
mod feed;
mod files;
mod guard;
mod hooks;
mod metrics;
mod pipelines;
mod problem;
mod rate;
mod routes;
mod server;
mod stream;

pub use access::{Caller, MayAdmin, MayRead, MayRun, MayWork, Scope, new_token};
pub use app::{App, Auth, Options};
pub use hooks::{HookFilter, HookView, NewHook, add_hook};
pub use problem::{Answer, Problem, Refused};
pub use routes::openapi;
#[doc(hidden)]
pub use server::unconnected;
pub use server::{Server, StartError};
