//! Every interleaving on a small run: workers, callers, crashes, lost, doubled and reordered messages.
//!
//! The model adds nothing to the engine: each action is one of the store's own operations on the store's own tables. It
//! explores the order of operations and the arrival of answers.
//!
//! ```text
//!   messages: every hand-off ever published; delivered to any worker, any number of times, or never
//!   workers:  the leases they consider their own; a paused one does not notice a loss
//!   tables:   the store
//!   child_ends: ends of child runs of which their parents are not notified yet
//!   budget:   the number of remaining faults and requests
//! ```

pub mod accounts;
mod acts;
pub mod boards;
pub mod environments;
mod quiet;
pub mod rule_limits;
pub mod rules;
pub mod threads;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sprag_lifecycle::{
    Backoff, ExecutionId, ExecutionStatus, GateStatus, OnFail, Plan, PlanStep, Policy, RunId, RunStatus,
    StepNo,
};
use sprag_store::testing::{Session, Tables, ops};
use sprag_store::{Claimer, Id, Lease, NewRun, Now, Result, Row};
use stateright::{Model, Property};

use crate::check::{self, Violation};
use crate::graphs::Scripts;
use acts::{finishes, gate_of, step};
use quiet::{idle, quiet};

/// A moment at which every lease is live and no backoff is over.
const EARLY: i64 = 1;
/// A moment after every lease and backoff.
const LATE: i64 = 1_000;
const LEASE_MS: i64 = 10;

/// The number of remaining faults and requests of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Failures of work.
    pub failures: u8,
    /// Workers that lose all state.
    pub crashes: u8,
    /// Leases that expire while their worker still considers itself the holder.
    pub expiries: u8,
    /// Answers that are lost, so that the worker reports again.
    pub lost_replies: u8,
    /// Releases of executions.
    pub releases: u8,
    /// Hand-offs that are revoked because no worker received them.
    pub redispatches: u8,
    /// Cancels by a person.
    pub cancels: u8,
    /// Resumes by a person.
    pub resumes: u8,
    /// Rewinds by a person.
    pub rewinds: u8,
}

/// The model of a run and its workers.
#[derive(Debug, Clone)]
pub struct PipelineModel {
    /// The run's plan.
    pub plan: Arc<Plan>,
    /// The behaviour of its steps.
    pub scripts: Scripts,
    /// The number of workers.
    pub workers: usize,
    /// The events that may happen.
    pub budget: Budget,
    /// The fraction of states, one in this many, that are driven to the end without further faults.
    pub quiet_every: u64,
}

/// A state of the model.
#[derive(Debug, Clone)]
pub struct PipelineState {
    tables: Tables,
    /// The leases that each worker considers its own.
    workers: Vec<Vec<Lease>>,
    /// Every hand-off that was ever published.
    messages: BTreeSet<Lease>,
    /// Every lease that was ever held, for reapers with outdated views.
    held: BTreeSet<Lease>,
    /// Steps whose child run has ended and whose run has not been notified.
    child_ends: BTreeSet<(RunId, StepNo)>,
    budget: Budget,
    violation: Option<Violation>,
}

/// The end of a worker's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkEnd {
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// An action in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelineAction {
    /// A worker claims work.
    Claim(usize),
    /// A message reaches a worker, possibly late or again.
    Deliver(usize, Lease),
    /// A worker reports an end.
    Finish {
        /// The index of the worker.
        worker: usize,
        /// The lease that it considers its own.
        lease: Lease,
        /// The end of the work.
        how: WorkEnd,
        /// Whether it would take the next step.
        next: bool,
        /// Whether the answer is lost.
        reply_lost: bool,
    },
    /// A worker releases an execution.
    Release {
        /// The index of the worker.
        worker: usize,
        /// The lease that it considers its own.
        lease: Lease,
        /// Whether the answer is lost, so that it still considers itself the holder.
        reply_lost: bool,
    },
    /// A worker loses all state.
    Crash(usize),
    /// The reaper takes an execution whose lease has expired.
    Expire(Lease),
    /// The reaper finds the owner of an execution dead.
    Died(Lease),
    /// A reaper with a wrong clock tries to take an execution.
    ReapEarly(Lease),
    /// An executor revokes a hand-off that no worker received.
    Redispatch(ExecutionId),
    /// A backoff or the time limit of a gate is over.
    Fire(ExecutionId),
    /// A person answers a gate: yes or no.
    Answer(Id, bool),
    /// A run is notified that the child run of a step has ended.
    NotifyParent(RunId, StepNo),
    /// A person cancels.
    Cancel,
    /// A person resumes.
    Resume,
    /// A person rewinds.
    Rewind(StepNo),
    /// The walk runs without a reason.
    Heal,
}

fn run_id() -> RunId {
    RunId::from_i64(1)
}

fn claimer(worker: usize) -> Claimer {
    Claimer {
        worker: worker as i64 + 1,
        queues: vec!["default".into()],
        reserved_only: false,
        services_only: false,
        lease_ms: LEASE_MS,
        nonce: 0,
    }
}

impl PipelineState {
    /// Runs one of the store's operations and checks its effect. Returns its result, and whether anything changed.
    fn transact<T>(
        &mut self,
        at: i64,
        operation: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> Option<(T, bool)> {
        let before = self.tables.clone();
        let now = Now { wall_ms: 0, steady_ms: at };
        // Ids of gates and children are distinct, and equal in equal states.
        let mut drawn = 10 + (self.tables.all_runs().count() + self.tables.all_gates().count()) as u64;
        let mut random = || {
            drawn += 1;
            drawn << 2
        };
        match self.tables.transact(now, &mut random, operation) {
            Ok(answer) => {
                if self.tables.all_entries().is_empty() && key(&before) == key(&self.tables) {
                    self.tables = before;
                    return Some((answer, false));
                }
                if let Err(violation) = check::change(&before, &self.tables, self.tables.all_entries()) {
                    self.violation = Some(violation);
                }
                self.note_child_ends();
                self.tables.forget_history();
                self.note_messages();
                Some((answer, true))
            }
            Err(error) => {
                self.violation =
                    Some(Violation { invariant: "an operation answers", seen: error.to_string() });
                None
            }
        }
    }

    fn note_child_ends(&mut self) {
        for row in self.tables.all_outbox().filter(|row| &*row.kind == "child.ended") {
            let payload: serde_json::Value = serde_json::from_str(&row.payload).unwrap_or_default();
            self.child_ends.extend(payload["step"].as_u64().map(|step| (row.run, step as StepNo)));
        }
    }

    fn note_messages(&mut self) {
        for row in self.tables.all_executions().filter(|row| row.status() == ExecutionStatus::Scheduled) {
            self.messages.insert(Lease { execution: row.id, fence: row.fence });
        }
        let running = self.running();
        self.held.extend(running);
    }

    fn run_status(&self) -> RunStatus {
        self.tables.all_runs().next().expect("the run is there").status()
    }

    fn running(&self) -> Vec<Lease> {
        let running = self.tables.all_executions().filter(|row| row.status() == ExecutionStatus::Running);
        running.map(|row| Lease { execution: row.id, fence: row.fence }).collect()
    }

    /// Returns whether a message refers to an execution that can be received. All other messages must change nothing.
    fn is_current(&self, message: &Lease) -> bool {
        self.tables.all_executions().any(|row| {
            row.id == message.execution
                && row.fence == message.fence
                && row.status() == ExecutionStatus::Scheduled
        })
    }

    fn believed(&self, lease: &Lease) -> bool {
        self.workers.iter().any(|held| held.contains(lease))
    }
}

/// Returns the parts of the tables that distinguish two states: neither times nor row versions.
fn key(tables: &Tables) -> Vec<u64> {
    let mut key = Vec::with_capacity(64);
    for run in tables.all_runs() {
        key.extend([
            run.status() as u64,
            u64::from(run.epoch),
            run.reworking.map_or(0, |no| u64::from(no) + 1),
            u64::from(run.tally.unsettled) << 32 | u64::from(run.tally.broken),
        ]);
    }
    for gate in tables.all_gates() {
        key.extend([gate.id as u64, gate.status() as u64]);
    }
    for step in tables.all_steps() {
        key.push(step.work.unwrap_or(0) as u64);
        key.extend(step.items.iter().flat_map(|list| {
            let items = list.items;
            [items.created, items.settled, items.failed, items.cancelled, items.requeued, items.ending.into()]
                .map(u64::from)
        }));
        key.extend([
            step.status() as u64
                | u64::from(step.attempt) << 8
                | u64::from(step.round) << 16
                | u64::from(step.tries) << 24
                | u64::from(step.losses) << 32
                | u64::from(step.reworks) << 40
                | u64::from(step.rework_pending) << 48
                | u64::from(step.repeats) << 49,
            u64::from(step.needs.open) << 32 | u64::from(step.needs.broken),
        ]);
    }
    for row in tables.all_executions() {
        key.extend([
            u64::from(row.id.step) << 32 | u64::from(row.id.attempt),
            row.status() as u64
                | u64::from(row.fence) << 8
                | u64::from(row.epoch) << 24
                | u64::from(row.cancel_requested) << 40
                | u64::from(row.not_before_ms > 0) << 41,
        ]);
    }
    key.push(tables.all_timers().count() as u64);
    key
}

impl PipelineState {
    /// Returns the leases of all workers in a canonical order, because workers are interchangeable.
    fn beliefs(&self) -> Vec<Vec<Lease>> {
        let mut workers = self.workers.clone();
        workers.sort_unstable();
        workers
    }
}

impl Hash for PipelineState {
    fn hash<H: Hasher>(&self, state: &mut H) {
        key(&self.tables).hash(state);
        self.beliefs().hash(state);
        self.messages.hash(state);
        self.child_ends.hash(state);
        self.budget.hash(state);
        self.violation.hash(state);
    }
}

impl PartialEq for PipelineState {
    fn eq(&self, other: &Self) -> bool {
        key(&self.tables) == key(&other.tables)
            && self.beliefs() == other.beliefs()
            && (&self.messages, &self.child_ends, &self.budget, &self.violation)
                == (&other.messages, &other.child_ends, &other.budget, &other.violation)
    }
}

/// Decrements a budget.
fn spend(left: &mut u8) {
    *left = left.saturating_sub(1);
}

impl Model for PipelineModel {
    type State = PipelineState;
    type Action = PipelineAction;

    fn init_states(&self) -> Vec<PipelineState> {
        let mut state = PipelineState {
            tables: Tables::default().with_evaluator(Arc::new(self.scripts.clone())),
            workers: vec![Vec::new(); self.workers],
            messages: BTreeSet::new(),
            held: BTreeSet::new(),
            child_ends: BTreeSet::new(),
            budget: self.budget,
            violation: None,
        };
        let new = NewRun::new(run_id(), Arc::clone(&self.plan));
        state.transact(EARLY, |session| ops::create_run(session, &new, 1));
        vec![state]
    }

    fn actions(&self, state: &PipelineState, actions: &mut Vec<PipelineAction>) {
        if state.violation.is_some() {
            return;
        }
        let budget = &state.budget;
        // Idle workers are interchangeable, so the first one represents all.
        let idle = state.workers.iter().position(Vec::is_empty);
        for (worker, held) in state.workers.iter().enumerate() {
            if Some(worker) == idle {
                actions.push(PipelineAction::Claim(worker));
                let current = state.messages.iter().filter(|message| state.is_current(message));
                actions.extend(current.map(|message| PipelineAction::Deliver(worker, *message)));
            }
            for lease in held {
                finishes(state, worker, *lease, actions);
                if budget.releases > 0 {
                    actions.push(PipelineAction::Release { worker, lease: *lease, reply_lost: false });
                    if budget.lost_replies > 0 {
                        actions.push(PipelineAction::Release { worker, lease: *lease, reply_lost: true });
                    }
                }
            }
            if budget.crashes > 0 && !held.is_empty() {
                actions.push(PipelineAction::Crash(worker));
            }
        }
        for lease in state.running() {
            if budget.expiries > 0 {
                actions.push(PipelineAction::Expire(lease));
            }
            if !state.believed(&lease) {
                actions.push(PipelineAction::Died(lease));
            }
        }
        for row in state.tables.all_executions() {
            match row.status() {
                ExecutionStatus::Scheduled if budget.redispatches > 0 => {
                    actions.push(PipelineAction::Redispatch(row.id))
                }
                ExecutionStatus::Requested if row.not_before_ms > 0 => {
                    actions.push(PipelineAction::Fire(row.id))
                }
                _ => {}
            }
        }
        for gate in state.tables.all_gates().filter(|gate| gate.status() == GateStatus::Open) {
            actions.push(PipelineAction::Answer(gate.id, true));
            if budget.failures > 0 {
                actions.push(PipelineAction::Answer(gate.id, false));
                actions.push(PipelineAction::Fire(gate_of(gate)));
            }
        }
        actions.extend(state.child_ends.iter().map(|(run, step)| PipelineAction::NotifyParent(*run, *step)));
        if budget.cancels > 0 && !state.run_status().is_terminal() {
            actions.push(PipelineAction::Cancel);
        }
        if budget.resumes > 0 && state.run_status().is_terminal() {
            actions.push(PipelineAction::Resume);
        }
        if budget.rewinds > 0 && state.run_status().is_terminal() {
            actions.extend((0..self.plan.steps.len() as StepNo).map(PipelineAction::Rewind));
        }
    }

    fn next_state(&self, state: &PipelineState, act: PipelineAction) -> Option<PipelineState> {
        let mut state = state.clone();
        let changed = step(&mut state, act);
        (changed || state.violation.is_some()).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, state: &PipelineState| {
                state.violation.is_none()
                    && check::state(&state.tables).is_ok()
                    && check::bounded(&state.tables).is_ok()
            }),
            Property::always("looking changes nothing", |model: &PipelineModel, state: &PipelineState| {
                !model.is_sampled(state) || idle(state)
            }),
            Property::always(
                "without further faults the run ends",
                |model: &PipelineModel, state: &PipelineState| {
                    !model.is_sampled(state) || quiet(state.clone()).is_ok()
                },
            ),
            Property::sometimes("a run completes", |_, state: &PipelineState| {
                state.run_status() == RunStatus::Completed
            }),
        ]
    }
}

impl PipelineModel {
    fn is_sampled(&self, state: &PipelineState) -> bool {
        let mut hasher = std::collections::hash_map::DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish().is_multiple_of(self.quiet_every)
    }
}

/// Returns a plan of steps `a`, `b`, `c`, … with these needs.
pub fn plan(needs: &[&[StepNo]], policies: impl Fn(StepNo) -> Policy) -> Arc<Plan> {
    let steps = needs.iter().enumerate().map(|(no, needs)| PlanStep {
        policy: policies(no as StepNo),
        ..PlanStep::new(char::from(b'a' + no as u8).to_string(), needs.to_vec())
    });
    Arc::new(Plan::new("model", steps.collect()).expect("the models' graphs are sound"))
}

/// Returns a policy with this many attempts, with a delay before each retry.
pub fn retrying(attempts: u32) -> Policy {
    Policy { attempts, backoff: Backoff { delay_ms: 5, ..Backoff::default() }, ..Policy::default() }
}

/// Returns a policy with a rework to this step.
pub fn reworking(step: StepNo, max: u32) -> Policy {
    Policy { on_fail: OnFail::Rework { step, max }, ..Policy::default() }
}
