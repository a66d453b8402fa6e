//! Handoff over NATS JetStream: the relay publishes the journal, and messages tell workers which executions to
//! claim.
//!
//! ```text
//!   store ──journal──▶ Relay ──▶ PREFIX.work.QUEUE   ──pull──▶ BusWorkSource ──compare-and-set──▶ store
//!            (outbox)    ├─────▶ PREFIX.worker.ID    ─────────▶ reserved work and cancel requests of one worker
//!                        └─────▶ PREFIX.events.RUN.… ─────────▶ any subscriber
//! ```
//!
//! The store stays the only authority. A message is a hint that the store confirms by comparing the fence.
//! Workers also poll the store, so a lost message only adds latency. While the broker does not answer, workers
//! use the store's own notifications. `docs/bus.md` describes the subjects and the JSON.

mod address;
mod bus;
mod counts;
mod examine;
mod health;
mod message;
mod pull;
mod relay;
mod subjects;
mod work_source;

pub use address::{Address, AddressError};
pub use bus::{Bus, Error};
pub use counts::{Counts, snapshot};
pub use examine::{BrokerReport, StreamReport, StreamState, Unusable, examine};
pub use message::Handoff;
pub use relay::{Relay, RenderEntry};
pub use subjects::Subjects;
pub use work_source::BusWorkSource;
