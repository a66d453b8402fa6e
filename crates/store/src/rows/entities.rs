//! The rows of what is neither run, step nor execution: environments, threads, gates, workers, enforcements.

use std::sync::Arc;

use sprag_lifecycle::{
    Enforcement, EnforcementStatus, Environment, EnvironmentFacts, EnvironmentStatus, Gate, GateFacts,
    GateStatus, RunId, StepNo, Thread, ThreadFacts, ThreadStatus, WorkerFacts, WorkerPresence, WorkerStatus,
};

use super::{Id, Place, Row, Status, WriterOnly};

/// Where a run works.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EnvironmentRow {
    /// Its number.
    pub id: Id,
    pub(crate) status: EnvironmentStatus,
    pub(crate) version: u32,
    /// The run it was made for.
    pub run: Option<RunId>,
    /// The step that has it alone; none for the whole run.
    pub scope: Option<StepNo>,
    /// The host it is on.
    pub host: Arc<str>,
    /// The directory.
    pub path: Arc<str>,
    /// Sprag made it, so Sprag may remove it.
    pub managed: bool,
    /// Somebody asked for it to be removed.
    pub cleanup_requested: bool,
    /// Which attempt to make it is the present one.
    pub provision_attempt: u32,
    /// Which attempt to remove it is the present one.
    pub destroy_attempt: u32,
    /// Who is making or removing it.
    pub owner: Option<Id>,
    /// What went wrong last.
    pub reason: Option<Arc<str>>,
    /// The repository, the branch and what else is known of it, as JSON.
    pub details: Arc<str>,
    /// When it was first asked for (wall clock).
    pub created_ms: i64,
}

/// What is known beside an environment's row.
#[derive(Debug, Clone, Copy, Default)]
pub struct EnvironmentGiven {
    /// The provision or destroy attempt that the reporter saw.
    pub attempt: u32,
    /// The directory is on disk.
    pub path_present: bool,
    /// The host's lease ran out.
    pub host_lease_lapsed: bool,
    /// The host is gone for good.
    pub host_gone: bool,
    /// Whoever was removing it is gone.
    pub destroyer_gone: bool,
    /// Live runs and threads that use it.
    pub live_users: u32,
}

impl Row for EnvironmentRow {
    row_basics!(Environment, Id, EnvironmentGiven);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &EnvironmentGiven) -> EnvironmentFacts {
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

    fn place(&self) -> Place {
        Place { run: self.run, id: Some(self.id), ..Place::default() }
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

/// A conversation with a coding agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ThreadRow {
    /// Its number.
    pub id: Id,
    pub(crate) status: ThreadStatus,
    pub(crate) version: u32,
    /// The environment it works in.
    pub environment: Option<Id>,
    /// Somebody asked it to stop.
    pub stop_requested: bool,
    /// It is archived.
    pub archived: bool,
    /// It is deleted.
    pub deleted: bool,
    /// The last turn's number.
    pub turn: u32,
    /// That turn is open: nothing has ended it yet.
    pub turn_open: bool,
    /// The agent process's generation.
    pub runtime: u32,
}

/// What is known beside a thread's row.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadGiven {
    /// The turn that the reporter saw.
    pub turn: u32,
    /// The runtime's generation that the reporter saw.
    pub runtime: u32,
}

impl Row for ThreadRow {
    row_basics!(Thread, Id, ThreadGiven);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &ThreadGiven) -> ThreadFacts {
        ThreadFacts {
            stop_requested: self.stop_requested,
            archived: self.archived,
            deleted: self.deleted,
            turn_matches: self.turn_open && given.turn == self.turn,
            runtime_matches: given.runtime == self.runtime,
        }
    }

    fn place(&self) -> Place {
        Place { id: Some(self.id), ..Place::default() }
    }
}

/// Something outside that a run waits for: an answer, a moment, a signal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GateRow {
    /// Its number.
    pub id: Id,
    pub(crate) status: GateStatus,
    pub(crate) version: u32,
    /// The step that asks.
    pub run: RunId,
    /// The step that asks.
    pub step: StepNo,
    /// The attempt at the step.
    pub attempt: u32,
    /// What is waited for.
    pub kind: GateKind,
    /// The question as JSON (text and choices), or the signal's name.
    pub question: Arc<str>,
    /// The moment that is waited for (wall clock); 0 for none.
    pub until_ms: i64,
    /// When it was opened (wall clock).
    pub opened_ms: i64,
    /// The answer, as JSON.
    pub answer: Option<Arc<str>>,
    /// When it expires (steady); 0 for never.
    pub timeout_at_ms: i64,
}

/// What a gate waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GateKind {
    /// A person's answer.
    Question,
    /// A moment.
    Time,
    /// A signal from outside.
    Signal,
}

impl GateKind {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            GateKind::Question => "question",
            GateKind::Time => "time",
            GateKind::Signal => "signal",
        }
    }

    /// The kind of this word.
    pub fn parse(word: &str) -> Option<GateKind> {
        [GateKind::Question, GateKind::Time, GateKind::Signal].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// What is known beside a gate's row: the present moment (steady).
#[derive(Debug, Clone, Copy)]
pub struct GateGiven {
    /// The present moment (steady).
    pub now_ms: i64,
}

impl GateRow {
    /// Whether the answer lets the run go on.
    pub fn is_approved(&self) -> bool {
        let answer =
            self.answer.as_deref().and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        answer.is_some_and(|answer| answer["approved"] == true)
    }
}

impl Row for GateRow {
    row_basics!(Gate, Id, GateGiven);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &GateGiven) -> GateFacts {
        GateFacts { timeout_passed: self.timeout_at_ms > 0 && self.timeout_at_ms <= given.now_ms }
    }

    fn place(&self) -> Place {
        Place { run: Some(self.run), step: Some(self.step), attempt: Some(self.attempt), id: Some(self.id) }
    }
}

/// Whoever claims from a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerRow {
    /// Its number.
    pub id: Id,
    pub(crate) status: WorkerStatus,
    pub(crate) version: u32,
    /// What it calls itself.
    pub name: Arc<str>,
    /// Host, pid, start time, boot id and pid namespace, in one text.
    pub process: Arc<str>,
    /// The queues it serves, separated by commas.
    pub queues: Arc<str>,
    /// What it has that steps may ask for, separated by commas.
    pub labels: Arc<str>,
    /// How much it takes at once.
    pub slots: u32,
    /// Until when it may be silent (steady).
    pub heartbeat_until_ms: i64,
    /// When it first appeared.
    pub created_ms: i64,
}

impl WorkerRow {
    /// Whether it takes what waits in this queue.
    pub fn serves(&self, queue: &str) -> bool {
        self.queues.split(',').any(|served| served == queue)
    }

    /// Whether it has all that a step asks for.
    pub fn has_all(&self, labels: &[String]) -> bool {
        labels.iter().all(|wanted| self.labels.split(',').any(|label| label == wanted))
    }

    /// The host its process is on.
    pub fn host(&self) -> &str {
        self.process.split('/').next().unwrap_or_default()
    }
}

/// What is known beside a worker's row.
#[derive(Debug, Clone, Copy)]
pub struct WorkerGiven {
    /// The present moment (steady).
    pub now_ms: i64,
    /// Its process is gone.
    pub process_gone: bool,
}

impl Row for WorkerRow {
    row_basics!(WorkerPresence, Id, WorkerGiven);

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, given: &WorkerGiven) -> WorkerFacts {
        WorkerFacts {
            heartbeat_overdue: self.heartbeat_until_ms <= given.now_ms,
            process_gone: given.process_gone,
        }
    }

    fn place(&self) -> Place {
        Place { id: Some(self.id), ..Place::default() }
    }
}

/// A rule matched an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EnforcementRow {
    /// Its number.
    pub id: Id,
    pub(crate) status: EnforcementStatus,
    pub(crate) version: u32,
    /// The rule.
    pub rule: Arc<str>,
    /// The event it matched.
    pub event: Arc<str>,
    /// The run it started.
    pub run: Option<RunId>,
}

impl Row for EnforcementRow {
    row_basics!(Enforcement, Id, ());

    fn key(&self) -> Id {
        self.id
    }

    fn facts(&self, (): &()) {}

    fn place(&self) -> Place {
        Place { run: self.run, id: Some(self.id), ..Place::default() }
    }
}
