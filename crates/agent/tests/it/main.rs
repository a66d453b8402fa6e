//! The drivers against recorded streams, hostile streams, the fake agent, and the real agents where they are installed.

mod common;
mod corpus;
mod fake;
mod fake_faults;
mod hostile;
mod live;
mod live_acp;
mod live_claude;
mod live_codex;
mod live_shared;
mod replay;
mod runner;
