//! A worker without a database: it claims, renews and reports over HTTP.
//!
//! ```text
//!   Elsewhere ─▶ Worker<Remote> ─▶ Client ──HTTP──▶ /v1/work/* ─▶ store
//!                    │                ▲
//!                    ▼                │ logs, by offset
//!                Streaming ─▶ Handlers (commands under supervisors, as everywhere)
//! ```
//!
//! Any request or answer may be lost, so each request is safe to repeat: a claim by its nonce, a report because it is
//! sent unchanged, a piece of a log by its offset. Leases are counted by this machine's clock from before the server
//! was asked. The supervisors stop commands whose lease was not renewed in time.

mod backoff;
mod client;
mod elsewhere;
mod error;
mod files;
mod logs;
mod records;
mod stream;
mod tidy;
mod unsent;
mod work_source;

pub use client::{Address, Client, Opened};
pub use elsewhere::{Abandoner, Elsewhere, Options};
pub use error::Error;
pub use stream::{EventStream, StreamEvent};
pub use work_source::Remote;
