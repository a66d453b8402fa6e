//! What a database must be able to do: keep rows, compare and set them, and answer ordered queries.
//!
//! All logic lives above this line and is written once; below it there is memory for models and
//! simulations, and SQLite. Every query has an order, so that two stores given the same history answer alike.

use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, Plan, RunId, RunStatus, StepNo};

use crate::boards::Boards;
use crate::error::Result;
use crate::language::Language;
use crate::retention::Retention;
use crate::rows::{
    EnforcementRow, EnvironmentRow, ExecutionRow, GateRow, Id, JournalEntry, OutboxRow, Refusal, Row, RunRow,
    Status, StepRow, ThreadRow, TimerRow, WorkerRow,
};
use crate::seams::Now;
use crate::service::ServiceTables;

/// One kind of row.
pub trait Table<R: Row> {
    /// The row, if it is there.
    fn load(&mut self, key: R::Key) -> Result<Option<R>>;
    /// Adds a row.
    fn insert(&mut self, row: &R) -> Result<()>;
    /// Replaces the row if its status and version are still what they were; says whether it was so.
    fn update(&mut self, row: &R, was: (Status<R>, u32)) -> Result<bool>;
}

/// A database inside a transaction.
pub trait Backend:
    Table<RunRow>
    + Table<StepRow>
    + Table<ExecutionRow>
    + Table<EnvironmentRow>
    + Table<ThreadRow>
    + Table<GateRow>
    + Table<WorkerRow>
    + Table<EnforcementRow>
    + Boards
    + ServiceTables
    + Retention
{
    /// The present moment, by the store's clock.
    fn now(&mut self) -> Now;
    /// Any number.
    fn random(&mut self) -> u64;
    /// Who reads the specs of steps.
    fn language(&self) -> Arc<dyn Language>;
    /// Makes sure that nobody else decides about a run until this transaction ends. Where several processes write,
    /// one whose row is somebody else's is a conflict, and the operation is run again.
    fn hold(&mut self, _: RunId) -> Result<()> {
        Ok(())
    }
    /// Whether nobody else decides about a run that was read.
    fn is_held(&mut self, _: RunId) -> bool {
        true
    }
    /// Has a step looked at after this transaction: its work was received, and its run was somebody else's.
    fn look_later(&mut self, _: RunId, _: StepNo) {}
    /// The sequence number of the last journal entry; 0 if there is none. Whoever writes may count on from it until
    /// its transaction ends.
    fn last_seq(&mut self) -> Result<u64>;
    /// Adds entries to the journal.
    fn append(&mut self, entries: &[JournalEntry]) -> Result<()>;

    /// The plan with this hash.
    fn plan(&mut self, hash: i64) -> Result<Option<Arc<Plan>>>;
    /// Keeps a plan under its hash; a second time changes nothing.
    fn put_plan(&mut self, hash: i64, plan: &Arc<Plan>) -> Result<()>;

    /// Adds something to be done after the commit.
    fn put_outbox(&mut self, row: &OutboxRow) -> Result<()>;
    /// What is due in the outbox, oldest first.
    fn outbox_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<OutboxRow>>;
    /// It was done.
    fn drop_outbox(&mut self, id: i64) -> Result<()>;
    /// It failed: not again before then.
    fn postpone_outbox(&mut self, id: i64, not_before_ms: i64, error: &str) -> Result<()>;

    /// Adds a timer.
    fn put_timer(&mut self, timer: &TimerRow) -> Result<()>;
    /// Removes an attempt's timer.
    fn drop_timer(&mut self, execution: ExecutionId) -> Result<()>;
    /// The timers that are due, earliest first.
    fn timers_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<TimerRow>>;
    /// The next moment (steady) at which a timer, a lease or the outbox is due.
    fn next_due(&mut self) -> Result<Option<i64>>;

    /// Keeps a refused event, and forgets the oldest of its run.
    fn keep_refusal(&mut self, refusal: &Refusal) -> Result<()>;
    /// The refused events of a run, oldest first.
    fn refusals(&mut self, run: RunId) -> Result<Vec<Refusal>>;

    /// The run's steps that are not settled, in order.
    fn unsettled(&mut self, run: RunId) -> Result<Vec<StepNo>>;
    /// The run's steps, in order.
    fn steps(&mut self, run: RunId) -> Result<Vec<StepRow>>;
    /// The steps of a run that are items of this fan-out, from number `first` on, in order.
    fn item_steps(&mut self, run: RunId, of: StepNo, first: StepNo) -> Result<Vec<StepNo>>;
    /// Those of them that wait, at most `limit`, in order.
    fn waiting_item_steps(
        &mut self,
        run: RunId,
        of: StepNo,
        first: StepNo,
        limit: usize,
    ) -> Result<Vec<StepNo>>;
    /// Keeps values of the list of a fan-out, as made by this attempt at it, from number `first` on.
    fn put_items(&mut self, of: ExecutionId, first: u32, values: &[Arc<str>]) -> Result<()>;
    /// One value of a fan-out's list, as JSON.
    fn item(&mut self, of: ExecutionId, index: u32) -> Result<Option<Arc<str>>>;
    /// The run's gates that are open, oldest first.
    fn open_gates(&mut self, run: RunId) -> Result<Vec<GateRow>>;
    /// The environments of a run, in order.
    fn environments_of(&mut self, run: RunId) -> Result<Vec<EnvironmentRow>>;
    /// Environments that are not destroyed, or all that there ever were, in order.
    fn environments(&mut self, all: bool) -> Result<Vec<EnvironmentRow>>;
    /// Keeps a signal that nobody waits for yet.
    fn put_signal(&mut self, run: RunId, name: &str, payload: &str) -> Result<()>;
    /// Takes the oldest signal of this name out of those that were kept.
    fn take_signal(&mut self, run: RunId, name: &str) -> Result<Option<Arc<str>>>;
    /// Live runs that are the work of this run's steps, in order.
    fn children(&mut self, run: RunId) -> Result<Vec<RunId>>;
    /// The run's executions, by step and attempt.
    fn executions(&mut self, run: RunId) -> Result<Vec<ExecutionRow>>;
    /// The run that this key made.
    fn run_by_key(&mut self, key: &str) -> Result<Option<RunId>>;
    /// Runs from the newest on, at most `limit`, older than `before`, in one of `statuses` (none: any). Those
    /// that are another run's work are left out.
    fn runs(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunRow>>;
    /// Runs that have not ended, from the oldest on, younger than `after`.
    fn live_runs(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>>;
    /// Live runs reserved to this worker, oldest first.
    fn pinned_runs(&mut self, worker: Id) -> Result<Vec<RunId>>;

    /// What waits in a queue for anyone (`pin` 0) or for this worker alone, first to be claimed first.
    fn claimable(&mut self, queue: &str, pin: Id, limit: usize) -> Result<Vec<Candidate>>;
    /// How many executions of a queue are in its hands or a worker's.
    fn in_flight(&mut self, queue: &str) -> Result<u32>;
    /// A queue's settings, if it has any.
    fn queue(&mut self, name: &str) -> Result<Option<QueueRow>>;
    /// Sets a queue's settings.
    fn put_queue(&mut self, queue: &QueueRow) -> Result<()>;
    /// Executions of a queue that could be handed over if there were a place, first to go first.
    fn requested(&mut self, queue: &str, now_ms: i64, limit: usize) -> Result<Vec<ExecutionId>>;
    /// The queues in which something could be handed over if there were a place, in order.
    fn crowded_queues(&mut self, now_ms: i64) -> Result<Vec<Arc<str>>>;
    /// Executions that have been in a queue's hands since before this moment, oldest first.
    fn unclaimed_since(&mut self, before_ms: i64, limit: usize) -> Result<Vec<ExecutionId>>;
    /// Running executions whose lease has lapsed, longest first.
    fn lapsed(&mut self, now_ms: i64, limit: usize) -> Result<Vec<(ExecutionId, u32)>>;
    /// What a worker has, with fences, in order.
    fn held_by(&mut self, worker: Id) -> Result<Vec<ExecutionRow>>;

    /// The runs that hold a group's places, in order.
    fn places(&mut self, group: &str) -> Result<Vec<RunId>>;
    /// Gives a run a place.
    fn put_place(&mut self, group: &str, run: RunId) -> Result<()>;
    /// Takes a run's place back.
    fn drop_place(&mut self, group: &str, run: RunId) -> Result<()>;
    /// Queued runs of a group, first to start first.
    fn queued(&mut self, group: &str, limit: usize) -> Result<Vec<RunId>>;

    /// The groups in which runs wait for a place, in order.
    fn crowded_groups(&mut self) -> Result<Vec<Arc<str>>>;

    /// Workers that are not offline, in order.
    fn workers(&mut self) -> Result<Vec<WorkerRow>>;
    /// The journal after `since`, of one run or all, in order.
    fn journal(&mut self, since: u64, run: Option<RunId>, limit: usize) -> Result<Vec<JournalEntry>>;
}

/// Something that can be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// Negated priority: the smallest comes first.
    pub rank: i32,
    /// When it was put in the queue's hands (steady).
    pub published_ms: i64,
    /// What it is.
    pub execution: ExecutionId,
}

/// A queue's settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueueRow {
    /// Its name.
    pub name: Arc<str>,
    /// How many of its executions may be out at once; none: any number.
    pub limit: Option<u32>,
    /// Nothing is handed over while it is held.
    pub held: bool,
}
