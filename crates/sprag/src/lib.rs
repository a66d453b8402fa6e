//! Durable, ordered, exactly-owned pipelines inside a program.
//!
//! Open an [`Engine`] on a folder, register handlers, submit pipelines, and watch them. The engine commits every change to
//! disk before it reports it, so a program that is killed at any moment resumes where it stopped.
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
//! Transitions and events happen exactly once. A step's effects happen at least once, with at most one start per attempt:
//! use [`Call::idempotency_key`] for effects outside of the program, and [`Call::fence`] where the other side can check that
//! it only grows.

pub use sprag_app::{
    Builder, Call, CallError, Diagnostics, Effect, EffectFuture, Engine, Error, ErrorKind, Events,
    JournalEntry, Pipeline, RunId, RunStatus, StepStatus, load, parse, run_if_supervisor,
};
