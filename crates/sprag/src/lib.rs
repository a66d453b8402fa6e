//! Durable, ordered, exactly-owned pipelines inside a program.
//!
//! Open an [`Engine`] on a folder, register handlers, start runs of pipelines, and watch them. The engine commits every
//! change to disk before it reports it, so a program that is killed at any moment resumes where it stopped.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use sprag::{Context, Engine, Pipeline, RunStatus};
//!
//! #[derive(Deserialize)]
//! struct Order {
//!     cents: u64,
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Receipt {
//!     number: u64,
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let data = folder.path();
//! let engine = Engine::sqlite(data)
//!     .handler("charge", |ctx: Context, order: Order| async move {
//!         ctx.log(format!("charging {} cents", order.cents));
//!         Ok(Receipt { number: order.cents / 100 })
//!     })
//!     .start()
//!     .await?;
//!
//! let pipeline = Pipeline::parse(
//!     "
//! inputs:
//!   cents: { type: integer }
//! steps:
//!   - id: charge
//!     call: { handler: charge, with: { cents: '{{ inputs.cents }}' } }
//! ",
//! )?;
//! let run = engine.new_run(&pipeline).input("cents", 4200).start().await?;
//! assert_eq!(run.wait().await?, RunStatus::Completed);
//! let receipt: Option<Receipt> = run.output("charge")?;
//! assert_eq!(receipt.map(|receipt| receipt.number), Some(42));
//! engine.shutdown().await?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! Transitions and events happen exactly once. A step's effects happen at least once, with at most one start per attempt:
//! use [`Context::idempotency_key`] for effects outside of the program, and [`Context::fence`] where the other side can
//! check that it only grows.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `postgres` | yes | `Engine::postgres`: runs in a database that any number of machines share |
//! | `nats` | yes | `EngineBuilder::nats`: a broker that tells workers of new work |
//! | `server` | no | `Engine::serve`: the HTTP API of the program `sprag`, in this process |

mod engine;
mod error;
mod event;
mod handler;
mod pipeline;
mod rule;
mod run;
#[cfg(feature = "server")]
mod server;
mod thread;

pub use engine::{Engine, EngineBuilder};
pub use error::Error;
pub use event::{Event, Events};
pub use pipeline::Pipeline;
pub use rule::Rule;
pub use run::{NewRun, Run};
#[cfg(feature = "server")]
pub use server::Server;
#[doc(inline)]
pub use sprag_app::rules::{
    AppliedRule, Backfilled, DecisionView, DeliveryView, ExplainedRule, RuleOutcome, RuleView, TestView,
    TickView,
};
#[doc(inline)]
pub use sprag_app::{
    Context, ErrorKind, HandlerError, RunId, RunStatus, StepState, StepStatus, ThreadView, TranscriptEvent,
    TranscriptPage, run_if_supervisor,
};
pub use thread::Thread;
