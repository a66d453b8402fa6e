//! Tests of the supervisor with real processes. Every test starts its own, and kills only its own.

mod common;
mod deaths;
mod ends;
mod escapes;
mod locks;
mod logs;
mod sandboxes;
mod trees;
mod wires;
