//! The rows: the stored data of each entity. Their statuses are private: only the writer changes them.

use std::sync::Arc;

use sprag_lifecycle::{
    Actor, Execution, ExecutionFacts, ExecutionId, ExecutionStatus, Items, Lifecycle, Needs, Run, RunFacts,
    RunId, RunStatus, Step, StepFacts, StepNo, StepStatus, Tally,
};

pub use accounts::{AccountReport, AccountRow, account_id};
pub use entities::{
    EnvironmentReport, EnvironmentRow, GateKind, GateReport, GateRow, WorkerReport, WorkerRow,
};
pub use threads::{ThreadGiven, ThreadReport, ThreadRow};
pub use triggers::{DeliveryRow, EnforcementReport, EnforcementRow, RuleReport, RuleRow};

/// The number that identifies a worker, environment, thread, gate, rule, event or enforcement.
pub type Id = i64;

/// An entity's row, as the writer sees it.
pub trait Row: Clone + std::fmt::Debug + Send + 'static {
    /// The entity's lifecycle.
    type Life: Lifecycle;
    /// The type of the key that finds it.
    type Key: Copy + Ord + std::fmt::Debug + Send;
    /// The facts that a reporter gives besides the row, for the predicates.
    type Report;

    /// Returns the key that finds it.
    fn key(&self) -> Self::Key;
    /// Returns its status.
    fn status(&self) -> Status<Self>;
    /// Returns the number of times it was written.
    fn version(&self) -> u32;
    /// Returns the facts that the predicates test.
    fn facts(&self, given: &Self::Report) -> <Self::Life as Lifecycle>::Facts;
    /// Returns its run, step and attempt, for the journal.
    fn place(&self) -> Position;
    /// Returns further facts for the journal, as a JSON object.
    fn note(&self) -> Option<Arc<str>> {
        None
    }
    /// Returns the worker that holds it and the fence that the worker got with it, for the journal.
    fn holder(&self) -> Option<(Id, u32)> {
        None
    }
    /// Changes the status. Only the writer can call this.
    #[doc(hidden)]
    fn set_status(&mut self, to: Status<Self>, _: WriterOnly);
    /// Counts a write.
    #[doc(hidden)]
    fn touch(&mut self, _: WriterOnly);
}

/// A row's status type.
pub type Status<R> = <<R as Row>::Life as Lifecycle>::Status;
/// A row's event type.
pub type Event<R> = <<R as Row>::Life as Lifecycle>::Event;

/// A token that only the writer can create.
#[derive(Debug, Clone, Copy)]
pub struct WriterOnly(pub(crate) ());

/// The position of an entity in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The run.
    pub run: Option<RunId>,
    /// The step.
    pub step: Option<StepNo>,
    /// The attempt at the step.
    pub attempt: Option<u32>,
    /// The number of an entity that is no run, step or execution.
    pub id: Option<Id>,
}

macro_rules! row_basics {
    ($life:ty, $key:ty, $given:ty) => {
        type Life = $life;
        type Key = $key;
        type Report = $given;

        fn status(&self) -> Status<Self> {
            self.status
        }

        fn version(&self) -> u32 {
            self.version
        }

        fn set_status(&mut self, to: Status<Self>, _: WriterOnly) {
            self.status = to;
        }

        fn touch(&mut self, _: WriterOnly) {
            self.version += 1;
        }
    };
}

// They use the macro above.
mod accounts;
mod entities;
mod threads;
mod triggers;

/// One execution of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunRow {
    /// The run's id.
    pub id: RunId,
    pub(crate) status: RunStatus,
    pub(crate) version: u32,
    /// The epoch. Each resume and rewind raises it, which supersedes everything that was in flight before.
    pub epoch: u32,
    /// Whether it is a board that still takes tasks.
    pub open: bool,
    /// The counts of its unsettled and broken steps.
    pub tally: Tally,
    /// The failed step whose rework is being prepared.
    pub reworking: Option<StepNo>,
    /// The hash that identifies the content of its plan.
    pub plan: i64,
    /// The pipeline's name.
    pub pipeline: Arc<str>,
    /// The worker to which its default-queue executions are reserved: the process that started it.
    pub pin: Option<Id>,
    /// The number added to the priority of its steps.
    pub priority: i32,
    /// The concurrency group in which it needs a place.
    pub group: Option<Arc<str>>,
    /// The key of the request that created it: the same key never creates a second run.
    pub idempotency_key: Option<Arc<str>>,
    /// The inputs, as JSON.
    pub inputs: Arc<str>,
    /// The folder in which it was started, and other facts that its steps need, as JSON.
    pub context: Arc<str>,
    /// The reason for its end.
    pub reason: Option<Arc<str>>,
    /// The step whose work this run is; absent if it is no child run.
    pub parent: Option<StepKey>,
    /// The run at the top: itself, unless it is a child run.
    pub root: RunId,
    /// The number of steps it has had: those of its plan, then the items of fan-outs.
    pub steps: u32,
    /// The number of its first journal entry.
    pub first_seq: u64,
    /// The number of the last journal entry when this row was last written.
    pub last_seq: u64,
    /// The time of creation (wall clock).
    pub created_ms: i64,
    /// The time of its start (wall clock); absent before.
    pub started_ms: Option<i64>,
    /// The time of its end (wall clock); absent before.
    pub ended_ms: Option<i64>,
}

/// The facts that a reporter gives besides a run's row.
#[derive(Debug, Clone, Copy)]
pub struct RunReport {
    /// The epoch that the reporter saw.
    pub epoch: u32,
    /// Whether it has waited longer for a place than allowed.
    pub queue_wait_over: bool,
}

impl Row for RunRow {
    row_basics!(Run, RunId, RunReport);

    fn key(&self) -> RunId {
        self.id
    }

    fn facts(&self, given: &RunReport) -> RunFacts {
        RunFacts {
            epoch_matches: given.epoch == self.epoch,
            open: self.open,
            unsettled: self.tally.unsettled,
            broken: self.tally.broken,
            queue_wait_over: given.queue_wait_over,
        }
    }

    fn place(&self) -> Position {
        Position { run: Some(self.id), ..Position::default() }
    }
}

/// A step's key: its run and its number in it.
pub type StepKey = (RunId, StepNo);

/// A fan-out's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemList {
    /// The attempt that created it.
    pub made_by: u32,
    /// The number that its first item has, or will have at least: lower numbers belong to earlier lists.
    pub first: StepNo,
    /// The first attempt of its items. Items with the same number have the same name in all lists of a fan-out, so an
    /// attempt must be higher than all in earlier lists.
    pub first_attempt: u32,
    /// The counts of its items by state.
    pub items: Items,
}

/// A node of the pipeline in one run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StepRow {
    /// The run.
    pub run: RunId,
    /// The step's number in the run.
    pub no: StepNo,
    pub(crate) status: StepStatus,
    pub(crate) version: u32,
    /// The present attempt; it only grows.
    pub attempt: u32,
    /// The number of times it was sent back.
    pub round: u32,
    /// The failed tries in this round.
    pub tries: u32,
    /// The workers lost in a row.
    pub losses: u32,
    /// The number of times it has sent another step back.
    pub reworks: u32,
    /// The number of rounds of its `repeat` that were followed by another one.
    pub repeats: u32,
    /// The attempt, or the child run, of the last round that was followed by another one; absent in the first round.
    pub last_round: Option<Id>,
    /// The counts of its open and broken needs.
    pub needs: Needs,
    /// Whether its own `when` condition or a person skipped it; before it has settled, whether a person skips it.
    pub skipped_by_when: bool,
    /// Whether it failed and will send another step back.
    pub rework_pending: bool,
    /// Feedback from its last attempt, or from the step that sent it back.
    pub feedback: Option<Arc<str>>,
    /// The fan-out of which it is an item; absent if it is none.
    pub item_of: Option<StepNo>,
    /// The index of the item, from 0.
    pub item: Option<u32>,
    /// The gate or the child run that is the present attempt's work.
    pub work: Option<Id>,
    /// The list of items, if it is a fan-out that has started.
    pub items: Option<ItemList>,
    /// The time at which this attempt's work first started (wall clock).
    pub started_ms: Option<i64>,
    /// The time at which it was settled (wall clock).
    pub ended_ms: Option<i64>,
}

impl StepRow {
    /// Creates a waiting step, for a new run or fan-out.
    pub(crate) fn new(run: RunId, no: StepNo, needs: Needs) -> StepRow {
        StepRow {
            run,
            no,
            status: StepStatus::Waiting,
            version: 1,
            attempt: 1,
            round: 0,
            tries: 0,
            losses: 0,
            reworks: 0,
            repeats: 0,
            last_round: None,
            needs,
            skipped_by_when: false,
            rework_pending: false,
            feedback: None,
            item_of: None,
            item: None,
            work: None,
            items: None,
            started_ms: None,
            ended_ms: None,
        }
    }

    /// Returns the plan's node of the step.
    pub fn node(&self) -> StepNo {
        self.item_of.unwrap_or(self.no)
    }
}

impl Row for StepRow {
    row_basics!(Step, StepKey, StepFacts);

    fn key(&self) -> StepKey {
        (self.run, self.no)
    }

    fn facts(&self, given: &StepFacts) -> StepFacts {
        *given
    }

    fn place(&self) -> Position {
        Position { run: Some(self.run), step: Some(self.no), attempt: Some(self.attempt), id: None }
    }
}

/// One attempt at a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExecutionRow {
    /// The run, the step, the attempt.
    pub id: ExecutionId,
    pub(crate) status: ExecutionStatus,
    pub(crate) version: u32,
    /// The fence. It grows whenever the owner of the execution changes.
    pub fence: u32,
    /// The run's epoch when it was created.
    pub epoch: u32,
    /// The queue in which it waits for a worker.
    pub queue: Arc<str>,
    /// The only worker that may receive it; absent if any may.
    pub pin: Option<Id>,
    /// The priority; workers claim higher ones first.
    pub priority: i32,
    /// The thread whose agent lives in it; absent for executions without an agent.
    pub thread: Option<Id>,
    /// The account that its agent uses; absent for executions without an agent.
    pub account: Option<Id>,
    /// The generation of its account when it was published last.
    pub account_generation: u32,
    /// The time since which it has waited for a hold of its account to end (steady); 0 if it does not.
    pub limited_since_ms: i64,
    /// The time that it has waited for holds of its account before, in milliseconds.
    pub limited_ms: i64,
    /// Whether it was asked to stop.
    pub cancel_requested: bool,
    /// The earliest time at which it may be published (steady).
    pub not_before_ms: i64,
    /// The time of its first publication to the queue (steady); 0 before. It determines the order in the queue.
    pub published_ms: i64,
    /// The worker that holds it.
    pub owner: Option<Id>,
    /// The time until which its owner need not renew its lease (steady); in the queue, the time since which it waits
    /// there.
    pub lease_until_ms: i64,
    /// The claimer's number for its claim, by which it can repeat the request.
    pub nonce: i64,
    /// Whether a retry makes sense if it failed.
    pub retriable: bool,
    /// Whether it failed for a reason that only a person can remove: neither a retry nor a rework helps.
    pub blocked: bool,
    /// The result, as JSON.
    pub result: Option<Arc<str>>,
    /// The time of creation (wall clock).
    pub created_ms: i64,
    /// The time at which a worker received it (wall clock).
    pub started_ms: Option<i64>,
    /// The time of its end (wall clock).
    pub ended_ms: Option<i64>,
}

/// The facts that a reporter gives besides an execution's row.
#[derive(Debug, Clone, Copy)]
pub struct ExecutionReport {
    /// The fence that the reporter was given.
    pub fence: u32,
    /// The run's present epoch.
    pub run_epoch: u32,
    /// Whether its run starts work of this kind.
    pub run_live: bool,
    /// Whether its owner's process is gone.
    pub owner_dead: bool,
    /// The present time (steady).
    pub now_ms: i64,
}

impl Row for ExecutionRow {
    row_basics!(Execution, ExecutionId, ExecutionReport);

    fn key(&self) -> ExecutionId {
        self.id
    }

    fn facts(&self, given: &ExecutionReport) -> ExecutionFacts {
        ExecutionFacts {
            cancel_requested: self.cancel_requested,
            run_live: given.run_live,
            due: self.not_before_ms <= given.now_ms,
            fence_matches: self.fence == given.fence,
            epoch_matches: self.epoch == given.run_epoch,
            lease_lapsed: self.lease_until_ms <= given.now_ms,
            owner_dead: given.owner_dead,
        }
    }

    fn place(&self) -> Position {
        Position {
            run: Some(self.id.run),
            step: Some(self.id.step),
            attempt: Some(self.id.attempt),
            id: None,
        }
    }

    fn holder(&self) -> Option<(Id, u32)> {
        self.owner.map(|worker| (worker, self.fence))
    }
}

/// An applied transition, or the creation of an entity (`from` is then empty).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// The position in the order of commits.
    pub seq: u64,
    /// The time of the commit's operation (wall clock).
    pub at_ms: i64,
    /// The kind of entity.
    pub entity: &'static str,
    /// The position of the entity.
    pub place: Position,
    /// The event.
    pub event: &'static str,
    /// The status before.
    pub from: Option<&'static str>,
    /// The status now.
    pub to: &'static str,
    /// The actor that reported it.
    pub actor: Actor,
    /// The worker that held the execution, or that received it; absent for other entities, for executions that no
    /// worker has received, and for entries from before schema 11 (SQLite) or 7 (PostgreSQL).
    pub worker: Option<Id>,
    /// The fence that this worker got with the execution; absent where `worker` is.
    pub fence: Option<u32>,
    /// The token, local user, agent, rule or worker behind the actor, as `KIND:NAME`; absent if the operation does not
    /// know it.
    pub by: Option<Arc<str>>,
    /// Further facts, as a JSON object.
    pub note: Option<Arc<str>>,
}

/// An effect to carry out after the commit that wrote it, such as a message to publish.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutboxRow {
    /// The effect's number, in the order of commits.
    pub id: i64,
    /// The kind of effect.
    pub kind: Arc<str>,
    /// The run that it concerns.
    pub run: RunId,
    /// The arguments, as JSON.
    pub payload: Arc<str>,
    /// The number of tries so far.
    pub attempts: u32,
    /// The earliest time of the next try (steady).
    pub not_before_ms: i64,
    /// The error of the last try.
    pub error: Option<Arc<str>>,
}

/// A time at which an executor must check a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerRow {
    /// The time (steady).
    pub due_ms: i64,
    /// The attempt whose time has come then.
    pub execution: ExecutionId,
}

/// An event that was refused, kept for `explain`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The time of the report (wall clock).
    pub at_ms: i64,
    /// The kind of entity.
    pub entity: &'static str,
    /// The position of the entity.
    pub place: Position,
    /// The reported event.
    pub event: &'static str,
    /// The actor that reported it.
    pub actor: Actor,
    /// The kind of refusal: `superseded` or `illegal`.
    pub reason: &'static str,
    /// The predicate that failed, or the status in which the event is not allowed.
    pub detail: String,
}
