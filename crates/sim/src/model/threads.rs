//! The model of a thread: two executions that want its session, every report about this turn and other ones by every
//! actor, workers that die or release their work, and people who stop, archive and delete the thread.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sprag_lifecycle::{
    Actor, ExecutionStatus, Lifecycle, Plan, PlanStep, RunId, Thread, ThreadEvent, ThreadStatus,
};
use sprag_store::testing::{Session, Tables, ops};
use sprag_store::{
    Claimer, Ending, Id, Lease, Lost, NewRun, Now, Result, Row, ThreadIntent, ThreadReport, ThreadRow,
};
use stateright::{Model, Property};

use super::spend;
use crate::check::{self, Violation};

const THREAD: Id = 1;
const NOW: Now = Now { wall_ms: 1, steady_ms: 1 };

/// The number of remaining events of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Turns that are opened.
    pub turns: u8,
    /// Workers that die.
    pub deaths: u8,
    /// Executions that are released.
    pub releases: u8,
    /// Runs that are cancelled.
    pub cancels: u8,
}

/// The model of a thread.
#[derive(Debug, Clone, Copy)]
pub struct ThreadModel {
    /// The number of executions that want the thread's session.
    pub runs: i64,
    /// The events that may happen.
    pub budget: Budget,
}

/// A state of the model.
#[derive(Debug, Clone)]
pub struct ThreadState {
    tables: Tables,
    /// The leases that workers hold, or believe to hold.
    leases: Vec<Lease>,
    /// The agents' processes: each lives in an execution, and has the number of its runtime.
    processes: Vec<(Lease, u32)>,
    /// The highest number that a runtime has had.
    last_runtime: u32,
    budget: Budget,
    violation: Option<Violation>,
}

/// An action in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadAction {
    /// A worker receives an execution.
    Claim,
    /// A worker starts the agent.
    Start(Lease),
    /// A report about this turn and this runtime, with this lease if a worker makes it.
    Report(ThreadEvent, Actor, Option<Lease>, u32, u32),
    /// A request of a person.
    Request(ThreadIntent),
    /// A worker ends the agent's process, and then reports that its execution has completed.
    Finish(Lease),
    /// A worker ends the agent's process, and then releases its execution.
    Release(Lease),
    /// A worker dies with the agent's process, and a reaper takes the execution from it.
    Dies(Lease),
    /// A person cancels a run.
    Cancel(RunId),
}

impl ThreadState {
    fn row(&self) -> &ThreadRow {
        self.tables.all_threads().next().expect("the thread is there")
    }

    fn transact<T>(&mut self, operation: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Option<T> {
        let before = self.tables.clone();
        match self.tables.transact(NOW, &mut || 4, operation) {
            Ok(answer) => {
                let checked = check::change(&before, &self.tables, self.tables.all_entries());
                self.violation = self.violation.take().or(checked.err());
                self.tables.forget_history();
                self.check_holder();
                Some(answer)
            }
            Err(error) => {
                self.violate("an operation answers", error.to_string());
                None
            }
        }
    }

    fn violate(&mut self, invariant: &'static str, seen: String) {
        self.violation.get_or_insert(Violation { invariant, seen });
    }

    fn is_valid(&self, lease: Lease) -> bool {
        self.tables.all_executions().any(|row| {
            row.id == lease.execution && row.status() == ExecutionStatus::Running && row.fence == lease.fence
        })
    }

    /// Checks that an open turn has a holder whose execution runs with its fence.
    fn check_holder(&mut self) {
        let row = self.row().clone();
        let busy = matches!(row.status(), ThreadStatus::Active | ThreadStatus::Provisioning);
        if busy != row.turn_open {
            self.violate(
                "a turn is open exactly while the thread is provisioning or active",
                format!("{row:?}"),
            );
        }
        if row.holder.is_some_and(|holder| !self.is_valid(holder)) || (busy && row.holder.is_none()) {
            self.violate("HT1 the holder of a thread runs with its fence", format!("{row:?}"));
        }
    }

    fn report(&mut self, event: ThreadEvent, actor: Actor, given: ThreadReport) -> bool {
        let before = self.row().clone();
        let Some(outcome) = self.transact(|session| ops::thread_event(session, THREAD, event, actor, &given))
        else {
            return false;
        };
        let after = self.row().clone();
        let seen = || format!("{event:?} of {given:?} by {actor:?}: {before:?} became {after:?}");
        if !outcome.is_applied() {
            if after != before {
                self.violate("L05 a refusal leaves the row as it was", seen());
            }
            return false;
        }
        let starts =
            [ThreadEvent::StartSucceeded, ThreadEvent::TurnStarted, ThreadEvent::RuntimeObservedActive];
        if starts.contains(&event) && before.stop_requested {
            self.violate("L09 a start does not overtake a stop", seen());
        }
        let of_turn = event.ends_turn() || starts.contains(&event);
        let of_other_number = [ThreadEvent::RuntimeExited, ThreadEvent::WorkspaceLost].contains(&event);
        if of_turn && !of_other_number && (given.turn != before.turn || !before.turn_open) {
            self.violate("L11 HT2 a former turn's report is none of this one", seen());
        }
        if (event.opens_turn() || starts.contains(&event)) && before.deleted {
            self.violate("L10 what was deleted is not revived", seen());
        }
        if event.opens_turn() && before.archived {
            self.violate("L10 what was archived is not revived", seen());
        }
        if event.ends_turn() && (after.turn_open || after.stop_requested) {
            self.violate("L12 what ends a turn ends the wish to stop it", seen());
        }
        if after.turn < before.turn {
            self.violate("turns only grow", seen());
        }
        true
    }

    fn start(&mut self, lease: Lease) -> bool {
        let (turn, runtime) = (self.row().turn, self.row().runtime);
        let given = ThreadReport { holder: Some(lease), turn, runtime, provision_attempt: 0 };
        if !self.report(ThreadEvent::ReprovisionStarted, Actor::Worker, given) {
            return false;
        }
        let runtime = self.row().runtime;
        if runtime <= self.last_runtime {
            self.violate("each start of an agent has a number of its own", format!("{runtime}"));
        }
        self.last_runtime = runtime.max(self.last_runtime);
        self.processes.push((lease, runtime));
        if self.processes.len() > 1 {
            let seen = format!("{:?}", self.processes);
            self.violate("HT3 one process has the session", seen);
        }
        true
    }

    /// Ends the agent's process in an execution.
    fn end_process(&mut self, lease: Lease) {
        self.processes.retain(|(of, _)| *of != lease);
    }

    fn finish(&mut self, lease: Lease) {
        self.end_process(lease);
        let ending = Ending::Completed { result: None };
        self.transact(|session| ops::finish(session, lease, &ending, None));
    }

    fn claim(&mut self) {
        let claimer = Claimer {
            worker: 1,
            queues: vec!["default".into()],
            reserved_only: false,
            services_only: false,
            lease_ms: i64::MAX / 4,
            nonce: 0,
        };
        let got = self.transact(|session| ops::claim(session, &claimer, 1)).unwrap_or_default();
        for assignment in got {
            let run = assignment.lease.execution.run;
            self.leases.push(assignment.lease);
            // The newest two of each run: an older one is refused by the same fence.
            if self.leases.iter().filter(|lease| lease.execution.run == run).count() > 2
                && let Some(oldest) = self.leases.iter().position(|lease| lease.execution.run == run)
            {
                self.leases.remove(oldest);
            }
        }
    }

    fn key(&self) -> impl Hash + PartialEq {
        let row = self.row();
        let executions: Vec<_> = self
            .tables
            .all_executions()
            .map(|row| (row.id, row.status() as u8, row.fence, row.cancel_requested, row.thread))
            .collect();
        (
            (row.status() as u8, row.holder, row.turn, row.turn_open, row.runtime),
            (row.stop_requested, row.archived, row.deleted),
            executions,
            (self.leases.clone(), self.processes.clone(), self.last_runtime),
            (self.budget, self.violation.is_some()),
        )
    }
}

impl Hash for ThreadState {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for ThreadState {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

/// Checks that the thread is at rest once all executions have ended, and that each of them could start the agent before,
/// unless the thread is archived or deleted, or its run is cancelled.
fn reaches_rest(mut state: ThreadState) -> bool {
    for _ in 0..8 {
        state.claim();
        let valid: Vec<Lease> = state.leases.iter().copied().filter(|lease| state.is_valid(*lease)).collect();
        // The holder comes first: the others wait for it.
        let holder = state.row().holder;
        for lease in holder.into_iter().chain(valid.into_iter().filter(|lease| Some(*lease) != holder)) {
            let is_cancelled =
                state.tables.all_executions().any(|row| row.id == lease.execution && row.cancel_requested);
            let row = state.row().clone();
            let may_start = !row.archived && !row.deleted && row.holder.is_none() && !is_cancelled;
            if may_start && !state.start(lease) {
                return false;
            }
            state.finish(lease);
        }
    }
    let row = state.row();
    !row.turn_open && row.holder.is_none() && state.processes.is_empty() && state.violation.is_none()
}

impl Model for ThreadModel {
    type State = ThreadState;
    type Action = ThreadAction;

    fn init_states(&self) -> Vec<ThreadState> {
        let mut state = ThreadState {
            tables: Tables::default(),
            leases: Vec::new(),
            processes: Vec::new(),
            last_runtime: 0,
            budget: self.budget,
            violation: None,
        };
        let plan = Plan::new("thread", vec![PlanStep::new("talk", Vec::new())]);
        let plan = Arc::new(plan.expect("the model's graph is sound"));
        let hash = ops::plan_hash(&plan);
        let made = state.tables.transact(NOW, &mut || 4, |session| {
            for run in 1..=self.runs {
                let new = NewRun::new(RunId::from_i64(run), Arc::clone(&plan));
                ops::create_run(session, &new, hash)?;
            }
            ops::create_thread(session, THREAD, None)
        });
        made.expect("the rows are created");
        state.tables.forget_history();
        vec![state]
    }

    fn actions(&self, state: &ThreadState, actions: &mut Vec<ThreadAction>) {
        if state.violation.is_some() {
            return;
        }
        let row = state.row();
        let budget = &state.budget;
        actions.push(ThreadAction::Claim);
        for rule in Thread::RULES {
            if rule.event == ThreadEvent::ReprovisionStarted || (rule.event.opens_turn() && budget.turns == 0)
            {
                continue;
            }
            // The report concerns this turn and runtime, or former ones.
            for turn in row.turn.saturating_sub(1)..=row.turn {
                for runtime in row.runtime.saturating_sub(1)..=row.runtime {
                    for actor in rule.who {
                        let of_reaper = (*actor == Actor::Reaper).then_some(None);
                        let of_worker = (*actor == Actor::Worker)
                            .then(|| state.leases.iter().copied().map(Some))
                            .into_iter()
                            .flatten();
                        actions.extend(
                            of_reaper
                                .into_iter()
                                .chain(of_worker)
                                .map(|lease| ThreadAction::Report(rule.event, *actor, lease, turn, runtime)),
                        );
                    }
                }
            }
        }
        for lease in &state.leases {
            if budget.turns > 0 {
                actions.push(ThreadAction::Start(*lease));
            }
            if state.is_valid(*lease) {
                actions.push(ThreadAction::Finish(*lease));
                if budget.releases > 0 {
                    actions.push(ThreadAction::Release(*lease));
                }
                if budget.deaths > 0 {
                    actions.push(ThreadAction::Dies(*lease));
                }
            }
        }
        if budget.cancels > 0 {
            actions.extend((1..=self.runs).map(|run| ThreadAction::Cancel(RunId::from_i64(run))));
        }
        let wishes = [ThreadIntent::Stop, ThreadIntent::Archive, ThreadIntent::Delete];
        actions.extend(wishes.map(ThreadAction::Request));
    }

    fn next_state(&self, state: &ThreadState, action: ThreadAction) -> Option<ThreadState> {
        let mut state = state.clone();
        match action {
            ThreadAction::Claim => state.claim(),
            ThreadAction::Start(lease) => {
                spend(&mut state.budget.turns);
                state.start(lease);
            }
            ThreadAction::Report(event, actor, holder, turn, runtime) => {
                if event.opens_turn() {
                    spend(&mut state.budget.turns);
                }
                let given = ThreadReport { holder, turn, runtime, provision_attempt: 0 };
                state.report(event, actor, given);
            }
            ThreadAction::Request(wish) => {
                let _ = state.transact(|session| ops::thread_intent(session, THREAD, wish));
            }
            ThreadAction::Finish(lease) => state.finish(lease),
            ThreadAction::Release(lease) => {
                spend(&mut state.budget.releases);
                state.end_process(lease);
                let _ = state.transact(|session| ops::release(session, lease));
            }
            ThreadAction::Dies(lease) => {
                spend(&mut state.budget.deaths);
                state.end_process(lease);
                let _ = state.transact(|session| ops::abandon(session, lease, Lost::ProcessGone));
            }
            ThreadAction::Cancel(run) => {
                spend(&mut state.budget.cancels);
                let _ = state.transact(|session| ops::cancel_run(session, run));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, state: &ThreadState| state.violation.is_none()),
            Property::always("a thread comes to rest with its executions", |_, state: &ThreadState| {
                state.violation.is_some() || reaches_rest(state.clone())
            }),
            Property::sometimes("a thread is deleted in mid-turn", |_, state: &ThreadState| {
                state.row().deleted && state.row().status() == ThreadStatus::Active
            }),
            Property::sometimes("a second execution continues the session", |_, state: &ThreadState| {
                state.row().runtime > 1 && state.row().status() == ThreadStatus::Active
            }),
        ]
    }
}
