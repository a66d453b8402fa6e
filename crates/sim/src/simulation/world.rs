//! The simulated world: one clock, one thread, and a queue of events.
//!
//! ```text
//!   due: (moment, number) ──▶ wake a task or a listener, end a process, start a fault
//!   ready: tasks that can continue; the next one is drawn
//!   nodes: programs on hosts; a crash drops a node's tasks, a pause holds them
//! ```
//!
//! Everything that could differ between two runs of a seed is drawn from the seed, so both are equal.

use std::cmp::Ordering as Order;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sprag_lifecycle::RunId;
use sprag_store::testing::Tables;
use sprag_store::{Clock, Entropy, SimulatedRuntime, Store, Task, Topic, mix};
use tokio::sync::{Notify, watch};

use super::event_log::EventLog;
use super::faults::ActiveFaults;
use super::record::Record;
use super::workspace::Workspace;
use super::{Options, Summary};
use crate::check::Violation;
use crate::graphs::Chance;

/// The time at which every simulation starts, on both clocks.
pub const START_MS: i64 = 1_800_000_000_000;

/// The world's clocks: a monotonic one, and each node's wall clock.
#[derive(Debug)]
pub struct WorldClock {
    steady_ms: AtomicI64,
    /// The error of the wall clock of the active node.
    off_ms: AtomicI64,
}

impl WorldClock {
    pub fn now_ms(&self) -> i64 {
        self.steady_ms.load(Ordering::Relaxed)
    }
}

impl Clock for WorldClock {
    fn wall_ms(&self) -> i64 {
        self.now_ms() + self.off_ms.load(Ordering::Relaxed)
    }

    fn boot_ms(&self) -> i64 {
        self.now_ms()
    }
}

/// The store's source of randomness. It restarts with each write, so that repeating a write does not affect the next
/// one.
#[derive(Debug)]
pub struct SimEntropy {
    seed: u64,
    at: AtomicU64,
}

impl SimEntropy {
    /// Starts the draws of write number `write`.
    pub fn begin(&self, write: u64) {
        self.at.store(mix(self.seed ^ mix(write)), Ordering::Relaxed);
    }
}

impl Entropy for SimEntropy {
    fn next_u64(&self) -> u64 {
        mix(self.at.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed))
    }
}

/// A scheduled event.
pub enum Event {
    /// A task's wait is over.
    Wake(Waker),
    /// A wake-up reaches its listener, if it still exists.
    Ring(Weak<Notify>),
    /// A fault starts.
    Fault(usize),
    /// A pause ends.
    PauseEnds(usize),
    /// A node starts again.
    Up(usize),
    /// A program has finished by itself.
    Ended(usize, u32),
    /// A process ends by itself.
    ProcessEnds(usize),
    /// A process's guard ends it, unless it was renewed meanwhile.
    Guard(usize),
    /// A process that was asked to end is gone.
    ProcessGone(usize),
    /// The faults end.
    Quiet,
    /// A check whether everything has ended.
    Look,
}

struct Due {
    at_ms: i64,
    number: u64,
    event: Event,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Order {
        // The heap returns the greatest element first.
        (other.at_ms, other.number).cmp(&(self.at_ms, self.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for Due {}

/// The role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The shipped executor: timers, reaping, effects.
    Executor,
    /// The shipped worker, with simulated processes.
    Worker,
    /// A process that starts one run and executes it: executor and worker for that run alone.
    Attached,
    /// An agent or person that claims tasks.
    Agent,
    /// A program that receives hand-off messages early, late or again.
    Courier,
    /// A person who starts runs, answers and changes their mind.
    Person,
    /// The leader of a board.
    Leader,
    /// A program that deletes runs which ended a while ago.
    Collector,
    /// A sender of events to a rule, and the person who looks after the rule.
    Sender,
}

/// A program on a host.
pub struct Node {
    pub name: String,
    pub role: Role,
    pub host: usize,
    /// The number of its starts.
    pub life: u32,
    pub up: bool,
    pub paused: bool,
    /// The error of its wall clock.
    pub off_ms: i64,
    /// Asks the program to stop in an orderly way.
    pub stop: Option<watch::Sender<bool>>,
    held: Vec<usize>,
}

/// The mutable state of the world.
pub struct State {
    due: BinaryHeap<Due>,
    numbers: u64,
    spawned: Vec<(usize, u32, Task)>,
    listeners: BTreeMap<Topic, Vec<(usize, Weak<Notify>)>>,
    pub nodes: Vec<Node>,
    pub chance: Chance,
    pub active_faults: ActiveFaults,
    pub event_log: EventLog,
    pub record: Record,
    pub workspace: Workspace,
    pub summary: Summary,
    pub violation: Option<Violation>,
    /// The rows after the last write that changed any.
    pub last: Tables,
    pub writes: u64,
    /// The number of answers to writes.
    pub answers: u64,
    pub quiet: bool,
}

/// A simulated world. See the module's documentation.
pub struct World {
    pub store: Store,
    pub clock: Arc<WorldClock>,
    pub entropy: Arc<SimEntropy>,
    pub options: Options,
    pub seed: u64,
    ready: Arc<Ready>,
    state: Mutex<State>,
}

type Ready = Mutex<Vec<usize>>;

struct Awake {
    task: usize,
    ready: Arc<Ready>,
}

impl Wake for Awake {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if !ready.contains(&self.task) {
            ready.push(self.task);
        }
    }
}

pub fn clocks(seed: u64) -> (Arc<WorldClock>, Arc<SimEntropy>) {
    let clock = WorldClock { steady_ms: AtomicI64::new(START_MS), off_ms: AtomicI64::new(0) };
    (Arc::new(clock), Arc::new(SimEntropy { seed: mix(seed), at: AtomicU64::new(seed) }))
}

impl State {
    /// Takes note of the run that a request with an idempotency key was answered with.
    pub fn answers_key(&mut self, key: &Arc<str>, run: RunId) {
        if let Err(violation) = self.record.answers_key(key, run) {
            self.violation.get_or_insert(violation);
        }
    }
}

impl World {
    pub fn new(
        store: Store,
        (clock, entropy): (Arc<WorldClock>, Arc<SimEntropy>),
        seed: u64,
        options: Options,
    ) -> Arc<World> {
        let state = State {
            due: BinaryHeap::new(),
            numbers: 0,
            spawned: Vec::new(),
            listeners: BTreeMap::new(),
            nodes: Vec::new(),
            chance: Chance(mix(seed ^ 0x77)),
            active_faults: ActiveFaults::default(),
            event_log: EventLog::new(options.keep_log),
            record: Record::default(),
            workspace: Workspace::default(),
            summary: Summary::default(),
            violation: None,
            last: Tables::default(),
            writes: 0,
            answers: 0,
            quiet: false,
        };
        let (ready, state) = (Arc::default(), Mutex::new(state));
        Arc::new(World { store, clock, entropy, options, seed, ready, state })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Returns a generator for one purpose, independent of all other draws.
    pub fn chance(&self, purpose: u64) -> Chance {
        Chance(mix(self.seed ^ mix(purpose)))
    }

    /// Schedules an event.
    pub fn after(&self, ms: i64, event: Event) {
        self.state().at(self.now_ms() + ms, event);
    }

    /// Records an event in the log.
    pub fn record(&self, who: usize, what: std::fmt::Arguments<'_>) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let state = &mut *state;
        let name = state.nodes.get(who).map_or("the world", |node| node.name.as_str());
        state.event_log.record(now_ms, name, what);
    }

    /// Records a violation. The first one is reported.
    pub fn violate(&self, violation: Violation) {
        self.state().violation.get_or_insert(violation);
    }

    /// Waits for a duration of simulated time.
    pub fn pause(self: &Arc<Self>, for_a_while: Duration) -> Task {
        let (world, mut at_ms) = (Arc::clone(self), None);
        let ms = for_a_while.as_millis().min(1 << 40) as i64;
        Box::pin(std::future::poll_fn(move |context| {
            let now_ms = world.now_ms();
            match at_ms {
                Some(at_ms) if at_ms <= now_ms => Poll::Ready(()),
                Some(_) => Poll::Pending,
                None if ms == 0 => Poll::Ready(()),
                None => {
                    at_ms = Some(now_ms + ms);
                    world.state().at(now_ms + ms, Event::Wake(context.waker().clone()));
                    Poll::Pending
                }
            }
        }))
    }
}

impl State {
    pub fn at(&mut self, at_ms: i64, event: Event) {
        self.numbers += 1;
        let number = self.numbers;
        self.due.push(Due { at_ms, number, event });
    }

    pub fn spawn(&mut self, node: usize, life: u32, task: Task) {
        self.spawned.push((node, life, task));
    }

    pub fn listen(&mut self, node: usize, topics: &[Topic]) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        for topic in topics {
            self.listeners.entry(topic.clone()).or_default().push((node, Arc::downgrade(&notify)));
        }
        notify
    }

    /// Returns the listeners of a topic.
    pub fn listeners(&mut self, topic: &Topic) -> Vec<Weak<Notify>> {
        let Some(listeners) = self.listeners.get_mut(topic) else { return Vec::new() };
        listeners.retain(|(_, ear)| ear.strong_count() > 0);
        listeners.iter().map(|(_, ear)| ear.clone()).collect()
    }

    /// Returns whether the process with this identity in the store has ended.
    pub fn is_gone(&self, process: &str) -> bool {
        let handle = process.split_once('/').and_then(|(_, rest)| rest.split_once('.'));
        let Some((node, life)) = handle else { return false };
        let (Ok(node), Ok(life)) = (node.parse::<usize>(), life.parse::<u32>()) else { return false };
        self.nodes.get(node).is_none_or(|node| !node.up || node.life != life)
    }

    /// Returns the identity of a node's process in the store.
    pub fn process_of(&self, node: usize) -> String {
        let Node { host, life, .. } = &self.nodes[node];
        format!("host-{host}/{node}.{life}")
    }

    pub fn add_node(&mut self, name: String, role: Role, host: usize) -> usize {
        self.nodes.push(Node {
            name,
            role,
            host,
            life: 0,
            up: false,
            paused: false,
            off_ms: 0,
            stop: None,
            held: Vec::new(),
        });
        self.nodes.len() - 1
    }
}

/// A program's access to the world: its store operations and waits go through it.
pub struct ProgramHandle {
    pub world: Arc<World>,
    pub node: usize,
    pub life: u32,
}

impl ProgramHandle {
    /// Returns this program's store handle.
    pub fn store(self: &Arc<Self>) -> Store {
        self.world.store.seen_from(Arc::clone(self) as Arc<dyn SimulatedRuntime>)
    }
}

struct Slot {
    node: usize,
    life: u32,
    task: Task,
    waker: Waker,
}

/// Runs the world until it has ended. `fire` handles the events that need more than waking a task.
pub struct Scheduler {
    pub world: Arc<World>,
    slots: Vec<Option<Slot>>,
    chance: Chance,
}

impl Scheduler {
    pub fn new(world: Arc<World>) -> Self {
        let chance = world.chance(0x5c);
        Scheduler { world, slots: Vec::new(), chance }
    }

    /// Runs until `fire` returns false or no event is left.
    pub fn run(&mut self, mut fire: impl FnMut(&mut Scheduler, Event) -> bool) {
        loop {
            self.adopt();
            if self.world.state().violation.is_some() {
                return;
            }
            let ready = {
                let mut ready = self.world.ready.lock().unwrap_or_else(PoisonError::into_inner);
                match ready.len() {
                    0 => None,
                    1 => ready.pop(),
                    several => Some(ready.swap_remove(self.chance.below(several))),
                }
            };
            if let Some(task) = ready {
                self.poll(task);
                continue;
            }
            let Some(due) = self.world.state().due.pop() else { return };
            let now_ms = self.world.now_ms().max(due.at_ms);
            self.world.clock.steady_ms.store(now_ms, Ordering::Relaxed);
            match due.event {
                Event::Wake(waker) => waker.wake(),
                Event::Ring(ear) => {
                    if let Some(ear) = ear.upgrade() {
                        ear.notify_one();
                    }
                }
                other => {
                    if !fire(self, other) {
                        return;
                    }
                }
            }
        }
    }

    /// Adopts newly spawned tasks.
    fn adopt(&mut self) {
        for (node, life, task) in std::mem::take(&mut self.world.state().spawned) {
            let id = self.slots.len();
            let waker = Waker::from(Arc::new(Awake { task: id, ready: Arc::clone(&self.world.ready) }));
            waker.wake_by_ref();
            self.slots.push(Some(Slot { node, life, task, waker }));
        }
    }

    fn poll(&mut self, id: usize) {
        let Some(slot) = self.slots[id].as_mut() else { return };
        {
            let mut state = self.world.state();
            let node = &mut state.nodes[slot.node];
            if node.paused {
                node.held.push(id);
                return;
            }
            self.world.clock.off_ms.store(node.off_ms, Ordering::Relaxed);
        }
        let waker = slot.waker.clone();
        if slot.task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.slots[id] = None;
        }
    }

    /// Drops all tasks of a node.
    pub fn drop_tasks(&mut self, node: usize) {
        // Tasks are dropped one by one, because dropping one may wake others.
        for id in 0..self.slots.len() {
            if self.slots[id].as_ref().is_some_and(|slot| slot.node == node) {
                drop(self.slots[id].take());
            }
        }
        let mut state = self.world.state();
        state.nodes[node].held.clear();
        state.spawned.retain(|(of, _, _)| *of != node);
    }

    /// Ends a pause: tasks that became ready meanwhile continue.
    pub fn end_pause(&mut self, node: usize) {
        let held = {
            let mut state = self.world.state();
            let node = &mut state.nodes[node];
            node.paused = false;
            std::mem::take(&mut node.held)
        };
        for id in held {
            if let Some(slot) = &self.slots[id] {
                debug_assert_eq!(slot.life, self.world.state().nodes[slot.node].life);
                slot.waker.wake_by_ref();
            }
        }
    }
}
