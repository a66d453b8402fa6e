//! The supervisor with real processes: every test starts its own, and ends only its own.

mod common;
mod deaths;
mod ends;
mod locks;
mod logs;
mod trees;
