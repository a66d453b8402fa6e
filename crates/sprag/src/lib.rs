//! Durable, ordered, exactly-owned pipelines inside a program.
//!
//! Open an [`Engine`] on a folder, register handlers, submit pipelines, and watch them. Everything is on
//! disk before anybody is told of it: a program that is killed at any moment goes on where it was.
//!
//! ```
//! use serde_json::json;
//! use sprag::{Engine, RunStatus};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let data = folder.path();
//! let engine = Engine::builder(data)
//!     .handler("double", |call: sprag::Call| async move {
//!         let n = call.with["n"].as_i64().ok_or("n is missing")?;
//!         Ok(json!(n * 2))
//!     })
//!     .start()
//!     .await?;
//!
//! let pipeline = sprag::parse("sums.yaml", "
//! steps:
//!   - id: first
//!     call: { handler: double, with: { n: 21 } }
//!   - id: second
//!     call: { handler: double, with: { n: 4 } }
//! ")?;
//! let run = engine.submit(&pipeline, &Default::default()).await?;
//! assert_eq!(engine.wait(run).await?, RunStatus::Completed);
//! assert_eq!(engine.output(run, "first")?, Some(json!(42)));
//! engine.shutdown().await?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! What is promised: transitions and events happen exactly once; a step's effects at least once, with at
//! most one start per attempt. Use [`Call::idempotency_key`] for effects outside, and [`Call::fence`]
//! where something can check that it only grows.

mod again;
pub mod boards;
mod chores;
mod complaint;
mod engine;
mod environments;
mod events;
mod explain;
pub mod gates;
mod known;
mod language;
mod queues;
pub mod retention;
pub mod text;
mod tidy;
pub mod view;

pub use again::{again, fork, is_attended, repository_of, take_from_the_dead, whole, works};
pub use chores::{Chore, Limits};
pub use complaint::{Complaint, Kind as ComplaintKind};
pub use engine::{Abandoner, Builder, Engine, Error, Pulse};
pub use environments::{Details, Environments, Then, put_away};
pub use events::Events;
pub use explain::{Explained, RefusedView, Unsettled, explain, gate_text};
pub use known::{Known, Names, find_run};
pub use language::PipelineLanguage;
pub use queues::change_queue;
pub use sprag_bus as bus;
pub use sprag_executor::{Effect, EffectFuture};
pub use sprag_lifecycle::{ExecutionId, Plan, RunId, RunStatus, StepStatus, Word};
pub use sprag_pipeline::{Diagnostics, Loaded, Pipeline};
pub use sprag_process::run_if_supervisor;
pub use sprag_store::{JournalEntry, Row, Store};
pub use sprag_worker::{Call, CallError, Files};

/// Loads a pipeline file.
pub fn load(path: &std::path::Path) -> Result<Pipeline, Diagnostics> {
    sprag_pipeline::load(path).map(|loaded| loaded.pipeline)
}

/// Reads a pipeline from a text; `name` stands for the file in messages.
pub fn parse(name: &str, source: &str) -> Result<Pipeline, Diagnostics> {
    sprag_pipeline::parse(name, source).map(|loaded| loaded.pipeline)
}

/// Opens the PostgreSQL database that a URL names, making its tables if they are not there.
pub fn open_postgres(url: &str) -> sprag_store::Result<Store> {
    Ok(Store::open_postgres(url)?.speaking(std::sync::Arc::new(PipelineLanguage)))
}

/// Opens the store in a folder, making both if they are not there.
pub fn open(folder: &std::path::Path) -> sprag_store::Result<Store> {
    Ok(Store::open(folder)?.speaking(std::sync::Arc::new(PipelineLanguage)))
}
