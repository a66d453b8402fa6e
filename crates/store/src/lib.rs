//! The only writer of statuses.
//!
//! ```text
//!   executor() worker() reaper() person()      one handle for each kind of caller: writes
//!   queries()                                  named reads, each of one consistent state
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

mod accounts;
mod answers;
mod author;
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
mod ops;
mod outcome;
mod outside;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(not(feature = "postgres"))]
#[path = "no_postgres.rs"]
mod postgres;
mod queries;
mod remote_worker;
mod retention;
mod roles;
mod rows;
mod rules_role;
mod run_state;
mod runtime;
mod service;
mod session;
mod sqlite;
#[doc(hidden)]
pub mod testing;
mod triggers;
mod wake;
mod words;

pub use accounts::{AccountBusy, AccountWait};
pub use answers::{Answer, OpenQuestion, Question};
pub use author::{Author, acting_as, acting_for_step, current_author, in_this_request};
pub use backend::QueueRow;
pub use boards::{BoardRow, NoteRow};
pub use clock::{Clock, Entropy, Manual, Now, System, fnv, mix};
pub use error::{Error, Result, bugs, record_bug};
pub use evaluator::{NoEvaluator, Prepared, SpecError, SpecEvaluator};
pub use gathered::StepsRead;
pub use handle::Store;
pub use names::{ITEM, is_current, is_task, outputs_of, run_names, step_name};
pub use ops::{
    Added, AskRefused, Assignment, Claimer, Created, Decided, ENFORCEMENT_KEY, Ending, EnvironmentDetails,
    EnvironmentRequest, Finished, FireEvent, FireTick, Fired, Forgettable, Forgot, Got, Heard, IfCurrent,
    Keep, KeptBecause, Lease, Lost, MOST_AT_ONCE, MOST_TASKS, NewBoard, NewDelivery, NewHold, NewRule,
    NewRun, NewTask, NewWorker, NextTick, Overlap, PermissionAsk, PermissionState, Provide, QuestionState,
    REVIEW_TAG, Rate, Receipt, RemoteBeat, Renewal, RuleApplied, RuleChange, RuleSeen, Settled, Sighting,
    Signalled, TASKS, TaskMoved, ThreadEntry, ThreadIntent, Told, TriggerDecision, TriggeredRun, UsageLimit,
    UsedServices, Window, WorkerLimit, answer_text, answer_with_fields, answerers_of, environment_of,
    kept_because, plan_hash, thread_id, why_void,
};
pub use outcome::{NotApplied, Outcome};
pub use queries::{
    AccountState, BoardState, EntryWithExecutions, JournalPage, ListedRun, OpenStep, OpenTask, OpenWork,
    Overdue, PlannedRun, Queries, QueueOverview, ReservedRun, RunEnvironments, RunInFull, RunWithSteps,
    RunningExecution, StepOutput, TaskState, UnsettledRun, WaitFacts, WorkLeft, WorkLeftKind,
};
pub use remote_worker::RemoteHolder;
pub use retention::{Bite, PlansForgotten};
pub use roles::{Claims, Executor, LeaseHolder, Person, Reaper};
pub use rows::{
    AccountReport, AccountRow, DeliveryRow, EnforcementRow, EnvironmentReport, EnvironmentRow, ExecutionRow,
    GateKind, GateRow, Id, ItemList, JournalEntry, OutboxRow, Position, Refusal, Row, RuleRow, RunRow,
    StepRow, ThreadReport, ThreadRow, TimerRow, WorkerRow, account_id,
};
pub use run_state::DEFAULT_QUEUE;
pub use runtime::{Fate, Runtime, SimulatedRuntime, Task, Written};
pub use service::{ActRow, Delivery, HookRow, Observer, QueueCount, Service, TokenRow};
pub use sqlite::{FILE_NAME, SCHEMA_VERSION, SqliteOptions};
pub use wake::{Reach, Subscription, Topic};
