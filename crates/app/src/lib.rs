//! Every use case of Sprag, once: the command line, the HTTP API, MCP and the library call this crate, and none of them
//! decides anything by itself.
//!
//! ```text
//!   cli │ server │ mcp │ sprag (library) ──▶ app ──▶ executor, worker, bus ──▶ store, worktree, process, pipeline
//! ```

mod accounts;
mod agents;
mod app;
mod audit;
mod author;
mod beginning;
pub mod boards;
mod changes;
mod chores;
mod claims;
mod conversation;
mod data_folder;
mod durations;
mod engine;
mod environments;
mod error;
mod evaluator;
mod events;
mod explain;
mod failures;
pub mod gates;
mod graph;
pub mod hooks;
mod idempotency;
mod idle;
mod items;
mod known;
mod labels;
mod landings;
pub mod layout;
mod live;
mod local_files;
mod log_lines;
mod logs;
mod outputs;
mod queries;
mod queues;
mod reach;
mod refused;
mod resume;
pub mod retention;
mod review;
pub mod rules;
mod runs;
mod secret;
mod secret_inputs;
mod step_agent;
mod steps;
pub mod text;
mod threads;
mod tidy;
pub mod tokens;
mod transcript;
mod uncommitted;
pub mod view;
mod waiting;
mod waiting_for;
mod workers;

pub use accounts::AccountView;
pub use agents::{AgentState, agent_states, missing_agents};
pub use app::App;
pub use audit::{Audit, AuditFilter, AuditView, MOST_AUDITED};
pub use author::local_author;
pub use changes::{FileChange, MOST_OVER_HTTP, RunChanges, RunDiff, run_changes, run_diff};
pub use chores::{Chore, Limits};
pub use conversation::{ThreadDetail, ThreadMessage, ThreadPart};
pub use data_folder::{Closed, make_private, openings};
pub use durations::DurationsView;
pub use engine::{Abandoner, Builder, Engine, Pulse};
pub use environments::{Environments, OutOfOrder, Then, is_landing, remove_or_pool};
pub use error::{Error, ErrorKind, Hint};
pub use evaluator::{MarkedEvaluator, PipelineEvaluator};
pub use events::{Events, check_seq};
pub use explain::{
    BlockedStep, Explained, RefusedView, Unsettled, Wait, explain, explain_with_inner, explain_within,
    gate_text,
};
pub use failures::{FailedStep, failures, why_attempt_failed, why_ended, why_failed, why_step_failed};
pub use graph::{GraphLayout, GraphStep, GraphView};
pub use idempotency::RunRequest;
pub use idle::first_left;
pub use items::{item_names, named_item};
pub use known::{Names, RunWithPlan, StepPath, find_run, find_run_within};
pub use labels::{RunLabels, parse_labels};
pub use landings::{LandingState, LandingView, LandingsView, TurnView};
pub use live::{ExecutingView, LiveView, WaitingCause};
pub use local_files::LocalFiles;
pub use log_lines::{LogHits, LogLine, LogLines, LogPart, read_lines, search_lines};
pub use logs::{LogPlace, MissingLog, find_attempt, log_place, missing_logs, why_no_log};
pub use outputs::StepState;
pub use reach::{Reach, ReachedRuns, Subject};
pub use refused::RefusedEvents;
pub use resume::{
    abandon_dead_owners, abandon_the_dead, fork, host_elsewhere, is_attended, repository_of, resume_from,
    run_environment, take_over,
};
pub use review::{CommentView, ReviewComment, ReviewSide};
pub use runs::{Cancelled, DamagedRun, ForkRun, MOST_RUNS, RunCounts, RunFilter, RunPage, StartRun, Started};
pub use secret::{fill_random, hex};
pub use sprag_agent::fake;
#[cfg(feature = "nats")]
pub use sprag_bus as bus;
pub use sprag_lifecycle::{ExecutionId, Plan, RunId, RunStatus, StepStatus, Word};
pub use sprag_pipeline::{Diagnostics, LoadedPipeline, Pipeline, Selection, time_ms};
pub use sprag_process::run_if_supervisor;
pub use sprag_store::{
    Author, BoardRow, Delivery, DeliveryRow, EnforcementRow, EnvironmentDetails, EnvironmentRow,
    ExecutionRow, GateKind, GateRow, HookRow, Id, JournalEntry, JournalPage, NewWorker, NotApplied, Now,
    Observer, OpenTask, QueueRow, Row, RuleRow, RunInFull, RunRow, StepRow, Subscription, TokenRow, Topic,
    WorkerRow, acting_as, answerers_of, bugs, current_author, step_name,
};
pub use sprag_sweeper::{Effect, EffectFuture};
pub use sprag_worker::{
    Context, Files, HandlerError, RepositoryAgents, STEP_SOCKET, STEP_TOKEN, STEP_TOKEN_PREFIX, ServedTools,
    StepTools, repository_agents, set_trust, transcript_text,
};
pub use step_agent::{StepAgent, StepAnswer, StepNote, StepQuestion};
pub use steps::StepChange;
pub use threads::{TALK, ThreadView, talk_policy};
pub use transcript::{MOST_EVENTS, TranscriptEvent, TranscriptPage, TranscriptReader};
pub use uncommitted::{CheckoutLooks, check_worktree, refuse_uncommitted, uncommitted};
pub use waiting::{Course, Waiting, agent_waits, course, keep_time, questions_alone};
pub use waiting_for::{RunWaits, WaitingFor};
pub use workers::RemoteWorker;

/// Loads a pipeline file.
pub fn load(path: &std::path::Path) -> Result<Pipeline, Diagnostics> {
    sprag_pipeline::load(path).map(|loaded| loaded.pipeline)
}

/// Loads a pipeline file that is below a folder, as must be all files that it names.
pub fn load_within(path: &std::path::Path, folder: &std::path::Path) -> Result<Pipeline, Diagnostics> {
    sprag_pipeline::load_within(path, folder).map(|loaded| loaded.pipeline)
}

/// Reads a pipeline from a text; `name` stands for the file in messages.
pub fn parse(name: &str, source: &str) -> Result<Pipeline, Diagnostics> {
    sprag_pipeline::parse(name, source).map(|loaded| loaded.pipeline)
}
