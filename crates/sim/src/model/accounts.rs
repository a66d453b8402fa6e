//! The model of an account that several runs share: limits that are reported in time, late or twice, holds of persons,
//! workers that die, executors that start again, and the time that passes.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sprag_lifecycle::{
    AccountStatus, ExecutionId, ExecutionStatus, Plan, PlanAccount, PlanStep, Policy, RunId, RunStatus,
};
use sprag_store::testing::{Session, Tables, ops};
use sprag_store::{
    AccountRow, Claimer, Ending, ExecutionRow, Lease, Lost, NewHold, NewRun, Now, Result, Row, UsageLimit,
};
use stateright::{Model, Property};

use super::spend;
use crate::check::{self, Violation};

/// The length of one tick of the model's clocks: the hold after a limit without a known end lasts one tick at first.
const TICK_MS: i64 = 15 * 60_000;
/// The name of the account.
const ACCOUNT: &str = "work";
/// The queue of all executions.
const QUEUE: &str = "default";

/// The number of remaining events of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Limits that agents report.
    pub limits: u8,
    /// Reports with a lease that is no longer valid.
    pub late: u8,
    /// Workers that die.
    pub deaths: u8,
    /// Holds that a person sets.
    pub holds: u8,
    /// Holds that a person ends.
    pub lifts: u8,
    /// Ticks of the clocks.
    pub ticks: u8,
}

/// The model of an account.
#[derive(Debug, Clone, Copy)]
pub struct AccountModel {
    /// The number of runs, each with one step of the account.
    pub runs: i64,
    /// The most executions that may be out at once.
    pub maximum: u32,
    /// The events that may happen.
    pub budget: Budget,
}

/// A state of the model.
#[derive(Debug, Clone)]
pub struct AccountState {
    tables: Tables,
    now: Now,
    /// The leases that workers hold, or believe to hold.
    leases: Vec<Lease>,
    budget: Budget,
    violation: Option<Violation>,
}

/// The end of a reported limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitEnd {
    /// One tick from now.
    Known,
    /// The agent did not say.
    Unknown,
    /// In the past.
    Past,
}

/// An action in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountAction {
    /// An executor hands over what has a place.
    Fill,
    /// An executor starts, and heals a run.
    Heal(RunId),
    /// A worker receives an execution.
    Claim,
    /// An agent reports a limit.
    Limit(Lease, LimitEnd),
    /// An agent answers for the first time.
    Answered(Lease),
    /// An agent completes its work.
    Complete(Lease),
    /// A worker dies.
    Dies(Lease),
    /// A person holds the account, without an end.
    Hold,
    /// A person ends the hold.
    Lift,
    /// The time passes.
    Tick,
}

impl AccountState {
    fn transact<T>(&mut self, operation: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Option<T> {
        let before = self.tables.clone();
        match self.tables.transact(self.now, &mut || 4, operation) {
            Ok(answer) => {
                let checked = check::change(&before, &self.tables, self.tables.all_entries());
                self.violation = self.violation.take().or(checked.err());
                self.check_places(&before);
                self.tables.forget_history();
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

    fn account(&self) -> &AccountRow {
        self.tables.all_accounts().next().expect("the account is there")
    }

    fn execution(&self, id: ExecutionId) -> Option<&ExecutionRow> {
        self.tables.all_executions().find(|row| row.id == id)
    }

    fn is_valid(&self, lease: Lease) -> bool {
        self.execution(lease.execution)
            .is_some_and(|row| row.status() == ExecutionStatus::Running && row.fence == lease.fence)
    }

    /// Checks that no more executions are out than the account allows.
    fn check_places(&mut self, before: &Tables) {
        let account = self.account().clone();
        let out: Vec<ExecutionRow> =
            self.tables.all_executions().filter(|row| is_out(row.status())).cloned().collect();
        let was_out = |row: &ExecutionRow| {
            before
                .all_executions()
                .any(|old| old.id == row.id && is_out(old.status()) && old.published_ms == row.published_ms)
        };
        if out.len() > account.maximum as usize {
            self.violate("an account's limit holds", format!("{out:?}"));
        }
        if account.is_held(self.now) && out.iter().any(|row| !was_out(row)) {
            self.violate("nothing is handed over while its account is held", format!("{account:?} {out:?}"));
        }
        let of_now = out.iter().filter(|row| row.account_generation == account.generation).count();
        if account.status() == AccountStatus::Probing && of_now > 1 {
            self.violate("one execution tries an account after a hold", format!("{account:?} {out:?}"));
        }
    }

    fn limit(&mut self, lease: Lease, end: LimitEnd) {
        let (account, row) = (self.account().clone(), self.execution(lease.execution).cloned());
        let step_before = self.tables.all_steps().find(|step| step.run == lease.execution.run).cloned();
        let valid = self.is_valid(lease);
        let until_ms = match end {
            LimitEnd::Known => Some(self.now.wall_ms + TICK_MS),
            LimitEnd::Unknown => None,
            LimitEnd::Past => Some(self.now.wall_ms),
        };
        let limit = UsageLimit { until_ms, message: "limit".into() };
        let ending = Ending::Limited(limit);
        self.transact(|session| ops::finish(session, lease, &ending, None));
        let after = self.account().clone();
        let step_after = self.tables.all_steps().find(|step| step.run == lease.execution.run).cloned();
        let tries =
            |step: &Option<sprag_store::StepRow>| step.as_ref().map(|step| (step.attempt, step.tries));
        if tries(&step_before) != tries(&step_after) {
            self.violate("a limit loses no try", format!("{step_before:?} {step_after:?}"));
        }
        let counts = valid && row.is_some_and(|row| row.account_generation == account.generation);
        let became_held = account.status() != AccountStatus::Held && after.status() == AccountStatus::Held;
        if became_held && !counts {
            self.violate("a late report holds nothing", format!("{lease:?} {account:?} {after:?}"));
        }
        if counts && end != LimitEnd::Past && after.status() != AccountStatus::Held {
            self.violate("a limit holds its account", format!("{lease:?} {account:?} {after:?}"));
        }
        if valid && self.is_valid(lease) {
            self.violate("a limited execution is released in the same commit", format!("{lease:?}"));
        }
    }

    fn claim(&mut self) {
        let claimer = Claimer {
            worker: 1,
            queues: vec![QUEUE.into()],
            reserved_only: false,
            services_only: false,
            lease_ms: i64::MAX / 4,
            nonce: 0,
        };
        let got = self.transact(|session| ops::claim(session, &claimer, 1)).unwrap_or_default();
        for assignment in got {
            // The newest two of each run: an older one is refused by the same fence.
            self.leases.push(assignment.lease);
            let run = assignment.lease.execution.run;
            let of_run = self.leases.iter().filter(|lease| lease.execution.run == run).count();
            if of_run > 2
                && let Some(oldest) = self.leases.iter().position(|lease| lease.execution.run == run)
            {
                self.leases.remove(oldest);
            }
        }
    }

    fn fill(&mut self) {
        let now_ms = self.now.steady_ms;
        let due = self.tables.read(self.now, |db| db.timers_due(now_ms, 100)).unwrap_or_default();
        for timer in due {
            self.transact(|session| ops::timer_fired(session, timer.execution));
        }
        self.transact(|session| ops::fill_queue(session, QUEUE, 10));
    }

    fn hold(&mut self) {
        let new = NewHold { account: ACCOUNT.into(), until_ms: None, reason: None };
        self.transact(|session| ops::hold_account(session, &new));
    }

    fn lift(&mut self) {
        self.transact(|session| ops::release_account(session, ACCOUNT));
    }

    fn tick(&mut self) {
        self.now.wall_ms += TICK_MS;
        self.now.steady_ms += TICK_MS;
    }

    fn key(&self) -> impl Hash + PartialEq {
        let account = self.account();
        let executions: Vec<_> = self
            .tables
            .all_executions()
            .map(|row| (row.id, row.status() as u8, row.fence, row.account_generation, row.not_before_ms))
            .collect();
        let steps: Vec<_> =
            self.tables.all_steps().map(|step| (step.status() as u8, step.attempt, step.losses)).collect();
        (
            (account.status() as u8, account.generation, account.until_ms, account.strikes),
            executions,
            steps,
            self.leases.clone(),
            (self.budget, self.now.steady_ms, self.violation.is_some()),
        )
    }
}

fn is_out(status: ExecutionStatus) -> bool {
    matches!(status, ExecutionStatus::Scheduled | ExecutionStatus::Running)
}

impl Hash for AccountState {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for AccountState {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

/// Checks that all runs complete if agents work, time passes, and a person ends holds without an end.
fn reaches_the_end(mut state: AccountState) -> bool {
    for _ in 0..16 {
        if state.account().until_ms.is_none() {
            state.lift();
        }
        state.tick();
        for _ in 0..4 {
            state.fill();
            state.claim();
        }
        for lease in
            state.leases.clone().into_iter().filter(|lease| state.is_valid(*lease)).collect::<Vec<_>>()
        {
            state.transact(|session| ops::account_answered(session, lease));
            state.transact(|session| ops::finish(session, lease, &Ending::Completed { result: None }, None));
        }
        if state.tables.all_runs().all(|run| run.status() == RunStatus::Completed) {
            return state.violation.is_none();
        }
    }
    false
}

fn plan(maximum: u32) -> Arc<Plan> {
    let account = PlanAccount {
        name: ACCOUNT.into(),
        max_parallel: maximum,
        longest_wait_ms: None,
        fallbacks: Vec::new(),
    };
    let step = PlanStep {
        account: Some(account),
        policy: Policy { attempts: 1, ..Policy::default() },
        ..PlanStep::new("work", Vec::new())
    };
    Arc::new(Plan::new("account", vec![step]).expect("the model's graph is sound"))
}

impl Model for AccountModel {
    type State = AccountState;
    type Action = AccountAction;

    fn init_states(&self) -> Vec<AccountState> {
        let now = Now { wall_ms: TICK_MS, steady_ms: TICK_MS };
        let mut state = AccountState {
            tables: Tables::default(),
            now,
            leases: Vec::new(),
            budget: self.budget,
            violation: None,
        };
        let plan = plan(self.maximum);
        let hash = ops::plan_hash(&plan);
        for run in 1..=self.runs {
            let new = NewRun::new(RunId::from_i64(run), Arc::clone(&plan));
            let made = state.tables.transact(now, &mut || 4, |session| ops::create_run(session, &new, hash));
            made.expect("the run is created");
        }
        state.tables.forget_history();
        vec![state]
    }

    fn actions(&self, state: &AccountState, actions: &mut Vec<AccountAction>) {
        if state.violation.is_some() {
            return;
        }
        actions.extend([AccountAction::Fill, AccountAction::Claim]);
        actions.extend((1..=self.runs).map(|run| AccountAction::Heal(RunId::from_i64(run))));
        let budget = &state.budget;
        for lease in &state.leases {
            let valid = state.is_valid(*lease);
            if valid {
                actions.extend([AccountAction::Answered(*lease), AccountAction::Complete(*lease)]);
            }
            if valid && budget.deaths > 0 {
                actions.push(AccountAction::Dies(*lease));
            }
            if budget.limits > 0 && (valid || budget.late > 0) {
                let ends = [LimitEnd::Known, LimitEnd::Unknown, LimitEnd::Past];
                actions.extend(ends.map(|end| AccountAction::Limit(*lease, end)));
            }
        }
        if budget.holds > 0 {
            actions.push(AccountAction::Hold);
        }
        if budget.lifts > 0 {
            actions.push(AccountAction::Lift);
        }
        if budget.ticks > 0 {
            actions.push(AccountAction::Tick);
        }
    }

    fn next_state(&self, state: &AccountState, action: AccountAction) -> Option<AccountState> {
        let mut state = state.clone();
        match action {
            AccountAction::Fill => state.fill(),
            AccountAction::Heal(run) => drop(state.transact(|session| ops::heal_run(session, run))),
            AccountAction::Claim => state.claim(),
            AccountAction::Limit(lease, end) => {
                spend(&mut state.budget.limits);
                if !state.is_valid(lease) {
                    spend(&mut state.budget.late);
                }
                state.limit(lease, end);
            }
            AccountAction::Answered(lease) => {
                let _ = state.transact(|session| ops::account_answered(session, lease));
            }
            AccountAction::Complete(lease) => {
                let ending = Ending::Completed { result: None };
                let _ = state.transact(|session| ops::finish(session, lease, &ending, None));
            }
            AccountAction::Dies(lease) => {
                spend(&mut state.budget.deaths);
                let _ = state.transact(|session| ops::abandon(session, lease, Lost::ProcessGone));
            }
            AccountAction::Hold => {
                spend(&mut state.budget.holds);
                state.hold();
            }
            AccountAction::Lift => {
                spend(&mut state.budget.lifts);
                state.lift();
            }
            AccountAction::Tick => {
                spend(&mut state.budget.ticks);
                state.tick();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, state: &AccountState| state.violation.is_none()),
            Property::always("every run completes once the account works", |_, state: &AccountState| {
                state.violation.is_some() || reaches_the_end(state.clone())
            }),
            Property::sometimes("an account is tried after a hold", |_, state: &AccountState| {
                state.account().status() == AccountStatus::Probing
            }),
            Property::sometimes("an account is free again after a hold", |_, state: &AccountState| {
                state.account().status() == AccountStatus::Free && state.account().generation > 1
            }),
            Property::sometimes("a limit without a known end is doubled", |_, state: &AccountState| {
                state.account().strikes > 1
            }),
        ]
    }
}
