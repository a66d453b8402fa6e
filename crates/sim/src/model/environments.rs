//! The model of an environment and its runtime: programs on one host that create and remove it, die or miss
//! answers; files that vanish; a run that ends and is resumed in between.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sprag_lifecycle::{Actor, EnvironmentEvent, EnvironmentStatus, PlanEnvironment, PlanStep, RunId};
use sprag_store::testing::{Session, Tables, ops};
use sprag_store::{
    EnvironmentReport, EnvironmentRequest, EnvironmentRow, Id, Lost, NewRun, NewWorker, Now, Provide, Result,
    Row, Sighting, WorkerRow,
};
use stateright::{Model, Property};

use super::spend;
use crate::check::{self, Violation};

const ENVIRONMENT: Id = 1;

/// The number of remaining events of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Failures of creation or removal.
    pub failures: u8,
    /// Lost requests or answers.
    pub lost_replies: u8,
    /// Programs that are killed.
    pub deaths: u8,
    /// Losses of the files.
    pub losses: u8,
    /// Resumes of the run.
    pub resumes: u8,
}

/// The model of an environment and the programs that manage it.
#[derive(Debug, Clone, Copy)]
pub struct EnvironmentModel {
    /// The number of programs on the host.
    pub keepers: usize,
    /// The events that may happen.
    pub budget: Budget,
}

/// The real state of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Directory {
    /// A program creates it, or died while doing so.
    Incomplete,
    /// It is complete.
    Complete,
    /// A program removes it, or died while doing so.
    Removing,
}

/// The current activity of a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Activity {
    /// It creates the directory at this path, in this attempt.
    Making(Arc<str>, u32),
    /// It removes the directory at this path, in this attempt.
    Removing(Arc<str>, u32),
}

/// A state of the model.
#[derive(Debug, Clone)]
pub struct EnvironmentState {
    tables: Tables,
    disk: BTreeMap<Arc<str>, Directory>,
    hands: Vec<Option<Activity>>,
    /// Each program's last observation of the files, until it has asked for the environment.
    seen: Vec<Option<Sighting>>,
    budget: Budget,
    violation: Option<Violation>,
}

/// The delivery of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The report and its answer arrive.
    Arrives,
    /// The report is lost.
    RequestLost,
    /// The answer is lost.
    AnswerLost,
}

/// An action in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvironmentAction {
    /// A program that needs the environment checks whether its files exist.
    Look(usize),
    /// A program asks for the environment, with its observation.
    Provide(usize),
    /// The current activity of a program ends, with success or failure.
    Done(usize, bool, Delivery),
    /// A program removes environments that no run needs.
    Remove(usize),
    /// A program is killed, and its death is detected.
    Dies(usize),
    /// A killed program starts again.
    Comes(usize),
    /// A program reports a failure on behalf of a dead one.
    Speak,
    /// The files vanish.
    Vanish,
    /// The run ends.
    Ends,
    /// The run is resumed.
    Resumed,
}

fn run() -> RunId {
    RunId::from_i64(1)
}

fn worker(keeper: usize) -> Id {
    keeper as Id + 1
}

impl EnvironmentState {
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
        // Of an observation only matters whether the row has changed since.
        let version = self.row().map(Row::version);
        let seen =
            self.seen.iter().map(|seen| seen.map(|seen| (Some(seen.version) == version, seen.is_present)));
        (row, workers, self.is_over(), seen.collect::<Vec<_>>(), rest)
    }

    fn look(&mut self, keeper: usize) {
        let seen = self.row().map(|row| Sighting {
            version: row.version(),
            is_present: self.disk.get(&row.path) == Some(&Directory::Complete),
        });
        self.seen[keeper] = seen;
    }

    fn provide(&mut self, keeper: usize) {
        let seen = self.seen[keeper].take();
        let is_ready = |row: &&EnvironmentRow| row.status() == EnvironmentStatus::Ready;
        let whole = self.row().filter(is_ready).map(|row| Arc::clone(&row.path));
        let whole = whole.filter(|path| self.disk.get(path) == Some(&Directory::Complete));
        let wanted = EnvironmentRequest {
            id: ENVIRONMENT,
            run: run(),
            scope: None,
            host: "host".into(),
            worker: worker(keeper),
            managed: true,
            path: "/w".into(),
            details: "{}".into(),
        };
        match self.transact(|session| ops::provide_environment(session, &wanted, seen)) {
            Some(Provide::Make(row)) => {
                if let Some(path) = whole {
                    self.violate("what is ready and whole is not made again", path.to_string());
                }
                if self.disk.insert(Arc::clone(&row.path), Directory::Incomplete).is_some() {
                    self.violate("I24 a leftover is not used again", format!("{row:?}"));
                }
                self.hands[keeper] = Some(Activity::Making(row.path, row.provision_attempt));
            }
            // Files may vanish after the check: the program notices that, and checks again.
            Some(Provide::Ready(row))
                if self.disk.get(&row.path).is_some_and(|at| *at != Directory::Complete) =>
            {
                self.violate("I24 what is ready is whole", format!("{row:?}"));
            }
            _ => {}
        }
    }

    fn done(&mut self, keeper: usize, well: bool, way: Delivery) {
        let Some(hand) = self.hands[keeper].take() else { return };
        if !well {
            spend(&mut self.budget.failures);
        }
        if way != Delivery::Arrives {
            spend(&mut self.budget.lost_replies);
        }
        let (event, attempt) = match hand {
            Activity::Making(path, attempt) => {
                if well && self.disk.get(&path) == Some(&Directory::Incomplete) {
                    self.disk.insert(path, Directory::Complete);
                }
                let event = if well {
                    EnvironmentEvent::ProvisionSucceeded
                } else {
                    EnvironmentEvent::ProvisionFailed
                };
                (event, attempt)
            }
            Activity::Removing(path, attempt) if well => {
                self.disk.remove(&path);
                (EnvironmentEvent::DestroySucceeded, attempt)
            }
            Activity::Removing(_, attempt) => (EnvironmentEvent::DestroyFailed, attempt),
        };
        if way == Delivery::RequestLost {
            return;
        }
        let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
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
            *directory = Directory::Removing;
        }
        self.hands[keeper] = Some(Activity::Removing(row.path, attempt));
    }

    fn act(&mut self, act: EnvironmentAction) {
        match act {
            EnvironmentAction::Look(keeper) => self.look(keeper),
            EnvironmentAction::Provide(keeper) => self.provide(keeper),
            EnvironmentAction::Done(keeper, well, way) => self.done(keeper, well, way),
            EnvironmentAction::Remove(keeper) => self.remove(keeper),
            EnvironmentAction::Dies(keeper) => {
                spend(&mut self.budget.deaths);
                self.hands[keeper] = None;
                self.seen[keeper] = None;
                self.transact(|session| ops::worker_lost(session, worker(keeper), Lost::ProcessGone));
            }
            EnvironmentAction::Comes(keeper) => self.register(keeper),
            EnvironmentAction::Speak => {
                let attempt = self.row().map_or(0, |row| row.provision_attempt);
                let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
                let event = EnvironmentEvent::ProvisionFailed;
                self.transact(|s| ops::environment_event(s, ENVIRONMENT, event, Actor::Reaper, &given));
            }
            EnvironmentAction::Vanish => {
                spend(&mut self.budget.losses);
                self.disk.clear();
            }
            EnvironmentAction::Ends => {
                self.transact(|session| ops::cancel_run(session, run()));
            }
            EnvironmentAction::Resumed => {
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

    /// Returns whether the program that creates it is dead.
    fn is_orphaned(&mut self) -> bool {
        let Some((status, owner)) = self.row().map(|row| (row.status(), row.owner)) else { return false };
        let there = owner.is_some_and(|owner| self.is_known(owner as usize - 1));
        status == EnvironmentStatus::Provisioning && !there
    }

    /// Checks that nothing of the environment is left after the end of the run, if every program acts.
    fn cleans_up(mut self) -> bool {
        if !self.is_over() {
            self.act(EnvironmentAction::Ends);
        }
        for _ in 0..8 {
            if self.row().is_none_or(|row| row.status() == EnvironmentStatus::Destroyed) {
                return self.violation.is_none();
            }
            for keeper in 0..self.hands.len() {
                if !self.is_known(keeper) {
                    self.register(keeper);
                }
                self.act(EnvironmentAction::Done(keeper, true, Delivery::Arrives));
                self.act(EnvironmentAction::Remove(keeper));
            }
        }
        false
    }
}

impl Hash for EnvironmentState {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for EnvironmentState {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Model for EnvironmentModel {
    type State = EnvironmentState;
    type Action = EnvironmentAction;

    fn init_states(&self) -> Vec<EnvironmentState> {
        let mut state = EnvironmentState {
            tables: Tables::default(),
            disk: BTreeMap::new(),
            hands: vec![None; self.keepers],
            seen: vec![None; self.keepers],
            budget: self.budget,
            violation: None,
        };
        let steps = vec![PlanStep::new("a", Vec::new())];
        let mut plan = sprag_lifecycle::Plan::new("model", steps).expect("one step that needs nothing");
        plan.environment = Some(PlanEnvironment { spec: "{}".into() });
        let new = NewRun::new(run(), Arc::new(plan));
        state.transact(|session| ops::create_run(session, &new, 1));
        for keeper in 0..self.keepers {
            state.register(keeper);
        }
        vec![state]
    }

    fn actions(&self, state: &EnvironmentState, actions: &mut Vec<EnvironmentAction>) {
        if state.violation.is_some() {
            return;
        }
        let mut looked = state.clone();
        for keeper in 0..self.keepers {
            if !looked.is_known(keeper) {
                actions.push(EnvironmentAction::Comes(keeper));
                continue;
            }
            if state.hands[keeper].is_some() {
                for well in [true, false] {
                    if well || state.budget.failures > 0 {
                        actions.push(EnvironmentAction::Done(keeper, well, Delivery::Arrives));
                        if state.budget.lost_replies > 0 {
                            actions.push(EnvironmentAction::Done(keeper, well, Delivery::RequestLost));
                            actions.push(EnvironmentAction::Done(keeper, well, Delivery::AnswerLost));
                        }
                    }
                }
            } else {
                actions.push(EnvironmentAction::Remove(keeper));
                if !state.is_over() {
                    // Without a row there are no files to check.
                    match (state.seen[keeper], state.row()) {
                        (None, Some(_)) => actions.push(EnvironmentAction::Look(keeper)),
                        _ => actions.push(EnvironmentAction::Provide(keeper)),
                    }
                }
            }
            if state.budget.deaths > 0 {
                actions.push(EnvironmentAction::Dies(keeper));
            }
        }
        if looked.is_orphaned() {
            actions.push(EnvironmentAction::Speak);
        }
        if state.budget.losses > 0 && !state.disk.is_empty() {
            actions.push(EnvironmentAction::Vanish);
        }
        if !state.is_over() {
            actions.push(EnvironmentAction::Ends);
        } else if state.budget.resumes > 0 {
            actions.push(EnvironmentAction::Resumed);
        }
    }

    fn next_state(&self, state: &EnvironmentState, act: EnvironmentAction) -> Option<EnvironmentState> {
        let mut state = state.clone();
        state.act(act);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, state: &EnvironmentState| state.violation.is_none()),
            Property::always("what is ready is not being removed", |_, state: &EnvironmentState| {
                let Some(row) = state.row().filter(|row| row.status() == EnvironmentStatus::Ready) else {
                    return true;
                };
                let removing = Activity::Removing(Arc::clone(&row.path), row.destroy_attempt);
                !state.hands.contains(&Some(removing))
            }),
            Property::always("what no run needs is cleared away", |_, state: &EnvironmentState| {
                state.clone().cleans_up()
            }),
            Property::sometimes("it is made again after it was removed", |_, state: &EnvironmentState| {
                state.row().is_some_and(|row| row.provision_attempt > 1 && row.destroy_attempt > 0)
            }),
        ]
    }
}
