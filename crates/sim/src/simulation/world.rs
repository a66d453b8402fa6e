//! The simulated world: one clock, one thread, and whatever is to happen next.
//!
//! ```text
//!   due: (moment, number) ──▶ wake a task, ring a bell, end a process, begin a fault
//!   ready: tasks that can go on; which of them does is drawn
//!   nodes: programs on hosts; a crash drops a node's tasks, a pause holds them
//! ```
//!
//! Everything that could differ between two runs of a seed is drawn from the seed, so that nothing does.

use std::cmp::Ordering as Order;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sprag_store::{Clock, Entropy, Machine, Store, Tables, Task, Topic, mix};
use tokio::sync::{Notify, watch};

use super::faults::Weather;
use super::record::Record;
use super::story::Story;
use super::workspace::Workspace;
use super::{Options, Summary};
use crate::check::Violation;
use crate::graphs::Chance;

/// The moment at which every simulation begins, on both clocks.
pub const BEGINNING_MS: i64 = 1_800_000_000_000;

/// The world's clocks: one that never jumps, and each node's idea of the time of day.
#[derive(Debug)]
pub struct WorldClock {
    steady_ms: AtomicI64,
    /// How far the wall clock of the node that acts just now is off.
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

/// The store's chance: each write begins anew, so that one which is run twice changes nothing for the next.
#[derive(Debug)]
pub struct Dice {
    seed: u64,
    at: AtomicU64,
}

impl Dice {
    /// Begins the draws of write number `write`.
    pub fn begin(&self, write: u64) {
        self.at.store(mix(self.seed ^ mix(write)), Ordering::Relaxed);
    }
}

impl Entropy for Dice {
    fn next_u64(&self) -> u64 {
        mix(self.at.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed))
    }
}

/// Something that is to happen.
pub enum Event {
    /// A task has waited long enough.
    Wake(Waker),
    /// A wake-up reaches whoever listens, if it is still there.
    Ring(Weak<Notify>),
    /// A fault begins.
    Fault(usize),
    /// A pause is over.
    GoOn(usize),
    /// A node that was down comes up.
    Up(usize),
    /// A program has come to its end by itself.
    Ended(usize, u32),
    /// A process comes to its end by itself.
    ProcessEnds(usize),
    /// A process's guard ends it, unless it was renewed meanwhile.
    Guard(usize),
    /// A process that was told to end is gone.
    ProcessGone(usize),
    /// From here on nothing goes wrong any more.
    Quiet,
    /// Is everything over?
    Look,
}

struct Due {
    at_ms: i64,
    number: u64,
    event: Event,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Order {
        // The heap gives the greatest first.
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

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The shipped executor: timers, reaping, effects.
    Executor,
    /// The shipped worker, with simulated processes.
    Worker,
    /// Started one run, and works it off: executor and worker for that run alone.
    Attached,
    /// Comes by for tasks, as agents and people do.
    Agent,
    /// Takes what messages tell of, early, late or again.
    Courier,
    /// Wants things.
    Person,
    /// Leads a board.
    Leader,
}

/// A program on a host.
pub struct Node {
    pub name: String,
    pub role: Role,
    pub host: usize,
    /// How often it was started.
    pub life: u32,
    pub up: bool,
    pub paused: bool,
    /// How far its wall clock is off.
    pub off_ms: i64,
    /// Asks it to end in good order.
    pub stop: Option<watch::Sender<bool>>,
    held: Vec<usize>,
}

/// Everything that changes.
pub struct State {
    due: BinaryHeap<Due>,
    numbers: u64,
    spawned: Vec<(usize, u32, Task)>,
    ears: BTreeMap<Topic, Vec<(usize, Weak<Notify>)>>,
    pub nodes: Vec<Node>,
    pub chance: Chance,
    pub weather: Weather,
    pub story: Story,
    pub record: Record,
    pub workspace: Workspace,
    pub summary: Summary,
    pub violation: Option<Violation>,
    /// The rows after the last write that changed any.
    pub last: Tables,
    pub writes: u64,
    pub quiet: bool,
}

/// See the module's documentation.
pub struct World {
    pub store: Store,
    pub clock: Arc<WorldClock>,
    pub dice: Arc<Dice>,
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

pub fn clocks(seed: u64) -> (Arc<WorldClock>, Arc<Dice>) {
    let clock = WorldClock { steady_ms: AtomicI64::new(BEGINNING_MS), off_ms: AtomicI64::new(0) };
    (Arc::new(clock), Arc::new(Dice { seed: mix(seed), at: AtomicU64::new(seed) }))
}

impl World {
    pub fn new(
        store: Store,
        (clock, dice): (Arc<WorldClock>, Arc<Dice>),
        seed: u64,
        options: Options,
    ) -> Arc<World> {
        let state = State {
            due: BinaryHeap::new(),
            numbers: 0,
            spawned: Vec::new(),
            ears: BTreeMap::new(),
            nodes: Vec::new(),
            chance: Chance(mix(seed ^ 0x77)),
            weather: Weather::default(),
            story: Story::new(options.tell),
            record: Record::default(),
            workspace: Workspace::default(),
            summary: Summary::default(),
            violation: None,
            last: Tables::default(),
            writes: 0,
            quiet: false,
        };
        let (ready, state) = (Arc::default(), Mutex::new(state));
        Arc::new(World { store, clock, dice, options, seed, ready, state })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Chance for one purpose: what others draw does not change it.
    pub fn chance(&self, purpose: u64) -> Chance {
        Chance(mix(self.seed ^ mix(purpose)))
    }

    /// Has something happen after a while.
    pub fn after(&self, ms: i64, event: Event) {
        self.state().at(self.now_ms() + ms, event);
    }

    /// Tells what happened.
    pub fn tell(&self, who: usize, what: std::fmt::Arguments<'_>) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let state = &mut *state;
        let name = state.nodes.get(who).map_or("the world", |node| node.name.as_str());
        state.story.tell(now_ms, name, what);
    }

    /// Something is wrong, and the first such thing is what is reported.
    pub fn violate(&self, violation: Violation) {
        self.state().violation.get_or_insert(violation);
    }

    /// Lets a while pass for whoever waits for it.
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
            self.ears.entry(topic.clone()).or_default().push((node, Arc::downgrade(&notify)));
        }
        notify
    }

    /// Who listens to a topic.
    pub fn ears(&mut self, topic: &Topic) -> Vec<Weak<Notify>> {
        let Some(ears) = self.ears.get_mut(topic) else { return Vec::new() };
        ears.retain(|(_, ear)| ear.strong_count() > 0);
        ears.iter().map(|(_, ear)| ear.clone()).collect()
    }

    /// The text by which a node's process is known to the store.
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

/// A program's place in the world: what its store handle and its waits go through.
pub struct Place {
    pub world: Arc<World>,
    pub node: usize,
    pub life: u32,
}

impl Place {
    /// The store, as this program sees it.
    pub fn store(self: &Arc<Self>) -> Store {
        self.world.store.seen_from(Arc::clone(self) as Arc<dyn Machine>)
    }
}

struct Slot {
    node: usize,
    life: u32,
    task: Task,
    waker: Waker,
}

/// Runs the world until it says that it is over. `fire` does what an event says; it is given what cannot
/// happen by itself.
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

    /// Goes on until `fire` says that it is enough, or nothing is left to happen.
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

    /// Takes in what was spawned meanwhile.
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

    /// Forgets everything that a node was about to do.
    pub fn drop_tasks(&mut self, node: usize) {
        // Dropped one by one: what they hold may tell others.
        for id in 0..self.slots.len() {
            if self.slots[id].as_ref().is_some_and(|slot| slot.node == node) {
                drop(self.slots[id].take());
            }
        }
        let mut state = self.world.state();
        state.nodes[node].held.clear();
        state.spawned.retain(|(of, _, _)| *of != node);
    }

    /// A pause is over: what became ready meanwhile goes on.
    pub fn go_on(&mut self, node: usize) {
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
