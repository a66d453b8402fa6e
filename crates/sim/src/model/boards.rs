//! Every interleaving on a small board: tasks that need each other are added, claimed, finished, taken back, tried
//! again, while their holders are lost and the board is closed or cancelled.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sprag_lifecycle::{
    ExecutionId, ExecutionStatus, Following, Plan, PlanStep, Policy, RunId, RunStatus, Spread, StepNo,
    StepStatus, WorkKind,
};
use sprag_store::ops::{self, Ending, Lease, Lost, NewBoard, NewRun, NewTask};
use sprag_store::{Now, Result, Row, Session, Tables};
use stateright::{Model, Property};

use super::{EARLY, LATE, claimer, key, spend};
use crate::check::{self, Violation};

/// How much may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Tasks that fail.
    pub failures: u8,
    /// Holders that are lost.
    pub expiries: u8,
    /// Tasks given back.
    pub releases: u8,
    /// Tasks taken back.
    pub cancels: u8,
    /// Tasks tried again.
    pub retries: u8,
    /// The whole board is cancelled.
    pub ends: u8,
}

/// A board and those who work on it.
#[derive(Debug, Clone)]
pub struct Boards {
    /// The needs of each task, by their numbers, and whether they are enough when settled however.
    pub tasks: Vec<(Vec<StepNo>, bool)>,
    /// How often each may be tried.
    pub attempts: u32,
    /// How many agents come by.
    pub agents: usize,
    /// What may go wrong.
    pub budget: Budget,
    /// One state in so many is driven to its end.
    pub quiet_every: u64,
}

/// A state of the board's world.
#[derive(Debug, Clone)]
pub struct World {
    tables: Tables,
    agents: Vec<Vec<Lease>>,
    added: usize,
    retried: bool,
    budget: Budget,
    violation: Option<Violation>,
}

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The leader adds the next task.
    Add,
    /// An agent asks for a task.
    Claim(usize),
    /// An agent reports.
    Finish(usize, Lease, bool),
    /// An agent ends what it was told to end.
    GiveUp(usize, Lease),
    /// An agent gives one back.
    Release(usize, Lease),
    /// The reaper takes one from an agent that still believes in it.
    Expire(Lease),
    /// The leader takes one back.
    Cancel(StepNo),
    /// The leader has one tried again.
    Retry(StepNo),
    /// The leader closes the board.
    Close(bool),
    /// Somebody cancels the board.
    End,
}

fn board() -> RunId {
    RunId::from_i64(1)
}

impl World {
    fn transact<T>(&mut self, at: i64, operation: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Option<T> {
        let before = self.tables.clone();
        let now = Now { wall_ms: 0, steady_ms: at };
        match self.tables.transact(now, &mut || 4, operation) {
            Ok(answer) => {
                let checked = check::change(&before, &self.tables, self.tables.all_entries())
                    .and_then(|()| self.needs_are_counted());
                self.violation = self.violation.take().or(checked.err());
                self.tables.forget_history();
                Some(answer)
            }
            // A leader may ask for what makes no sense any more.
            Err(sprag_store::Error::Refused(why)) if !why.contains("the walk and the tables") => {
                self.tables = before;
                None
            }
            Err(error) => {
                self.violation =
                    Some(Violation { invariant: "an operation answers", seen: error.to_string() });
                None
            }
        }
    }

    fn needs_of(&mut self, no: StepNo) -> Vec<Following> {
        let now = Now { wall_ms: 0, steady_ms: EARLY };
        self.tables.read(now, |db| db.task_needs(board(), no)).unwrap_or_default()
    }

    fn status_of(&self, no: StepNo) -> StepStatus {
        let step = self.tables.all_steps().find(|step| step.no == no);
        step.expect("a task that is needed is there").status()
    }

    fn tasks(&self) -> Vec<StepNo> {
        self.tables.all_steps().filter(|step| step.item_of.is_some()).map(|step| step.no).collect()
    }

    /// C03: each task that waits keeps the count of its needs, and one that may be claimed has none open.
    fn needs_are_counted(&mut self) -> std::result::Result<(), Violation> {
        for no in self.tasks() {
            let step = self.tables.all_steps().find(|step| step.no == no).expect("it was listed").clone();
            let needs = self.needs_of(no);
            let open = needs.iter().filter(|need| !self.status_of(need.item).is_settled()).count() as u32;
            let wrong = match step.status() {
                StepStatus::Waiting => step.needs.open != open,
                // One that was ready when a need of it was tried again is not called back.
                StepStatus::Pending => open > 0 && !self.retried,
                _ => false,
            };
            if wrong {
                let seen = format!("{step:?} has {open} open needs of {needs:?}");
                return Err(Violation { invariant: "C03 needs between tasks", seen });
            }
        }
        Ok(())
    }

    fn run_status(&self) -> RunStatus {
        self.tables.all_runs().next().expect("the board is there").status()
    }

    fn is_open(&self) -> bool {
        self.tables.all_runs().next().expect("the board is there").open
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        key(&self.tables).hash(state);
        (self.is_open(), &self.agents, self.added, self.retried, self.budget, &self.violation).hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        key(&self.tables) == key(&other.tables)
            && (self.is_open(), &self.agents, self.added, self.retried, self.budget, &self.violation)
                == (
                    other.is_open(),
                    &other.agents,
                    other.added,
                    other.retried,
                    other.budget,
                    &other.violation,
                )
    }
}

impl Boards {
    fn plan(&self) -> Arc<Plan> {
        let step = PlanStep {
            policy: Policy { attempts: self.attempts, ..Policy::default() },
            work: WorkKind::Task,
            spread: Some(Spread { open: true, ..Spread::default() }),
            ..PlanStep::new("task", Vec::new())
        };
        Arc::new(Plan::new("board", vec![step]).expect("one step that needs nothing"))
    }

    fn task(&self, at: usize) -> NewTask {
        let (needs, tolerant) = &self.tasks[at];
        let needs = needs.iter().map(|need| need.to_string().into()).collect();
        NewTask { key: None, needs, tolerant: *tolerant, value: "{}".into() }
    }

    fn act(&self, world: &mut World, act: Act) {
        let transacted = match act {
            Act::Add => {
                let task = self.task(world.added);
                world.added += 1;
                world.transact(EARLY, |session| ops::add_tasks(session, board(), &[task])).map(drop)
            }
            Act::Claim(agent) => {
                let got = world.transact(EARLY, |session| ops::claim(session, &claimer(agent), 1));
                let leases = got.into_iter().flatten().map(|assignment| assignment.lease);
                world.agents[agent].extend(leases);
                None
            }
            Act::Finish(agent, lease, well) => {
                world.agents[agent].retain(|held| *held != lease);
                let ending = match well {
                    true => Ending::Completed { result: None },
                    false => Ending::Failed { result: None, retriable: true },
                };
                let done = world.transact(EARLY, |session| ops::finish(session, lease, &ending, None));
                if !well && done.is_some_and(|finished| finished.outcome.is_applied()) {
                    spend(&mut world.budget.failures);
                }
                None
            }
            Act::GiveUp(agent, lease) => {
                world.agents[agent].retain(|held| *held != lease);
                let cancelled = Ending::Cancelled;
                world.transact(EARLY, |session| ops::finish(session, lease, &cancelled, None)).map(drop)
            }
            Act::Release(agent, lease) => {
                spend(&mut world.budget.releases);
                world.agents[agent].retain(|held| *held != lease);
                world.transact(EARLY, |session| ops::release(session, lease)).map(drop)
            }
            Act::Expire(lease) => {
                spend(&mut world.budget.expiries);
                world.transact(LATE, |session| ops::abandon(session, lease, Lost::LeaseLapsed)).map(drop)
            }
            Act::Cancel(no) => {
                spend(&mut world.budget.cancels);
                world.transact(EARLY, |session| ops::cancel_task(session, board(), no)).map(drop)
            }
            Act::Retry(no) => {
                spend(&mut world.budget.retries);
                world.retried = true;
                world.transact(EARLY, |session| ops::retry_task(session, board(), no)).map(drop)
            }
            Act::Close(cancel) => {
                world.transact(EARLY, |session| ops::close_board(session, board(), cancel)).map(drop)
            }
            Act::End => {
                spend(&mut world.budget.ends);
                world.transact(EARLY, |session| ops::cancel_run(session, board())).map(drop)
            }
        };
        let _ = transacted;
    }

    /// Everybody does their part, and the board is closed: it ends within a bound.
    fn ends(&self, mut world: World) -> bool {
        /// More rounds than any of these boards can need.
        const ROUNDS: usize = 60;
        if world.is_open() && !world.run_status().is_terminal() {
            self.act(&mut world, Act::Close(false));
        }
        for _ in 0..ROUNDS {
            if world.run_status().is_terminal() || world.violation.is_some() {
                return world.violation.is_none();
            }
            for row in running(&world.tables) {
                if !world.agents.iter().any(|held| held.contains(&row)) {
                    self.act(&mut world, Act::Expire(row));
                }
            }
            for agent in 0..world.agents.len() {
                for lease in world.agents[agent].clone() {
                    let act = match is_to_end(&world.tables, lease) {
                        true => Act::GiveUp(agent, lease),
                        false => Act::Finish(agent, lease, true),
                    };
                    self.act(&mut world, act);
                }
                self.act(&mut world, Act::Claim(agent));
            }
        }
        false
    }
}

fn running(tables: &Tables) -> Vec<Lease> {
    let running = tables.all_executions().filter(|row| row.status() == ExecutionStatus::Running);
    running.map(|row| Lease { execution: row.id, fence: row.fence }).collect()
}

fn is_to_end(tables: &Tables, lease: Lease) -> bool {
    let row = tables.all_executions().find(|row| row.id == lease.execution);
    row.is_some_and(|row| row.cancel_requested && row.fence == lease.fence)
}

impl Model for Boards {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            tables: Tables::default(),
            agents: vec![Vec::new(); self.agents],
            added: 0,
            retried: false,
            budget: self.budget,
            violation: None,
        };
        let run = NewRun { open: true, ..NewRun::new(board(), self.plan()) };
        let text: Arc<str> = "".into();
        let new =
            NewBoard { run, name: "board".into(), goal: text.clone(), plan: text, queue: "default".into() };
        world.transact(EARLY, |session| ops::create_board(session, &new, 1));
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        if world.violation.is_some() || world.run_status().is_terminal() {
            return;
        }
        let Budget { failures, expiries, releases, cancels, retries, ends } = world.budget;
        if world.added < self.tasks.len() && world.is_open() {
            actions.push(Act::Add);
        }
        if world.is_open() && world.added == self.tasks.len() {
            actions.extend([Act::Close(false), Act::Close(true)]);
        }
        let idle = world.agents.iter().position(Vec::is_empty);
        actions.extend(idle.map(Act::Claim));
        for (agent, held) in world.agents.iter().enumerate() {
            for lease in held {
                actions.push(Act::Finish(agent, *lease, true));
                if failures > 0 {
                    actions.push(Act::Finish(agent, *lease, false));
                }
                if is_to_end(&world.tables, *lease) {
                    actions.push(Act::GiveUp(agent, *lease));
                }
                if releases > 0 {
                    actions.push(Act::Release(agent, *lease));
                }
            }
        }
        if expiries > 0 {
            actions.extend(running(&world.tables).into_iter().map(Act::Expire));
        }
        for no in world.tasks() {
            if cancels > 0 {
                actions.push(Act::Cancel(no));
            }
            if retries > 0 && world.status_of(no).is_settled() {
                actions.push(Act::Retry(no));
            }
        }
        if ends > 0 {
            actions.push(Act::End);
        }
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut world = world.clone();
        self.act(&mut world, act);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, world: &World| {
                world.violation.is_none() && check::state(&world.tables).is_ok()
            }),
            Property::always("a stale lease moves nothing", |_, world: &World| {
                world.agents.iter().flatten().all(|lease| {
                    let id: ExecutionId = lease.execution;
                    let row = world.tables.all_executions().find(|row| row.id == id);
                    row.is_some_and(|row| row.fence >= lease.fence)
                })
            }),
            Property::always("a board that is closed ends", |model: &Boards, world: &World| {
                let mut hasher = std::collections::hash_map::DefaultHasher::new();
                world.hash(&mut hasher);
                !hasher.finish().is_multiple_of(model.quiet_every) || model.ends(world.clone())
            }),
            Property::sometimes("a board completes", |_, world: &World| {
                world.run_status() == RunStatus::Completed
            }),
        ]
    }
}
