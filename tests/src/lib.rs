//! Helpers of the end-to-end tests: a private folder, the real program, and bounded waits.
//!
//! ```text
//!   Sandbox ──start──▶ Started (a `sprag` process) ──finish──▶ Answer (exit code, stdout, stderr)
//!      └──journal──▶ Journal: replayed, and compared with what `sprag status` says
//! ```

mod cable;
pub mod chaos;
mod conformance;
mod disk;
mod hand_worker;
mod host;
mod http;
mod journal;
mod machine;
mod nats;
mod project;
mod proxy;
mod python;
mod random;
mod sandbox;
mod terminal;
mod traced;
mod wait;

pub use cable::Cable;
pub use disk::Disk;
pub use hand_worker::HandWorker;
pub use host::{Host, through};
pub use http::{Answering, Event, Reply, Request, Server, connect};
pub use journal::{Entry, Journal};
pub use machine::{carrying, children, command_line, is_running, peak_mib, signal};
pub use nats::Nats;
pub use project::{Project, git, nightly, try_git};
pub use proxy::Proxy;
pub use python::python;
pub use random::Random;
pub use rustix::process::Signal;
pub use sandbox::{Answer, Sandbox, Started, program};
pub use terminal::Terminal;
pub use traced::{End, Traced};
pub use wait::{SOON, now_ms, until, until_some, within};
