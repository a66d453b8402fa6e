//! The only writer of statuses.
//!
//! ```text
//!   executor() worker() reaper() person()      who may ask for what: one handle each
//!            │
//!   ops: create, claim, finish, cancel, …      one transaction each; they report events
//!            │
//!   Session: evaluate the table, change rows, journal        (written once, for all stores)
//!            │
//!   Backend: memory │ SQLite │ PostgreSQL      rows, compare-and-set, ordered queries
//! ```

#![cfg_attr(
    not(feature = "postgres"),
    expect(dead_code, reason = "the PostgreSQL store alone uses parts of what all stores share")
)]

mod answers;
mod backend;
mod blocked;
mod boards;
mod clock;
mod columns;
mod error;
mod evaluator;
mod gathered;
mod handle;
mod job;
mod journal;
mod memory;
mod names;
pub mod ops;
mod outcome;
mod outside;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(not(feature = "postgres"))]
#[path = "no_postgres.rs"]
mod postgres;
mod retention;
mod roles;
mod rows;
mod run_state;
mod runtime;
mod service;
mod session;
mod sqlite;
mod wake;
mod words;

pub use answers::{Answer, OpenQuestion, Question};
pub use backend::{Backend, Candidate, QueueRow, Table};
pub use boards::{BoardRow, Boards, NoteRow};
pub use clock::{Clock, Entropy, Manual, Now, System, fnv, mix};
pub use error::{Error, Result, bugs, record_bug};
pub use evaluator::{NoEvaluator, Prepared, SpecEvaluator};
pub use gathered::StepsRead;
pub use handle::Store;
pub use memory::{REFUSALS_KEPT, Tables};
pub use names::{ITEM, is_task, outputs_of, run_names, step_name};
pub use outcome::{NotApplied, Outcome};
pub use retention::{Bite, Part, PlansForgotten, Retention};
pub use roles::{Claims, Executor, LeaseHolder, Person, Reaper};
pub use rows::{
    EnforcementRow, EnvironmentReport, EnvironmentRow, ExecutionRow, GateKind, GateRow, Id, ItemList,
    JournalEntry, OutboxRow, Position, Refusal, Row, RunRow, StepRow, ThreadReport, ThreadRow, TimerRow,
    WorkerRow,
};
pub use run_state::DEFAULT_QUEUE;
pub use runtime::{Fate, Runtime, SimulatedRuntime, Task, Written};
pub use service::{Delivery, HookRow, Observer, QueueCount, Service, ServiceTables, TokenRow};
pub use session::{Flushed, Session};
pub use sqlite::{FILE_NAME, SCHEMA_VERSION, SqliteOptions};
pub use wake::{Reach, Subscription, Topic};

/// Access for tests that simulate another process's write during a session.
#[doc(hidden)]
pub mod testing {
    pub use crate::columns::{Column, Kind, OneRow, Section, Statements, Table, Type, tables};

    /// Returns the token that allows changing a row.
    pub fn writer_token() -> crate::rows::WriterOnly {
        crate::rows::WriterOnly(())
    }
}
