//! The whole engine in a simulated world: the executor, the worker and the store that ship, several of each, on
//! a clock, a bus, disks and processes that are drawn from a seed, and with faults.
//!
//! ```text
//!   seed ──▶ draw: nodes, pipelines, faults
//!              │
//!   world ─────┼─ executors, workers (shipped) ──┐                    ┌─ processes, directories
//!    one clock │  agents, persons, leaders ──────┼─▶ machine ─▶ store │  (simulated: the world's own record)
//!    one thread└─ faults: crash, pause, jump, …  └── lost, late, full ┘
//!                        │
//!   quiet: nothing goes wrong any more ──▶ everything must come to its end
//! ```
//!
//! [`run`] plays one seed. Every write is checked, what really ran is checked against the promises, and in the
//! end everything that somebody was told must be there. [`shrink()`] makes a failure small.

mod draw;
mod faults;
mod machine;
mod many;
mod programs;
mod record;
mod shrink;
mod story;
mod verdict;
mod workspace;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_store::{JournalEntry, SqliteOptions, Store};

use crate::check::Violation;
use crate::graphs::Chance;
use draw::Cast;
use faults::{Fault, Planned};
use record::End;
use world::{BEGINNING_MS, Event, Place, Role, Scheduler, World};

pub use many::{run_caught, run_many};
pub use shrink::shrink;

/// The store of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// In memory: every write is checked.
    #[default]
    Memory,
    /// A SQLite file: what happens must be what happens in memory.
    Sqlite,
}

/// How a seed is played. Less of anything is how a failure is made small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The store.
    pub store: Kind,
    /// Keeps the story.
    pub tell: bool,
    /// Faults that are left out, by their place in the list.
    pub without: Vec<usize>,
    /// Executors, at most.
    pub executors: usize,
    /// Workers, at most.
    pub workers: usize,
    /// Agents that come by for tasks, at most.
    pub agents: usize,
    /// Boards, at most.
    pub boards: usize,
    /// Processes that work off their own run, at most.
    pub attached: usize,
    /// Persons, at most.
    pub persons: usize,
    /// Runs that each person wants, at most.
    pub runs: usize,
    /// Steps of a run, at most.
    pub steps: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            store: Kind::Memory,
            tell: false,
            without: Vec::new(),
            executors: 3,
            workers: 3,
            agents: 2,
            boards: 1,
            attached: 1,
            persons: 2,
            runs: 3,
            steps: 5,
        }
    }
}

/// What came of one seed, or of many.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Seeds played.
    pub seeds: u64,
    /// Simulated time.
    pub simulated_ms: u64,
    /// Writes that reached the store.
    pub operations: u64,
    /// Runs that were made.
    pub runs: u64,
    /// Steps that were finished.
    pub steps: u64,
    /// Processes that were begun.
    pub starts: u64,
    /// Of these, how many were lost with their worker or lease, so that their step was begun again.
    pub again: u64,
    /// What went wrong, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// The hash of the story; of many seeds, of all their hashes.
    pub hash: u64,
    /// The story, if it was to be told.
    pub story: Vec<String>,
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

    /// Adds another seed's.
    pub fn add(&mut self, other: &Summary) {
        self.seeds += other.seeds;
        self.simulated_ms += other.simulated_ms;
        self.operations += other.operations;
        self.runs += other.runs;
        self.steps += other.steps;
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
             {} processes begun, {} of them lost and begun again ({percent:.1} %); faults:",
            self.seeds, self.operations, self.runs, self.steps, self.starts, self.again
        )?;
        for (kind, count) in &self.faults {
            write!(f, " {kind} {count},")?;
        }
        Ok(())
    }
}

/// A seed that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// How it was played.
    pub options: Options,
    /// What does not hold.
    pub violation: Violation,
    /// What happened, if it was to be told.
    pub story: Vec<String>,
    /// What went wrong, in order, without what was left out.
    pub faults: Vec<(usize, String)>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Violation { invariant, seen } = &self.violation;
        for line in &self.story {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "seed {} breaks \"{invariant}\": {seen}", self.seed)?;
        for (at, fault) in &self.faults {
            writeln!(f, "  fault {at}: {fault}")?;
        }
        write!(f, "  {:?}", self.options)
    }
}

/// How long everything has to come to its end once nothing goes wrong any more.
const PATIENCE_MS: i64 = 4 * 3_600_000;
/// How often it is looked whether everything is over.
const LOOK_MS: i64 = 2_000;

/// Plays one seed.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Box<Failure>> {
    let clocks = world::clocks(seed);
    let folder = Folder::new(options.store);
    let store = match &folder.0 {
        None => Ok(Store::in_memory(clocks.0.clone(), clocks.1.clone())),
        Some(path) => Store::open_with(path, SqliteOptions::default(), clocks.0.clone(), clocks.1.clone()),
    };
    let store = store.expect("a store can be made");
    let world = World::new(store.clone(), clocks, seed, options.clone());
    let mut chance = world.chance(0xd2);
    let (cast, words) = draw::cast(&world, &mut chance, options);
    let _ = store.speaking(Arc::new(words));
    let cast = Arc::new(cast);
    let planned =
        faults::draw(&mut Chance(chance.below(1 << 40) as u64), &world.state().nodes, cast.length_ms);
    let mut director = Director { world: Arc::clone(&world), cast, planned };
    director.set_the_stage();
    let mut scheduler = Scheduler::new(Arc::clone(&world));
    scheduler.run(|scheduler, event| director.fire(scheduler, event));
    drop(scheduler);
    director.close()
}

/// A folder of its own for a store on disk, gone with the simulation.
struct Folder(Option<std::path::PathBuf>);

impl Folder {
    fn new(kind: Kind) -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        if kind == Kind::Memory {
            return Folder(None);
        }
        // Where there is memory for files, nothing waits for a disk.
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

/// Brings about what was planned.
struct Director {
    world: Arc<World>,
    cast: Arc<Cast>,
    planned: Vec<Planned>,
}

impl Director {
    fn set_the_stage(&mut self) {
        let mut state = self.world.state();
        for node in 0..state.nodes.len() {
            let after_ms = state.chance.below(500) as i64;
            state.at(BEGINNING_MS + after_ms, Event::Up(node));
        }
        for (at, planned) in self.planned.iter().enumerate() {
            if !self.world.options.without.contains(&at) {
                state.at(BEGINNING_MS + planned.at_ms, Event::Fault(at));
            }
        }
        state.at(BEGINNING_MS + self.cast.length_ms, Event::Quiet);
    }

    /// Does what an event says; whether to go on.
    fn fire(&mut self, scheduler: &mut Scheduler, event: Event) -> bool {
        let world = Arc::clone(&self.world);
        match event {
            Event::Wake(_) | Event::Ring(_) => {}
            Event::Fault(at) => self.fault(scheduler, at),
            Event::GoOn(node) => scheduler.go_on(node),
            Event::Up(node) => self.start(node),
            Event::Ended(node, life) => self.ended(scheduler, node, life),
            Event::ProcessEnds(process) | Event::ProcessGone(process) => world.process_gone(process),
            Event::Guard(process) => world.guard(process),
            Event::Quiet => self.quiet(scheduler),
            Event::Look => return self.look(),
        }
        true
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
        self.world.tell(node, format_args!("starts"));
        let place = Arc::new(Place { world: Arc::clone(&self.world), node, life });
        let program = programs::begin(Arc::clone(&place), &self.cast);
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
        self.world.tell(node, format_args!("has ended"));
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
        world.tell(usize::MAX, format_args!("fault {at}: {fault:?}"));
        match *fault {
            Fault::Crash { node, down_ms, at_once } => {
                if world.state().nodes[node].up {
                    self.crash(scheduler, node, at_once);
                    self.world.after(down_ms, Event::Up(node));
                }
            }
            Fault::Pause { node, ms } => {
                world.state().nodes[node].paused = true;
                world.after(ms, Event::GoOn(node));
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
                world.state().weather.set(now_ms, fault);
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
            // A supervisor sees that its worker is gone, and ends the tree; or both were killed at once.
            let grace_ms = if at_once { 0 } else { record::LEASE_GRACE_MS };
            self.world.end_process(process, End::LeaseLost, grace_ms);
        }
    }

    fn quiet(&mut self, scheduler: &mut Scheduler) {
        self.world.tell(usize::MAX, format_args!("from here on nothing goes wrong any more"));
        let nodes = {
            let mut state = self.world.state();
            state.quiet = true;
            state.weather.clear();
            state.nodes.len()
        };
        for node in 0..nodes {
            scheduler.go_on(node);
            let role = self.world.state().nodes[node].role;
            if !matches!(role, Role::Leader) {
                self.start(node);
            }
        }
        self.world.after(LOOK_MS, Event::Look);
    }

    fn look(&self) -> bool {
        let now_ms = self.world.now_ms();
        match verdict::is_over(&self.world) {
            Ok(()) => false,
            Err(left) if now_ms > BEGINNING_MS + self.cast.length_ms + PATIENCE_MS => {
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
        summary.simulated_ms = (self.world.now_ms() - BEGINNING_MS) as u64;
        summary.starts = state.record.starts;
        summary.again = state.record.again;
        summary.hash = state.story.hash();
        let Some(violation) = violation else {
            summary.story = state.story.take_lines();
            return Ok(summary);
        };
        let without = &self.world.options.without;
        let kept = self.planned.iter().enumerate().filter(|(at, _)| !without.contains(at));
        Err(Box::new(Failure {
            seed: self.world.seed,
            options: self.world.options.clone(),
            violation,
            story: state.story.take_lines(),
            faults: kept
                .map(|(at, planned)| (at, format!("at {} ms: {:?}", planned.at_ms, planned.fault)))
                .collect(),
        }))
    }
}
