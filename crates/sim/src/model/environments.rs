//! An environment and everything outside that can happen to it: makers and removers on one host that are lost or do
//! not hear the answer, files that vanish, a run that ends and is resumed in between.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sprag_lifecycle::{Actor, EnvironmentEvent, EnvironmentStatus, PlanStep, RunId, Surroundings};
use sprag_store::ops::{self, Lost, NewRun, NewWorker, Provide, Wanted};
use sprag_store::{EnvironmentGiven, EnvironmentRow, Id, Now, Result, Row, Session, Tables, WorkerRow};
use stateright::{Model, Property};

use super::spend;
use crate::check::{self, Violation};

const ENVIRONMENT: Id = 1;

/// How much may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Making or removing that fails.
    pub failures: u8,
    /// Answers that are lost, on the way there or back.
    pub lost_replies: u8,
    /// Programs that are killed.
    pub deaths: u8,
    /// Files that vanish.
    pub losses: u8,
    /// Resumes of the run.
    pub resumes: u8,
}

/// An environment, and how many programs look after it.
#[derive(Debug, Clone, Copy)]
pub struct Environments {
    /// Programs on the host.
    pub keepers: usize,
    /// What may go wrong.
    pub budget: Budget,
}

/// A directory, as it really is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Directory {
    /// Somebody makes it, or died doing so.
    Half,
    /// It can be worked in.
    Whole,
    /// Somebody removes it, or died doing so.
    Going,
}

/// What a program is at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Hand {
    /// It makes the directory at this path, as this attempt.
    Making(Arc<str>, u32),
    /// It removes it.
    Removing(Arc<str>, u32),
}

/// A state of the environment's world.
#[derive(Debug, Clone)]
pub struct World {
    tables: Tables,
    disk: BTreeMap<Arc<str>, Directory>,
    hands: Vec<Option<Hand>>,
    budget: Budget,
    violation: Option<Violation>,
}

/// What becomes of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It arrives, and so does its answer.
    Well,
    /// It never arrives.
    LostThere,
    /// Its answer does not arrive.
    LostBack,
}

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A program wants to work in it.
    Provide(usize),
    /// What it was at is over, well or badly.
    Done(usize, bool, Way),
    /// A program clears away what no run needs.
    Remove(usize),
    /// A program is killed, and its death is seen.
    Dies(usize),
    /// It comes back.
    Comes(usize),
    /// Somebody speaks for a maker that is gone.
    Speak,
    /// The files vanish.
    Vanish,
    /// The run ends.
    Ends,
    /// It is resumed.
    Resumed,
}

fn run() -> RunId {
    RunId::from_i64(1)
}

fn worker(keeper: usize) -> Id {
    keeper as Id + 1
}

impl World {
    fn transact<T>(&mut self, operation: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Option<T> {
        let before = self.tables.clone();
        let now = Now { wall_ms: 0, steady_ms: 1 };
        match self.tables.transact(now, &mut || 4, operation) {
            Ok(answer) => {
                let checked = check::change(&before, &self.tables, self.tables.all_entries());
                self.violation = self.violation.take().or(checked.err());
                self.tables.forget_history();
                Some(answer)
            }
            Err(error) => {
                self.violation =
                    Some(Violation { invariant: "an operation answers", seen: error.to_string() });
                None
            }
        }
    }

    fn row(&self) -> Option<&EnvironmentRow> {
        self.tables.all_environments().next()
    }

    fn is_over(&self) -> bool {
        self.tables.all_runs().next().expect("the run is there").status().is_terminal()
    }

    fn is_known(&mut self, keeper: usize) -> bool {
        let now = Now { wall_ms: 0, steady_ms: 1 };
        let there = self.tables.read(now, |db| db.workers()).unwrap_or_default();
        there.iter().any(|row: &WorkerRow| row.id == worker(keeper))
    }

    fn violate(&mut self, invariant: &'static str, seen: String) {
        self.violation.get_or_insert(Violation { invariant, seen });
    }

    fn key(&self) -> impl Hash + PartialEq + use<> {
        let row = self.row().map(|row| {
            let at = (row.status() as u8, row.cleanup_requested, row.provision_attempt, row.destroy_attempt);
            (at, row.owner, Arc::clone(&row.path))
        });
        let workers = {
            let mut tables = self.tables.clone();
            let now = Now { wall_ms: 0, steady_ms: 1 };
            let there = tables.read(now, |db| db.workers()).unwrap_or_default();
            there.iter().map(|row| row.id).collect::<Vec<Id>>()
        };
        let rest = (self.disk.clone(), self.hands.clone(), self.budget, self.violation.clone());
        (row, workers, self.is_over(), rest)
    }

    fn provide(&mut self, keeper: usize) {
        let path = self.row().map(|row| Arc::clone(&row.path));
        let there = path.is_some_and(|path| self.disk.get(&path) == Some(&Directory::Whole));
        let wanted = Wanted {
            id: ENVIRONMENT,
            run: run(),
            scope: None,
            host: "host".into(),
            worker: worker(keeper),
            managed: true,
            path: "/w".into(),
            details: "{}".into(),
        };
        match self.transact(|session| ops::provide_environment(session, &wanted, there)) {
            Some(Provide::Make(row)) => {
                if self.disk.insert(Arc::clone(&row.path), Directory::Half).is_some() {
                    self.violate("I24 a leftover is not used again", format!("{row:?}"));
                }
                self.hands[keeper] = Some(Hand::Making(row.path, row.provision_attempt));
            }
            Some(Provide::Ready(row)) if self.disk.get(&row.path) != Some(&Directory::Whole) => {
                self.violate("I24 what is ready is whole", format!("{row:?}"));
            }
            _ => {}
        }
    }

    fn done(&mut self, keeper: usize, well: bool, way: Way) {
        let Some(hand) = self.hands[keeper].take() else { return };
        if !well {
            spend(&mut self.budget.failures);
        }
        if way != Way::Well {
            spend(&mut self.budget.lost_replies);
        }
        let (event, attempt) = match hand {
            Hand::Making(path, attempt) => {
                if well && self.disk.get(&path) == Some(&Directory::Half) {
                    self.disk.insert(path, Directory::Whole);
                }
                let event = match well {
                    true => EnvironmentEvent::ProvisionSucceeded,
                    false => EnvironmentEvent::ProvisionFailed,
                };
                (event, attempt)
            }
            Hand::Removing(path, attempt) if well => {
                self.disk.remove(&path);
                (EnvironmentEvent::DestroySucceeded, attempt)
            }
            Hand::Removing(_, attempt) => (EnvironmentEvent::DestroyFailed, attempt),
        };
        if way == Way::LostThere {
            return;
        }
        let given = EnvironmentGiven { attempt, ..EnvironmentGiven::default() };
        let before = self.row().cloned();
        let outcome = self
            .transact(|session| ops::environment_event(session, ENVIRONMENT, event, Actor::Worker, &given));
        let (Some(outcome), Some(before)) = (outcome, before) else { return };
        let current = match event {
            EnvironmentEvent::DestroySucceeded | EnvironmentEvent::DestroyFailed => before.destroy_attempt,
            _ => before.provision_attempt,
        };
        if outcome.is_applied() && attempt != current {
            self.violate(
                "L13 L14 a former attempt's word counts for nothing",
                format!("{event:?} {attempt}"),
            );
        }
    }

    fn remove(&mut self, keeper: usize) {
        let Some(row) = self.row().cloned() else { return };
        let present = self.disk.contains_key(&row.path) || row.status() == EnvironmentStatus::Error;
        let begun = self
            .transact(|session| ops::dispatch_destroy(session, ENVIRONMENT, worker(keeper), present))
            .flatten();
        let Some(attempt) = begun else { return };
        if !self.is_over() {
            self.violate("L14 nothing is removed under a live run", format!("{row:?}"));
        }
        if let Some(directory) = self.disk.get_mut(&row.path) {
            *directory = Directory::Going;
        }
        self.hands[keeper] = Some(Hand::Removing(row.path, attempt));
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Provide(keeper) => self.provide(keeper),
            Act::Done(keeper, well, way) => self.done(keeper, well, way),
            Act::Remove(keeper) => self.remove(keeper),
            Act::Dies(keeper) => {
                spend(&mut self.budget.deaths);
                self.hands[keeper] = None;
                self.transact(|session| ops::worker_lost(session, worker(keeper), Lost::ProcessGone));
            }
            Act::Comes(keeper) => self.register(keeper),
            Act::Speak => {
                let attempt = self.row().map_or(0, |row| row.provision_attempt);
                let given = EnvironmentGiven { attempt, ..EnvironmentGiven::default() };
                let event = EnvironmentEvent::ProvisionFailed;
                self.transact(|s| ops::environment_event(s, ENVIRONMENT, event, Actor::Reaper, &given));
            }
            Act::Vanish => {
                spend(&mut self.budget.losses);
                self.disk.clear();
            }
            Act::Ends => {
                self.transact(|session| ops::cancel_run(session, run()));
            }
            Act::Resumed => {
                spend(&mut self.budget.resumes);
                self.transact(|session| ops::resume_run(session, run(), None));
            }
        }
    }

    fn register(&mut self, keeper: usize) {
        let new = NewWorker {
            id: worker(keeper),
            name: "keeper".into(),
            process: "host/1".into(),
            queues: "".into(),
            labels: "".into(),
            slots: 1,
            lease_ms: 10,
        };
        self.transact(|session| ops::register_worker(session, &new));
    }

    /// Its maker is not there any more.
    fn is_orphaned(&mut self) -> bool {
        let Some((status, owner)) = self.row().map(|row| (row.status(), row.owner)) else { return false };
        let there = owner.is_some_and(|owner| self.is_known(owner as usize - 1));
        status == EnvironmentStatus::Provisioning && !there
    }

    /// The run is over, and everybody does their part: nothing is left of the environment.
    fn comes_to_nothing(mut self) -> bool {
        if !self.is_over() {
            self.act(Act::Ends);
        }
        for _ in 0..8 {
            if self.row().is_none_or(|row| row.status() == EnvironmentStatus::Destroyed) {
                return self.violation.is_none();
            }
            for keeper in 0..self.hands.len() {
                if !self.is_known(keeper) {
                    self.register(keeper);
                }
                self.act(Act::Done(keeper, true, Way::Well));
                self.act(Act::Remove(keeper));
            }
        }
        false
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Model for Environments {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            tables: Tables::default(),
            disk: BTreeMap::new(),
            hands: vec![None; self.keepers],
            budget: self.budget,
            violation: None,
        };
        let steps = vec![PlanStep::new("a", Vec::new())];
        let mut plan = sprag_lifecycle::Plan::new("model", steps).expect("one step that needs nothing");
        plan.environment = Some(Surroundings { spec: "{}".into() });
        let new = NewRun::new(run(), Arc::new(plan));
        world.transact(|session| ops::create_run(session, &new, 1));
        for keeper in 0..self.keepers {
            world.register(keeper);
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        if world.violation.is_some() {
            return;
        }
        let mut looked = world.clone();
        for keeper in 0..self.keepers {
            if !looked.is_known(keeper) {
                actions.push(Act::Comes(keeper));
                continue;
            }
            if world.hands[keeper].is_some() {
                for well in [true, false] {
                    if well || world.budget.failures > 0 {
                        actions.push(Act::Done(keeper, well, Way::Well));
                        if world.budget.lost_replies > 0 {
                            actions.push(Act::Done(keeper, well, Way::LostThere));
                            actions.push(Act::Done(keeper, well, Way::LostBack));
                        }
                    }
                }
            } else {
                match world.is_over() {
                    true => actions.push(Act::Remove(keeper)),
                    false => actions.extend([Act::Provide(keeper), Act::Remove(keeper)]),
                }
            }
            if world.budget.deaths > 0 {
                actions.push(Act::Dies(keeper));
            }
        }
        if looked.is_orphaned() {
            actions.push(Act::Speak);
        }
        if world.budget.losses > 0 && !world.disk.is_empty() {
            actions.push(Act::Vanish);
        }
        match world.is_over() {
            true if world.budget.resumes > 0 => actions.push(Act::Resumed),
            true => {}
            false => actions.push(Act::Ends),
        }
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut world = world.clone();
        world.act(act);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, world: &World| world.violation.is_none()),
            Property::always("what is ready is not being removed", |_, world: &World| {
                let Some(row) = world.row().filter(|row| row.status() == EnvironmentStatus::Ready) else {
                    return true;
                };
                let removing = Hand::Removing(Arc::clone(&row.path), row.destroy_attempt);
                !world.hands.contains(&Some(removing))
            }),
            Property::always("what no run needs is cleared away", |_, world: &World| {
                world.clone().comes_to_nothing()
            }),
            Property::sometimes("it is made again after it was removed", |_, world: &World| {
                world.row().is_some_and(|row| row.provision_attempt > 1 && row.destroy_attempt > 0)
            }),
        ]
    }
}
