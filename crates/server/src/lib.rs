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
mod app;
mod connections;
mod extract;
mod feed;
mod guard;
mod metrics;
mod pipelines;
mod problem;
mod rate;
mod routes;
mod server;

pub use access::{Caller, MayAdmin, MayRead, MayRun, MayWork, Scope, new_token};
pub use app::{App, Auth, Options};
pub use problem::{Answer, Problem, Refused};
pub use routes::openapi;
pub use server::{Server, StartError};
