//! Random pipelines, what their work does, and what must come of them.
//!
//! ```text
//!   seed ──▶ generate: plans and scripts ──┬──▶ world: the store's own operations, in a random order
//!                                          └──▶ reference: what each step may end as ──▶ compared
//! ```
//!
//! Nothing here decides what the engine does: the world only calls operations and reports what the
//! scripts say, and the reference never looks at the walk.

mod generate;
mod reference;
mod script;
mod world;

pub use generate::{Graph, Size, add_graph, graph};
pub use reference::{Expected, Prior, compare, expect, prior};
pub use script::{Chance, Fault, Outside, Script, Scripts};
pub use world::{Trouble, describe, play};
