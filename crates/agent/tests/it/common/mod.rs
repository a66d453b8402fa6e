//! Shared test support: events as one line each, recordings, and a conversation with a real process.

pub mod brief;
pub mod fakes;
pub mod process;
pub mod recording;
