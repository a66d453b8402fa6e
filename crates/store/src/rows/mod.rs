//! The rows: what is kept of each entity. Their statuses are private: only the writer moves them.

use std::sync::Arc;

use sprag_lifecycle::{
    Actor, Execution, ExecutionFacts, ExecutionId, ExecutionStatus, Items, Lifecycle, Needs, Run, RunFacts,
    RunId, RunStatus, Step, StepFacts, StepNo, StepStatus, Tally,
};

pub use entities::{
    EnforcementRow, EnvironmentGiven, EnvironmentRow, GateGiven, GateKind, GateRow, ThreadGiven, ThreadRow,
    WorkerGiven, WorkerRow,
};

/// The number by which a worker, environment, thread, gate or enforcement is known.
pub type Id = i64;

/// An entity's row, as the writer sees it.
pub trait Row: Clone + std::fmt::Debug + Send + 'static {
    /// Its table of events.
    type Life: Lifecycle;
    /// What finds it.
    type Key: Copy + Ord + std::fmt::Debug + Send;
    /// What a reporter knows beside the row, for the predicates.
    type Given;

    /// What finds it.
    fn key(&self) -> Self::Key;
    /// Its status.
    fn status(&self) -> Status<Self>;
    /// How often it was written.
    fn version(&self) -> u32;
    /// What the predicates look at.
    fn facts(&self, given: &Self::Given) -> <Self::Life as Lifecycle>::Facts;
    /// The run it belongs to, its step and attempt, for the journal.
    fn place(&self) -> Place;
    /// What the journal tells beyond that, as a JSON object.
    fn note(&self) -> Option<Arc<str>> {
        None
    }
    /// Moves it to another status. The writer calls this, and nobody else can.
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

/// A token that only the writer can make.
#[derive(Debug, Clone, Copy)]
pub struct WriterOnly(pub(crate) ());

/// Where in a run something belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Place {
    /// The run.
    pub run: Option<RunId>,
    /// The step.
    pub step: Option<StepNo>,
    /// The attempt at the step.
    pub attempt: Option<u32>,
    /// The number of what is no run, step or execution.
    pub id: Option<Id>,
}

macro_rules! row_basics {
    ($life:ty, $key:ty, $given:ty) => {
        type Life = $life;
        type Key = $key;
        type Given = $given;

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

// Below the macro that it uses.
mod entities;

/// One execution of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunRow {
    /// Its name.
    pub id: RunId,
    pub(crate) status: RunStatus,
    pub(crate) version: u32,
    /// Raised by each resume and rewind: whatever was in flight before is superseded.
    pub epoch: u32,
    /// A board that still takes tasks.
    pub open: bool,
    /// How its steps stand.
    pub tally: Tally,
    /// The failed step whose rework is being prepared.
    pub reworking: Option<StepNo>,
    /// The plan it runs, by the hash of its content.
    pub plan: i64,
    /// The pipeline's name.
    pub pipeline: Arc<str>,
    /// The worker to which its default-queue executions are reserved: the process that started it.
    pub pin: Option<Id>,
    /// Added to the priority of its steps.
    pub priority: i32,
    /// The concurrency group whose place it needs.
    pub group: Option<Arc<str>>,
    /// Names the request that made it: the same key never makes a second run.
    pub idempotency_key: Option<Arc<str>>,
    /// The inputs, as JSON.
    pub inputs: Arc<str>,
    /// Where it was started, and what else its steps must know, as JSON.
    pub context: Arc<str>,
    /// Why it ended as it did.
    pub reason: Option<Arc<str>>,
    /// The step of another run whose work it is.
    pub parent: Option<StepKey>,
    /// The run that stands at the beginning: itself, unless it is the work of another's step.
    pub root: RunId,
    /// How many steps it has had: those of its plan, then the items of fan-outs.
    pub steps: u32,
    /// Its first journal entry.
    pub first_seq: u64,
    /// The last journal entry when this row was last written.
    pub last_seq: u64,
    /// When it was made.
    pub created_ms: i64,
    /// When it started.
    pub started_ms: Option<i64>,
    /// When it ended.
    pub ended_ms: Option<i64>,
}

/// What is known beside a run's row.
#[derive(Debug, Clone, Copy)]
pub struct RunGiven {
    /// The epoch that the reporter saw.
    pub epoch: u32,
    /// The wait for a place has outlasted its bound.
    pub queue_wait_over: bool,
}

impl Row for RunRow {
    row_basics!(Run, RunId, RunGiven);

    fn key(&self) -> RunId {
        self.id
    }

    fn facts(&self, given: &RunGiven) -> RunFacts {
        RunFacts {
            epoch_matches: given.epoch == self.epoch,
            open: self.open,
            unsettled: self.tally.unsettled,
            broken: self.tally.broken,
            queue_wait_over: given.queue_wait_over,
        }
    }

    fn place(&self) -> Place {
        Place { run: Some(self.id), ..Place::default() }
    }
}

/// A step's key: its run and its place in it.
pub type StepKey = (RunId, StepNo);

/// A fan-out's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemList {
    /// The attempt that made it.
    pub made_by: u32,
    /// The number that its first item has, or will have at least: earlier items are of earlier lists.
    pub first: StepNo,
    /// How its items stand.
    pub items: Items,
}

/// A node of the pipeline in one run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StepRow {
    /// The run.
    pub run: RunId,
    /// Its place in the run.
    pub no: StepNo,
    pub(crate) status: StepStatus,
    pub(crate) version: u32,
    /// The present attempt; it only grows.
    pub attempt: u32,
    /// How often it was sent back.
    pub round: u32,
    /// Failed tries in this round.
    pub tries: u32,
    /// Workers lost in a row.
    pub losses: u32,
    /// How often it has sent another step back.
    pub reworks: u32,
    /// How its needs stand.
    pub needs: Needs,
    /// It was skipped by its own `when`.
    pub skipped_by_when: bool,
    /// It failed and will send another step back.
    pub rework_pending: bool,
    /// What its last try, or the step that sent it back, had to say.
    pub feedback: Option<Arc<str>>,
    /// The fan-out that it is an item of.
    pub item_of: Option<StepNo>,
    /// Which item it is, from 0.
    pub item: Option<u32>,
    /// The gate or the child run that is the present attempt's work.
    pub work: Option<Id>,
    /// The list that it is worked off by, if it is a fan-out that has begun.
    pub items: Option<ItemList>,
    /// When its work was first begun in this attempt.
    pub started_ms: Option<i64>,
    /// When it was settled.
    pub ended_ms: Option<i64>,
}

impl StepRow {
    /// A step that waits, as it is when its run or its fan-out makes it.
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

    /// The node of the plan that it stands for.
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

    fn place(&self) -> Place {
        Place { run: Some(self.run), step: Some(self.no), attempt: Some(self.attempt), id: None }
    }
}

/// One attempt at a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExecutionRow {
    /// The run, the step, the attempt.
    pub id: ExecutionId,
    pub(crate) status: ExecutionStatus,
    pub(crate) version: u32,
    /// Grows whenever the execution changes hands.
    pub fence: u32,
    /// The run's epoch when it was made.
    pub epoch: u32,
    /// Where it waits for a worker.
    pub queue: Arc<str>,
    /// The only worker that may have it.
    pub pin: Option<Id>,
    /// Higher is claimed first.
    pub priority: i32,
    /// Somebody wants it to end.
    pub cancel_requested: bool,
    /// It may not be handed over before this moment (steady).
    pub not_before_ms: i64,
    /// When it was first put in the queue's hands (steady); 0 before. Its place in line.
    pub published_ms: i64,
    /// Who has it.
    pub owner: Option<Id>,
    /// Until when its owner may be silent (steady); in the queue's hands, since when it lies there.
    pub lease_until_ms: i64,
    /// What the claimer called its claim, so that it can ask what it got.
    pub nonce: i64,
    /// Another try makes sense if it failed.
    pub retriable: bool,
    /// How it ended, as JSON.
    pub result: Option<Arc<str>>,
    /// When it was made.
    pub created_ms: i64,
    /// When it was received.
    pub started_ms: Option<i64>,
    /// When it ended.
    pub ended_ms: Option<i64>,
}

/// What is known beside an execution's row.
#[derive(Debug, Clone, Copy)]
pub struct ExecutionGiven {
    /// The fence that the reporter was given.
    pub fence: u32,
    /// The run's present epoch.
    pub run_epoch: u32,
    /// Its run starts work of this kind.
    pub run_live: bool,
    /// Its owner's process is gone.
    pub owner_dead: bool,
    /// The present moment (steady).
    pub now_ms: i64,
}

impl Row for ExecutionRow {
    row_basics!(Execution, ExecutionId, ExecutionGiven);

    fn key(&self) -> ExecutionId {
        self.id
    }

    fn facts(&self, given: &ExecutionGiven) -> ExecutionFacts {
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

    fn place(&self) -> Place {
        Place { run: Some(self.id.run), step: Some(self.id.step), attempt: Some(self.id.attempt), id: None }
    }
}

/// An applied transition, or the creation that began an entity (`from` is then empty).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// Its place in the order of commits.
    pub seq: u64,
    /// When it happened (wall clock).
    pub at_ms: i64,
    /// What kind of thing it happened to.
    pub entity: &'static str,
    /// Which one.
    pub place: Place,
    /// What happened.
    pub event: &'static str,
    /// What the thing was before.
    pub from: Option<&'static str>,
    /// What it is now.
    pub to: &'static str,
    /// Who said so.
    pub actor: Actor,
    /// What else there is to tell, as a JSON object.
    pub note: Option<Arc<str>>,
}

/// Something to be done after the commit that wrote it: a message to publish, an effect to carry out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutboxRow {
    /// Its number, in the order of commits.
    pub id: i64,
    /// What to do.
    pub kind: Arc<str>,
    /// The run it is about.
    pub run: RunId,
    /// On what, as JSON.
    pub payload: Arc<str>,
    /// How often it was tried.
    pub attempts: u32,
    /// Not before this moment (steady).
    pub not_before_ms: i64,
    /// What went wrong last.
    pub error: Option<Arc<str>>,
}

/// A moment at which somebody must look at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerRow {
    /// When (steady).
    pub due_ms: i64,
    /// At what: the attempt whose time has come.
    pub execution: ExecutionId,
}

/// An event that was refused, kept for `explain`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// When (wall clock).
    pub at_ms: i64,
    /// What kind of thing.
    pub entity: &'static str,
    /// Which one.
    pub place: Place,
    /// What was reported.
    pub event: &'static str,
    /// By whom.
    pub actor: Actor,
    /// `superseded` or `illegal`.
    pub reason: &'static str,
    /// The predicate that failed, or the status in which the event means nothing.
    pub detail: String,
}
