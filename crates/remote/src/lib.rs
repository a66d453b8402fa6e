//! A worker without a database: it claims, renews and reports over HTTP.
//!
//! ```text
//!   Elsewhere ─▶ Worker<Remote> ─▶ Client ──HTTP──▶ /v1/work/* ─▶ store
//!                    │                ▲
//!                    ▼                │ logs, by offset
//!                Streaming ─▶ Handlers (commands under supervisors, as everywhere)
//! ```
//!
//! Whatever is asked may be lost on the way there or back, and is asked again in a way that does no harm: a claim
//! by its nonce, a report word for word, a piece of a log by its offset. What is held is held by this machine's
//! clock, counted from before the server was asked; the supervisors end what was not renewed in time.

mod backoff;
mod client;
mod desk;
mod elsewhere;
mod error;
mod logs;
mod records;
mod tidy;

pub use client::{Address, Client};
pub use desk::Remote;
pub use elsewhere::{Abandoner, Elsewhere, Options};
pub use error::Error;
