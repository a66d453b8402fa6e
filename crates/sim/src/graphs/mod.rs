//! Random pipelines, the behaviour of their steps, and the expected outcome.
//!
//! ```text
//!   seed ──▶ generate: plans and scripts ──┬──▶ play: the store's own operations, in a random order
//!                                          └──▶ reference: possible ends of each step ──▶ compared
//! ```
//!
//! Nothing here decides what the engine does: the player only calls operations and reports the results in the scripts,
//! and the reference does not use the walk.

mod compare;
mod generate;
mod play;
mod reference;
mod script;

pub use compare::compare;
pub use generate::{Graph, Size, add_graph, graph};
pub use play::{Disturbances, describe, play};
pub use reference::{Expected, Prior, expect, prior};
pub use script::{Chance, Fault, Script, Scripts, WaitsFor};
