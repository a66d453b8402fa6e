//! The lifecycles of all stored entities: pure tables, and the walk over a run.
//!
//! ```text
//!   event ──▶ evaluate(table, status, who, facts) ──▶ apply | superseded | illegal
//!   change ─▶ advance(run) ─────────────────────────▶ the events that follow from it
//! ```
//!
//! Nothing here does I/O, reads a clock, draws a random number or iterates over a hash map. The same state
//! always leads to the same decision, so stores, models and simulations run exactly this code.

mod account;
mod advance;
mod answerers;
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
mod trigger;

pub use account::{Account, AccountEvent, AccountFacts, AccountPredicate, AccountStatus};
pub use advance::{
    BackTo, Items, Needs, NextRound, Quorum, RunNow, RunState, Standing, StepMove, StepNow, Tally, TaskNeed,
    Work, WorkEnd, admit_items, advance, cancel_item, heal, quorum, reopen_item, restart, resume_set,
    standing,
};
pub use answerers::{Answerers, NotBy};
pub use diagram::reference;
pub use environment::{
    Environment, EnvironmentEvent, EnvironmentFacts, EnvironmentPredicate, EnvironmentStatus,
};
pub use execution::{Execution, ExecutionEvent, ExecutionFacts, ExecutionPredicate, ExecutionStatus};
pub use ids::{ExecutionId, RunId, RunIdError, StepNo};
pub use plan::{
    Backoff, Concurrency, Condition, DEFAULT_LOSSES, Growth, OUTER_INPUT, OnConflict, OnFail, Plan,
    PlanAccount, PlanEnvironment, PlanError, PlanFallback, PlanOutputs, PlanStep, Policy, Repeat,
    SERVICE_PRIORITY, Spread, WorkKind,
};
pub use run::{Run, RunEvent, RunFacts, RunPredicate, RunStatus};
pub use small::{
    Gate, GateEvent, GateFacts, GatePredicate, GateStatus, WorkerEvent, WorkerFacts, WorkerPredicate,
    WorkerPresence, WorkerStatus,
};
pub use step::{Step, StepEvent, StepFacts, StepPredicate, StepStatus};
pub use table::{Actor, Lifecycle, Rule, To, Verdict, Word, evaluate};
pub use thread::{Thread, ThreadEvent, ThreadFacts, ThreadPredicate, ThreadStatus};
pub use trigger::{
    Enforcement, EnforcementEvent, EnforcementFacts, EnforcementPredicate, EnforcementStatus, RuleEvent,
    RuleFacts, RulePredicate, RuleStatus, TriggerRule,
};
