//! Every interleaving on a small run: workers, callers, crashes, lost, doubled and reordered messages.
//!
//! The model adds nothing to the engine: each action is one of the store's own operations on the store's
//! own tables. What it explores is the order in which they happen and which answers arrive.
//!
//! ```text
//!   messages: every hand-off ever published; delivered to any worker, any number of times, or never
//!   workers:  the leases they believe to hold; a paused one keeps believing
//!   tables:   the store
//!   tidings:  ends of child runs that their parents have not heard of
//!   budget:   how many faults and wishes are still to come
//! ```

mod acts;
pub mod boards;
pub mod environments;
mod quiet;
pub mod threads;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sprag_lifecycle::{
    Backoff, ExecutionId, ExecutionStatus, GateStatus, OnFail, Plan, PlanStep, Policy, RunId, RunStatus,
    StepNo,
};
use sprag_store::ops::{self, Claimer, Lease, NewRun};
use sprag_store::{Id, Now, Result, Row, Session, Tables};
use stateright::{Model, Property};

use crate::check::{self, Violation};
use crate::graphs::Scripts;
use acts::{finishes, gate_of, step};
use quiet::{idle, quiet};

/// An ordinary moment: every lease is live, every backoff still waits.
const EARLY: i64 = 1;
/// A moment past every lease and backoff.
const LATE: i64 = 1_000;
const LEASE_MS: i64 = 10;

/// How many faults and wishes an exploration allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Work that ends badly.
    pub failures: u8,
    /// Workers that forget everything.
    pub crashes: u8,
    /// Leases that lapse while their worker still believes in them.
    pub expiries: u8,
    /// Answers that do not arrive: the worker reports again.
    pub lost_replies: u8,
    /// Executions given back.
    pub releases: u8,
    /// Hand-offs taken back because nobody came.
    pub redispatches: u8,
    /// Cancels by a person.
    pub cancels: u8,
    /// Resumes by a person.
    pub resumes: u8,
    /// Rewinds by a person.
    pub rewinds: u8,
}

/// What is explored: a run, its workers, and the faults to come.
#[derive(Debug, Clone)]
pub struct Pipelines {
    /// The run's plan.
    pub plan: Arc<Plan>,
    /// What its specs mean.
    pub scripts: Scripts,
    /// How many workers there are.
    pub workers: usize,
    /// What may go wrong.
    pub budget: Budget,
    /// One state in so many is driven to its end without further faults.
    pub quiet_every: u64,
}

/// A state of the explored world.
#[derive(Debug, Clone)]
pub struct World {
    tables: Tables,
    /// The leases that each worker believes to hold.
    workers: Vec<Vec<Lease>>,
    /// Every hand-off that was ever published.
    messages: BTreeSet<Lease>,
    /// Every lease that was ever held: what a reaper that looked long ago believes in.
    held: BTreeSet<Lease>,
    /// Steps whose child run has ended, which nobody has told their run.
    tidings: BTreeSet<(RunId, StepNo)>,
    budget: Budget,
    violation: Option<Violation>,
}

/// How a worker's work ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Well.
    Well,
    /// Badly.
    Badly,
    /// Because somebody wanted so.
    Cancelled,
}

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A worker asks for work.
    Claim(usize),
    /// A message reaches a worker: perhaps late, perhaps again.
    Deliver(usize, Lease),
    /// A worker reports an end.
    Finish {
        /// The worker.
        worker: usize,
        /// What it believes to hold.
        lease: Lease,
        /// How it ended.
        how: How,
        /// It would take what comes next.
        next: bool,
        /// The answer does not reach it.
        reply_lost: bool,
    },
    /// A worker gives back what it has.
    Release {
        /// The worker.
        worker: usize,
        /// What it believes to hold.
        lease: Lease,
        /// The answer does not reach it: it goes on believing.
        reply_lost: bool,
    },
    /// A worker forgets everything.
    Crash(usize),
    /// The reaper takes an execution whose lease has lapsed.
    Expire(Lease),
    /// The reaper finds an execution's owner dead.
    Died(Lease),
    /// A reaper with a wrong idea of time.
    ReapEarly(Lease),
    /// An executor takes back what nobody came for.
    Redispatch(ExecutionId),
    /// A backoff is over, or nobody answers in time.
    Fire(ExecutionId),
    /// A person answers a gate: yes or no.
    Answer(Id, bool),
    /// A run hears that the child which was a step's work has ended.
    Tell(RunId, StepNo),
    /// A person cancels.
    Cancel,
    /// A person resumes.
    Resume,
    /// A person rewinds.
    Rewind(StepNo),
    /// Somebody calls the walk, for no reason.
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
        lease_ms: LEASE_MS,
        nonce: 0,
    }
}

impl World {
    /// Runs one of the store's operations and checks what it did; says whether anything changed.
    fn transact<T>(
        &mut self,
        at: i64,
        operation: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> Option<(T, bool)> {
        let before = self.tables.clone();
        let now = Now { wall_ms: 0, steady_ms: at };
        // Ids of gates and children: distinct, and the same whenever the state is.
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
                self.note_tidings();
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

    fn note_tidings(&mut self) {
        for row in self.tables.all_outbox().filter(|row| &*row.kind == "child.ended") {
            let payload: serde_json::Value = serde_json::from_str(&row.payload).unwrap_or_default();
            self.tidings.extend(payload["step"].as_u64().map(|step| (row.run, step as StepNo)));
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

    /// Whether a message still tells of something that can be received; all others must change nothing.
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

/// What tells two states of the tables apart: not when things happened, nor how often rows were written.
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
            [items.created, items.settled, items.failed, items.cancelled, items.again, items.ending.into()]
                .map(u64::from)
        }));
        key.extend([
            step.status() as u64
                | u64::from(step.attempt) << 8
                | u64::from(step.round) << 16
                | u64::from(step.tries) << 24
                | u64::from(step.losses) << 32
                | u64::from(step.reworks) << 40
                | u64::from(step.rework_pending) << 48,
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

impl World {
    /// Workers are alike: what one of them believes, any of them might.
    fn beliefs(&self) -> Vec<Vec<Lease>> {
        let mut workers = self.workers.clone();
        workers.sort_unstable();
        workers
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        key(&self.tables).hash(state);
        self.beliefs().hash(state);
        self.messages.hash(state);
        self.tidings.hash(state);
        self.budget.hash(state);
        self.violation.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        key(&self.tables) == key(&other.tables)
            && self.beliefs() == other.beliefs()
            && (&self.messages, &self.tidings, &self.budget, &self.violation)
                == (&other.messages, &other.tidings, &other.budget, &other.violation)
    }
}

/// Spends one of what is left.
fn spend(left: &mut u8) {
    *left = left.saturating_sub(1);
}

impl Model for Pipelines {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            tables: Tables::default().speaking(Arc::new(self.scripts.clone())),
            workers: vec![Vec::new(); self.workers],
            messages: BTreeSet::new(),
            held: BTreeSet::new(),
            tidings: BTreeSet::new(),
            budget: self.budget,
            violation: None,
        };
        let new = NewRun::new(run_id(), Arc::clone(&self.plan));
        world.transact(EARLY, |session| ops::create_run(session, &new, 1));
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        if world.violation.is_some() {
            return;
        }
        let budget = &world.budget;
        // Idle workers are alike: the first of them stands for all.
        let idle = world.workers.iter().position(Vec::is_empty);
        for (worker, held) in world.workers.iter().enumerate() {
            if Some(worker) == idle {
                actions.push(Act::Claim(worker));
                let current = world.messages.iter().filter(|message| world.is_current(message));
                actions.extend(current.map(|message| Act::Deliver(worker, *message)));
            }
            for lease in held {
                finishes(world, worker, *lease, actions);
                if budget.releases > 0 {
                    actions.push(Act::Release { worker, lease: *lease, reply_lost: false });
                    if budget.lost_replies > 0 {
                        actions.push(Act::Release { worker, lease: *lease, reply_lost: true });
                    }
                }
            }
            if budget.crashes > 0 && !held.is_empty() {
                actions.push(Act::Crash(worker));
            }
        }
        for lease in world.running() {
            if budget.expiries > 0 {
                actions.push(Act::Expire(lease));
            }
            if !world.believed(&lease) {
                actions.push(Act::Died(lease));
            }
        }
        for row in world.tables.all_executions() {
            match row.status() {
                ExecutionStatus::Scheduled if budget.redispatches > 0 => {
                    actions.push(Act::Redispatch(row.id))
                }
                ExecutionStatus::Requested if row.not_before_ms > 0 => actions.push(Act::Fire(row.id)),
                _ => {}
            }
        }
        for gate in world.tables.all_gates().filter(|gate| gate.status() == GateStatus::Open) {
            actions.push(Act::Answer(gate.id, true));
            if budget.failures > 0 {
                actions.push(Act::Answer(gate.id, false));
                actions.push(Act::Fire(gate_of(gate)));
            }
        }
        actions.extend(world.tidings.iter().map(|(run, step)| Act::Tell(*run, *step)));
        if budget.cancels > 0 && !world.run_status().is_terminal() {
            actions.push(Act::Cancel);
        }
        if budget.resumes > 0 && world.run_status().is_terminal() {
            actions.push(Act::Resume);
        }
        if budget.rewinds > 0 && world.run_status().is_terminal() {
            actions.extend((0..self.plan.steps.len() as StepNo).map(Act::Rewind));
        }
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut world = world.clone();
        let changed = step(&mut world, act);
        (changed || world.violation.is_some()).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, world: &World| {
                world.violation.is_none()
                    && check::state(&world.tables).is_ok()
                    && check::bounded(&world.tables).is_ok()
            }),
            Property::always("looking changes nothing", |model: &Pipelines, world: &World| {
                !model.is_sampled(world) || idle(world)
            }),
            Property::always("without further faults the run ends", |model: &Pipelines, world: &World| {
                !model.is_sampled(world) || quiet(world.clone()).is_ok()
            }),
            Property::sometimes("a run completes", |_, world: &World| {
                world.run_status() == RunStatus::Completed
            }),
        ]
    }
}

impl Pipelines {
    fn is_sampled(&self, world: &World) -> bool {
        let mut hasher = std::collections::hash_map::DefaultHasher::new();
        world.hash(&mut hasher);
        hasher.finish().is_multiple_of(self.quiet_every)
    }
}

/// A plan of steps `a`, `b`, `c`, … with these needs.
pub fn plan(needs: &[&[StepNo]], policies: impl Fn(StepNo) -> Policy) -> Arc<Plan> {
    let steps = needs.iter().enumerate().map(|(no, needs)| PlanStep {
        policy: policies(no as StepNo),
        ..PlanStep::new(char::from(b'a' + no as u8).to_string(), needs.to_vec())
    });
    Arc::new(Plan::new("model", steps.collect()).expect("the models' graphs are sound"))
}

/// A policy with this many attempts, after a wait.
pub fn retrying(attempts: u32) -> Policy {
    Policy { attempts, backoff: Backoff { delay_ms: 5, ..Backoff::default() }, ..Policy::default() }
}

/// A policy that sends a step back.
pub fn reworking(step: StepNo, max: u32) -> Policy {
    Policy { on_fail: OnFail::Rework { step, max }, ..Policy::default() }
}
