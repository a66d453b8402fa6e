//! The whole engine in a simulated world: several instances of the shipped executor, worker and store, with a clock, a
//! bus, disks and processes that are drawn from a seed, and with faults.
//!
//! ```text
//!   seed ──▶ draw: nodes, pipelines, faults
//!              │
//!   world ─────┼─ executors, workers (shipped) ──┐                    ┌─ processes, directories
//!    one clock │  agents, persons, leaders ──────┼─▶ machine ─▶ store │  (simulated: the world's own record)
//!    one thread└─ faults: crash, pause, jump, …  └── lost, late, full ┘
//!                        │
//!   quiet: the faults end ──▶ everything must come to an end
//! ```
//!
//! [`run`] runs one seed. It checks every write against the invariants, checks the real processes against the
//! guarantees, and checks at the end that every acknowledged result is stored. [`shrink()`] reduces a failure.

mod draw;
mod event_log;
mod faults;
mod machine;
mod many;
mod programs;
mod record;
mod shrink;
mod verdict;
mod workspace;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_lifecycle::RunId;
use sprag_store::{JournalEntry, SqliteOptions, Store};

use crate::check::Violation;
use crate::graphs::Chance;
use draw::Scenario;
use faults::{Fault, Planned};
use record::End;
use world::{Event, ProgramHandle, Role, START_MS, Scheduler, World};

pub use many::{run_caught, run_many};
pub use shrink::shrink;

/// The store of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreKind {
    /// In memory; every write is checked.
    #[default]
    Memory,
    /// A SQLite file; the events must be the same as in memory.
    Sqlite,
}

/// The options of a run of one seed. Shrinking reduces them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The kind of store.
    pub store: StoreKind,
    /// Whether to keep the event log.
    pub keep_log: bool,
    /// The indices of faults that are left out.
    pub without: Vec<usize>,
    /// The most executors.
    pub executors: usize,
    /// The most workers.
    pub workers: usize,
    /// The most agents that claim tasks.
    pub agents: usize,
    /// The most boards.
    pub boards: usize,
    /// The most processes that execute their own run.
    pub attached: usize,
    /// The most programs that delete finished runs.
    pub collectors: usize,
    /// The most senders, each with a rule of its own; none means no rules.
    pub senders: usize,
    /// The most persons.
    pub persons: usize,
    /// The most runs that each person starts.
    pub runs: usize,
    /// The most steps of a run.
    pub steps: usize,
    /// Whether there are no executors and workers for all runs, but only processes that execute their own run, in one
    /// group.
    pub serverless: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            store: StoreKind::Memory,
            keep_log: false,
            without: Vec::new(),
            executors: 3,
            workers: 3,
            agents: 2,
            boards: 1,
            attached: 1,
            collectors: 1,
            senders: 0,
            persons: 2,
            runs: 3,
            steps: 5,
            serverless: false,
        }
    }
}

/// The results of one or many seeds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// The number of seeds.
    pub seeds: u64,
    /// The simulated time in milliseconds.
    pub simulated_ms: u64,
    /// The number of writes that reached the store.
    pub operations: u64,
    /// The number of created runs.
    pub runs: u64,
    /// The number of finished steps.
    pub steps: u64,
    /// The number of deleted runs.
    pub forgotten: u64,
    /// The number of started processes.
    pub starts: u64,
    /// The number of processes that were lost with their worker or lease, so that their step was started again.
    pub again: u64,
    /// The number of faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// The hash of the event log; of many seeds, the hash of all their hashes.
    pub hash: u64,
    /// The event log, if the options ask for it.
    pub event_log: Vec<String>,
}

impl Summary {
    fn count(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    fn count_messages(&mut self, copies: usize) {
        match copies {
            0 => self.count("message lost"),
            1 => {}
            _ => self.count("message doubled"),
        }
    }

    fn follow(&mut self, entries: &[JournalEntry]) {
        self.runs += entries.iter().filter(|entry| entry.event == "run.created").count() as u64;
        self.steps += entries.iter().filter(|entry| entry.event == "step.succeeded").count() as u64;
    }

    /// Adds the results of another seed.
    pub fn add(&mut self, other: &Summary) {
        self.seeds += other.seeds;
        self.simulated_ms += other.simulated_ms;
        self.operations += other.operations;
        self.runs += other.runs;
        self.steps += other.steps;
        self.forgotten += other.forgotten;
        self.starts += other.starts;
        self.again += other.again;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        self.hash = self.hash.wrapping_add(other.hash);
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hours = self.simulated_ms as f64 / 3_600_000.0;
        let percent = 100.0 * self.again as f64 / self.starts.max(1) as f64;
        write!(
            f,
            "{} seeds, {hours:.0} simulated hours, {} operations, {} runs, {} steps done; \
             {} runs forgotten; {} processes started, {} of them lost and started again ({percent:.1} %); faults:",
            self.seeds, self.operations, self.runs, self.steps, self.forgotten, self.starts, self.again
        )?;
        for (kind, count) in &self.faults {
            write!(f, " {kind} {count},")?;
        }
        Ok(())
    }
}

/// A failed seed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The number of the seed.
    pub seed: u64,
    /// The options of the run.
    pub options: Options,
    /// The violated invariant.
    pub violation: Violation,
    /// The event log, if the options ask for it.
    pub event_log: Vec<String>,
    /// The faults in order, by index, without those that were left out.
    pub faults: Vec<(usize, String)>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Violation { invariant, seen } = &self.violation;
        for line in &self.event_log {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "seed {} breaks \"{invariant}\": {seen}", self.seed)?;
        for (at, fault) in &self.faults {
            writeln!(f, "  fault {at}: {fault}")?;
        }
        write!(f, "  {:?}", self.options)
    }
}

/// The time within which everything must end after the last fault. A step that no worker of its host serves fails after
/// an hour; a run may have several of them, one after another, and again after a rework.
const MAX_DRAIN_MS: i64 = 24 * 3_600_000;
/// The longest time that a run may stay reserved for a dead worker after the last fault.
const LOOKED_AT_WITHIN_MS: i64 = 15_000;
/// The interval of the check whether everything has ended.
const LOOK_MS: i64 = 2_000;

/// Runs one seed.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Box<Failure>> {
    let clocks = world::clocks(seed);
    let folder = Folder::new(options.store);
    let store = match &folder.0 {
        None => Ok(Store::in_memory(clocks.0.clone(), clocks.1.clone())),
        Some(path) => Store::open_with(path, SqliteOptions::simulated(), clocks.0.clone(), clocks.1.clone()),
    };
    let store = store.expect("a store can be made");
    let world = World::new(store.clone(), clocks, seed, options.clone());
    let mut chance = world.chance(0xd2);
    let (scenario, words) = draw::scenario(&world, &mut chance, options);
    let _ = store.with_evaluator(Arc::new(words));
    let scenario = Arc::new(scenario);
    let planned =
        faults::draw(&mut Chance(chance.below(1 << 40) as u64), &world.state().nodes, scenario.length_ms);
    let mut director = Director { world: Arc::clone(&world), scenario, planned, orphans: BTreeMap::new() };
    director.schedule();
    let mut scheduler = Scheduler::new(Arc::clone(&world));
    scheduler.run(|scheduler, event| director.fire(scheduler, event));
    drop(scheduler);
    director.close()
}

/// A temporary folder for a store on disk, removed after the simulation.
struct Folder(Option<std::path::PathBuf>);

impl Folder {
    fn new(kind: StoreKind) -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        if kind == StoreKind::Memory {
            return Folder(None);
        }
        // A file system in memory avoids waiting for a disk.
        let shared = std::path::Path::new("/dev/shm");
        let root = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let nth = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Folder(Some(root.join(format!("sprag-sim-{}-{nth}", std::process::id()))))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Starts programs and faults according to the plan.
struct Director {
    world: Arc<World>,
    scenario: Arc<Scenario>,
    planned: Vec<Planned>,
    /// Runs that are reserved for a dead worker, with the time of the first observation.
    orphans: BTreeMap<RunId, i64>,
}

impl Director {
    fn schedule(&mut self) {
        let mut state = self.world.state();
        for node in 0..state.nodes.len() {
            let after_ms = state.chance.below(500) as i64;
            state.at(START_MS + after_ms, Event::Up(node));
        }
        for (at, planned) in self.planned.iter().enumerate() {
            if !self.world.options.without.contains(&at) {
                state.at(START_MS + planned.at_ms, Event::Fault(at));
            }
        }
        state.at(START_MS + self.scenario.length_ms, Event::Quiet);
    }

    /// Handles an event. Returns whether to continue.
    fn fire(&mut self, scheduler: &mut Scheduler, event: Event) -> bool {
        let world = Arc::clone(&self.world);
        match event {
            Event::Wake(_) | Event::Ring(_) => {}
            Event::Fault(at) => self.fault(scheduler, at),
            Event::PauseEnds(node) => scheduler.end_pause(node),
            Event::Up(node) => self.start(node),
            Event::Ended(node, life) => self.ended(scheduler, node, life),
            Event::ProcessEnds(process) | Event::ProcessGone(process) => world.process_gone(process),
            Event::Guard(process) => world.guard(process),
            Event::Quiet => self.quiet(scheduler),
            Event::Look => return self.look(),
        }
        true
    }

    /// Checks that a run that is reserved for a dead worker is freed by the next sweep.
    fn look_at_reservations(&mut self) {
        let now_ms = self.world.now_ms();
        let orphans = self.world.store.queries().orphaned_runs(usize::MAX).unwrap_or_default();
        self.orphans.retain(|run, _| orphans.contains(run));
        for run in orphans {
            let since_ms = *self.orphans.entry(run).or_insert(now_ms);
            if now_ms - since_ms > LOOKED_AT_WITHIN_MS {
                let seen = format!("{run} is reserved to a worker that is gone since {since_ms}");
                self.world.violate(Violation { invariant: "I20 every reservation is looked at", seen });
            }
        }
    }

    fn start(&self, node: usize) {
        let life = {
            let mut state = self.world.state();
            let kept = &mut state.nodes[node];
            if kept.up || (kept.role == Role::Attached && kept.life > 0) {
                return;
            }
            kept.up = true;
            kept.life += 1;
            kept.life
        };
        self.world.record(node, format_args!("starts"));
        let handle = Arc::new(ProgramHandle { world: Arc::clone(&self.world), node, life });
        let program = programs::begin(Arc::clone(&handle), &self.scenario);
        let world = Arc::clone(&self.world);
        let task = Box::pin(async move {
            program.await;
            world.after(0, Event::Ended(node, life));
        });
        self.world.state().spawn(node, life, task);
    }

    fn ended(&self, scheduler: &mut Scheduler, node: usize, life: u32) {
        if self.world.state().nodes[node].life != life {
            return;
        }
        scheduler.drop_tasks(node);
        self.world.record(node, format_args!("has ended"));
        let mut state = self.world.state();
        state.nodes[node].up = false;
        if matches!(state.nodes[node].role, Role::Executor | Role::Worker) {
            let after_ms = 1 + state.chance.below(5_000) as i64;
            state.at(self.world.now_ms() + after_ms, Event::Up(node));
        }
    }

    fn fault(&mut self, scheduler: &mut Scheduler, at: usize) {
        let Planned { fault, .. } = &self.planned[at];
        let world = &self.world;
        if world.state().quiet {
            return;
        }
        world.state().summary.count(fault.kind());
        world.record(usize::MAX, format_args!("fault {at}: {fault:?}"));
        match *fault {
            Fault::Crash { node, down_ms, at_once } => {
                if world.state().nodes[node].up {
                    self.crash(scheduler, node, at_once);
                    self.world.after(down_ms, Event::Up(node));
                }
            }
            Fault::Pause { node, ms } => {
                world.state().nodes[node].paused = true;
                world.after(ms, Event::PauseEnds(node));
            }
            Fault::Stop { node } => {
                if let Some(stop) = &world.state().nodes[node].stop {
                    let _ = stop.send(true);
                }
            }
            Fault::Jump { node, ms } => world.state().nodes[node].off_ms += ms,
            Fault::Kill { chosen } => {
                let alive = {
                    let state = world.state();
                    let all = state.record.processes.iter().enumerate();
                    all.filter(|(_, process)| process.alive).map(|(at, _)| at).collect::<Vec<_>>()
                };
                if !alive.is_empty() {
                    world.end_process(alive[chosen % alive.len()], End::Killed, 0);
                }
            }
            Fault::Lose { chosen } => {
                let mut state = world.state();
                let whole = state.workspace.directories.keys().cloned().collect::<Vec<_>>();
                if !whole.is_empty() {
                    state.workspace.directories.remove(&whole[chosen % whole.len()]);
                }
            }
            Fault::Full { .. } | Fault::Ambiguous { .. } | Fault::Bus { .. } | Fault::Slow { .. } => {
                let now_ms = world.now_ms();
                world.state().active_faults.set(now_ms, fault);
            }
        }
    }

    fn crash(&self, scheduler: &mut Scheduler, node: usize, at_once: bool) {
        let theirs: Vec<usize> = {
            let mut state = self.world.state();
            state.nodes[node].up = false;
            state.nodes[node].paused = false;
            state.nodes[node].stop = None;
            let all = state.record.processes.iter().enumerate();
            all.filter(|(_, process)| process.alive && process.node == node).map(|(at, _)| at).collect()
        };
        scheduler.drop_tasks(node);
        for process in theirs {
            self.world.state().record.processes[process].orphan = true;
            // The supervisor notices the death of its worker and ends the tree, or both were killed at once.
            let grace_ms = if at_once { 0 } else { record::LEASE_GRACE_MS };
            self.world.end_process(process, End::LeaseLost, grace_ms);
        }
    }

    fn quiet(&mut self, scheduler: &mut Scheduler) {
        self.world.record(usize::MAX, format_args!("from here on nothing goes wrong any more"));
        let nodes = {
            let mut state = self.world.state();
            state.quiet = true;
            state.active_faults.clear();
            state.nodes.len()
        };
        for node in 0..nodes {
            scheduler.end_pause(node);
            let role = self.world.state().nodes[node].role;
            if !matches!(role, Role::Leader) {
                self.start(node);
            }
        }
        self.world.after(LOOK_MS, Event::Look);
    }

    fn look(&mut self) -> bool {
        let now_ms = self.world.now_ms();
        if !self.world.options.serverless {
            self.look_at_reservations();
        }
        match verdict::is_over(&self.world) {
            Ok(()) => false,
            Err(left) if now_ms > START_MS + self.scenario.length_ms + MAX_DRAIN_MS => {
                self.world.violate(Violation { invariant: "I10 everything comes to its end", seen: left });
                false
            }
            Err(_) => {
                self.world.after(LOOK_MS, Event::Look);
                true
            }
        }
    }

    fn close(self) -> Result<Summary, Box<Failure>> {
        let judged = verdict::judge(&self.world);
        let mut state = self.world.state();
        let violation = state.violation.take().or(judged.err());
        let mut summary = std::mem::take(&mut state.summary);
        summary.seeds = 1;
        summary.simulated_ms = (self.world.now_ms() - START_MS) as u64;
        summary.starts = state.record.starts;
        summary.again = state.record.again;
        summary.hash = state.event_log.hash();
        let Some(violation) = violation else {
            summary.event_log = state.event_log.take_lines();
            return Ok(summary);
        };
        let without = &self.world.options.without;
        let kept = self.planned.iter().enumerate().filter(|(at, _)| !without.contains(at));
        Err(Box::new(Failure {
            seed: self.world.seed,
            options: self.world.options.clone(),
            violation,
            event_log: state.event_log.take_lines(),
            faults: kept
                .map(|(at, planned)| (at, format!("at {} ms: {:?}", planned.at_ms, planned.fault)))
                .collect(),
        }))
    }
}
