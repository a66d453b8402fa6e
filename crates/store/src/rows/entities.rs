//! The rows of environments, gates and workers.

use std::sync::Arc;

use sprag_lifecycle::{
    Environment, EnvironmentFacts, EnvironmentStatus, Gate, GateFacts, GateStatus, RunId, StepNo,
    WorkerFacts, WorkerPresence, WorkerStatus,
};

use super::{Id, Position, Row, Status, WriterOnly};

/// The place where a run works.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EnvironmentRow {
    /// The environment's number.
    pub id: Id,
    pub(crate) status: EnvironmentStatus,
    pub(crate) version: u32,
    /// The run for which it was created.
    pub run: Option<RunId>,
    /// The step that uses it alone; absent if the whole run uses it.
    pub scope: Option<StepNo>,
    /// The host of the environment; empty after the host was lost.
    pub host: Arc<str>,
    /// The path of the directory.
    pub path: Arc<str>,
    /// Whether Sprag created it, so that Sprag may remove it.
    pub managed: bool,
    /// Whether its removal was requested.
    pub cleanup_requested: bool,
    /// The number of the present attempt to create it.
    pub provision_attempt: u32,
    /// The number of the present attempt to remove it.
    pub destroy_attempt: u32,
    /// The worker that creates or removes it.
    pub owner: Option<Id>,
    /// The reason of the last failure.
    pub reason: Option<Arc<str>>,
    /// The repository, the branch and other facts, as JSON.
    pub details: Arc<str>,
    /// The time of the first request for it (wall clock).
    pub created_ms: i64,
}

/// The facts that a reporter gives besides an environment's row.
#[derive(Debug, Clone, Copy, Default)]
pub struct EnvironmentReport {
    /// The provision or destroy attempt that the reporter saw.
    pub attempt: u32,
    /// Whether the directory exists.
    pub path_present: bool,
    /// Whether the host's lease has expired.
    pub host_lease_lapsed: bool,
    /// Whether the host is permanently gone.
    pub host_gone: bool,
    /// Whether the worker that was removing it is gone.
    pub destroyer_gone: bool,
    /// The number of live runs and threads that use it.
    pub live_users: u32,
}

impl Row for EnvironmentRow {
    row_basics!(Environment, Id, EnvironmentReport);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &EnvironmentReport) -> EnvironmentFacts {
        EnvironmentFacts {
            provision_attempt_matches: given.attempt == self.provision_attempt,
            destroy_attempt_matches: given.attempt == self.destroy_attempt,
            host_lease_lapsed: given.host_lease_lapsed,
            managed: self.managed,
            cleanup_requested: self.cleanup_requested,
            path_present: given.path_present,
            host_gone: given.host_gone,
            live_users: given.live_users,
            destroyer_gone: given.destroyer_gone,
        }
    }

    fn place(&self) -> Position {
        Position { run: self.run, id: Some(self.id), ..Position::default() }
    }

    fn note(&self) -> Option<Arc<str>> {
        let mut note = serde_json::Map::new();
        if !self.path.is_empty() {
            note.insert("path".into(), (*self.path).into());
        }
        if let Some(reason) = &self.reason {
            note.insert("reason".into(), (**reason).into());
        }
        (!note.is_empty()).then(|| serde_json::Value::Object(note).to_string().into())
    }
}

/// An outside event for which a run waits: an answer, a time, or a signal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GateRow {
    /// The gate's number.
    pub id: Id,
    pub(crate) status: GateStatus,
    pub(crate) version: u32,
    /// The run of the step that waits.
    pub run: RunId,
    /// The step that waits.
    pub step: StepNo,
    /// The attempt at the step.
    pub attempt: u32,
    /// The kind of event for which it waits.
    pub kind: GateKind,
    /// The question as JSON (text and choices), or the signal's name.
    pub question: Arc<str>,
    /// The time for which it waits (wall clock); 0 for none.
    pub until_ms: i64,
    /// The time at which it was opened (wall clock).
    pub opened_ms: i64,
    /// The answer, as JSON; absent until it is given.
    pub answer: Option<Arc<str>>,
    /// The time at which it expires (steady); 0 for never.
    pub timeout_at_ms: i64,
}

/// The kind of event for which a gate waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GateKind {
    /// A person's answer.
    Question,
    /// A time.
    Time,
    /// A signal from outside.
    Signal,
}

impl GateKind {
    /// Returns the word of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            GateKind::Question => "question",
            GateKind::Time => "time",
            GateKind::Signal => "signal",
        }
    }

    /// Returns the kind of this word.
    pub fn parse(word: &str) -> Option<GateKind> {
        [GateKind::Question, GateKind::Time, GateKind::Signal].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// The facts that a reporter gives besides a gate's row.
#[derive(Debug, Clone, Copy)]
pub struct GateReport {
    /// The present time (steady).
    pub now_ms: i64,
}

impl GateRow {
    /// Whether the answer lets the run continue.
    pub fn is_approved(&self) -> bool {
        let answer =
            self.answer.as_deref().and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        answer.is_some_and(|answer| answer["approved"] == true)
    }
}

impl Row for GateRow {
    row_basics!(Gate, Id, GateReport);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &GateReport) -> GateFacts {
        GateFacts { timeout_passed: self.timeout_at_ms > 0 && self.timeout_at_ms <= given.now_ms }
    }

    fn place(&self) -> Position {
        Position {
            run: Some(self.run),
            step: Some(self.step),
            attempt: Some(self.attempt),
            id: Some(self.id),
        }
    }
}

/// A worker, which claims from queues.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerRow {
    /// The worker's number.
    pub id: Id,
    pub(crate) status: WorkerStatus,
    pub(crate) version: u32,
    /// The worker's name for itself.
    pub name: Arc<str>,
    /// The worker's host, pid, start time, boot id and pid namespace, in one text.
    pub process: Arc<str>,
    /// The queues it serves, separated by commas.
    pub queues: Arc<str>,
    /// The labels that steps may require, separated by commas.
    pub labels: Arc<str>,
    /// The most executions that it holds at once.
    pub slots: u32,
    /// The time until which it counts as present without another heartbeat (steady).
    pub heartbeat_until_ms: i64,
    /// The time of its first registration (wall clock).
    pub created_ms: i64,
}

impl WorkerRow {
    /// Whether it takes executions of this queue.
    pub fn serves(&self, queue: &str) -> bool {
        self.queues.split(',').any(|served| served == queue)
    }

    /// Whether it has all labels that a step requires.
    pub fn has_all(&self, labels: &[String]) -> bool {
        labels.iter().all(|wanted| self.labels.split(',').any(|label| label == wanted))
    }

    /// Returns the host of its process.
    pub fn host(&self) -> &str {
        self.process.split('/').next().unwrap_or_default()
    }
}

/// The facts that a reporter gives besides a worker's row.
#[derive(Debug, Clone, Copy)]
pub struct WorkerReport {
    /// The present time (steady).
    pub now_ms: i64,
    /// Whether its process is gone.
    pub process_gone: bool,
}

impl Row for WorkerRow {
    row_basics!(WorkerPresence, Id, WorkerReport);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &WorkerReport) -> WorkerFacts {
        WorkerFacts {
            heartbeat_overdue: self.heartbeat_until_ms <= given.now_ms,
            process_gone: given.process_gone,
        }
    }

    fn place(&self) -> Position {
        Position { id: Some(self.id), ..Position::default() }
    }
}
