//! The lifecycles of everything Sprag keeps: pure tables, and the walk over a run.
//!
//! ```text
//!   event ──▶ evaluate(table, status, who, facts) ──▶ apply | superseded | illegal
//!   change ─▶ advance(run) ─────────────────────────▶ the events that follow from it
//! ```
//!
//! Nothing here does I/O, reads a clock, draws a random number, or iterates over a hash map: given the
//! same state it decides the same, so that stores, models and simulations all run exactly this code.

mod advance;
mod diagram;
mod environment;
mod execution;
pub mod graph;
mod ids;
pub mod mutants;
mod plan;
mod run;
mod small;
mod step;
mod table;
mod thread;

pub use advance::{
    Following, Items, Needs, RunNow, RunState, Standing, StepMove, StepNow, Tally, Work, WorkEnd, advance,
    cancel_item, heal, reopen_item, restart, resume_set, standing, take_up,
};
pub use diagram::reference;
pub use environment::{
    Environment, EnvironmentEvent, EnvironmentFacts, EnvironmentPredicate, EnvironmentStatus,
};
pub use execution::{Execution, ExecutionEvent, ExecutionFacts, ExecutionPredicate, ExecutionStatus};
pub use ids::{ExecutionId, NotARunId, RunId, StepNo};
pub use plan::{
    Backoff, Concurrency, Condition, DEFAULT_LOSSES, Growth, OnConflict, OnFail, Plan, PlanError, PlanStep,
    Policy, Spread, Surroundings, WorkKind,
};
pub use run::{Run, RunEvent, RunFacts, RunPredicate, RunStatus};
pub use small::{
    Enforcement, EnforcementEvent, EnforcementPredicate, EnforcementStatus, Gate, GateEvent, GateFacts,
    GatePredicate, GateStatus, WorkerEvent, WorkerFacts, WorkerPredicate, WorkerPresence, WorkerStatus,
};
pub use step::{Step, StepEvent, StepFacts, StepPredicate, StepStatus};
pub use table::{Actor, Lifecycle, Rule, To, Verdict, Word, evaluate};
pub use thread::{Thread, ThreadEvent, ThreadFacts, ThreadPredicate, ThreadStatus};
