//! The interface of a database: it stores rows, compares and sets them, and answers ordered queries.
//!
//! All logic is above this interface and is written once. Below it there is memory for models and simulations, SQLite
//! and PostgreSQL. Every query has an order, so that two stores with the same history give the same answers.

use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, Plan, RunId, RunStatus, StepNo};

use crate::boards::Boards;
use crate::clock::Now;
use crate::error::Result;
use crate::evaluator::SpecEvaluator;
use crate::retention::Retention;
use crate::rows::{
    AccountRow, EnforcementRow, EnvironmentRow, ExecutionRow, GateRow, Id, JournalEntry, OutboxRow, Refusal,
    Row, RuleRow, RunRow, Status, StepRow, ThreadRow, TimerRow, WorkerRow,
};
use crate::service::ServiceTables;
use crate::triggers::Triggers;

/// The table of one kind of row.
pub trait Table<R: Row> {
    /// Returns the row, if it exists.
    fn load(&mut self, key: R::Key) -> Result<Option<R>>;
    /// Adds a row.
    fn insert(&mut self, row: &R) -> Result<()>;
    /// Replaces the row if its status and version are still `was`. Returns whether they were.
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
    + Table<RuleRow>
    + Table<EnforcementRow>
    + Table<AccountRow>
    + Triggers
    + Boards
    + ServiceTables
    + Retention
{
    /// Returns the present time by the store's clock.
    fn now(&mut self) -> Now;
    /// Returns for how many milliseconds no process takes a lease with `_left_ms` left from its holder, because no
    /// process has been able to write for a while; `None` if commits succeed.
    fn lease_is_certain_for_ms(&mut self, _left_ms: i64) -> Result<Option<i64>> {
        Ok(None)
    }
    /// Returns a random number.
    fn random(&mut self) -> u64;
    /// Returns the evaluator that reads the specs of steps.
    fn evaluator(&self) -> Arc<dyn SpecEvaluator>;
    /// Prevents other transactions from deciding about a run until this one ends. Where several processes write, a
    /// run whose row another process has locked is a conflict, and the store runs the operation again.
    fn hold(&mut self, _: RunId) -> Result<()> {
        Ok(())
    }
    /// Whether this transaction holds a run that was read, so that no other decides about it.
    fn is_held(&mut self, _: RunId) -> bool {
        true
    }
    /// Advances a step after this transaction: its work was received while another process held its run.
    fn look_later(&mut self, _: RunId, _: StepNo) {}
    /// Returns the sequence number of the last journal entry; 0 if there is none. The writer may continue counting
    /// from it until its transaction ends.
    fn last_seq(&mut self) -> Result<u64>;
    /// Adds entries to the journal.
    fn append(&mut self, entries: &[JournalEntry]) -> Result<()>;

    /// Returns the plan with this hash.
    fn plan(&mut self, hash: i64) -> Result<Option<Arc<Plan>>>;
    /// Stores a plan under its hash. A second call changes nothing.
    fn put_plan(&mut self, hash: i64, plan: &Arc<Plan>) -> Result<()>;

    /// Adds an effect to carry out after the commit.
    fn put_outbox(&mut self, row: &OutboxRow) -> Result<()>;
    /// Returns the effects in the outbox that are due, oldest first.
    fn outbox_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<OutboxRow>>;
    /// Removes an effect that was carried out.
    fn drop_outbox(&mut self, id: i64) -> Result<()>;
    /// Records that an effect failed, and postpones it until `not_before_ms` (steady).
    fn postpone_outbox(&mut self, id: i64, not_before_ms: i64, error: &str) -> Result<()>;

    /// Adds a timer.
    fn put_timer(&mut self, timer: &TimerRow) -> Result<()>;
    /// Removes an attempt's timer.
    fn drop_timer(&mut self, execution: ExecutionId) -> Result<()>;
    /// Returns the timers that are due, earliest first.
    fn timers_due(&mut self, now_ms: i64, limit: usize) -> Result<Vec<TimerRow>>;
    /// Returns the next time (steady) at which a timer, a lease or the outbox is due.
    fn next_due(&mut self) -> Result<Option<i64>>;

    /// Stores a refused event, and removes the oldest ones of its run.
    fn keep_refusal(&mut self, refusal: &Refusal) -> Result<()>;
    /// Returns the refused events of a run, oldest first.
    fn refusals(&mut self, run: RunId) -> Result<Vec<Refusal>>;
    /// Returns stored refused events after number `after`, with their numbers, in order.
    fn refusals_after(&mut self, after: i64, limit: usize) -> Result<Vec<(i64, Refusal)>>;
    /// Returns the highest number of a stored refused event; 0 if there is none.
    fn last_refusal(&mut self) -> Result<i64>;

    /// Returns the run's steps that are not settled, in order.
    fn unsettled(&mut self, run: RunId) -> Result<Vec<StepNo>>;
    /// Returns the run's steps, in order.
    fn steps(&mut self, run: RunId) -> Result<Vec<StepRow>>;
    /// Returns the steps of a run that are items of this fan-out, from number `first` on, in order.
    fn item_steps(&mut self, run: RunId, of: StepNo, first: StepNo) -> Result<Vec<StepNo>>;
    /// Returns the waiting steps among the items of this fan-out, at most `limit`, in order.
    fn waiting_item_steps(
        &mut self,
        run: RunId,
        of: StepNo,
        first: StepNo,
        limit: usize,
    ) -> Result<Vec<StepNo>>;
    /// Returns the highest attempt of any item of this fan-out, in any of its lists; 0 if there was none.
    fn last_item_attempt(&mut self, run: RunId, of: StepNo) -> Result<u32>;
    /// Stores values of a fan-out's list, from number `first` on. `of` is the attempt that created it.
    fn put_items(&mut self, of: ExecutionId, first: u32, values: &[Arc<str>]) -> Result<()>;
    /// Returns one value of a fan-out's list, as JSON.
    fn item(&mut self, of: ExecutionId, index: u32) -> Result<Option<Arc<str>>>;
    /// Returns the run's open gates, oldest first.
    fn open_gates(&mut self, run: RunId) -> Result<Vec<GateRow>>;
    /// Returns the environments of a run, in order.
    fn environments_of(&mut self, run: RunId) -> Result<Vec<EnvironmentRow>>;
    /// Returns the environments that are not destroyed, or with `all` every environment, in order.
    fn environments(&mut self, all: bool) -> Result<Vec<EnvironmentRow>>;
    /// Stores a signal for which no step waits yet.
    fn put_signal(&mut self, run: RunId, name: &str, payload: &str) -> Result<()>;
    /// Removes the oldest stored signal of this name, and returns its payload.
    fn take_signal(&mut self, run: RunId, name: &str) -> Result<Option<Arc<str>>>;
    /// Returns the live child runs of this run's steps, in order.
    fn children(&mut self, run: RunId) -> Result<Vec<RunId>>;
    /// Returns the run's executions, by step and attempt.
    fn executions(&mut self, run: RunId) -> Result<Vec<ExecutionRow>>;
    /// Returns the run that was created with this key.
    fn run_by_key(&mut self, key: &str) -> Result<Option<RunId>>;
    /// Returns runs from the newest on, at most `limit`, older than `before`, in one of `statuses` (empty: any).
    /// Leaves out child runs.
    fn runs(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunRow>>;
    /// Returns the ids of the runs that [`Backend::runs`] returns, also of those whose rows cannot be read.
    fn run_ids(&mut self, before: Option<RunId>, statuses: &[RunStatus], limit: usize) -> Result<Vec<RunId>>;
    /// Returns runs that have not ended, from the oldest on, younger than `after`.
    fn live_runs(&mut self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>>;
    /// Returns the live runs reserved to this worker, oldest first.
    fn pinned_runs(&mut self, worker: Id) -> Result<Vec<RunId>>;
    /// Returns the plans of the live runs reserved to this worker, each once, in order.
    fn pinned_plans(&mut self, worker: Id) -> Result<Vec<i64>>;

    /// Returns the live runs reserved to a worker that is offline or never registered, oldest first.
    fn orphaned_runs(&mut self, limit: usize) -> Result<Vec<RunId>>;

    /// Returns the executions in a queue that any worker (`pin` 0) or only this worker may claim, in the order of
    /// claiming.
    fn claimable(&mut self, queue: &str, pin: Id, limit: usize) -> Result<Vec<Candidate>>;
    /// Returns the number of a queue's executions that are scheduled or running.
    fn in_flight(&mut self, queue: &str) -> Result<u32>;
    /// Returns a queue's settings, if it has any.
    fn queue(&mut self, name: &str) -> Result<Option<QueueRow>>;
    /// Sets a queue's settings.
    fn put_queue(&mut self, queue: &QueueRow) -> Result<()>;
    /// Returns the executions of a queue that could be published if the queue had a free place, in the order of
    /// publication. Leaves out those of the accounts `without`.
    fn requested(
        &mut self,
        queue: &str,
        now_ms: i64,
        without: &[Id],
        limit: usize,
    ) -> Result<Vec<ExecutionId>>;
    /// Returns the accounts, by name.
    fn accounts(&mut self) -> Result<Vec<AccountRow>>;
    /// Returns the executions of an account that are scheduled or running, with the generations of the account in which
    /// they were published, in order.
    fn out_of_account(&mut self, account: Id) -> Result<Vec<(ExecutionId, u32)>>;
    /// Returns the executions that wait for a place of an account, in the order of publication.
    fn waiting_for_account(&mut self, account: Id, limit: usize) -> Result<Vec<ExecutionId>>;
    /// Returns the queues that have executions to publish once a place is free, in order.
    fn crowded_queues(&mut self, now_ms: i64) -> Result<Vec<Arc<str>>>;
    /// Returns the executions that have waited in a queue since before this time, oldest first.
    fn unclaimed_since(&mut self, before_ms: i64, limit: usize) -> Result<Vec<ExecutionId>>;
    /// Returns the running executions whose lease has expired, in the order of expiry.
    fn lapsed(&mut self, now_ms: i64, limit: usize) -> Result<Vec<(ExecutionId, u32)>>;
    /// Returns a worker's executions, with fences, in order.
    fn held_by(&mut self, worker: Id) -> Result<Vec<ExecutionRow>>;

    /// Returns the runs that hold a group's places, in order.
    fn places(&mut self, group: &str) -> Result<Vec<RunId>>;
    /// Gives a run a place.
    fn put_place(&mut self, group: &str, run: RunId) -> Result<()>;
    /// Takes back a run's place.
    fn drop_place(&mut self, group: &str, run: RunId) -> Result<()>;
    /// Returns the queued runs of a group, in the order of their start.
    fn queued(&mut self, group: &str, limit: usize) -> Result<Vec<RunId>>;

    /// Returns the groups in which runs wait for a place, in order.
    fn crowded_groups(&mut self) -> Result<Vec<Arc<str>>>;

    /// Returns the workers that are not offline, in order.
    fn workers(&mut self) -> Result<Vec<WorkerRow>>;
    /// Returns the journal after `since`, of one run or all, in order.
    fn journal(&mut self, since: u64, run: Option<RunId>, limit: usize) -> Result<Vec<JournalEntry>>;
}

/// An execution that can be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// Negated priority: the smallest comes first.
    pub rank: i32,
    /// The time at which it was published to the queue (steady).
    pub published_ms: i64,
    /// The execution.
    pub execution: ExecutionId,
}

/// A candidate from an execution's priority, time of publication and key.
impl From<(i32, i64, ExecutionId)> for Candidate {
    fn from((priority, published_ms, execution): (i32, i64, ExecutionId)) -> Self {
        Candidate { rank: priority.saturating_neg(), published_ms, execution }
    }
}

/// A queue's settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueueRow {
    /// The queue's name.
    pub name: Arc<str>,
    /// The most executions that may be scheduled or running at once; absent means no limit.
    pub limit: Option<u32>,
    /// Whether the queue is held: the store publishes nothing to it.
    pub held: bool,
}
