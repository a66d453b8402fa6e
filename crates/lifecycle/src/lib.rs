//! The lifecycles of everything Sprag keeps: pure tables, and the walk over a run.

mod ids;
mod plan;

pub use ids::{ExecutionId, NotARunId, RunId, StepNo};
pub use plan::{Backoff, Concurrency, Growth, OnFail, Plan, PlanError, PlanStep, Policy};
