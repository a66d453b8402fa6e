//! Every interleaving on a small board: tasks with needs are added, claimed, finished, cancelled and retried, while
//! their holders are lost and the board is closed or cancelled.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sprag_lifecycle::{
    ExecutionId, ExecutionStatus, Plan, PlanStep, Policy, RunId, RunStatus, Spread, StepNo, StepStatus,
    TaskNeed, WorkKind,
};
use sprag_store::testing::{Session, Tables, ops};
use sprag_store::{Ending, Lease, Lost, NewBoard, NewRun, NewTask, Now, Result, Row};
use stateright::{Model, Property};

use super::{EARLY, LATE, claimer, key, spend};
use crate::check::{self, Violation};

/// The number of remaining events of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Tasks that fail.
    pub failures: u8,
    /// Holders that are lost.
    pub expiries: u8,
    /// Releases of tasks.
    pub releases: u8,
    /// Cancels of tasks.
    pub cancels: u8,
    /// Retries of tasks.
    pub retries: u8,
    /// Cancels of the whole board.
    pub ends: u8,
}

/// The model of a board and its agents.
#[derive(Debug, Clone)]
pub struct BoardModel {
    /// The needs of each task by number, and whether failed needs are tolerated.
    pub tasks: Vec<(Vec<StepNo>, bool)>,
    /// The most attempts of each task.
    pub attempts: u32,
    /// The number of agents.
    pub agents: usize,
    /// The events that may happen.
    pub budget: Budget,
    /// The fraction of states, one in this many, that are checked for reaching the end.
    pub quiet_every: u64,
}

/// A state of the model.
#[derive(Debug, Clone)]
pub struct BoardState {
    tables: Tables,
    agents: Vec<Vec<Lease>>,
    added: usize,
    retried: bool,
    budget: Budget,
    violation: Option<Violation>,
}

/// An action in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoardAction {
    /// The leader adds the next task.
    Add,
    /// An agent asks for a task.
    Claim(usize),
    /// An agent reports.
    Finish(usize, Lease, bool),
    /// An agent stops cancelled work.
    GiveUp(usize, Lease),
    /// An agent releases a task.
    Release(usize, Lease),
    /// The reaper takes a task from an agent that still considers itself its holder.
    Expire(Lease),
    /// The leader cancels a task.
    Cancel(StepNo),
    /// The leader retries a task.
    Retry(StepNo),
    /// The leader closes the board.
    Close(bool),
    /// A person cancels the board.
    End,
}

fn board() -> RunId {
    RunId::from_i64(1)
}

impl BoardState {
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
            // A leader may send a request that has become pointless.
            Err(sprag_store::Error::Refused { .. } | sprag_store::Error::Invalid { .. }) => {
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

    fn needs_of(&mut self, no: StepNo) -> Vec<TaskNeed> {
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

    /// C03: each waiting task has the correct count of its needs, and a task that can be claimed has no open need.
    fn needs_are_counted(&mut self) -> std::result::Result<(), Violation> {
        for no in self.tasks() {
            let step = self.tables.all_steps().find(|step| step.no == no).expect("it was listed").clone();
            let needs = self.needs_of(no);
            let open = needs.iter().filter(|need| !self.status_of(need.item).is_settled()).count() as u32;
            let wrong = match step.status() {
                StepStatus::Waiting => step.needs.open != open,
                // A task that was ready when one of its needs was retried is not revoked.
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

impl Hash for BoardState {
    fn hash<H: Hasher>(&self, state: &mut H) {
        key(&self.tables).hash(state);
        (self.is_open(), &self.agents, self.added, self.retried, self.budget, &self.violation).hash(state);
    }
}

impl PartialEq for BoardState {
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

impl BoardModel {
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

    fn act(&self, state: &mut BoardState, act: BoardAction) {
        let transacted = match act {
            BoardAction::Add => {
                let task = self.task(state.added);
                state.added += 1;
                state.transact(EARLY, |session| ops::add_tasks(session, board(), &[task])).map(drop)
            }
            BoardAction::Claim(agent) => {
                let got = state.transact(EARLY, |session| ops::claim(session, &claimer(agent), 1));
                let leases = got.into_iter().flatten().map(|assignment| assignment.lease);
                state.agents[agent].extend(leases);
                None
            }
            BoardAction::Finish(agent, lease, well) => {
                state.agents[agent].retain(|held| *held != lease);
                let ending = if well {
                    Ending::Completed { result: None }
                } else {
                    Ending::Failed { result: None, retriable: true }
                };
                let done = state.transact(EARLY, |session| ops::finish(session, lease, &ending, None));
                if !well && done.is_some_and(|finished| finished.outcome.is_applied()) {
                    spend(&mut state.budget.failures);
                }
                None
            }
            BoardAction::GiveUp(agent, lease) => {
                state.agents[agent].retain(|held| *held != lease);
                let cancelled = Ending::Cancelled;
                state.transact(EARLY, |session| ops::finish(session, lease, &cancelled, None)).map(drop)
            }
            BoardAction::Release(agent, lease) => {
                spend(&mut state.budget.releases);
                state.agents[agent].retain(|held| *held != lease);
                state.transact(EARLY, |session| ops::release(session, lease)).map(drop)
            }
            BoardAction::Expire(lease) => {
                spend(&mut state.budget.expiries);
                state.transact(LATE, |session| ops::abandon(session, lease, Lost::LeaseLapsed)).map(drop)
            }
            BoardAction::Cancel(no) => {
                spend(&mut state.budget.cancels);
                state.transact(EARLY, |session| ops::cancel_task(session, board(), no)).map(drop)
            }
            BoardAction::Retry(no) => {
                spend(&mut state.budget.retries);
                state.retried = true;
                state.transact(EARLY, |session| ops::retry_task(session, board(), no)).map(drop)
            }
            BoardAction::Close(cancel) => {
                state.transact(EARLY, |session| ops::close_board(session, board(), cancel)).map(drop)
            }
            BoardAction::End => {
                spend(&mut state.budget.ends);
                state.transact(EARLY, |session| ops::cancel_run(session, board())).map(drop)
            }
        };
        let _ = transacted;
    }

    /// Checks that the board ends within a bound if every agent acts and the board is closed.
    fn ends(&self, mut state: BoardState) -> bool {
        /// More rounds than any of these boards can need.
        const ROUNDS: usize = 60;
        if state.is_open() && !state.run_status().is_terminal() {
            self.act(&mut state, BoardAction::Close(false));
        }
        for _ in 0..ROUNDS {
            if state.run_status().is_terminal() || state.violation.is_some() {
                return state.violation.is_none();
            }
            for row in running(&state.tables) {
                if !state.agents.iter().any(|held| held.contains(&row)) {
                    self.act(&mut state, BoardAction::Expire(row));
                }
            }
            for agent in 0..state.agents.len() {
                for lease in state.agents[agent].clone() {
                    let act = if is_to_end(&state.tables, lease) {
                        BoardAction::GiveUp(agent, lease)
                    } else {
                        BoardAction::Finish(agent, lease, true)
                    };
                    self.act(&mut state, act);
                }
                self.act(&mut state, BoardAction::Claim(agent));
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

impl Model for BoardModel {
    type State = BoardState;
    type Action = BoardAction;

    fn init_states(&self) -> Vec<BoardState> {
        let mut state = BoardState {
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
        state.transact(EARLY, |session| ops::create_board(session, &new, 1));
        vec![state]
    }

    fn actions(&self, state: &BoardState, actions: &mut Vec<BoardAction>) {
        if state.violation.is_some() || state.run_status().is_terminal() {
            return;
        }
        let Budget { failures, expiries, releases, cancels, retries, ends } = state.budget;
        if state.added < self.tasks.len() && state.is_open() {
            actions.push(BoardAction::Add);
        }
        if state.is_open() && state.added == self.tasks.len() {
            actions.extend([BoardAction::Close(false), BoardAction::Close(true)]);
        }
        let idle = state.agents.iter().position(Vec::is_empty);
        actions.extend(idle.map(BoardAction::Claim));
        for (agent, held) in state.agents.iter().enumerate() {
            for lease in held {
                actions.push(BoardAction::Finish(agent, *lease, true));
                if failures > 0 {
                    actions.push(BoardAction::Finish(agent, *lease, false));
                }
                if is_to_end(&state.tables, *lease) {
                    actions.push(BoardAction::GiveUp(agent, *lease));
                }
                if releases > 0 {
                    actions.push(BoardAction::Release(agent, *lease));
                }
            }
        }
        if expiries > 0 {
            actions.extend(running(&state.tables).into_iter().map(BoardAction::Expire));
        }
        for no in state.tasks() {
            if cancels > 0 {
                actions.push(BoardAction::Cancel(no));
            }
            if retries > 0 && state.status_of(no).is_settled() {
                actions.push(BoardAction::Retry(no));
            }
        }
        if ends > 0 {
            actions.push(BoardAction::End);
        }
    }

    fn next_state(&self, state: &BoardState, act: BoardAction) -> Option<BoardState> {
        let mut state = state.clone();
        self.act(&mut state, act);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, state: &BoardState| {
                state.violation.is_none() && check::state(&state.tables).is_ok()
            }),
            Property::always("a stale lease moves nothing", |_, state: &BoardState| {
                state.agents.iter().flatten().all(|lease| {
                    let id: ExecutionId = lease.execution;
                    let row = state.tables.all_executions().find(|row| row.id == id);
                    row.is_some_and(|row| row.fence >= lease.fence)
                })
            }),
            Property::always("a board that is closed ends", |model: &BoardModel, state: &BoardState| {
                let mut hasher = std::collections::hash_map::DefaultHasher::new();
                state.hash(&mut hasher);
                !hasher.finish().is_multiple_of(model.quiet_every) || model.ends(state.clone())
            }),
            Property::sometimes("a board completes", |_, state: &BoardState| {
                state.run_status() == RunStatus::Completed
            }),
        ]
    }
}
