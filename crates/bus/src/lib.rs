//! Hand-off through NATS JetStream: the journal is published, and workers are told what to receive.
//!
//! ```text
//!   store ──journal──▶ Relay ──▶ PREFIX.work.QUEUE   ──pull──▶ BusDesk ──receive by compare-and-set──▶ store
//!            (outbox)    ├─────▶ PREFIX.worker.ID    ─────────▶ what a worker holds is to end
//!                        └─────▶ PREFIX.events.RUN.… ─────────▶ whoever subscribes
//! ```
//!
//! The broker is trusted with nothing. A message is a hint that the store confirms by its fence, and a hint that is
//! lost costs time only: a worker looks by itself, and where the broker does not answer it listens to the store as
//! if there were none. See `docs/bus.md` for subjects and JSON.

mod address;
mod bus;
mod counts;
mod desk;
mod examine;
mod health;
mod message;
mod pull;
mod relay;
mod subjects;

pub use address::{Address, NotAnAddress};
pub use bus::{Bus, Trouble};
pub use counts::{Counts, snapshot};
pub use desk::BusDesk;
pub use examine::{Examined, Lack, StreamFacts, StreamState, examine};
pub use message::Handoff;
pub use relay::{Relay, WriteOut};
pub use subjects::Subjects;
